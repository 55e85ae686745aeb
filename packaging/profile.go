//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/glovebox-dev/glovebox/internal/launch/seccomp"
)

// profile is a seccomp profile for Docker, as internal/launch/seccomp makes it.
type profile struct {
	DefaultAction   string   `json:"defaultAction"`
	DefaultErrnoRet uint32   `json:"defaultErrnoRet"`
	Architectures   []string `json:"architectures"`
	Syscalls        []calls  `json:"syscalls"`
}

type calls struct {
	Names    []string        `json:"names"`
	Action   string          `json:"action"`
	ErrnoRet *uint32         `json:"errnoRet,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"`
}

// needed are the calls that sandboxes are made with. Security: they are the
// ones of user namespaces, which engines refuse because they open much of the
// kernel to whoever has none of its rights. User code does not get them: a
// filter of its own refuses them again.
func needed() []string {
	return []string{
		// Namespaces, and the root file system in them.
		"chroot", "clone", "clone3", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree",
		"pivot_root", "setdomainname", "sethostname", "setns", "umount2", "unshare",
		// gVisor, which runs programs by them.
		"pidfd_getfd", "process_vm_readv", "process_vm_writev", "ptrace",
	}
}

// hostProfile is the profile for a container in which glovebox makes its
// sandboxes: what the filter of the sandboxes allows, and what is needed to
// make them. Sockets of AF_VSOCK, io_uring and the like stay closed.
func hostProfile() ([]byte, error) {
	data, err := seccomp.Profile(seccomp.Policy{LeaveClone3: true})
	if err != nil {
		return nil, err
	}
	var p profile
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	add, allowed := needed(), false
	for i, c := range p.Syscalls {
		p.Syscalls[i].Names = slices.DeleteFunc(c.Names, func(name string) bool { return slices.Contains(add, name) })
	}
	p.Syscalls = slices.DeleteFunc(p.Syscalls, func(c calls) bool { return len(c.Names) == 0 })
	for i, c := range p.Syscalls {
		if c.Action == "SCMP_ACT_ALLOW" && c.Args == nil {
			p.Syscalls[i].Names = slices.Sorted(slices.Values(append(c.Names, add...)))
			allowed = true
			break
		}
	}
	if !allowed {
		return nil, errors.New("the seccomp profile has no list of allowed calls")
	}
	out, err := json.MarshalIndent(p, "", " ")
	return append(out, '\n'), err
}
