package envd

import (
	"context"
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/backend"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// Processes lists the commands that were started in the sandbox, by anyone,
// those that ended included where the agent remembers them. Over E2B's envd
// only what runs is listed, without times and users.
func (c *Client) Processes(ctx context.Context) ([]backend.ProcessInfo, error) {
	w := where{op: "list processes"}
	ext, err := c.extended(ctx)
	if err != nil {
		return nil, err
	}
	if ext {
		commands, err := c.commands(ctx, w)
		if err != nil {
			return nil, err
		}
		infos := make([]backend.ProcessInfo, 0, len(commands))
		for _, cmd := range commands {
			info, err := infoOf(cmd)
			if err != nil {
				return nil, c.fail(ctx, w, err)
			}
			infos = append(infos, info)
		}
		return infos, nil
	}
	res, err := unary(ctx, c, w, "", &wireproc.ListRequest{}, c.proc.List)
	if err != nil {
		return nil, err
	}
	infos := make([]backend.ProcessInfo, 0, len(res.GetProcesses()))
	for _, p := range res.GetProcesses() {
		if p.GetPid() == 0 || p.GetPid() > maxPID {
			return nil, c.fail(ctx, w, protocolf("process ID %d", p.GetPid()))
		}
		infos = append(infos, backend.ProcessInfo{
			ID: strconv.FormatUint(uint64(p.GetPid()), 10), PID: int(p.GetPid()), Tag: p.GetTag(),
			Args: append([]string{p.GetConfig().GetCmd()}, p.GetConfig().GetArgs()...),
			Env:  p.GetConfig().GetEnvs(), Dir: p.GetConfig().GetCwd(),
		})
	}
	return infos, nil
}

func (c *Client) commands(ctx context.Context, w where) ([]*gloveboxv1.Command, error) {
	w.ext = true
	res, err := unary(ctx, c, w, "", &gloveboxv1.CommandsRequest{}, c.box.Commands)
	return res.GetCommands(), err
}

func infoOf(cmd *gloveboxv1.Command) (backend.ProcessInfo, error) {
	if !validID(cmd.GetId()) || cmd.GetPid() == 0 || cmd.GetPid() > maxPID {
		return backend.ProcessInfo{}, protocolf("command %q, process ID %d", cmd.GetId(), cmd.GetPid())
	}
	info := backend.ProcessInfo{
		ID: cmd.GetId(), PID: int(cmd.GetPid()), Tag: cmd.GetTag(),
		Args: append([]string{cmd.GetCmd()}, cmd.GetArgs()...),
		Env:  cmd.GetEnvs(), Dir: cmd.GetCwd(), User: cmd.GetUser(),
		Started: time.Unix(0, cmd.GetStartedUnixNs()),
	}
	if cmd.GetEnd() != nil {
		exit, err := fromEnd(cmd.GetEnd())
		if err != nil {
			return backend.ProcessInfo{}, err
		}
		info.Exit = &exit
	}
	return info, nil
}

// Attach takes up a command by the ID of its Process or ProcessInfo; ctx
// bounds the call up to its first answer. Options.Output does not hold for
// what it delivers, the command's own limits do. Over E2B's envd nothing is
// replayed, and a command is found for thirty seconds after its end.
func (c *Client) Attach(ctx context.Context, id string, opts backend.AttachOptions) (backend.Process, error) {
	w := where{op: "attach", field: id}
	ext, err := c.extended(ctx)
	if err != nil {
		return nil, err
	}
	p := newProcess(c, w, opts.Output)
	p.input = true
	if ext {
		return c.attachExtended(ctx, w, p, id, opts.Replay)
	}
	pid, err := strconv.ParseUint(id, 10, 31)
	if err != nil || pid == 0 {
		return nil, c.error(w, backend.ErrNotFound, errors.New("no such command"))
	}
	p.terminal = true // not told, so a terminal's abilities are offered
	return p.launch(ctx, func(ctx context.Context) (source, error) {
		p.pid = uint32(pid)
		s, err := c.streams.Connect(ctx, connect.NewRequest(&wireproc.ConnectRequest{Process: p.selector()}))
		if err != nil {
			return nil, err
		}
		return rpc[wireproc.ConnectResponse]{s, func(m *wireproc.ConnectResponse) event { return ofProcess(m.GetEvent()) }}, nil
	})
}

func (c *Client) attachExtended(ctx context.Context, w where, p *process, id string, replay bool) (backend.Process, error) {
	commands, err := c.commands(ctx, w)
	if err != nil {
		return nil, err
	}
	found := false
	for _, cmd := range commands {
		if cmd.GetId() == id && validID(id) {
			found, p.terminal = true, cmd.GetPty()
		}
	}
	if !found {
		return nil, c.error(w, backend.ErrNotFound, errors.New("no such command"))
	}
	p.attached, p.ext = id, true
	return p.launch(ctx, func(ctx context.Context) (source, error) {
		req := connect.NewRequest(&gloveboxv1.AttachRequest{Id: id, Replay: replay})
		s, err := c.attach.Attach(ctx, req)
		if err != nil {
			return nil, err
		}
		return rpc[gloveboxv1.AttachResponse]{s, ofAttach}, nil
	})
}
