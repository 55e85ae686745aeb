//go:build linux

package dockerbox

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// Elsewhere implements box.Elsewhere.
func (d *Driver) Elsewhere() bool { return d.o.Remote }

// sameMachine tells whether the agent runs where the engine does.
func sameMachine(info engine.Info) bool {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return (info.OS == "" || info.OS == "linux") && (info.Arch == "" || info.Arch == arch || info.Arch == runtime.GOARCH)
}

// fits refuses what is more than the engine's machine has.
func (d *Driver) fits(info engine.Info, spec backend.Spec) error {
	if !d.o.Remote {
		return nil
	}
	over := func(field, why string) error {
		return d.refuse(backend.ErrCapacity, field, why, "ask for less")
	}
	switch l := spec.Limits; {
	case info.Memory > 0 && l.Memory > info.Memory:
		return over("limits.memory", fmt.Sprintf("%d bytes are asked for, the engine's machine has %d", l.Memory, info.Memory))
	case info.CPUs > 0 && l.CPUs > float64(info.CPUs):
		return over("limits.cpus", fmt.Sprintf("%g are asked for, the engine's machine has %d", l.CPUs, info.CPUs))
	}
	return nil
}

// far makes the sandbox on an engine elsewhere: the agent comes in an image,
// and is reached over the engine's attach stream.
func (m *maker) far(ctx context.Context) (*box.Made, error) {
	if err := m.d.fits(m.info, m.Spec); err != nil {
		return nil, err
	}
	m.d.memory.start(m.d.engine, m.d.store.ID()) //nolint:contextcheck // it outlives the call
	for again := false; ; again = true {
		image, err := m.derive(ctx)
		if err != nil {
			return nil, err
		}
		c, err := m.container()
		if err != nil {
			return nil, err
		}
		c.Image = image
		made, err := m.startFar(ctx, c)
		if again || backend.KindOf(err) != backend.ErrNotFound {
			return made, err
		}
		m.d.derived.forget() // somebody has just removed it
	}
}

// farFiles has the engine write what it covers the image's files with: who asks
// for a name asks the agent, or nobody.
//
// Security: by default the engine would tell of its own host's name servers.
func (m *maker) farFiles(c *engine.Container) {
	c.DNS, c.DNSSearch = []string{"127.0.0.1"}, []string{"."}
	c.DNSOptions = []string{"timeout:5", "attempts:1"}
	c.Hosts = []string{box.Hostname + ":127.0.1.1"}
	if m.Spec.Network.Mode == backend.NetworkAllowlist {
		c.Sysctls["net.ipv4.ip_unprivileged_port_start"] = "0"
	}
}

// startFar makes the container, starts it and greets its agent.
func (m *maker) startFar(ctx context.Context, c engine.Container) (*box.Made, error) {
	b := &farBody{body: body{d: m.d, name: m.Name, dir: m.Dir}, slot: m.slot}
	m.Undo(func() { //nolint:contextcheck // an undo outlives the caller's context
		ctx, cancel := box.CleanupContext()
		defer cancel()
		b.drop()
		m.d.discard(ctx, b.name, b.id) //nolint:errcheck // the sweep tries again
	})
	made, err := m.create(ctx, c)
	b.id = made.ID
	if err != nil {
		return nil, err
	}
	for _, w := range made.Warnings {
		m.Warnings = append(m.Warnings, "engine: "+w)
	}
	stream, err := m.d.engine.Attach(ctx, b.id)
	if err != nil {
		return nil, err
	}
	b.conn = stream
	if err := m.d.engine.Start(ctx, b.id); err != nil {
		return nil, m.withoutPaths(err)
	}
	cfg := m.config()
	cfg.MaybeLandlock, cfg.Heartbeat = true, true
	hello, err := box.Greet(ctx, stream, cfg)
	if err != nil {
		return nil, m.explain(&b.body, err) //nolint:contextcheck // its look has a deadline of its own
	}
	return &box.Made{
		Body: b, Conn: stream, Dial: unixsock.Once(stream), Kernel: hello.Kernel, Achieved: m.d.o.Capabilities.Isolation,
		Amend: func(r *backend.Receipt) { m.amendFar(r, hello) }, User: m.account, Dir: m.img.Dir,
	}, nil
}

// amendFar puts into a receipt what is known of an engine elsewhere, and by whom.
func (m *maker) amendFar(r *backend.Receipt, hello launch.Hello) {
	m.amend(r)
	// Nobody here has looked.
	r.Measured = false
	r.Privileges += ", at " + m.d.engine.Host()
	if m.slot == nil {
		for i := range r.Limits {
			if r.Limits[i].Control == backend.ControlPids {
				r.Limits[i].Mechanism, r.Limits[i].Note = "container's pids cgroup", fmt.Sprintf("with a reserve of %d for the agent's threads", m.d.o.PidsReserve)
			}
		}
	}
	rules := r.Controls[backend.ControlFileRules]
	if rules.Mechanism = fmt.Sprintf("Landlock ABI %d", hello.LandlockABI); hello.LandlockABI == 0 {
		rules = backend.Claim{Enforcement: backend.Unsupported, Note: "the engine's kernel has no Landlock"}
	}
	r.Controls[backend.ControlFileRules] = rules
	r.Timings["container"] = time.Since(m.Began)
}

var _ box.Elsewhere = (*Driver)(nil)
