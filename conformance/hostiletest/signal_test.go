//go:build linux

package hostiletest_test

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
)

func signalAttacks() []attack {
	return []attack{
		{id: "FP-13", program: "signals.py", args: []string{"all"}, before: killAllVictims, inside: ownKilled, outside: victimsLive, control: control{
			args: []string{"all", "harmless"}, spaces: syscall.CLONE_NEWPID, works: killAllWorks,
		}},
		{id: "FP-14", program: "signals.py", args: []string{"pids"}, before: pidVictims, outside: victimsLive, control: control{
			shows: []string{"kill", "pidfd", "rt_sigqueueinfo"},
		}},
		{id: "FP-15", program: "signals.py", args: []string{"init"}, before: initVictim, outside: agentLives, control: control{
			shows: []string{"kill", "tgkill", "rt_sigqueueinfo", "pidfd", "proc directory as pidfd", "F_SETOWN"},
		}},
		{id: "FP-15-root", only: asRoot, user: "root", program: "signals.py", args: []string{"init"}, before: initVictim, outside: agentLives, control: control{
			shows: []string{"kill", "tgkill"},
		}},
		{id: "FP-16", program: "signals.py", args: []string{"hijack"}, before: initVictim, outside: agentLives, control: control{
			shows: []string{"mem", "environ", "fd", "root", "cwd", "exe", "pidfd_getfd", "process_vm_readv", "ptrace"},
		}},
		{id: "FP-16-root", only: asRoot, user: "root", program: "signals.py", args: []string{"hijack"}, before: initVictim, outside: agentSurvivesMemory, control: control{
			shows: []string{"mem", "environ"},
		}},
		{id: "FP-16-limits", program: "signals.py", args: []string{"limits"}, before: initVictim, outside: agentUnchanged, control: control{
			shows: []string{"prlimit cpu", "prlimit nofile", "sched_setaffinity", "setpriority", "ioprio_set"},
		}},
		{id: "PE-12", program: "signals.py", args: []string{"trace"}, before: pidVictims, outside: victimsLive, control: control{
			shows: []string{"PTRACE_ATTACH", "PTRACE_SEIZE", "PTRACE_TRACEME"},
		}},
		{id: "PE-13", program: "signals.py", args: []string{"memory"}, before: pidVictims, outside: victimsLive, control: control{
			shows: []string{"process_vm_readv", "process_vm_writev", "mem", "pidfd_getfd", "kcmp", "process_madvise"},
		}},
	}
}

// killAllVictims are a process of the host with the sandbox's own uid there,
// and a sibling sandbox with a process of its own.
func killAllVictims(s *scene, b *box) {
	v := victim(s.T, b.userUID(s.T))
	sibling := newBox(s.T, backend.Spec{})
	p, err := sibling.Start(s.Context(), backend.Command{Args: []string{"/bin/sleep", "600"}, Timeout: backend.UntilSandboxEnds})
	if err != nil {
		s.Fatal(err)
	}
	_ = p
	s.kept["victim"], s.kept["sibling"] = v.Process.Pid, sibling.code(s.T)
	if sentry() {
		s.kept["sibling"] = []int{sibling.agentPID}
	}
	s.Cleanup(func() {
		if !living(v) {
			s.Error("the victim died after all")
		}
	})
}

// pidVictims passes the victims' numbers on.
func pidVictims(s *scene, b *box) {
	killAllVictims(s, b)
	s.args = append(s.args, strconv.Itoa(s.kept["victim"].(int)), strconv.Itoa(os.Getpid()), strconv.Itoa(b.agentPID))
	for _, pid := range s.kept["sibling"].([]int) {
		s.args = append(s.args, strconv.Itoa(pid))
	}
	s.outArgs = []string{s.a.args[0], strconv.Itoa(victim(s.T, 0).Process.Pid), "harmless"}
}

// initVictim: inside, process 1 is attacked; outside a throw-away one.
func initVictim(s *scene, _ *box) {
	s.args = append(s.args, "1")
	s.outArgs = []string{s.a.args[0], strconv.Itoa(victim(s.T, 0).Process.Pid), "harmless"}
}

func victimsLive(s *scene, b *box, _ *outcome) {
	pids := append([]int{s.kept["victim"].(int), b.agentPID}, s.kept["sibling"].([]int)...)
	for _, pid := range pids {
		if st := status(pid, "State"); st == "" || st[0] == 'Z' || st[0] == 'T' || st[0] == 't' {
			s.Errorf("open: process %d is in the state %q", pid, st)
		}
		if tracer := status(pid, "TracerPid"); tracer != "0" {
			s.Errorf("open: process %d is traced by %s", pid, tracer)
		}
	}
	agentLives(s, b, nil)
}

// agentLives: the first process of the sandbox is the same and does its work.
func agentLives(s *scene, b *box, _ *outcome) {
	if err := unix.Kill(b.agentPID, 0); err != nil {
		s.Fatalf("open: the agent has gone: %v", err)
	}
	if exit, out := runIn(s.T, b, "echo alive; exit 3"); out != "alive\n" || exit.Code != 3 {
		s.Errorf("open: the agent no longer works: %s %q", exit, out)
	}
}

// ownKilled: the program kills what is its own and nothing else.
func ownKilled(s *scene, o *outcome) {
	s.report(o, "inside")
	if o.exit.Reason != backend.ReasonSignaled || o.exit.Signal != backend.SIGKILL {
		s.Errorf("inconclusive: the program, which kills itself with all others, ended with %s", o.exit)
	}
}

// killAllWorks: in a pid namespace of the control's own the call kills.
func killAllWorks(s *scene, o *outcome) {
	if r := s.report(o, "outside"); r.Tries["kill(-1)"] != "ok" {
		s.Errorf("inconclusive: outside it is %s", r.Tries["kill(-1)"])
	}
}

// agentUnchanged: nothing that the sandbox did made the agent slower.
func agentUnchanged(s *scene, b *box, o *outcome) {
	for _, pid := range []int{b.agentPID, os.Getpid()} {
		if nice, err := unix.Getpriority(unix.PRIO_PROCESS, pid); err != nil || nice != 20 {
			s.Errorf("open: process %d has the priority %d, %v", pid, 20-nice, err)
		}
		class, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(pid), 0)
		if class>>13 == 3 {
			s.Errorf("open: process %d has the I/O class idle", pid)
		}
	}
	agentLives(s, b, o)
}

// agentSurvivesMemory: whatever was written about the agent, the kernel ends
// user code, and not the agent, at user code's limit.
func agentSurvivesMemory(s *scene, b *box, o *outcome) {
	exit, _ := runIn(s.T, b, "exec /usr/bin/python3 -c 'x=[bytearray(b\"x\"*(1<<20)) for _ in range(4000)]'")
	if exit.Reason != backend.ReasonMemoryLimit {
		s.Errorf("open: a memory bomb ended with %s", exit)
	}
	agentLives(s, b, o)
}
