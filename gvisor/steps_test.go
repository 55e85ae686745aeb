//go:build linux

package gvisor_test

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/image/dockerfile"
)

// steps runs a Dockerfile's on the test's image, with files as the context.
func (h *harness) steps(t *testing.T, s *image.Sandboxed, text string, files map[string]string, consume func(io.Reader) error) error {
	t.Helper()
	f, err := dockerfile.Parse(strings.NewReader("FROM own\n"+text), nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(data, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(data), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := dockerfile.OpenContext(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.Executor, s.Spec.Template = h.ex, "own"
	return s.RunSteps(t.Context(), image.Work{Steps: f.Steps, Files: c}, consume)
}

// TestSteps run as Docker would run them, and their result comes out whole.
func TestSteps(t *testing.T) {
	asRooted(t, func(t *testing.T, h *harness) {
		if !h.root {
			return // the image is not this user's, so that nothing in it is root's inside, and sudo does not work
		}
		secret := filepath.Join(t.TempDir(), "host")
		if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		err := h.steps(t, &image.Sandboxed{CA: []byte("authority")}, `
ENV A="one two" DIR=/opt/app
WORKDIR $DIR
COPY --chown=1000:1000 src/ ./
COPY link /opt/link
RUN cat $SSL_CERT_FILE >ca; id -un >who; pwd >where; echo $A >env; (cat /opt/link || echo none) >linked 2>/dev/null; useradd -m other; chmod 4755 ca
USER user
WORKDIR /tmp
RUN id -un >/opt/app/mine; sudo -n sh -c 'id -un >/opt/app/sudo'`,
			map[string]string{"src/a": "file a", "src/sub/b": "file b", "src/no": "left out", "link": "-> " + secret, ".dockerignore": "src/no\n"},
			func(r io.Reader) error {
				tr := tar.NewReader(r)
				for {
					hd, err := tr.Next()
					if errors.Is(err, io.EOF) {
						return nil
					}
					if err != nil {
						return err
					}
					name := strings.TrimPrefix(hd.Name, "./")
					switch {
					case strings.HasPrefix(name, "opt/app/") && hd.Typeflag == tar.TypeReg:
						b, err := io.ReadAll(tr)
						if err != nil {
							return err
						}
						found[name] = string(b)
					case name == "opt/link", name == "home/other/", name == "etc/resolv.conf", strings.HasPrefix(name, ".glovebox/") && name != ".glovebox/":
						found[name] = hd.Linkname
					}
				}
			})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"opt/app/a": "file a", "opt/app/sub/b": "file b", "opt/app/ca": "authority", "opt/app/who": "root\n", "opt/app/where": "/opt/app\n",
			"opt/app/env": "one two\n", "opt/app/linked": "none\n", "opt/app/mine": "user\n", "opt/app/sudo": "root\n", "opt/link": secret, "home/other/": "",
		}
		if d := cmp.Diff(want, found); d != "" {
			t.Error(d)
		}
	})
}

// TestSteps_fail with the step's line and what it said, and nothing is left.
func TestSteps_fail(t *testing.T) {
	asRooted(t, func(t *testing.T, h *harness) {
		if !h.root {
			return // one way of failing is enough
		}
		for name, c := range map[string]struct{ run, says string }{
			"exit":      {"echo doing; echo broke >&2; exit 3", "exited(3): doing broke"},
			"hang":      {"echo waiting; sleep 100 & wait", "timeout: waiting"},
			"disk":      {"head -c 300M /dev/zero > /big", "limit of [disk]: head: "},
			"fork bomb": {`printf 'import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(1)\n' >/x; python3 /x`, "timeout"},
			"no shell":  {"rm -rf --no-preserve-root /usr /bin 2>/dev/null; exit 1", "exited(1)"},
			"no agent":  {"echo now; sleep 0.2; kill -9 -1; kill -9 1; sleep 20", ""},
		} {
			s := &image.Sandboxed{Timeout: 4 * time.Second, Spec: backend.Spec{Limits: backend.Limits{Disk: 64 << 20, Pids: 100}}}
			err := h.steps(t, s, "RUN echo first\nRUN "+c.run, nil, func(io.Reader) error {
				t.Errorf("%s: something came out", name)
				return nil
			})
			se, ok := errors.AsType[*image.StepError](err)
			if !ok || se.Line != 3 || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if k := backend.KindOf(err); k != backend.ErrInvalid && (name != "no agent" || k != backend.ErrLost) {
				t.Errorf("%s: %v: %v", name, k, err)
			}
		}
	})
}
