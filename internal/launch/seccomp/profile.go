//go:build linux

package seccomp

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unneeded lists calls that the filter lets through, and a profile does not
// name: they need a capability, or exist in no kernel any more, or are the
// kernel's own. So a profile is nowhere looser than those of container engines.
var unneeded = []string{ //nolint:gochecknoglobals // a constant table
	"get_mempolicy", "set_mempolicy", "set_mempolicy_home_node", "mbind",
	"getpmsg", "putpmsg", "afs_syscall", "tuxcall", "security", "vserver", "epoll_ctl_old", "epoll_wait_old",
	"arch_specific_syscall", "uretprobe", "uprobe",
}

// profile is a seccomp profile as Docker's API takes it, close to the one of
// the OCI runtime specification.
type profile struct {
	DefaultAction   string         `json:"defaultAction"`
	DefaultErrnoRet uint32         `json:"defaultErrnoRet"`
	Architectures   []string       `json:"architectures"`
	Syscalls        []profileCalls `json:"syscalls"`
}

type profileCalls struct {
	Names    []string     `json:"names"`
	Action   string       `json:"action"`
	ErrnoRet *uint32      `json:"errnoRet,omitempty"`
	Args     []profileArg `json:"args,omitempty"`
}

// profileArg holds when the argument, masked by Value, is ValueTwo.
type profileArg struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo"`
	Op       string `json:"op"`
}

const (
	actAllow = "SCMP_ACT_ALLOW"
	actErrno = "SCMP_ACT_ERRNO"
	opMasked = "SCMP_CMP_MASKED_EQ"
)

// Profile is Filter(p) for container runtimes: a seccomp profile as JSON, for
// Docker's security option. What the filter refuses it refuses with the same
// errno, a call that it does not name does not exist, and a call of another
// architecture kills; runtimes end the calling thread alone.
func Profile(p Policy) ([]byte, error) {
	if profileArch == "" {
		return nil, fmt.Errorf("seccomp: no profile for %s", runtime.GOARCH)
	}
	names, err := names()
	if err != nil {
		return nil, err
	}
	out := profile{DefaultAction: actErrno, DefaultErrnoRet: uint32(unix.ENOSYS), Architectures: []string{profileArch}}
	refused := map[uint32][]string{} // by errno
	for _, r := range policyRules(p) {
		name := names[r.nr]
		if name == "" {
			return nil, fmt.Errorf("seccomp: system call %d has no name", r.nr)
		}
		delete(names, r.nr)
		ret := r.ret & 0xffff
		if r.when == nil {
			refused[ret] = append(refused[ret], name)
			continue
		}
		out.Syscalls = append(out.Syscalls, r.calls(name, ret)...)
	}
	var allowed []string
	for _, name := range names {
		if slices.Contains(unneeded, name) {
			refused[uint32(unix.EPERM)] = append(refused[uint32(unix.EPERM)], name)
			continue
		}
		allowed = append(allowed, name)
	}
	slices.Sort(allowed)
	out.Syscalls = append(out.Syscalls, profileCalls{Names: allowed, Action: actAllow})
	for _, ret := range []uint32{uint32(unix.EPERM), uint32(unix.ENOSYS)} {
		slices.Sort(refused[ret])
		out.Syscalls = append(out.Syscalls, profileCalls{Names: refused[ret], Action: actErrno, ErrnoRet: &ret})
		delete(refused, ret)
	}
	if len(refused) > 0 {
		return nil, fmt.Errorf("seccomp: refusals with other errors than a profile has: %v", refused)
	}
	return json.Marshal(out)
}

// calls are the entries for a rule with tests: one for each way in which none
// holds, and one for each way in which one does. Entries of one call are
// alternatives, what one of them compares holds together.
func (r rule) calls(name string, ret uint32) []profileCalls {
	ways := [][]profileArg{nil}
	var out []profileCalls
	for _, t := range r.when {
		holds, not := t.masks()
		var longer [][]profileArg
		for _, way := range ways {
			for _, arg := range not {
				longer = append(longer, append(slices.Clone(way), arg))
			}
		}
		ways = longer
		for _, arg := range holds {
			out = append(out, profileCalls{Names: []string{name}, Action: actErrno, ErrnoRet: &ret, Args: []profileArg{arg}})
		}
	}
	for _, way := range ways {
		out = append(out, profileCalls{Names: []string{name}, Action: actAllow, Args: way})
	}
	return out
}

// masks are the comparisons of which one is true when t holds, and those of
// which one is when it does not. All look at the low 32 bits alone, as the
// filter does: the kernel ignores the others.
func (t test) masks() (holds, not []profileArg) {
	arg := func(mask, value uint32) profileArg {
		return profileArg{Index: uint(t.arg), Value: uint64(mask), ValueTwo: uint64(value), Op: opMasked}
	}
	if t.mask != 0 {
		for bit := uint32(1); bit != 0; bit <<= 1 {
			if t.mask&bit != 0 {
				holds = append(holds, arg(bit, bit))
			}
		}
		return holds, []profileArg{arg(t.mask, 0)}
	}
	var same, others []profileArg
	for _, v := range t.vals {
		same = append(same, arg(^uint32(0), v))
	}
	outside(t.vals, 31, 0, func(mask, value uint32) { others = append(others, arg(mask, value)) })
	if t.not {
		return others, same
	}
	return same, others
}

// outside calls add with masks and values that together match every number
// that begins like prefix, from its highest bit to the one above bit, and is
// none of vals, which all begin like it.
func outside(vals []uint32, bit int, prefix uint32, add func(mask, value uint32)) {
	if len(vals) == 0 {
		add(^uint32(0)<<(bit+1), prefix)
		return
	}
	if bit < 0 {
		return
	}
	var zero, one []uint32
	for _, v := range vals {
		if v>>bit&1 == 0 {
			zero = append(zero, v)
		} else {
			one = append(one, v)
		}
	}
	outside(zero, bit-1, prefix, add)
	outside(one, bit-1, prefix|1<<bit, add)
}

// names maps the numbers of system calls to their names.
func names() (map[uint32]string, error) {
	all := map[uint32]string{}
	for line := range strings.Lines(callNames) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		nr, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("seccomp: the table of names: %w", err)
		}
		for i, name := range fields[1:] {
			all[uint32(nr)+uint32(i)] = name
		}
	}
	return all, nil
}
