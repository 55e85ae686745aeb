//go:build linux

package agent

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePasswd(t *testing.T) {
	t.Parallel()
	got := parsePasswd([]byte("root:x:0:0:root:/root:/bin/sh\n# comment:x:1:1:::\n\nshort:x:1\nbad:x:a:1:::\nlast:x:4294967295:1:::\r\nu:x:1000:100:U,,,:/home/u:\n+::::::\n"))
	want := []Account{{Name: "root", Home: "/root"}, {Name: "u", UID: 1000, GID: 100, Home: "/home/u"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func FuzzAccounts(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/sh\n", "g:x:0:root,u\n", "root")
	f.Add("u:x:1:1::\x00:\n", ":::\n", "1")
	f.Fuzz(func(t *testing.T, passwd, grp, name string) {
		a := &accounts{users: parsePasswd([]byte(passwd)), groups: parseGroup([]byte(grp))}
		if len(a.users) > strings.Count(passwd, "\n")+1 {
			t.Errorf("%d accounts", len(a.users))
		}
		for _, u := range a.users {
			if u.Name == "" || u.UID == 1<<32-1 || strings.ContainsAny(u.Name+u.Home, ":\x00\n") {
				t.Errorf("%+v", u)
			}
		}
		for _, g := range a.groups {
			if g.gid == 1<<32-1 {
				t.Errorf("%+v", g)
			}
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (a) b) R 1 7 7 0 -1 4194304 1 0 0 0 5 6 7 8 20 0 1 0 9"))
	f.Add([]byte("7 (x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if st, ok := parseStat(b); ok && st.cpu < 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	st, ok := parseStat([]byte("7 (a) Z 9 9 9) R 1 6 5 0 -1 4194304 1 0 0 0 50 60 70 80 20 0 1 0 9"))
	if !ok || st.ppid != 1 || st.session != 5 || !st.alive || st.cpu.Milliseconds() != 2600 {
		t.Errorf("%+v %v", st, ok)
	}
	for line, alive := range map[string]bool{
		"7 (a) Z 1 6 5 0 -1 4194304 1 0 0 0 50 60 70 80 20 0 1 0 9": false,
		"7 (a) Z 1 6 5 0 -1 4194304 1 0 0 0 50 60 70 80 20 0 0 0 9": false,
		// Its main thread alone has ended.
		"7 (a) Z 1 6 5 0 -1 4194304 1 0 0 0 50 60 70 80 20 0 2 0 9": true,
		"7 (a) X 1 6 5 0 -1 4194304 1 0 0 0 50 60 70 80 20 0 2 0 9": false,
	} {
		if st, ok := parseStat([]byte(line)); !ok || st.alive != alive {
			t.Errorf("%s: %+v %v", line, st, ok)
		}
	}
}

// TestRing_keepsTheNewest compares the ring with a plain slice.
func TestRing_keepsTheNewest(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	yes := func(int) bool { return true }
	for _, largest := range []int{1, 100, 10000, 400000} {
		var r ring
		var all []byte
		var kinds []stream
		for range min(5000, 40*ringSize/largest) {
			p := make([]byte, 1+rng.IntN(largest))
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			kind := stream(rng.IntN(2))
			r.append(kind, p, yes)
			all = append(all, p...)
			for range p {
				kinds = append(kinds, kind)
			}
			if len(all) > 2*ringSize {
				all, kinds = all[len(all)-ringSize:], kinds[len(kinds)-ringSize:]
			}
			if len(r.buf) > ringSize || len(r.runs) > maxRuns {
				t.Fatalf("%d bytes, %d runs", len(r.buf), len(r.runs))
			}
		}
		got := r.bytes()
		if !bytes.Equal(got, all[len(all)-len(got):]) {
			t.Fatalf("largest %d: the bytes are not the newest", largest)
		}
		at := len(all) - len(got)
		for _, run := range r.runs {
			for range run.n {
				if kinds[at] != run.kind {
					t.Fatalf("largest %d: byte %d is of stream %d", largest, at, kinds[at])
				}
				at++
			}
		}
		if at != len(all) {
			t.Fatalf("runs end at %d of %d", at, len(all))
		}
		if freed := r.shrink(); freed < 0 || !bytes.Equal(r.bytes(), got) {
			t.Fatal("shrink changed the bytes")
		}
	}
}

func TestRings_dropTheOldestEnded(t *testing.T) {
	t.Parallel()
	var g rings
	full := func() *command {
		c := &command{}
		for range 2 {
			c.ring.append(streamStdout, make([]byte, ringSize), g.grow)
		}
		return c
	}
	var all []*command
	for range ringsTotal / ringSize {
		c := full()
		g.retire(c)
		all = append(all, c)
	}
	if g.total != ringsTotal {
		t.Fatalf("total %d", g.total)
	}
	last := full()
	if g.total > ringsTotal || last.ring.n != ringSize || all[0].ring.n != 0 || all[len(all)-1].ring.n == 0 {
		t.Errorf("total %d, first %d, last %d", g.total, all[0].ring.n, last.ring.n)
	}
	g = rings{total: ringsTotal}
	if c := full(); c.ring.n != 0 || c.ring.written != 2*ringSize {
		t.Errorf("a ring beyond the budget: %d", c.ring.n)
	}
}

func TestReserve_closed(t *testing.T) {
	t.Parallel()
	var tb table
	tb.close()
	if _, err := tb.reserve(); err == nil {
		t.Error("a closed table gives places")
	}
}
