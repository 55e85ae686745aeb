//go:build linux

package dockerbox

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path"
	"testing"
)

// names are the entries of an archive, with their types.
func names(t *testing.T, data []byte) map[string]byte {
	t.Helper()
	out := map[string]byte{}
	for in := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Clean("/" + h.Name)
		if _, twice := out[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		out[name] = h.Typeflag
	}
}

func tarOf(headers ...tar.Header) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		_ = w.WriteHeader(&h)
	}
	_ = w.Close()
	return buf.Bytes()
}

// TestJoin: of two files of one name ours is taken, whatever the image's is.
func TestJoin(t *testing.T) {
	add, err := newLayer(append(agentFiles([]byte("agent")), accountFiles(1000)...))
	if err != nil {
		t.Fatal(err)
	}
	for name, theirs := range map[string][]byte{
		"nothing": tarOf(), "directories": tarOf(tar.Header{Name: "./etc/", Typeflag: tar.TypeDir}, tar.Header{Name: ".glovebox", Typeflag: tar.TypeDir}),
		"links": tarOf(
			tar.Header{Name: "etc", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, tar.Header{Name: "/.glovebox/", Typeflag: tar.TypeSymlink, Linkname: "/"},
			tar.Header{Name: "x/../.glovebox/agent", Typeflag: tar.TypeSymlink, Linkname: "/bin/sh"}, tar.Header{Name: "etc/passwd", Typeflag: tar.TypeLink, Linkname: "x"},
		),
		"others": tarOf(tar.Header{Name: "etc/hosts", Typeflag: tar.TypeReg}),
	} {
		var out bytes.Buffer
		if err := join(&out, bytes.NewReader(theirs), add); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := names(t, out.Bytes())
		for file, kind := range map[string]byte{
			"/.glovebox": tar.TypeDir, "/.glovebox/agent": tar.TypeReg, "/etc": tar.TypeDir, "/etc/passwd": tar.TypeReg, "/etc/group": tar.TypeReg,
		} {
			if got[file] != kind {
				t.Errorf("%s: %s is %q", name, file, got[file])
			}
		}
		if _, ok := got["/etc/hosts"]; ok != (name == "others") {
			t.Errorf("%s: other files: %v", name, got)
		}
	}
}

// FuzzJoin: whatever an image's archive is, what is made of it ends in our files
// or in an error.
func FuzzJoin(f *testing.F) {
	add, err := newLayer(accountFiles(1000))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(tarOf(tar.Header{Name: "etc/", Typeflag: tar.TypeDir}))
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		if join(&out, bytes.NewReader(data), add) != nil {
			return
		}
		last := byte(0)
		for in := tar.NewReader(&out); ; {
			h, err := in.Next()
			if err != nil {
				break
			}
			if path.Clean("/"+h.Name) == "/etc/passwd" {
				last = h.Typeflag
			}
		}
		if last != tar.TypeReg {
			t.Errorf("/etc/passwd is %q", last)
		}
	})
}

// TestMemoryWatch: a kill is told once, and a wait for the next ends with it.
func TestMemoryWatch(t *testing.T) {
	w := memoryWatch{met: map[string]*metLimit{}, changed: make(chan struct{})}
	if n, _ := w.news(t.Context(), "a", 0); n != 0 {
		t.Errorf("%d before anything", n)
	}
	w.event("a")
	if n, _ := w.news(t.Context(), "a", afterthought); n != 1 {
		t.Errorf("%d after one", n)
	}
	if n, _ := w.news(t.Context(), "b", 0); n != 0 {
		t.Errorf("%d of another", n)
	}
	got := make(chan int64)
	go func() {
		n, _ := w.news(t.Context(), "a", lookTimeout)
		got <- n
	}()
	w.event("a")
	if n := <-got; n != 2 {
		t.Errorf("%d after two", n)
	}
	w.forget("a")
	if w.count("a") != 0 {
		t.Error("it is not forgotten")
	}
}
