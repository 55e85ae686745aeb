// Package ratio measures things in turn, in one run on one machine, and reports
// them beside each other: what a time is on another machine says little, what
// it is to another's says more. Nothing passes or fails by a time.
package ratio

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Of is something that takes time.
type Of struct {
	Name string
	// Measure does it once and says how long that took, which may leave out
	// what comes before and after.
	Measure func() (time.Duration, error)
}

// Timed is Of the whole of f.
func Timed(name string, f func() error) Of {
	return Of{name, func() (time.Duration, error) {
		began := time.Now()
		err := f()
		return time.Since(began), err
	}}
}

// Medians measures everything in turn, as often as b asks for but at most so
// often (0: no such bound), and reports each median as NAME-ms, and that of each
// subject to that of each baseline as SUBJECT/BASELINE.
func Medians(b *testing.B, most int, subjects, baselines []Of) {
	b.Helper()
	all := append(slices.Clone(subjects), baselines...)
	took := make([][]time.Duration, len(all))
	for n := 0; b.Loop(); n++ {
		if most > 0 && n >= most {
			continue
		}
		for i, of := range all {
			d, err := of.Measure()
			if err != nil {
				b.Fatalf("%s: %v", of.Name, err)
			}
			took[i] = append(took[i], d)
		}
	}
	median := make([]float64, len(all))
	for i, of := range all {
		slices.Sort(took[i])
		median[i] = float64(took[i][len(took[i])/2]) / float64(time.Millisecond)
		b.ReportMetric(median[i], of.Name+"-ms")
	}
	for i, s := range subjects {
		for j, o := range baselines {
			b.ReportMetric(median[i]/median[len(subjects)+j], s.Name+"/"+o.Name)
		}
	}
}

// At does one n times, at so many a time.
func At(at, n int, one func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, at)
	for i := range errs {
		wg.Go(func() {
			for k := i; k < n; k += at {
				errs[i] = errors.Join(errs[i], one())
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Made is something that was made and is to be ended.
type Made interface{ End() error }

// End makes a Made of a function.
type End func() error

// End implements Made.
func (f End) End() error { return f() }

// Many makes n of something, two at a time, so that all are there at once, and
// ends them in the same way. It reports made-ms and ended-ms, of each on
// average, and calls look, if not nil, while all are there.
func Many(b *testing.B, n int, make func() (Made, error), look func()) {
	b.Helper()
	var mu sync.Mutex
	var all []Made
	end := func() error {
		mu.Lock()
		if len(all) == 0 {
			mu.Unlock()
			return nil
		}
		last := all[len(all)-1]
		all = all[:len(all)-1]
		mu.Unlock()
		return last.End()
	}
	b.Cleanup(func() {
		for len(all) > 0 {
			end() //nolint:errcheck // after a failure that was told
		}
	})
	began := time.Now()
	if err := At(2, n, func() error {
		m, err := make()
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, m)
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
	made := time.Since(began)
	if look != nil {
		look()
	}
	began = time.Now()
	if err := At(2, n, end); err != nil {
		b.Fatal(err)
	}
	ended := time.Since(began)
	for b.Loop() { // once is enough
	}
	each := func(d time.Duration) float64 { return float64(d) / float64(n) / float64(time.Millisecond) }
	b.ReportMetric(each(made), "made-ms")
	b.ReportMetric(each(ended), "ended-ms")
}

// PSS is the proportional set size of a process, in KiB; 0 when it has none.
func PSS(pid int) int64 {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// Sink takes output and counts it.
type Sink struct{ N int64 }

// Write implements io.Writer.
func (s *Sink) Write(p []byte) (int, error) {
	s.N += int64(len(p))
	return len(p), nil
}

// Check is an error unless n bytes came.
func (s *Sink) Check(n int64) error {
	if s.N != n {
		return fmt.Errorf("%d bytes came out, not %d", s.N, n)
	}
	return nil
}
