package conformance

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func snapshotCases() []Case {
	s := needs(shell(), feature(backend.FeatureSnapshot))
	return []Case{
		{ID: "SN-01", Area: Snapshots, Title: "a sandbox made from a snapshot has its files, and an ID of its own", Needs: s, Run: snapshotFiles},
		{ID: "SN-02", Area: Snapshots, Title: "three from one do not share what they write", Needs: s, Run: snapshotThree},
		{ID: "SN-03", Area: Snapshots, Title: "snapshots are listed and deleted, deleting one twice is not_found or fine", Needs: s, Run: snapshotList},
		{ID: "SN-04", Area: Snapshots, Title: "the original goes on: its programs, their output and its ID", Needs: s, Run: snapshotOriginal},
		{ID: "SN-05", Area: Snapshots, Title: "programs go on in each copy where they were", Needs: s, Run: snapshotCounts},
		{ID: "SN-06", Area: Snapshots, Title: "files only: the files are there, the programs are not", Needs: s, Run: snapshotFilesOnly},
		{ID: "SN-07", Area: Snapshots, Title: "copies draw different random numbers", Needs: s, Run: snapshotRandom},
		{ID: "SN-08", Area: Snapshots, Title: "a copy has the labels, environment, lifetime and host name of a sandbox of its own", Needs: s, Run: snapshotFresh},
		{ID: "SN-09", Area: Snapshots, Title: "a deleted snapshot is refused, and what was made of it goes on", Needs: s, Run: snapshotDeleted},
		{ID: "SN-10", Area: Snapshots, Title: "less memory or disk than the snapshot's is refused", Needs: s, Run: snapshotLimits},
		{ID: "SN-11", Area: Snapshots, Title: "a name that is taken is a conflict, one that is none is invalid", Needs: s, Run: snapshotNames},
		{ID: "SN-12", Area: Snapshots, Title: "a copy's limits hold", Needs: s, Run: snapshotHolds},
		{ID: "SN-13", Area: Snapshots, Title: "a kept sandbox is saved, and a copy kept", Needs: append(s, feature(backend.FeatureFind)), Run: snapshotKept},
	}
}

func (t *T) snapshot(ctx context.Context, sb backend.Sandbox) string {
	name, err := find[backend.Snapshotter](t, "snapshot", sb).Snapshot(ctx, backend.SnapshotOptions{})
	if err != nil || name == "" {
		t.Fatalf("snapshot: %q, %v", name, err)
	}
	t.Cleanup(func(ctx context.Context) {
		err := find[backend.SnapshotStore](t, "snapshot", t.Executor()).DeleteSnapshot(ctx, name)
		if err != nil && backend.KindOf(err) != backend.ErrNotFound {
			t.Errorf("delete: %v", err)
		}
	})
	return name
}

func snapshotFiles(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "f", "saved")
	name := t.snapshot(ctx, sb)
	t.write(ctx, sb, "f", "changed since")
	again := t.Create(ctx, backend.Spec{From: name})
	if got := t.read(ctx, again, "f"); got != "saved" || again.ID() == sb.ID() {
		t.Errorf("%s has %q", again.ID(), got)
	}
	t.good(t.exec(ctx, again, "true"))
	t.good(t.exec(ctx, sb, "true"))
}

func snapshotThree(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "f", "saved")
	name := t.snapshot(ctx, sb)
	var all []backend.Sandbox
	for i := range 3 {
		one := t.Create(ctx, backend.Spec{From: name})
		t.write(ctx, one, "own", fmt.Sprint(i))
		all = append(all, one)
	}
	for i, one := range all {
		if t.read(ctx, one, "own") != fmt.Sprint(i) || t.read(ctx, one, "f") != "saved" {
			t.Errorf("%d has other content", i)
		}
	}
}

func snapshotList(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	name := t.snapshot(ctx, sb)
	store := find[backend.SnapshotStore](t, "snapshot", t.Executor())
	listed := func() bool {
		for info, err := range store.Snapshots(ctx) {
			if err != nil {
				t.Fatalf("%v", err)
			}
			if info.Name == name {
				return true
			}
		}
		return false
	}
	if !listed() {
		t.Errorf("%s is not listed", name)
	}
	if err := store.DeleteSnapshot(ctx, name); err != nil {
		t.Errorf("%v", err)
	}
	if listed() {
		t.Errorf("%s is still listed", name)
	}
	if err := store.DeleteSnapshot(ctx, name); err != nil {
		t.kind("delete again", err, backend.ErrNotFound)
	}
}

func snapshotOriginal(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	out := t.counts(ctx, sb)
	t.snapshot(ctx, sb)
	before := len(out.String())
	t.until(ctx, "it goes on", func() bool { return len(out.String()) > before+10 })
	for i, line := range strings.Fields(out.String()) {
		if line != fmt.Sprint(i+1) {
			t.Errorf("line %d is %q", i+1, line)
			break
		}
	}
	t.good(t.exec(ctx, sb, "true"))
}

// countingFile is a program that counts in a file, and fills an output that
// nobody may be reading.
const countingFile = `i=0; while :; do i=$((i+1)); echo $i >n.new; mv n.new n; head -c 8192 /dev/zero; sleep 0.02; done`

// counted is where that program is.
func (t *T) counted(ctx context.Context, sb backend.Sandbox) int {
	n := 0
	t.until(ctx, "it counts", func() bool {
		var err error
		n, err = strconv.Atoi(strings.TrimSpace(t.sh(ctx, sb, "cat n 2>/dev/null || true").out))
		return err == nil
	})
	return n
}

func snapshotCounts(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.start(ctx, sb, backend.Command{Args: []string{"sh", "-c", countingFile}, Timeout: backend.UntilSandboxEnds})
	at := t.counted(ctx, sb)
	name := t.snapshot(ctx, sb)
	for range 2 {
		one := t.Create(ctx, backend.Spec{From: name})
		first := t.counted(ctx, one)
		if first < at {
			t.Errorf("it counts from %d, and was at %d", first, at)
		}
		t.until(ctx, "the copy goes on", func() bool { return t.counted(ctx, one) > first })
	}
}

func snapshotFilesOnly(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.start(ctx, sb, backend.Command{Args: []string{"sh", "-c", countingFile}, Timeout: backend.UntilSandboxEnds})
	t.good(t.sh(ctx, sb, "mkdir d && echo x >d/f && ln d/f d/g && ln -s /nowhere d/l && chmod 640 d/f && : >d/$(printf 'a\\nb') && chmod 510 d"))
	t.counted(ctx, sb)
	s := find[backend.Snapshotter](t, "snapshot", sb)
	name, err := s.Snapshot(ctx, backend.SnapshotOptions{FilesOnly: true})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func(ctx context.Context) {
		if err := find[backend.SnapshotStore](t, "snapshot", t.Executor()).DeleteSnapshot(ctx, name); err != nil {
			t.Errorf("%v", err)
		}
	})
	one := t.Create(ctx, backend.Spec{From: name})
	const look = "cat d/f; readlink d/l; [ d/f -ef d/g ] && echo linked; ls -l d | wc -l; ls -ld d | cut -c1-10; ls -l d/f | cut -c1-10"
	want := t.good(t.sh(ctx, sb, look))
	if got := t.good(t.sh(ctx, one, look)); got != want || !strings.Contains(got, "linked\n") {
		t.Errorf("%q, not %q", got, want)
	}
	at := t.counted(ctx, one)
	wait(ctx, 500*time.Millisecond)
	if now := t.counted(ctx, one); now != at {
		t.Errorf("a program went on from %d to %d", at, now)
	}
}

func snapshotRandom(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	name := t.snapshot(ctx, sb)
	seen := map[string]bool{}
	for _, one := range []backend.Sandbox{sb, t.Create(ctx, backend.Spec{From: name}), t.Create(ctx, backend.Spec{From: name})} {
		seen[t.good(t.sh(ctx, one, "head -c 16 /dev/urandom | od -An -tx1"))] = true
	}
	if len(seen) != 3 {
		t.Errorf("of three draws only %d differ", len(seen))
	}
}

func snapshotFresh(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: 15 * time.Second, Env: map[string]string{"OLD": "1", "BOTH": "old"}, Labels: map[string]string{"a": "b"}})
	host := t.good(t.sh(ctx, sb, "cat /proc/sys/kernel/hostname || hostname"))
	name := t.snapshot(ctx, sb)
	one := t.Create(ctx, backend.Spec{From: name, Lifetime: 5 * time.Minute, Env: map[string]string{"BOTH": "new"}})
	r := one.Receipt()
	if r.Sandbox != one.ID() || one.ID() == sb.ID() || time.Until(r.Deadline) < 2*time.Minute {
		t.Errorf("%s of %s, until %v", r.Sandbox, one.ID(), r.Deadline)
	}
	t.pass(ctx, 16*time.Second) // the original ends
	if got := t.good(t.sh(ctx, one, "cat /proc/sys/kernel/hostname || hostname")); got != host {
		t.Errorf("host name %q, not %q", got, host)
	}
	if got := t.good(t.sh(ctx, one, "echo $BOTH")); got != "new\n" {
		t.Errorf("%q", got)
	}
	t.expired(ctx, sb)
}

func snapshotDeleted(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "f", "saved")
	name := t.snapshot(ctx, sb)
	one := t.Create(ctx, backend.Spec{From: name})
	if err := find[backend.SnapshotStore](t, "snapshot", t.Executor()).DeleteSnapshot(ctx, name); err != nil {
		t.Errorf("%v", err)
	}
	t.kind("from what is deleted", t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{From: name})), backend.ErrNotFound)
	if got := t.read(ctx, one, "f"); got != "saved" {
		t.Errorf("%q", got)
	}
	t.good(t.exec(ctx, one, "true"))
}

func snapshotLimits(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	name := t.snapshot(ctx, sb)
	was := t.Spec(backend.Spec{}).Limits.WithDefaults()
	for field, l := range map[string]backend.Limits{
		"limits.memory": {Memory: was.Memory - 1<<20}, "limits.disk": {Disk: was.Disk / 2},
	} {
		spec := t.Spec(backend.Spec{From: name})
		if l.Memory != 0 {
			spec.Limits.Memory = l.Memory
		} else {
			spec.Limits.Disk = l.Disk
		}
		t.unsupportedField(field, t.refuses(ctx, t.Executor(), spec), field)
	}
	t.good(t.exec(ctx, t.Create(ctx, backend.Spec{From: name}), "true"))
}

func snapshotNames(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	name := t.snapshot(ctx, sb)
	s := find[backend.Snapshotter](t, "snapshot", sb)
	_, err := s.Snapshot(ctx, backend.SnapshotOptions{Name: name})
	t.kind("the same name", err, backend.ErrConflict)
	for _, bad := range []string{"../x", "/x", "a/b", ".", "a\x00b", strings.Repeat("x", 300)} {
		_, err := s.Snapshot(ctx, backend.SnapshotOptions{Name: bad})
		t.kind(fmt.Sprintf("%.20q", bad), err, backend.ErrInvalid)
	}
	t.good(t.exec(ctx, t.Create(ctx, backend.Spec{From: name}), "true"))
}

func snapshotHolds(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	name := t.snapshot(ctx, sb)
	disk := t.Spec(backend.Spec{}).Limits.WithDefaults().Disk
	one := t.Create(ctx, backend.Spec{From: name, Lifetime: 20 * time.Second})
	got := t.sh(ctx, one, fmt.Sprintf("head -c %d /dev/zero >big; echo ended; rm big; touch /x 2>/dev/null && echo wrote; head -c 1000 /dev/zero >small && echo fine", disk+1<<20))
	if got.out != "ended\nfine\n" || !strings.Contains(strings.ToLower(got.err), "space") && !strings.Contains(strings.ToLower(got.err), "large") {
		t.Errorf("%q, %q", got.out, got.err)
	}
	t.pass(ctx, 21*time.Second)
	t.expired(ctx, one)
}

func snapshotKept(ctx context.Context, t *T) {
	id := t.keep(ctx, backend.Spec{}, func(sb backend.Sandbox) { t.write(ctx, sb, "f", "kept") })
	sb := t.findAgain(ctx, id)
	name := t.snapshot(ctx, sb)
	copied := t.keep(ctx, backend.Spec{From: name}, func(backend.Sandbox) {})
	one := t.findAgain(ctx, copied)
	if got := t.read(ctx, one, "f"); got != "kept" || copied == id {
		t.Errorf("%s has %q", copied, got)
	}
	t.write(ctx, one, "f", "changed")
	if got := t.read(ctx, sb, "f"); got != "kept" {
		t.Errorf("the original has %q", got)
	}
}
