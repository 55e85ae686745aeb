package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
)

// How often stats measures, how long it lies in wait for a first rate, and how
// long one sandbox may take to answer.
const (
	statsEvery   = time.Second
	statsFirst   = 250 * time.Millisecond
	statsTimeout = 3 * time.Second
)

// sample is one sandbox as stats shows it.
type sample struct {
	ID         string        `json:"id"`
	Name       string        `json:"name,omitempty"`
	Backend    string        `json:"backend"`
	State      backend.State `json:"state"`
	CPUPercent *float64      `json:"cpu_percent,omitempty"` // of one core, since the sample before
	Usage      backend.Usage `json:"usage"`
	Limit      int64         `json:"memory_limit,omitempty"`
	Error      string        `json:"error,omitempty"`
	at         time.Time
}

func (a *App) statsCommand() *cobra.Command {
	var asJSON, once bool
	cmd := &cobra.Command{
		Use: "stats [flags] [SANDBOX...]", Aliases: []string{"metrics"},
		Short: "Show what kept sandboxes use",
		Long: `Show what kept sandboxes use, every second until told to stop; all of them when none is
named. With --json each second is one line.`,
		Example: "  glovebox stats --no-stream --json | jq .",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.stats(cmd.Context(), args, asJSON, once)
		},
		ValidArgsFunction: a.completeIDs(false),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&once, "no-stream", false, "show it once")
	return cmd
}

func (a *App) stats(ctx context.Context, names []string, asJSON, once bool) error {
	fl, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer fl.close()
	before, err := a.measure(ctx, fl, names, nil)
	if err != nil {
		return err
	}
	wait := statsFirst
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return because(ctx, ctx.Err())
		}
		now, err := a.measure(ctx, fl, names, before)
		switch {
		case ctx.Err() != nil:
			return because(ctx, ctx.Err())
		case len(names) > 0 && backend.KindOf(err) == backend.ErrNotFound && !once:
			return nil // they have ended
		case err != nil:
			return err
		}
		if err := a.printSamples(now, asJSON, once); err != nil || once {
			return err
		}
		before, wait = now, statsEvery
	}
}

// measure samples the sandboxes of these names, all without any. The rates are
// since before.
func (a *App) measure(ctx context.Context, fl *fleet, names []string, before []sample) ([]sample, error) {
	all, unasked := fl.list(ctx, names...)
	if err := ctx.Err(); err != nil {
		return nil, because(ctx, err)
	}
	var targets []entry
	for _, name := range names {
		e, err := pick(all, unasked, name)
		if err != nil {
			return nil, err
		}
		targets = append(targets, e)
	}
	if len(names) == 0 {
		for _, e := range all {
			if e.Keep && e.State != backend.StateLost {
				targets = append(targets, e)
			}
		}
		if before == nil {
			for _, err := range unasked {
				if _, absent := errors.AsType[*notThere](err); !absent {
					a.warn(err.Error())
				}
			}
		}
	}
	out := make([]sample, len(targets))
	var wg sync.WaitGroup
	for i, e := range targets {
		wg.Go(func() { out[i] = measureOne(ctx, e) })
	}
	wg.Wait()
	for i := range out {
		for _, b := range before {
			if out[i].at.IsZero() {
				break
			}
			if b.ID == out[i].ID && b.Backend == out[i].Backend && !b.at.IsZero() && b.Error == "" && out[i].Error == "" {
				rate := 100 * float64(max(out[i].Usage.CPU-b.Usage.CPU, 0)) / float64(max(out[i].at.Sub(b.at), 1))
				out[i].CPUPercent = &rate
			}
		}
	}
	return out, nil
}

func measureOne(ctx context.Context, e entry) sample {
	s := sample{ID: e.ID, Name: e.Labels[nameLabel], Backend: e.Backend, State: e.State, Limit: e.Limits.WithDefaults().Memory}
	if e.State != backend.StateRunning {
		return s // nobody inside could answer
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	err := withSandbox(ctx, e, "stats", func(m backend.Meter) (err error) {
		s.Usage, err = m.Usage(ctx)
		return err
	})
	s.at = time.Now()
	if err != nil {
		s.Error = err.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.Error = fmt.Sprintf("no answer within %s", statsTimeout)
	}
	return s
}

func (a *App) printSamples(samples []sample, asJSON, once bool) error {
	if asJSON && once {
		return printJSON(a.Stdout, samples)
	}
	if asJSON {
		line, err := json.Marshal(samples)
		if err == nil {
			_, err = a.Stdout.Write(append(escapeC1(line), '\n'))
		}
		return err
	}
	if _, ok := terminal(a.Stdout); ok && !once {
		fmt.Fprint(a.Stdout, "\x1b[H\x1b[2J")
	}
	rows := [][]string{{"ID", "NAME", "BACKEND", "STATE", "CPU", "CPU TIME", "MEMORY", "LIMIT", "PEAK", "DISK", "PROCESSES"}}
	for _, s := range samples {
		rate := ""
		if s.CPUPercent != nil {
			rate = fmt.Sprintf("%.1f%%", *s.CPUPercent)
		}
		state := string(s.State)
		if s.Error != "" {
			state = "? " + s.Error
		}
		u, amount := s.Usage, func(n int64) string {
			if n == 0 {
				return ""
			}
			return bytesText(n)
		}
		processes := ""
		if u.PeakProcesses > 0 {
			processes = fmt.Sprintf("%d at most", u.PeakProcesses)
		}
		cpu := ""
		if u.CPU > 0 {
			cpu = rounded(u.CPU).String()
		}
		rows = append(rows, []string{
			s.ID, s.Name, s.Backend, state, rate, cpu, amount(u.Memory), amount(s.Limit), amount(u.PeakMemory), amount(u.Disk), processes,
		})
	}
	return a.table(rows)
}
