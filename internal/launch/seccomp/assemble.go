//go:build linux

// Package seccomp makes the system call filter that a sandbox's agent and all
// its commands live under. What is refused answers with an errno that programs
// know how to handle; a system call of another architecture kills.
package seccomp

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets into struct seccomp_data (linux/seccomp.h), little endian.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// Return values of a filter (linux/seccomp.h).
const (
	retAllow       = 0x7fff0000
	retErrno       = 0x00050000
	retKillProcess = 0x80000000
)

func errno(e unix.Errno) uint32 { return retErrno | uint32(e)&0xffff }

// test is one comparison of the low 32 bits of an argument; the refusal
// applies when it holds.
type test struct {
	arg  int
	mask uint32 // 0: equality with any of vals; else refuse when arg&mask != 0
	vals []uint32
	not  bool // refuse when the argument is none of vals
}

// rule refuses one system call, always or when one of its tests holds.
type rule struct {
	nr   uint32
	ret  uint32
	when []test
}

// program builds the filter: architecture, then the highest known number, then
// each rule; everything else is allowed. Rules without a test come first, since
// the kernel caches what a number alone decides.
func program(arch, maxNr uint32, rules []rule) ([]unix.SockFilter, error) {
	ins := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		bpf.RetConstant{Val: retKillProcess},
		bpf.LoadAbsolute{Off: offNr, Size: 4},
	}
	if x32Bit != 0 {
		ins = append(ins,
			bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: x32Bit, SkipTrue: 1},
			bpf.RetConstant{Val: retKillProcess})
	}
	ins = append(ins,
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: maxNr, SkipTrue: 1},
		bpf.RetConstant{Val: errno(unix.ENOSYS)})
	for _, r := range rules {
		body := r.body()
		if len(body) > 250 {
			return nil, fmt.Errorf("seccomp: rule for %d is too long", r.nr)
		}
		ins = append(ins, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: r.nr, SkipTrue: uint8(len(body))})
		ins = append(ins, body...)
	}
	ins = append(ins, bpf.RetConstant{Val: retAllow})
	raw, err := bpf.Assemble(ins)
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	prog := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		prog[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return prog, nil
}

// body is what runs when the number matched. It always returns: no other rule
// is for the same number.
func (r rule) body() []bpf.Instruction {
	if r.when == nil {
		return []bpf.Instruction{bpf.RetConstant{Val: r.ret}}
	}
	var out []bpf.Instruction
	for _, t := range r.when {
		out = append(out, bpf.LoadAbsolute{Off: offArgs + 8*uint32(t.arg), Size: 4})
		out = append(out, t.compare(r.ret)...)
	}
	return append(out, bpf.RetConstant{Val: retAllow})
}

// compare returns ret when t holds for the loaded argument and goes on
// otherwise.
func (t test) compare(ret uint32) []bpf.Instruction {
	refuse := bpf.RetConstant{Val: ret}
	if t.mask != 0 {
		return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: t.mask, SkipTrue: 1}, refuse}
	}
	var out []bpf.Instruction
	n := len(t.vals)
	for i, v := range t.vals {
		rest := uint8(n - 1 - i)
		switch {
		case t.not: // any match goes past the refusal
			out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: rest + 1})
		case i < n-1: // any match goes to the refusal
			out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: rest})
		default:
			out = append(out, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: v, SkipTrue: 1})
		}
	}
	return append(out, refuse)
}
