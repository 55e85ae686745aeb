package subprocess

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/launch/landlock"
	"github.com/glovebox-dev/glovebox/internal/launch/seccomp"
)

// host is what was found out about this machine and this process's rights.
type host struct {
	mode     launch.Mode
	why      string // why the mode is no stronger one
	groups   cgroup.Host
	landlock int
	seccomp  bool
	kernel   string
	// noDevice says why no sandbox can have a network device, and what to do.
	noDevice, noDeviceFix string
}

// look finds out cheaply what can be had; Create proves it by doing it.
func look(cfg Config) (host, error) {
	h := host{landlock: landlock.ABI(), seccomp: seccomp.Available(), kernel: kernelName()}
	h.mode, h.why = chooseMode(cfg.Privilege)
	if h.mode == launch.ModeMapped || h.mode == launch.ModeSingle {
		h.noDevice, h.noDeviceFix = launch.DeviceProblem(true)
		groups, err := cgroup.Detect(cfg.CgroupParent)
		if err != nil {
			return h, err
		}
		if h.mode == launch.ModeMapped || cfg.CgroupParent != "" {
			h.groups = groups
		}
	}
	return h, nil
}

// chooseMode is the strongest way of working that this process has.
func chooseMode(want Privilege) (launch.Mode, string) {
	switch want {
	case PrivilegeNone:
		return launch.ModePlain, "none was asked for"
	case PrivilegeRestricted:
		return launch.ModeRestricted, "restricted was asked for"
	case PrivilegeAuto, PrivilegeRoot, PrivilegeUserns:
	}
	if os.Geteuid() == 0 && want != PrivilegeUserns && !inUserNamespace() && hasSysAdmin() {
		return launch.ModeMapped, ""
	}
	if why := noUserNamespaces(); why != "" {
		return launch.ModeRestricted, why
	}
	return launch.ModeSingle, "not running as root of the host"
}

// hasSysAdmin tells whether root here may make namespaces, which root of an
// ordinary container may not.
func hasSysAdmin() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// inUserNamespace tells whether root here is not the host's.
func inUserNamespace() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(data)), " ") != "0 0 4294967295"
}

// noUserNamespaces tries to make a user namespace with a mount namespace in it
// and says why it cannot be, "" when it can.
func noUserNamespaces() string {
	if data, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err == nil && strings.TrimSpace(string(data)) == "0" {
		return "user.max_user_namespaces is 0"
	}
	if data, err := os.ReadFile("/proc/sys/kernel/unprivileged_userns_clone"); err == nil && strings.TrimSpace(string(data)) == "0" {
		return "kernel.unprivileged_userns_clone is 0"
	}
	// The child fails to execute a missing file, after the namespaces and their
	// mapping were made.
	_, err := syscall.ForkExec("/proc/self/fd/-1", []string{"probe"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: launch.UserUID, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: launch.UserUID, HostID: os.Getegid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
	}})
	if err == syscall.ENOENT {
		return ""
	}
	return fmt.Sprintf("user namespaces are refused (%v)", err)
}

func kernelName() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}
