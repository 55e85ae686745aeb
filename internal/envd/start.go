package envd

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// The operations that errors are told apart by.
const (
	opStart   = "start"
	opWait    = "wait"
	opDial    = "dial"
	opMetrics = "metrics"
)

// maxTimeoutMillis is the largest Connect-Timeout-Ms, ten digits.
const maxTimeoutMillis = 9_999_999_999

// Start runs cmd. ctx bounds the call up to the command's start: when it ends
// before, a command that starts nevertheless is killed. Over E2B's envd a CPU
// time in cmd is ErrUnsupported, output limits are held by the client, and
// signals other than SIGKILL and SIGTERM are ErrUnsupported.
func (c *Client) Start(ctx context.Context, cmd backend.Command) (backend.Process, error) {
	w := where{op: opStart}
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	req, err := c.startRequest(cmd)
	if err != nil {
		return nil, err
	}
	ext, err := c.extended(ctx)
	if err != nil {
		return nil, err
	}
	if !ext && cmd.CPUTime > 0 {
		w.field = "command.cpu_time"
		return nil, c.error(w, backend.ErrUnsupported, errors.New("envd of E2B does not limit CPU time"))
	}
	p := newProcess(c, w, cmd.Output)
	p.terminal, p.input, p.stdin = cmd.Terminal != nil, cmd.KeepInput, cmd.Stdin
	p.stdout.limit, p.stderr.limit = c.opts.Output, c.opts.Output
	p.killOnOutput = c.opts.KillOnOutput
	p.timeout = cmd.Timeout
	switch cmd.Timeout {
	case 0:
		p.timeout = backend.DefaultTimeout
	case backend.UntilSandboxEnds:
		p.timeout = 0
	}
	call := connect.NewRequest(req)
	c.account(call.Header(), cmd.User)
	if ext {
		call.Header().Set(wire.HeaderLimits, wire.Pack(c.limits(cmd, p.timeout)))
	} else if p.timeout > 0 {
		// envd kills at its client's deadline. Were it a deadline of our own
		// context, which of the two ends came first would be left to chance.
		ms := min(max(p.timeout.Milliseconds(), 1), maxTimeoutMillis)
		call.Header().Set("Connect-Timeout-Ms", strconv.FormatInt(ms, 10))
	}
	return p.launch(ctx, func(ctx context.Context) (source, error) {
		s, err := c.streams.Start(ctx, call)
		if err != nil {
			return nil, err
		}
		return rpc[wireproc.StartResponse]{s, func(m *wireproc.StartResponse) event { return ofProcess(m.GetEvent()) }}, nil
	})
}

func (c *Client) limits(cmd backend.Command, wall time.Duration) *gloveboxv1.Limits {
	cpu := cmd.CPUTime
	if cpu == 0 {
		cpu = c.opts.CPUTime
	}
	return &gloveboxv1.Limits{
		CpuTimeNs: int64(cpu), WallTimeNs: int64(wall),
		OutputBytes: c.opts.Output, KillOnOutput: c.opts.KillOnOutput,
	}
}

func (c *Client) startRequest(cmd backend.Command) (*wireproc.StartRequest, error) {
	env := make(map[string]string, len(c.opts.Env)+len(cmd.Env))
	maps.Copy(env, c.opts.Env)
	maps.Copy(env, cmd.Env)
	if _, ok := env["TERM"]; !ok && cmd.Terminal != nil {
		env["TERM"] = "xterm-256color"
	}
	if field := notUTF8(cmd, env); field != "" {
		return nil, c.error(where{op: opStart, field: field}, backend.ErrInvalid, errors.New("not valid UTF-8"))
	}
	config := &wireproc.ProcessConfig{Cmd: cmd.Args[0], Args: cmd.Args[1:], Envs: env}
	if cmd.Dir != "" {
		config.Cwd = &cmd.Dir
	}
	stdin := cmd.Stdin != nil || cmd.KeepInput
	req := &wireproc.StartRequest{Process: config, Stdin: &stdin}
	if cmd.Tag != "" {
		req.Tag = &cmd.Tag
	}
	if cmd.Terminal != nil {
		req.Pty = pty(*cmd.Terminal)
	}
	return req, nil
}

// notUTF8 names the field that the wire cannot carry, "" when there is none.
func notUTF8(cmd backend.Command, env map[string]string) string {
	for _, a := range cmd.Args {
		if !utf8.ValidString(a) {
			return "command.args"
		}
	}
	for k, v := range env {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return "command.env"
		}
	}
	switch {
	case !utf8.ValidString(cmd.Dir):
		return "command.dir"
	case !utf8.ValidString(cmd.Tag):
		return "command.tag"
	default:
		return ""
	}
}

func pty(size backend.TerminalSize) *wireproc.PTY {
	if size.Cols == 0 {
		size.Cols = 80
	}
	if size.Rows == 0 {
		size.Rows = 24
	}
	return &wireproc.PTY{Size: &wireproc.PTY_Size{Cols: uint32(size.Cols), Rows: uint32(size.Rows)}}
}
