//go:build linux

package engine

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestImage_life(t *testing.T) {
	t.Parallel()
	e := docker(t)
	first, second := newName()+":1", newName()+":2"
	for _, name := range []string{first, second} {
		t.Cleanup(func() {
			if err := e.RemoveImage(context.WithoutCancel(t.Context()), name); err != nil {
				t.Error(err)
			}
		})
	}
	want := map[string]string{labelRun: runID, "words": "two words", "empty": ""}
	id, err := e.Import(t.Context(), first, want, bytes.NewReader(archive(map[string]string{"a": first})))
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Image(t.Context(), first)
	if err != nil || got.ID != id || got.Size != int64(len(first)) || got.Labels["words"] != "two words" || len(got.Labels) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := e.Tag(t.Context(), first, second); err != nil {
		t.Fatal(err)
	}
	list, err := e.Images(t.Context(), "words", "two words")
	if err != nil || len(list) != 1 || len(list[0].Tags) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	for _, name := range []string{first, first, second, second} {
		if err := e.RemoveImage(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	_, err = e.Image(t.Context(), id)
	wantKind(t, err, backend.ErrNotFound, "image")
	wantKind(t, e.Tag(t.Context(), first, second), backend.ErrNotFound, "image")
}

func TestImport_refuses(t *testing.T) {
	t.Parallel()
	e := docker(t)
	plain := archive(map[string]string{"a": "b"})
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(bytes.Repeat(plain, 10))
	_ = w.Close()
	for name, tt := range map[string]struct {
		tag, label string
		data       []byte
		field      string
	}{
		"a packed archive": {"x:1", "v", append(packed.Bytes(), make([]byte, 2048)...), "archive"},
		"no archive":       {"x:1", "v", []byte("hello"), "archive"},
		"a bad tag":        {"X Y", "v", plain, "image"},
		"capital letters":  {"Upper:1", "v", plain, "image"},
		"a label's quotes": {"x:1", `v" "evil"="1`, plain, "labels"},
		"a label's line":   {"x:1", "v\nUSER root", plain, "labels"},
		"a label's dollar": {"x:1", "$HOME", plain, "labels"},
	} {
		_, err := e.Import(t.Context(), tt.tag, map[string]string{labelRun: runID, "l": tt.label}, bytes.NewReader(tt.data))
		if backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantKind(t, err, backend.ErrInvalid, tt.field)
	}
	for name, s := range map[string]Start{"a user's line": {User: "a\nUSER root"}, "a directory's space": {Dir: "/a b"}} {
		_, err := e.ImportStart(t.Context(), "x:1", labels(), s, bytes.NewReader(plain))
		if backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The archive ends in the middle: the daemon, not we, must notice.
	r := io.MultiReader(bytes.NewReader(plain[:700]), errReader{})
	if _, err := e.Import(t.Context(), newName(), labels(), r); err == nil {
		t.Error("half an archive became an image")
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("the source broke") }

// TestCreate_refusesVolumes: what an image declares as a volume would be
// writable without a limit.
func TestCreate_refusesVolumes(t *testing.T) {
	t.Parallel()
	e := docker(t)
	theImage(t)
	name := newName() + ":1"
	t.Cleanup(func() { _ = e.RemoveImage(context.WithoutCancel(t.Context()), name) })
	answer, err := e.api.ImageImport(t.Context(), image.ImportSource{Source: bytes.NewReader(archive(map[string]string{"data/": ""})), SourceName: "-"},
		name, image.ImportOptions{Changes: []string{"VOLUME /data", "LABEL " + labelRun + "=" + runID}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer)
	answer.Close()
	c := spec(t, "sleep")
	c.Image = name
	_, err = e.Create(t.Context(), c)
	if be := wantKind(t, err, backend.ErrInvalid, "image"); !strings.Contains(be.Error(), "/data") {
		t.Error(be)
	}
	bound, tmp := c, c
	bound.Binds = []Bind{{Source: t.TempDir(), Target: "/data"}}
	tmp.Name, tmp.Tmpfs = newName(), map[string]string{"/data": "size=1m"}
	for _, c := range []Container{bound, tmp} {
		id := create(t, e, c)
		if err := e.noVolumes(t.Context(), id); err != nil {
			t.Error(err)
		}
		if err := e.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	// The control: a volume that the engine did make is seen.
	made, err := e.api.ContainerCreate(t.Context(), &container.Config{Image: name, Cmd: []string{"/x"}, Labels: labels()}, nil, nil, nil, newName())
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, e.noVolumes(t.Context(), made.ID), backend.ErrInvalid, "image")
	if err := e.Remove(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveImage(t.Context(), name); err != nil {
		t.Error(err)
	}
}

func TestPull_withoutARegistry(t *testing.T) {
	t.Parallel()
	e := docker(t)
	err := e.Pull(t.Context(), "127.0.0.1:1/glovebox-test-none:1", func(PullProgress) {})
	wantKind(t, err, backend.ErrUnavailable, "")
	wantKind(t, e.Pull(t.Context(), "a b", nil), backend.ErrInvalid, "image")
}

func TestExport(t *testing.T) {
	t.Parallel()
	e := docker(t)
	img := theImage(t)
	name := newName()
	r, err := e.Export(t.Context(), img, name, labels(), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[h.Name] = true
	}
	if !names["probe"] || !names["usr/"] {
		t.Errorf("%v", names)
	}
	_, err = e.Export(t.Context(), img, name, labels(), 1)
	wantKind(t, err, backend.ErrConflict, "")
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = e.Inspect(t.Context(), name)
	wantKind(t, err, backend.ErrNotFound, "container")
	if r, err = e.Export(t.Context(), img, name, labels(), 10_000); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n, err := io.Copy(io.Discard, r)
	if backend.KindOf(err) != backend.ErrTooLarge || n != 10_000 {
		t.Errorf("%d bytes, %v", n, err)
	}
	_, err = e.Export(t.Context(), "glovebox-test-no-such:1", newName(), labels(), 1)
	wantKind(t, err, backend.ErrNotFound, "image")
}

func TestNetwork_life(t *testing.T) {
	t.Parallel()
	e := docker(t)
	n := Network{Name: newName(), Labels: labels(), Internal: true, Options: map[string]string{"com.docker.network.bridge.enable_icc": "false"}}
	t.Cleanup(func() { _ = e.RemoveNetwork(context.WithoutCancel(t.Context()), n.Name) })
	id, err := e.CreateNetwork(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.CreateNetwork(t.Context(), n)
	wantKind(t, err, backend.ErrConflict, "network")
	list, err := e.Networks(t.Context(), labelRun, runID)
	if err != nil || len(list) != 1 || list[0].ID != id || !list[0].Internal || list[0].Options["com.docker.network.bridge.enable_icc"] != "false" {
		t.Errorf("%+v, %v", list, err)
	}
	for range 2 {
		if err := e.RemoveNetwork(t.Context(), n.Name); err != nil {
			t.Error(err)
		}
	}
}
