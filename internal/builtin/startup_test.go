//go:build linux

package builtin_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/builtin"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
	"github.com/glovebox-dev/glovebox/subprocess"
)

var builder testenv.Builder

func TestMain(m *testing.M) {
	subprocess.MaybeAgent()
	code := m.Run()
	if err := builder.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// templates are of the image base, each with something that it starts with.
func templates() map[string]registry.Template {
	const quick = 20 * time.Millisecond
	return map[string]registry.Template{
		"web": {
			Rootfs: "base", Start: "echo for $FOR; exec python3 -m http.server --bind 127.0.0.1 8000", WorkDir: "/tmp/site",
			Ready: "curl -fsS http://127.0.0.1:8000/ >/dev/null", Env: map[string]string{"FOR": "template", "LEVEL": "template"},
			ReadyInterval: quick,
		},
		"port":  {Rootfs: "base", Start: "exec python3 -m http.server --bind 127.0.0.1 8000", ReadyPort: 8000, User: "root", WorkDir: "/tmp"},
		"dead":  {Rootfs: "base", Start: "echo no config >&2; exit 3", ReadyPort: 8000},
		"never": {Rootfs: "base", Start: "exec sleep 1000", Ready: "echo still closed; exit 1", ReadyTimeout: time.Second},
		"who":   {Rootfs: "base", User: "www-data"},
		"lost":  {Rootfs: "base", Ready: "true"},
	}
}

// TestTemplates_startAlike: what a template says means the same on every local
// backend.
func TestTemplates_startAlike(t *testing.T) {
	testenv.NeedRoot(t) // whose the image store is
	r, err := builtin.Registry()
	if err != nil {
		t.Fatal(err)
	}
	_, unavailable := testimage.Rootfs()
	agent := builder.Build(t, "cmd/glovebox-agent")
	for _, driver := range r.Local() {
		t.Run(driver, func(t *testing.T) {
			testenv.Require(t, driver, unavailable)
			dir := t.TempDir()
			if why := testimage.Share(dir); why != "" {
				t.Fatal(why)
			}
			with := map[string]any{"state_dir": dir, "agent": agent}
			ex, err := r.Open(t.Context(), driver, registry.Env{Name: driver, Templates: templates()}, with)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := ex.Close(); err != nil {
					t.Error(err)
				}
			})
			if a, ok := backend.As[backend.Admitter](ex); ok {
				if _, _, err := a.Admit(backend.Spec{Template: "base"}); err != nil {
					testenv.Require(t, driver, err.Error())
				}
			}
			served(t, ex)
			asRoot(t, ex)
			for template, want := range map[string][]string{
				"dead": {"startup.args", "exited(3)", "no config"}, "never": {"startup.ready", "exited(1)", "still closed", "1s"},
				"who": {"user", "www-data", "user and root"}, "lost": {"startup.args", "nothing is started"},
			} {
				sb, err := ex.Create(t.Context(), backend.Spec{Template: template})
				if err == nil {
					t.Errorf("%s: it was made: %v", template, sb.Destroy(t.Context()))
					continue
				}
				for _, w := range want {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%s: %q is not in %v", template, w, err)
					}
				}
			}
		})
	}
}

// served looks at a sandbox whose template serves something.
func served(t *testing.T, ex backend.Executor) {
	t.Helper()
	sb, err := ex.Create(t.Context(), backend.Spec{Template: "web", Env: map[string]string{"LEVEL": "spec"}})
	if err != nil {
		t.Fatal(err)
	}
	defer destroy(t, sb)
	const look = `import os, urllib.request as u; print(u.urlopen("http://127.0.0.1:8000/").status, os.getcwd(), os.environ["FOR"], os.environ["LEVEL"])`
	if got := out(t, sb, backend.Command{Args: []string{"python3", "-c", look}}); got != "200 /tmp/site template spec\n" {
		t.Errorf("%q", got)
	}
	if got := out(t, sb, backend.Command{Args: []string{"sh", "-c", "echo $LEVEL; pwd"}, Env: map[string]string{"LEVEL": "command"}, Dir: "/"}); got != "command\n/\n" {
		t.Errorf("%q", got)
	}
	pf, ok := backend.As[backend.ProcessFinder](sb)
	if !ok {
		t.Fatal("its processes cannot be found")
	}
	all, err := pf.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(i backend.ProcessInfo) bool { return i.Tag == backend.StartupTag })
	if i < 0 || all[i].Dir != "/tmp/site" || all[i].User != backend.DefaultUser || all[i].Exit != nil {
		t.Errorf("%+v", all)
	}
}

// asRoot looks at a sandbox whose template's account is root.
func asRoot(t *testing.T, ex backend.Executor) {
	t.Helper()
	sb, err := ex.Create(t.Context(), backend.Spec{Template: "port"})
	if !ex.Capabilities().Has(backend.FeatureUsers) {
		if backend.KindOf(err) != backend.ErrUnsupported {
			t.Errorf("root where there is one account: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer destroy(t, sb)
	if got := out(t, sb, backend.Command{Args: []string{"sh", "-c", "id -u; pwd; curl -fsS -o /dev/null http://127.0.0.1:8000/ && echo up"}}); got != "0\n/tmp\nup\n" {
		t.Errorf("%q", got)
	}
	if r := sb.Receipt(); r.User != "root" || r.Dir != "/tmp" {
		t.Errorf("%+v", r)
	}
}

func out(t *testing.T, sb backend.Sandbox, cmd backend.Command) string {
	t.Helper()
	var buf bytes.Buffer
	cmd.Output = backend.Output{Stdout: &buf, Stderr: &buf}
	exit, err := backend.RunIn(t.Context(), sb, cmd)
	if err != nil || !exit.Success() {
		t.Errorf("%v, %v: %s", exit, err, buf.Bytes())
	}
	return buf.String()
}

func destroy(t *testing.T, sb backend.Sandbox) {
	t.Helper()
	if err := sb.Destroy(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}
