//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/image"
)

// smallBase is an image with one file.
func smallBase(t *testing.T) image.Image {
	t.Helper()
	var buf bytes.Buffer
	gz := gzip.NewWriter(&buf)
	w := tar.NewWriter(gz)
	err := w.WriteHeader(&tar.Header{
		Name: "./etc/with-attribute", Typeflag: tar.TypeReg, Mode: 0o644, Size: 2, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"},
	})
	if err == nil {
		_, err = w.Write([]byte("hi"))
	}
	for _, c := range []interface{ Close() error }{w, gz} {
		if err == nil {
			err = c.Close()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "rootfs.tar.gz"), buf.String())
	return image.Image{Name: "base", Hash: "0123456789abcdef", Dir: dir}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// smallBin has something in the programs' places.
func smallBin(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "glovebox"), "a program")
	write(t, filepath.Join(dir, "glovebox-agent"), "an agent")
	return dir
}

func TestBundle_write(t *testing.T) {
	t.Parallel()
	b, err := newBundle(smallBase(t), smallBin(t))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := b.write(&buf); err != nil {
		t.Fatal(err)
	}
	got := map[string]*tar.Header{}
	for r := tar.NewReader(&buf); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		got[h.Name] = h
	}
	if h := got["./etc/with-attribute"]; h == nil || h.PAXRecords["SCHILY.xattr.user.a"] != "b" {
		t.Errorf("the base's file: %+v", h)
	}
	if h := got["usr/bin/glovebox"]; h == nil || h.Mode != 0o755 || h.Size != int64(len("a program")) || h.Uid != 0 {
		t.Errorf("the program: %+v", h)
	}
	if h := got["home/user/.local/state/glovebox/"]; h == nil || h.Typeflag != tar.TypeDir || h.Mode != 0o700 || h.Uid != userID {
		t.Errorf("the state's directory: %+v", h)
	}
	if _, err := newBundle(smallBase(t), t.TempDir()); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("without programs: %v", err)
	}
}

func TestBundle_isMadeWhenItChanged(t *testing.T) {
	t.Parallel()
	e, base, bin, name := docker(t), smallBase(t), smallBin(t), tag+"-small"
	t.Cleanup(func() {
		if err := e.RemoveImage(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
	makeIt := func() string {
		t.Helper()
		b, err := newBundle(base, bin)
		if err == nil {
			err = b.makeImage(t.Context(), e, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		img, err := e.Image(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return img.ID
	}
	first := makeIt()
	if again := makeIt(); again != first {
		t.Errorf("nothing changed, and %s became %s", first, again)
	}
	write(t, filepath.Join(bin, "glovebox"), "another program")
	second := makeIt()
	if second == first {
		t.Error("the program changed, and the image did not")
	}
	if _, err := e.Image(t.Context(), first); err == nil {
		t.Error("the image before is left without a name")
	}
	// Somebody else's image stays.
	var other bytes.Buffer
	b, err := newBundle(base, bin)
	if err == nil {
		err = b.write(&other)
	}
	if err == nil {
		_, err = e.Import(t.Context(), name, map[string]string{labelRun: runID}, &other)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := b.makeImage(t.Context(), e, name); err == nil {
		t.Error("another's image was replaced")
	}
	if err := e.RemoveImage(t.Context(), second); err != nil {
		t.Error(err)
	}
}

func TestHostProfile(t *testing.T) {
	t.Parallel()
	data, err := hostProfile()
	if err != nil {
		t.Fatal(err)
	}
	var p profile
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}
	entries := map[string][]calls{}
	for _, c := range p.Syscalls {
		for _, name := range c.Names {
			entries[name] = append(entries[name], c)
		}
	}
	allowed := func(name string) bool {
		return len(entries[name]) == 1 && entries[name][0].Action == "SCMP_ACT_ALLOW" && entries[name][0].Args == nil
	}
	for _, name := range slices.Concat(needed(), []string{"openat", "landlock_restrict_self", "seccomp", "execve"}) {
		if !allowed(name) {
			t.Errorf("%s: %+v", name, entries[name])
		}
	}
	for _, name := range []string{"io_uring_setup", "bpf", "init_module", "keyctl", "perf_event_open", "open_by_handle_at", "socket", "ioctl"} {
		if allowed(name) || len(entries[name]) == 0 {
			t.Errorf("%s: %+v", name, entries[name])
		}
	}
	if p.DefaultAction != "SCMP_ACT_ERRNO" {
		t.Errorf("the default is %s", p.DefaultAction)
	}
}
