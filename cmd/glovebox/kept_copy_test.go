//go:build linux

package main_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// tree lists what is below dir: names, with types and permissions of what is no
// plain directory.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		rel, _ := filepath.Rel(dir, path)
		if !d.IsDir() {
			rel += " " + info.Mode().String()
		}
		out = append(out, rel)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Join(out, "\n")
}

func TestKept_copy(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, g *glovebox) {
		id := g.create("--name", "box")
		src := filepath.Join(g.dir, "src")
		if err := errors.Join(os.MkdirAll(filepath.Join(src, "a/b"), 0o755), os.WriteFile(filepath.Join(src, "a/b/f"), []byte("data\n"), 0o644),
			os.WriteFile(filepath.Join(src, "run.sh"), []byte("echo ran\n"), 0o755), os.Symlink("/etc/passwd", filepath.Join(src, "link")),
			syscall.Mkfifo(filepath.Join(src, "fifo"), 0o644)); err != nil {
			t.Fatal(err)
		}
		if r := g.want(0, "", "cp", "src", "box:"); !strings.Contains(r.err, "link is left out") || !strings.Contains(r.err, "fifo is left out") {
			t.Errorf("%+v", r)
		}
		g.want(0, "src\nsrc/a\nsrc/a/b\nsrc/a/b/f\nsrc/run.sh\n", "exec", id, "sh", "-c", "find src | sort")
		g.want(0, "ran\n", "exec", id, "src/run.sh")
		g.want(0, "", "cp", "-q", "src/.", "box:flat")
		g.want(0, "data\n", "exec", id, "cat", "flat/a/b/f")
		g.want(0, "", "cp", "src/run.sh", "box:flat/a")
		g.want(0, "", "cp", "src/run.sh", "box:renamed")
		g.want(0, "echo ran\necho ran\n", "exec", id, "cat", "flat/a/run.sh", "renamed")
		g.want(1, "", "cp", "src/run.sh", "box:nowhere/")

		g.want(0, "", "cp", "box:src", "back")
		want := "a\na/b\na/b/f -rw-r--r--\nrun.sh -rwxr-xr-x"
		if got := tree(t, filepath.Join(g.dir, "back")); got != want {
			t.Errorf("it came back as\n%s", got)
		}
		g.want(0, "", "cp", "box:src", "back") // into it, since it is there
		if got := tree(t, filepath.Join(g.dir, "back/src")); got != want {
			t.Errorf("it came back as\n%s", got)
		}
		g.want(0, "", "cp", "box:src/a/b/f", ".")
		if data, err := os.ReadFile(filepath.Join(g.dir, "f")); err != nil || string(data) != "data\n" {
			t.Errorf("%q %v", data, err)
		}
		stream := g.want(0, "*", "cp", "box:src", "-").out
		var names []string
		for tr := tar.NewReader(strings.NewReader(stream)); ; {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, h.Name)
		}
		if !slices.Equal(names, []string{"src/", "src/a/", "src/a/b/", "src/a/b/f", "src/run.sh"}) {
			t.Errorf("%q", names)
		}
		g.in = stream
		g.want(0, "", "cp", "-", "box:again")
		g.want(0, "ran\n", "exec", id, "again/src/run.sh")
		if r := g.want(0, "*", "cp", "--json", "box:src", "counted"); !strings.Contains(r.out, `"files": 2`) {
			t.Errorf("%+v", r)
		}
		for _, args := range [][]string{{"a", "b"}, {"box:a", "box:b"}, {"./box:a", "b"}, {"box:a"}} {
			g.want(2, "", append([]string{"cp"}, args...)...)
		}
		g.want(1, "", "cp", "box:absent", ".")
	})
}

func TestKept_copyOutOfAHostileSandbox(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	id := g.create()
	g.want(0, "", "exec", id, "sh", "-c", `mkdir -p x/deep/er && cd x && echo plain >plain && ln -s /etc/passwd passwd && ln -s .. up && ln -s loop loop &&
		mkfifo fifo && cp /bin/true suid && chmod 6777 suid && mkdir closed && chmod 1777 closed && truncate -s 200M sparse`)
	if r := g.run("cp", "--max-size", "100m", id+":x", "out"); r.code != 1 || !strings.Contains(r.err, "--max-size") {
		t.Errorf("a file that is not there came out: %+v", r)
	}
	if err := os.RemoveAll(filepath.Join(g.dir, "out")); err != nil {
		t.Fatal(err)
	}
	g.want(0, "", "exec", id, "rm", "x/sparse")
	want := "closed\ndeep\ndeep/er\nplain -rw-r--r--\nsuid -rwxr-xr-x"
	r := g.want(0, "", "cp", id+":x", "out")
	if got := tree(t, filepath.Join(g.dir, "out")); got != want {
		t.Errorf("it came out as\n%s\n%+v", got, r)
	}
	for _, name := range []string{"passwd", "up", "loop", "fifo"} {
		if !strings.Contains(r.err, "x/"+name+" is left out") {
			t.Errorf("nothing of %s in %s", name, r.err)
		}
	}
	if r := g.want(0, "*", "cp", id+":x", "-"); strings.Contains(r.out, "passwd") {
		t.Error("the tar stream has a link")
	} else {
		for tr := tar.NewReader(strings.NewReader(r.out)); ; {
			h, err := tr.Next()
			if err != nil {
				break
			}
			if h.Mode&^0o777 != 0 || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
				t.Errorf("%s has mode %o and type %c", h.Name, h.Mode, h.Typeflag)
			}
		}
	}
	// Followed, links show what the sandbox sees, and loops have an end.
	g.want(0, "", "exec", id, "sh", "-c", "mkdir loops; cd loops; for i in 1 2 3; do ln -s . $i; done")
	g.want(0, "", "cp", "-L", id+":loops", "followed")
	if got := tree(t, filepath.Join(g.dir, "followed")); got != "" {
		t.Errorf("a loop gave\n%s", got)
	}
	g.want(0, "", "exec", id, "rm", "x/up")
	g.want(0, "", "cp", "-qL", id+":x/.", "followed2")
	if data, err := os.ReadFile(filepath.Join(g.dir, "followed2/passwd")); err != nil || !bytes.Contains(data, []byte("user:")) {
		t.Errorf("%q %v", data, err)
	}
	g.want(1, "", "cp", "--max-files", "3", id+":x", "few")
	g.want(1, "", "cp", "--max-size", "10k", id+":x", "little")
	g.want(1, "", "cp", id+":x/fifo", "fifo")
}

func TestKept_copyNeverFollowsAHostsLink(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	id := g.create()
	g.want(0, "", "exec", id, "sh", "-c", "mkdir -p x/dir && echo evil >x/file && echo evil >x/dir/file")
	victim, work := filepath.Join(g.dir, "victim"), filepath.Join(g.dir, "work/x")
	if err := errors.Join(os.MkdirAll(work, 0o755), os.Mkdir(victim, 0o755), os.WriteFile(filepath.Join(victim, "file"), []byte("precious"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, link, to string }{
		{"a file's name", "work/x/file", filepath.Join(victim, "file")},
		{"a file's name, dangling", "work/x/file", filepath.Join(victim, "new")},
		{"a directory's name", "work/x/dir", victim},
		{"a directory's name, inside", "work/x/dir", "."},
	} {
		link := filepath.Join(g.dir, tc.link)
		if err := errors.Join(os.RemoveAll(link), os.Symlink(tc.to, link)); err != nil {
			t.Fatal(err)
		}
		if r := g.run("cp", id+":x", "work"); r.code != 1 || !strings.Contains(r.err, "is there and is not") {
			t.Errorf("%s: %+v", tc.name, r)
		}
		if target, err := os.Readlink(link); err != nil || target != tc.to {
			t.Errorf("%s: the link is %q now, %v", tc.name, target, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(victim, filepath.Join(g.dir, "outdir")); err != nil {
		t.Fatal(err)
	}
	for _, dst := range []string{"outdir", "outdir/", "outdir/sub"} {
		g.want(1, "", "cp", id+":x", dst)
		g.want(1, "", "cp", id+":x/file", dst)
	}
	if got := tree(t, victim); got != "file -rw-r--r--" {
		t.Errorf("the victim has\n%s", got)
	}
	if data, _ := os.ReadFile(filepath.Join(victim, "file")); string(data) != "precious" {
		t.Errorf("%q", data)
	}
	g.want(0, "", "cp", id+":x", "work") // the control: without links it works
	if data, _ := os.ReadFile(filepath.Join(work, "dir/file")); string(data) != "evil\n" {
		t.Errorf("%q", data)
	}
	var evil bytes.Buffer
	tw := tar.NewWriter(&evil)
	_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a/../../../tmp/f", Mode: 0o644})
	_ = tw.Close()
	g.in = evil.String()
	if r := g.run("cp", "-", id+":in"); r.code != 1 || !strings.Contains(r.err, "outside") {
		t.Errorf("%+v", r)
	}
	g.in = "no tar at all"
	g.want(1, "", "cp", "-", id+":in")
}

func TestKept_killedOnTheWay(t *testing.T) {
	t.Parallel()
	g := keeper(t)
	id := g.create("--memory", "600m", "--disk", "250m")
	dir := filepath.Join(g.dir, "dst")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// A file that never ends keeps the copy at it.
	g.want(0, "", "exec", id, "sh", "-c", "head -c 200M /dev/zero >big")
	main := strings.TrimSpace(g.want(0, "*", "run", "-dq", "--", "sh", "-c", "echo ready; sleep 1000").out)
	for _, tc := range []struct {
		name string
		args []string
		wait func() bool
	}{
		{"exec", []string{"exec", id, "sh", "-c", "touch began; sleep 25"}, func() bool { return g.run("exec", id, "test", "-e", "began").code == 0 }},
		{"logs", []string{"logs", "-f", main}, func() bool { return true }},
		{"cp", []string{"cp", id + ":big", "dst/"}, func() bool { return true }},
		{"wait", []string{"wait", main}, func() bool { return true }},
	} {
		cmd := g.cmd(t.Context(), tc.args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		g.eventually(tc.name+" is under way", func() bool { return len(g.processes()) > 0 && tc.wait() })
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if got := tree(t, dir); got != "" && got != "big -rw-r--r--" {
			t.Errorf("%s left\n%s", tc.name, got)
		}
		g.want(0, "still\n", "exec", id, "echo", "still")
		g.want(0, id+"\n"+main+"\n", "ps", "-aq")
		g.eventually("no process of ours is left of "+tc.name, func() bool { return len(g.processes()) == 0 })
	}
	g.want(0, "ready\n", "logs", main)
}
