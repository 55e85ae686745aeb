package boot

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
)

// watchEvery is how often memory is sampled where no cgroup limits it. Between
// two samples a program can use more: the limit is a monitored one.
const watchEvery = 50 * time.Millisecond

// watchMemory kills everything when user code's memory is over limit. What
// slips away by forking meanwhile is counted, and killed, at the next look.
func watchMemory(limit int64, srv *agent.Server) {
	for range time.Tick(watchEvery) {
		pids := agent.Descendants()
		// Looking at who shares a page is dear, so it comes second.
		if sum(pids, agent.ResidentMemory) > limit && sum(pids, agent.ProportionalMemory) > limit {
			// What has left its command's session is counted, so it goes as
			// well. The list comes first: commands that start after KillAll
			// are not in it.
			pids = agent.Descendants()
			srv.KillAll(gloveboxv1.End_REASON_MEMORY_LIMIT)
			kill(pids)
		}
	}
}

func sum(pids []int, of func(pid int) int64) int64 {
	var n int64
	for _, pid := range pids {
		n += of(pid)
	}
	return n
}

// killDescendants stops, kills and forgets everything below this process,
// again until nothing is left: a stopped process cannot fork.
func killDescendants() {
	for range 200 {
		pids := agent.Descendants()
		if len(pids) == 0 {
			return
		}
		kill(pids)
		unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil) //nolint:errcheck // a pause
	}
}

func kill(pids []int) {
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		for _, pid := range pids {
			unix.Kill(pid, sig) //nolint:errcheck // gone is what we want
		}
	}
}
