package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/landlock"
	"github.com/glovebox-dev/glovebox/internal/launch/seccomp"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// Sandbox is what Setup made of this process.
type Sandbox struct {
	Reaper  *spawn.Reaper
	Confine *spawn.Confinement
	// LandlockABI is the version of the domain that commands are in; 0 for none.
	LandlockABI int
	Seccomp     bool
	// Sentry: the kernel was recognised as gVisor's.
	Sentry bool
	// Device is the sandbox's network device, with Config.Full. Security: user
	// code never gets it; with it packets could be sent in anybody's name.
	Device *os.File
}

// Setup turns the calling process, a static Go program that has done nothing
// else yet, into the sandbox cfg describes: it moves into the sandbox's root,
// readies the one thread that forks commands and gives up every privilege that
// starting them does not need. On error the process must end.
func Setup(cfg *Config) (*Sandbox, error) {
	// Security: before any user code exists, hide what /proc shows of us.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("dumpable: %w", err)
	}
	device, err := prepareDevice(cfg)
	if err != nil {
		return nil, fmt.Errorf("network device: %w", err)
	}
	if err := prepareRoot(cfg); err != nil {
		return nil, err
	}
	sb := &Sandbox{Confine: &spawn.Confinement{Join: cfg.JoinFDs, Victim: cfg.Mode == ModeContained}, Device: device}
	if err := sb.look(cfg); err != nil {
		return nil, err
	}
	if cfg.Mode == ModePlain {
		r, err := spawn.New(spawn.Options{Orphans: true})
		sb.Reaper = r
		return sb, errors.Join(err, becomeReaper())
	}
	rules, err := cfg.domain()
	if err != nil {
		return nil, err
	}
	if rules != nil {
		sb.LandlockABI = landlock.ABI()
	}
	if cfg.Mode == ModeRestricted {
		// Security: without namespaces the file rules are all there is, and
		// hold for the agent as well; user code's own domain comes on top.
		if err := restrictAgent(cfg); err != nil {
			return nil, err
		}
		if err := becomeReaper(); err != nil {
			return nil, err
		}
	}
	sb.Reaper, err = spawn.New(spawn.Options{
		Orphans: true, Enter: func() error { return confineThread(cfg, sb, rules) },
		// Security: where user code has the agent's uid it may stop a child
		// that has not executed yet.
		Separate: !cfg.SeparateIDs(),
		NoPidfd:  cfg.Mode == ModeContained && !pidfds(),
	})
	if err != nil {
		return nil, err
	}
	rules.Close()
	if err := dropPrivileges(cfg); err != nil {
		return nil, fmt.Errorf("privileges: %w", err)
	}
	if !cfg.NoSeccomp {
		if err := installFilter(cfg, sb); err != nil {
			return nil, err
		}
	}
	return sb, nil
}

// look notes what cfg and the kernel say that commands get.
func (sb *Sandbox) look(cfg *Config) error {
	if cfg.Mode == ModeContained {
		if err := sb.meet(cfg); err != nil {
			return err
		}
	}
	for _, l := range cfg.Rlimits {
		sb.Confine.Limits = append(sb.Confine.Limits, spawn.Rlimit{Resource: l.Resource, Value: l.Value})
	}
	return nil
}

// prepareRoot makes the sandbox's root and network, as far as no runtime has.
func prepareRoot(cfg *Config) error {
	if err := prepareEgress(cfg); err != nil {
		return err
	}
	if cfg.Mode == ModeMapped || cfg.Mode == ModeSingle {
		if err := asRoot(cfg, buildRoot); err != nil {
			return fmt.Errorf("root: %w", err)
		}
		if err := unix.Sethostname([]byte(cfg.Hostname)); err != nil {
			return fmt.Errorf("host name: %w", err)
		}
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("loopback: %w", err)
		}
	}
	if cfg.Mode == ModeContained && cfg.Scratch.Mount != "" {
		if err := mountContained(cfg); err != nil {
			return fmt.Errorf("scratch: %w", err)
		}
	}
	return nil
}

// asRoot runs f so that what it makes belongs to the sandbox's root, where there
// is one. The calling goroutine must be locked to its thread.
func asRoot(cfg *Config, f func(*Config) error) error {
	if cfg.Mode != ModeMapped {
		return f(cfg)
	}
	if err := setFileIDs(0); err != nil {
		return err
	}
	err := f(cfg)
	return errors.Join(err, setFileIDs(AgentUID))
}

// setFileIDs sets the calling thread's ids for file access.
func setFileIDs(id int) error {
	for _, nr := range []uintptr{unix.SYS_SETFSGID, unix.SYS_SETFSUID} {
		unix.RawSyscall(nr, uintptr(id), 0, 0) //nolint:errcheck // it returns the old id; the second call tells
		if now, _, _ := unix.RawSyscall(nr, uintptr(id), 0, 0); int(now) != id {
			return fmt.Errorf("file ids: still %d", now)
		}
	}
	return nil
}

// domain is the Landlock domain of user code; nil where the host has none.
func (cfg *Config) domain() (*landlock.Ruleset, error) {
	if cfg.NoLandlock {
		return nil, nil //nolint:nilnil // a nil Ruleset does nothing
	}
	d := landlock.Domain{Scope: true}
	if cfg.Mode == ModeRestricted {
		d.Rules, d.NoTCP = restrictedRules(cfg), true
	} else {
		d.Rules = []landlock.Rule{
			{Path: "/", Access: landlock.Read},
			{Path: "/proc", Access: landlock.Modify},
			{Path: "/dev", Access: landlock.Device},
			{Path: "/dev/shm", Access: landlock.All},
			{Path: "/tmp", Access: landlock.All},
			{Path: "/var/tmp", Access: landlock.All},
			{Path: cfg.Root.Home, Access: landlock.All},
		}
	}
	rules, err := landlock.New(d)
	if err == nil && rules == nil && !cfg.MaybeLandlock {
		return nil, errors.New("landlock: the kernel has none, though the launcher found one")
	}
	return rules, err
}

// restrictAgent puts the agent under user code's file rules, except that it may
// look for its descendants in /proc.
func restrictAgent(cfg *Config) error {
	rules, err := landlock.New(landlock.Domain{
		Rules: append(restrictedRules(cfg), landlock.Rule{Path: "/proc", Access: landlock.Read}),
		NoTCP: true,
	})
	if err != nil {
		return err
	}
	defer rules.Close()
	return rules.EnterProcess()
}

// restrictedRules are the file rules of a sandbox that shares the host's root.
func restrictedRules(cfg *Config) []landlock.Rule {
	rules := []landlock.Rule{{Path: cfg.Scratch.Dir, Access: landlock.All}}
	for _, p := range systemDirs {
		rules = append(rules, landlock.Rule{Path: "/" + p, Access: landlock.Read, Optional: true})
	}
	for _, p := range etcEntries {
		rules = append(rules, landlock.Rule{Path: "/etc/" + p, Access: landlock.Read, Optional: true})
	}
	for _, p := range []string{"passwd", "group", "nsswitch.conf", "host.conf"} {
		rules = append(rules, landlock.Rule{Path: "/etc/" + p, Access: landlock.Read, Optional: true})
	}
	for _, p := range append([]string{"ptmx", "pts"}, devices...) {
		rules = append(rules, landlock.Rule{Path: "/dev/" + p, Access: landlock.Device, Optional: true})
	}
	for _, b := range cfg.Mounts {
		rules = append(rules, landlock.Rule{Path: b.Source, Access: landlock.Read})
	}
	return rules
}

// confineThread is what the forking thread does to itself, for its children.
func confineThread(cfg *Config, sb *Sandbox, rules *landlock.Ruleset) error {
	// A new session keyring, so that no key of the host's is possessed.
	if _, _, e := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); e != 0 && e != unix.ENOSYS && e != unix.EPERM {
		return fmt.Errorf("session keyring: %w", e)
	}
	if cfg.Mode != ModeRestricted {
		if err := sb.bound(cfg.RootCaps); err != nil {
			return err
		}
	}
	if cfg.Mode != ModeRestricted && cfg.RootCaps == 0 {
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, securebits, 0, 0, 0); err != nil && !sb.lacks(err) {
			return fmt.Errorf("securebits: %w", err)
		}
	}
	// In restricted mode the process's domain has the same rules; this one
	// makes agent and user code differ, which is what scopes signals.
	return rules.EnterThread()
}

// pidfds tells whether the kernel has them.
func pidfds() bool {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	unix.Close(fd) //nolint:errcheck // nothing to do about it
	return true
}

// lacks tells whether err says that the kernel has no such thing, which in
// gVisor, as far as it goes, is no loss: without a bounding set no exec gives a
// capability, and there are no ambient ones to clear.
func (sb *Sandbox) lacks(err error) bool { return sb.Sentry && errors.Is(err, unix.EINVAL) }

// SeparateIDs tells whether agent and user code have different uids, so that
// there are accounts to switch to.
func (cfg *Config) SeparateIDs() bool { return cfg.Mode == ModeMapped || cfg.Mode == ModeContained }

// Capabilities that the agent keeps where uids are mapped: to start commands
// as others, and to signal them.
const agentCaps = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL

// Securebits: uid 0 gives no capability at exec, changes of uid take none away
// by themselves, and none of it can be changed.
const securebits = 1<<0 | 1<<1 | // NOROOT, locked
	1<<2 | 1<<3 | // NO_SETUID_FIXUP, locked
	1<<6 | 1<<7 // NO_CAP_AMBIENT_RAISE, locked

// dropPrivileges gives up, on every thread, all that serving does not need.
func dropPrivileges(cfg *Config) error {
	keep := uint32(0)
	switch cfg.Mode {
	case ModeMapped:
		keep = agentCaps
	case ModeContained:
		keep = agentCaps
		if err := becomeAgent(cfg.AgentUID); err != nil {
			return err
		}
	case ModeSingle:
	case ModeRestricted, ModePlain:
		return nil
	}
	if cfg.bindLow {
		keep |= 1 << unix.CAP_NET_BIND_SERVICE
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 { //nolint:gosec // a system call's argument
		return fmt.Errorf("capabilities: %w", e)
	}
	runtime.KeepAlive(&data)
	// A change of the file system ids has switched both back.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	if !cfg.Listen && cfg.Mode != ModeContained {
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return fmt.Errorf("death signal: %w", err)
		}
	}
	return nil
}

// becomeAgent gives every thread of a process that is uid 0 the agent's ids and
// lets it keep its permitted capabilities.
func becomeAgent(uid int) error {
	if uid <= 0 {
		return errors.New("no uid of its own for the agent")
	}
	for _, call := range []struct {
		name       string
		nr         uintptr
		a, b, c, d uintptr
	}{
		{"keep capabilities", unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0},
		{"groups", unix.SYS_SETGROUPS, 0, 0, 0, 0},
		{"gid", unix.SYS_SETRESGID, uintptr(uid), uintptr(uid), uintptr(uid), 0},
		{"uid", unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid), 0},
	} {
		if _, _, e := syscall.AllThreadsSyscall6(call.nr, call.a, call.b, call.c, call.d, 0, 0); e != 0 {
			return fmt.Errorf("%s: %w", call.name, e)
		}
	}
	return nil
}

// installFilter puts the system call filter on the agent, for its commands to
// inherit.
func installFilter(cfg *Config, sb *Sandbox) error {
	p := seccomp.Policy{
		NoIPC:       cfg.Mode == ModeRestricted,
		GuardInit:   cfg.Mode == ModeSingle || cfg.Mode == ModeRestricted,
		LeaveClone3: cfg.GroupFD != 0,
		GuardOwner:  cfg.NoLandlock,
	}
	prog, err := seccomp.Filter(p)
	if err != nil {
		return err
	}
	if p.LeaveClone3 {
		if sb.Confine.Filter, err = seccomp.Clone3Guard(); err != nil {
			return err
		}
	}
	if err := seccomp.Install(prog); err != nil {
		return err
	}
	sb.Seccomp = true
	return nil
}

// becomeReaper makes orphaned descendants ours, where we are no pid
// namespace's first process.
func becomeReaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("subreaper: %w", err)
	}
	return nil
}

// loopbackUp brings up the one interface of a network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing to do about it
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// ReadConfig reads what the launcher passed, from ConfigFD.
func ReadConfig() (*os.File, error) {
	unix.CloseOnExec(ConfigFD)
	f := os.NewFile(ConfigFD, "config")
	if f == nil {
		return nil, errors.New("launch: no configuration was passed")
	}
	return f, nil
}
