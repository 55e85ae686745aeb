//go:build linux

package agent

import (
	"errors"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
)

// What a kill reached, on the wire.
const (
	scopeTree    = "tree"
	scopeSession = "session"
)

// killRounds bounds how often a session that keeps forking is looked through.
const killRounds = 64

// stopRounds is after how many of them those are killed that were met, though
// there are always others.
const stopRounds = 16

// alive tells whether the process has not ended yet.
func (c *command) alive() bool {
	if c.proc == nil {
		return false
	}
	select {
	case <-c.proc.Done():
		return false
	default:
		return true
	}
}

// kill ends the command's tree for a reason of ours. The first reason stays.
func (c *command) kill(reason gloveboxv1.End_Reason) {
	c.mu.Lock()
	if c.end == nil && c.killed == gloveboxv1.End_REASON_UNSPECIFIED && (c.alive() || reason == gloveboxv1.End_REASON_OUTPUT_LIMIT) {
		c.killed = reason
	}
	c.mu.Unlock()
	if c.alive() {
		if c.group == nil {
			c.hold()
		}
		c.killTree()
	}
}

// hold stops all of the command that forks, so that the agent gets to look at it,
// and notes the time that it has used, while there is somebody to ask.
func (c *command) hold() {
	if c.proc == nil || c.proc.Signal(unix.SIGSTOP) != nil || !c.alive() {
		return
	}
	_ = unix.Kill(-int(c.pid), unix.SIGSTOP) // at one moment, as far as it stayed in its first group
	leaders, seen := map[int]*command{int(c.pid): c}, map[int]bool{}
	for range stopRounds {
		all, more := stopMembers(leaders, seen)
		var sum time.Duration
		for _, m := range all {
			sum += m.cpu
		}
		c.mu.Lock()
		c.cpuSeen = max(c.cpuSeen, sum)
		c.mu.Unlock()
		if !more {
			return
		}
	}
}

// killTree sends SIGKILL to all that the command started, as far as that is
// tracked: its group, else its session.
func (c *command) killTree() {
	if c.group != nil {
		c.setScope(scopeTree)
		if c.group.Kill() == nil {
			if c.proc != nil {
				_ = c.proc.Signal(unix.SIGKILL)
			}
			return
		}
	}
	c.setScope(scopeSession)
	if c.proc != nil {
		// A leader that sees its children die must not get to exit by itself.
		_ = c.proc.Signal(unix.SIGSTOP)
		c.signalSession(unix.SIGKILL)
		_ = c.proc.Signal(unix.SIGKILL)
	}
}

// setScope notes what a kill reaches. It comes before the kill, since the end
// may be reported at once.
func (c *command) setScope(scope string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scope = scope
}

// killSessions ends the sessions of commands, of those that have ended too.
func killSessions(all []*command) { signalSessions(all, unix.SIGKILL) }

// signalSession sends sig to every process of the command's session; SIGKILL
// until none is left.
func (c *command) signalSession(sig unix.Signal) {
	signalSessions([]*command{c}, sig)
}

func signalSessions(all []*command, sig unix.Signal) {
	leaders := make(map[int]*command, len(all))
	for _, c := range all {
		if c.proc != nil {
			leaders[int(c.pid)] = c
		}
	}
	if sig == unix.SIGKILL {
		killLeaders(leaders)
		return
	}
	eachMember(leaders, func(m member) { _ = unix.Kill(m.pid, sig) })
}

// eachMember calls f with the live processes of these leaders' sessions.
func eachMember(leaders map[int]*command, f func(member)) {
	eachProcess(func(pid int, st procStat) {
		// Security: once the leader was reaped the kernel may have given its
		// number to a stranger's session. Ours descend from the agent.
		if c := leaders[st.session]; c != nil && (c.alive() || pid != st.session && descends(st.ppid)) {
			f(member{pid, st.ppid, st.pgrp, st.session, st.stopped, st.cpu})
		}
	})
}

// stopMembers stops the groups of those that run, each when it is met, and tells
// whether there were any that are not in seen, where it puts them. all are those
// that live.
func stopMembers(leaders map[int]*command, seen map[int]bool) (all []member, more bool) {
	eachMember(leaders, func(m member) {
		all = append(all, m)
		if m.stopped || seen[m.pid] {
			return
		}
		seen[m.pid], more = true, true
		signalGroup(m.pgrp, unix.SIGSTOP)
	})
	return all, more
}

// signalGroup signals a process group at one moment, so that nothing of it gets
// away by forking. Group 0 is one of another namespace.
func signalGroup(pgrp int, sig unix.Signal) {
	if pgrp > 1 {
		_ = unix.Kill(-pgrp, sig)
	}
}

// killLeaders ends sessions that may be forking meanwhile, and faster than they
// are looked through. What makes a group for each process is stopped until nobody
// new is met: the stopped still count against its limit, the killed would make
// room for more.
func killLeaders(leaders map[int]*command) {
	seen := map[int]bool{}
	for round := range killRounds {
		all, more := stopMembers(leaders, seen)
		if len(all) == 0 {
			return
		}
		if more && round%stopRounds != stopRounds-1 {
			continue
		}
		for _, m := range all {
			signalGroup(m.pgrp, unix.SIGKILL)
		}
	}
}

// cpu is the time used by the command's tree so far, as far as it was seen: a
// tree that was killed takes what its members had used with it.
func (c *command) cpu() time.Duration {
	now := c.cpuNow()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cpuSeen = max(c.cpuSeen, now)
	return c.cpuSeen
}

func (c *command) cpuNow() time.Duration {
	if c.group != nil {
		if d, err := c.group.CPU(); err == nil {
			return d
		}
	}
	if !c.alive() {
		if c.proc == nil {
			return 0
		}
		return c.proc.Status().CPU
	}
	var sum time.Duration
	for _, m := range processes(func(sid int) bool { return sid == int(c.pid) }) {
		sum += m.cpu
	}
	return sum
}

// watchCPU kills the command when its tree has used limit. It looks more often
// as the limit comes nearer.
func (c *command) watchCPU(limit time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.proc.Done():
			return
		case <-c.s.ctx.Done():
			return
		case <-timer.C:
		}
		left := limit - c.cpu()
		if left <= 0 {
			c.kill(gloveboxv1.End_REASON_CPU_LIMIT)
			return
		}
		timer.Reset(min(max(left/time.Duration(2*runtime.NumCPU()), 5*time.Millisecond), 250*time.Millisecond))
	}
}

// report says how the command ended, from what wait and the counters say.
func (c *command) report(held bool) *gloveboxv1.End {
	end := &gloveboxv1.End{Reason: gloveboxv1.End_REASON_EXITED, PipesHeld: held, Usage: c.usage()}
	c.noteHits(c.s.fullScratch())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alive() { // the kernel would not let it die
		end.Reason, end.Code, end.Signal = gloveboxv1.End_REASON_SIGNALED, -1, int32(unix.SIGKILL)
	} else if st := c.proc.Status(); st.Signal != 0 {
		end.Reason, end.Code, end.Signal = gloveboxv1.End_REASON_SIGNALED, -1, int32(st.Signal)
		if st.Signal == unix.SIGHUP && c.scope == scopeSession {
			// It is our kill all the same: gVisor hangs up on a stopped leader
			// whose children die.
			end.Signal = int32(unix.SIGKILL)
		}
	} else {
		end.Code = int32(st.Code)
	}
	// A command that ended by itself before our kill came has exited. Output
	// is read after it was written, so its limit counts even then.
	if c.killed != 0 && (end.Signal == int32(unix.SIGKILL) || c.killed == gloveboxv1.End_REASON_OUTPUT_LIMIT) {
		end.Reason = c.killed
	}
	c.sealOutput(end)
	end.KillScope = c.scope
	return end
}

// sealOutput notes what became of the output. The caller holds c.mu.
func (c *command) sealOutput(end *gloveboxv1.End) {
	end.StdoutTruncated, end.StderrTruncated = c.truncated[0], c.truncated[1]
	end.Hits = append(end.Hits, c.hits...)
	if c.truncated[0] || c.truncated[1] {
		end.Hits = append(end.Hits, "output")
	}
}

// usage is what the command has used so far.
func (c *command) usage() *gloveboxv1.Usage {
	u := &gloveboxv1.Usage{CpuNs: int64(c.cpu())}
	if c.proc != nil && !c.alive() {
		u.PeakMemoryBytes = c.proc.Status().MaxRSS
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if u.WallNs = int64(c.wall); u.WallNs == 0 {
		u.WallNs = int64(time.Since(c.started))
	}
	u.StdoutBytes, u.StderrBytes = c.bytes[0], c.bytes[1]
	return u
}

// signal sends sig to the process, or to its whole tree.
func (c *command) signal(sig unix.Signal, tree bool) error {
	switch {
	case !tree:
		if !c.alive() {
			return unix.ESRCH
		}
		return c.proc.Signal(sig)
	case c.proc == nil:
		return unix.ESRCH
	case sig == unix.SIGKILL:
		c.killTree()
		return nil
	}
	c.signalSession(sig)
	return nil
}

// noProcess tells whether err means that there is nothing to signal.
func noProcess(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrProcessDone)
}
