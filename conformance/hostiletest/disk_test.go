//go:build linux

package hostiletest_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// fewInodes is the limit that those who make many files meet.
const fewInodes = 1000

func diskAttacks() []attack {
	inodes := backend.Limits{Inodes: fewInodes}
	small := backend.Limits{Memory: smallMemory, Disk: smallDisk}
	takes := func(n int) control {
		return control{works: func(s *scene, o *outcome) {
			if r := s.report(o, "outside"); r.N < n {
				s.Errorf("inconclusive: only %d were had outside (%s)", r.N, r.Errno)
			}
		}}
	}
	wiping := control{works: wipeWorks}
	entries := int(backend.DefaultInodes)
	if sentry() || w.target.engine {
		entries = 20000 // each goes through more hands
	}
	return []attack{
		{id: "DI-01", program: "disk.py", args: []string{"places"}, outside: noStrayFiles, control: control{
			shows: []string{"/etc", "/usr", "/root", "/opt", "/run", "/var/lib"}, fact: "an unprivileged user may write none of these anywhere",
		}},
		{id: "DI-01-root", only: asRoot, user: "root", program: "disk.py", args: []string{"places"}, outside: noStrayFiles, control: control{
			shows: []string{"/etc", "/usr", "/root"},
		}},
		{id: "DI-01-rm", program: "disk.py", args: []string{"wipe", "/"}, before: plantEverywhere, inside: reported, outside: canariesIntact, control: wiping},
		{id: "DI-01-rm-root", only: asRoot, user: "root", program: "disk.py", args: []string{"wipe", "/"}, before: plantEverywhere, inside: reported, outside: canariesIntact, control: wiping},
		{id: "DI-02", program: "disk.py", args: []string{"inodes"}, limits: inodes, inside: someFiles(fewInodes), control: takes(20000)},
		{id: "DI-03", program: "disk.py", args: []string{"sparse"}, control: control{
			shell: `cd "$(dirname "$3")"`, shows: []string{"truncate 1 TiB", "write at 1 TiB"},
		}},
		{id: "DI-06", program: "disk.py", args: []string{"entries", itoa(entries + entries/10)}, limits: backend.Limits{Inodes: int64(entries)}, timeout: time.Minute, inside: someFiles(entries), outside: endsQuickly, control: takes(entries + entries/10)},
		{id: "DI-07", program: "disk.py", args: []string{"undeletable"}, inside: exits(0), outside: endsQuickly, control: control{works: undeletableOutside}},
		{id: "DI-12", program: "disk.py", args: []string{"core"}, outside: noCore, control: control{shell: "ulimit -c unlimited", shows: []string{"setrlimit", "core file"}}},
		{id: "DI-15", program: "disk.py", args: []string{"bomb"}, limits: small, timeout: time.Minute, inside: diskFull, control: takes(300)},
		{id: "DI-17", program: "disk.py", args: []string{"swap"}, control: control{shows: []string{"swapon", "acct"}, fact: "an unprivileged user may not anywhere"}},
		{id: "DI-17-root", only: asRoot, user: "root", program: "disk.py", args: []string{"swap"}, control: control{shows: []string{"swapon", "acct"}}},
	}
}

// reported: the program got to its end, or destroyed what it would report with.
func reported(s *scene, o *outcome) {
	if o.said == nil && o.exit.Success() {
		s.Errorf("inconclusive: it said nothing: %.300s", o.stderr)
	}
}

// noStrayFiles: no file with the run's name is in the host's directories.
func noStrayFiles(s *scene, _ *box, _ *outcome) {
	for _, dir := range []string{"/", "/etc", "/usr", "/usr/bin", "/usr/local", "/var", "/var/lib", "/home", "/root", "/opt", "/run", "/dev", "/dev/shm", "/tmp", "/var/tmp"} {
		if found, _ := filepath.Glob(filepath.Join(dir, "glovebox-hostile-"+s.nonce)); len(found) > 0 {
			s.Errorf("open: the host has %v", found)
		}
	}
}

// plantEverywhere puts canaries where everybody may write.
func plantEverywhere(s *scene, _ *box) {
	var all []canary
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", w.dir} {
		if !rooted() && dir == w.dir {
			continue
		}
		all = append(all, plant(s.T, dir))
	}
	s.kept["canaries"], s.kept["python"] = all, hashOf(s.T, "/usr/bin/python3")
	s.outArgs = []string{"wipe", filepath.Dir(plant(s.T, "/tmp").path)}
}

func canariesIntact(s *scene, _ *box, _ *outcome) {
	for _, c := range s.kept["canaries"].([]canary) {
		if !c.intact() {
			s.Errorf("open: %s was changed", c.path)
		}
	}
	if hashOf(s.T, "/usr/bin/python3") != s.kept["python"] {
		s.Error("open: the host's python was changed")
	}
	interpreterWorks(s.T)
}

// wipeWorks: outside, the same removes a canary with its directory.
func wipeWorks(s *scene, o *outcome) {
	s.report(o, "outside")
	if _, err := os.Lstat(s.outArgs[1]); !errors.Is(err, fs.ErrNotExist) {
		s.Errorf("inconclusive: it removes nothing outside either: %v", err)
	}
}

func someFiles(most int) func(*scene, *outcome) {
	return func(s *scene, o *outcome) {
		if r := s.report(o, "inside"); r.N > most || r.N < 8 || r.Errno != "ENOSPC" {
			s.Errorf("open: %d files were made with a limit of %d, then %q", r.N, most, r.Errno)
		}
	}
}

// endsQuickly: whatever lies in it, the sandbox is removed at once.
func endsQuickly(s *scene, b *box, _ *outcome) {
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	began := time.Now()
	if err := b.Destroy(ctx); err != nil {
		s.Error(err)
	}
	if took := time.Since(began); took > time.Second+grace() {
		s.Errorf("open: its removal took %v", took)
	}
	if found, _ := filepath.Glob(filepath.Join(w.dir, "*", "*", b.ID()+"*")); len(found) > 0 {
		s.Errorf("open: %v is left", found)
	}
}

// undeletableOutside: a plain removal by its owner fails.
func undeletableOutside(s *scene, o *outcome) {
	s.report(o, "outside")
	if os.Geteuid() == 0 {
		if len(s.pen.tasks()) == 0 {
			s.Error("inconclusive: nothing keeps the directory busy")
		}
		return
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "locked")); err == nil {
		s.Error("inconclusive: a plain removal works")
	}
}

func noCore(s *scene, _ *box, _ *outcome) {
	if found, _ := filepath.Glob("core*"); len(found) > 0 {
		s.Errorf("open: %v on the host", found)
	}
}
