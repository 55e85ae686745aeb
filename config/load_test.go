package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/builtin"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// place is a home, a state directory and a project directory of a test.
type place struct {
	t                    *testing.T
	home, state, project string
	env                  []string
	flags                []config.Flag
	file                 string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, home: t.TempDir(), state: t.TempDir(), project: t.TempDir()}
	p.env = []string{"XDG_CONFIG_HOME=" + p.home, "GLOVEBOX_STATE_DIR=" + p.state, "HOME=" + p.home}
	return p
}

func (p *place) write(path, text string) string {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func (p *place) user(text string) string {
	return p.write(filepath.Join(p.home, "glovebox", "config.yaml"), text)
}

func (p *place) trust(path string) {
	p.t.Helper()
	store, err := config.NewTrustStore(p.env)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := store.Add(path); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) load() (*config.Loaded, error) {
	p.t.Helper()
	return config.Load(config.Options{Dir: p.project, Environ: p.env, Flags: p.flags, File: p.file, Registry: drivers(p.t)})
}

func drivers(t *testing.T) *registry.Registry {
	t.Helper()
	reg, err := builtin.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

func (p *place) mustLoad() *config.Loaded {
	p.t.Helper()
	l, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

func origin(t *testing.T, l *config.Loaded, key string) (value any, from string) {
	t.Helper()
	for _, e := range l.Show() {
		if e.Key == key {
			return e.Value, e.Origin
		}
	}
	t.Fatalf("no %s in %v", key, l.Show())
	return nil, ""
}

func TestLoad_defaults(t *testing.T) {
	t.Parallel()
	l := newPlace(t).mustLoad()
	want := config.Config{
		Version: 1,
		Backends: map[string]config.Backend{
			"docker": {Driver: "docker"}, "gvisor": {Driver: "gvisor"}, "subprocess": {Driver: "subprocess"},
		},
		Executors: map[string]config.Executor{"default": {Use: config.Use{"auto"}, MinIsolation: new(backend.IsolationRestricted)}},
		Warnings:  config.Warnings{Memory: 0.8, Disk: 0.9, Pids: 0.9, Timeout: 0.9, CPUTime: 0.9},
	}
	if d := cmp.Diff(want, l.Config); d != "" {
		t.Error(d)
	}
	if v, from := origin(t, l, "limits.memory"); v != "512MiB" || from != "default" {
		t.Errorf("limits.memory = %v from %s", v, from)
	}
	if got := (config.Executor{}).Minimum(); got != backend.IsolationRestricted {
		t.Errorf("an executor without a minimum accepts %s", got)
	}
}

func TestLoad_precedenceAndOrigin(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	user := p.user("# mine\nlimits:\n  memory: 100m\n  pids: 10\n  cpus: 2\n  disk: 64m\n  timeout: 3s\n")
	p.trust(p.write(filepath.Join(p.project, "glovebox.toml"), "[limits]\npids = 20\ncpus = 3\ndisk = \"65m\"\n"))
	p.env = append(p.env, "GLOVEBOX_LIMITS__CPUS=4", "GLOVEBOX_LIMITS__DISK=66m", "GLOVEBOX_TEST_REQUIRE=x", "GLOVEBOXY=1")
	p.flags = []config.Flag{{Name: "disk", Key: "limits.disk", Value: "67m"}}
	l := p.mustLoad()
	want := config.Limits{Memory: 100 << 20, Pids: 20, CPUs: 4, Disk: 67 << 20, Timeout: config.Duration(3e9)}
	if d := cmp.Diff(want, l.Config.Limits); d != "" {
		t.Error(d)
	}
	for key, want := range map[string]string{
		"limits.memory": user + ":3", "limits.pids": filepath.Join(p.project, "glovebox.toml"),
		"limits.cpus": "environment GLOVEBOX_LIMITS__CPUS", "limits.disk": "flag --disk", "limits.inodes": "default",
	} {
		if _, got := origin(t, l, key); got != want {
			t.Errorf("%s comes from %q, want %q", key, got, want)
		}
	}
	if len(l.Files) != 2 {
		t.Errorf("files %v", l.Files)
	}
}

func TestLoad_backendIsShort(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.user("backends: {box: {driver: subprocess}}\nexecutors: {default: {use: [box, subprocess], strict: true}}\n")
	p.env = append(p.env, "GLOVEBOX_BACKEND=subprocess")
	l := p.mustLoad()
	def := l.Config.Executors["default"]
	if d := cmp.Diff(config.Use{"subprocess"}, def.Use); d != "" || !def.Strict {
		t.Errorf("%s strict %v", d, def.Strict)
	}
	if v, from := origin(t, l, "executors.default.use"); from != "environment GLOVEBOX_BACKEND" {
		t.Errorf("use = %v from %s", v, from)
	}
	p.flags = []config.Flag{{Name: "backend", Key: "backend", Value: "box,subprocess"}}
	if d := cmp.Diff(config.Use{"box", "subprocess"}, p.mustLoad().Config.Executors["default"].Use); d != "" {
		t.Error(d)
	}
	p.user("backend: subprocess\nexecutors: {default: {use: auto}}\n")
	if _, err := p.load(); err == nil || !strings.Contains(err.Error(), "one setting") {
		t.Errorf("error %v for both ways in one file", err)
	}
}

func TestLoad_formats(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"c.yaml": "executors:\n  default: {use: [subprocess], min_isolation: process}\nlimits: {memory: 1GiB, timeout: 5s}\n",
		"c.yml":  "executors:\n  default: {use: [subprocess], min_isolation: process}\nlimits: {memory: 1GiB, timeout: 5s}\n",
		"c.toml": "[executors.default]\nuse = [\"subprocess\"]\nmin_isolation = \"process\"\n[limits]\nmemory = \"1g\"\ntimeout = \"5s\"\n",
		"c.json": `{"executors": {"default": {"use": ["subprocess"], "min_isolation": "process"}}, "limits": {"memory": "1024MiB", "timeout": "5s"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.user("limits: {memory: 3g}") // not read beside a file that is named
			p.file = p.write(filepath.Join(p.project, name), text)
			l := p.mustLoad()
			def := l.Config.Executors["default"]
			if def.Minimum() != backend.IsolationProcess || l.Config.Limits.Memory != 1<<30 || l.Config.Limits.Timeout != 5e9 ||
				!cmp.Equal(def.Use, config.Use{"subprocess"}) {
				t.Errorf("%+v", l.Config)
			}
		})
	}
}

func TestLoad_refuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, text, want string }{
		{"a misspelt key", "limits:\n  memroy: 1g\n", `:2: limits.memroy: unknown key "memroy", did you mean "memory"?`},
		{"a key that is not there yet", "server: {listen: x}", `server: unknown key "server"`},
		{
			"a driver's misspelt key", "backends:\n  box:\n    driver: subprocess\n    with: {privilige: root}\n",
			`:4: backends.box.with.privilige: unknown key "privilige", did you mean "privilege"?`,
		},
		{"a driver's value", "backends: {box: {driver: subprocess, with: {privilege: lots}}}", `backends.box.with.privilege: unknown privilege "lots"`},
		{"a misspelt driver", "backends: {box: {driver: subproces}}", `did you mean "subprocess"?`},
		{"no driver", "backends: {box: {}}", "backends.box.driver: no driver is named"},
		{"a reserved name", "backends: {auto: {driver: subprocess}}", "auto means all"},
		{"a misspelt backend", "executors: {default: {use: subproces}}", `executors.default.use: unknown backend "subproces", did you mean "subprocess"?`},
		{"a misspelt backend in a list", "executors: {default: {use: [subprocess, box]}}", "executors.default.use.1: unknown backend"},
		{"a level", "executors: {default: {min_isolation: strong}}", `unknown level "strong", known are none`},
		{"a size without quotes", "limits: {memory: 5}", `limits.memory: 5 is not text; write it in quotes, such as "512MiB"`},
		{"no size", "limits: {memory: much}", `limits.memory: "much" is not a size`},
		{"zero", "limits: {memory: '0'}", "must be more than zero"},
		{"too little", "limits: {memory: 1k}", "limits.memory: 1024 is not between"},
		{"negative", "limits: {pids: -1}", "limits.pids: \"-1\" is not a whole number above zero"},
		{"text for a number", "limits: {pids: '10'}", "without quotes"},
		{"a duration without a unit", "limits: {timeout: 30}", "limits.timeout: 30 is not text"},
		{"over the cap", "limits: {timeout: 400s}", "longer than max_timeout"},
		{"a newer version", "version: 2", "version 2 is not known"},
		{"a template without a root", "templates: {a: {}}", "templates.a: a template needs one of"},
		{"a template of two roots", "templates: {a: {rootfs: base, image: 'x:1'}}", "templates.a.image: rootfs is given too"},
		{"a template's relative root", "templates: {a: {rootfs: ./r}}", "templates.a.rootfs: \"./r\" is neither"},
		{"a template's image", "templates: {a: {image: '--x'}}", "templates.a.image: \"--x\" names no image"},
		{"a template's relative Dockerfile", "templates: {a: {dockerfile: Dockerfile}}", "templates.a.dockerfile: \"Dockerfile\" is not an absolute"},
		{"an option as a Debian package", "templates: {a: {rootfs: base, packages: {apt: [git, -o=x]}}}", "templates.a.packages.apt.1: \"-o=x\" is no package"},
		{"an option as a Python package", "templates: {a: {rootfs: base, packages: {pip: ['--index-url=http://x']}}}", "templates.a.packages.pip.0"},
		{"a URL as a Node package", "templates: {a: {rootfs: base, packages: {npm: ['git+ssh://x']}}}", "templates.a.packages.npm.0"},
		{"packages in a directory", "templates: {a: {rootfs: /r, packages: {apt: [git]}}}", "templates.a.packages.apt: packages can be added"},
		{"a misspelt kind of packages", "templates: {a: {rootfs: base, packages: {pips: [x]}}}", "templates.a.packages.pips: unknown key"},
		{"a template's variable", "templates: {a: {rootfs: base, env: {A-B: x}}}", "templates.a.env.A-B: a variable's name"},
		{"a template's port", "templates: {a: {rootfs: base, start: x, ready: 70000}}", "templates.a.ready: 70000 is no port"},
		{"nothing to become ready", "templates: {a: {rootfs: base, ready: 80}}", "templates.a.ready: nothing is started"},
		{"a template's user", "templates: {a: {rootfs: base, user: 'a b'}}", "templates.a.user: \"a b\" is no account"},
		{"a template's limit", "templates: {a: {rootfs: /r, limits: {memory: 1k}}}", "templates.a.limits.memory: 1024"},
		{"an odd name", "templates: {'A b': {rootfs: /r}}", "templates.A b: a name has"},
		{"a share", "warnings: {memory: 8}", "warnings.memory: \"8\" is not a share"},
		{"an action", "limits: {on_output_limit: kil}", `did you mean "kill"?`},
		{"broken YAML", "a: [", "yaml: line 1"},
		{"a key twice", "limits: {pids: 1, pids: 2}", "already defined"},
		{"two documents", "version: 1\n---\nversion: 1\n", "only one document"},
		{"a list at the top", "- 1", "yaml"},
		{"billions of laughs", laughs(), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			file := p.user(tc.text)
			_, err := p.load()
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), file) {
				t.Errorf("error %v, want %q and the file's name", err, tc.want)
			}
		})
	}
}

func laughs() string {
	s := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		s += strings.NewReplacer("N", string(rune('1'+i)), "P", string(rune('0'+i))).Replace("aN: &aN [*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP]\n")
	}
	return s
}

func TestLoad_refusesEnvironment(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"GLOVEBOX_LIMITS__MEMROY=1g":  `environment GLOVEBOX_LIMITS__MEMROY: limits.memroy: unknown key "memroy", did you mean "memory"?`,
		"GLOVEBOX_LIMIT__MEMORY=1g":   `environment GLOVEBOX_LIMIT__MEMORY: limit: unknown key "limit", did you mean "limits"?`,
		"GLOVEBOX_LIMITS=1":           "limits: \"1\" is not a section",
		"GLOVEBOX___A=1":              "not a key",
		"GLOVEBOX_LIMITS__PIDS=many":  `environment GLOVEBOX_LIMITS__PIDS: limits.pids: "many" is not a whole number`,
		"GLOVEBOX_LIMITS__MEMORY=-1m": "is not a size",
	} {
		p := newPlace(t)
		p.env = append(p.env, env)
		if _, err := p.load(); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: error %v, want %q", env, err, want)
		}
	}
	p := newPlace(t)
	p.env = append(p.env, "GLOVEBOX_LIMITS=1", "GLOVEBOX_LIMITS__PIDS=1")
	if _, err := p.load(); err == nil || !strings.Contains(err.Error(), "another variable") {
		t.Errorf("error %v for a value and a section of one key", err)
	}
}

func TestLoad_refusesFiles(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	file := p.user("version: 1\n")
	other := p.write(filepath.Join(p.home, "glovebox", "config.json"), "{}")
	if _, err := p.load(); err == nil || !strings.Contains(err.Error(), "keep one") {
		t.Errorf("error %v for two files", err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := p.load(); err == nil || !strings.Contains(err.Error(), "chmod o-w") {
		t.Errorf("error %v for a file that everybody can write", err)
	}
	for name, text := range map[string]string{"big.yaml": strings.Repeat("#", 1<<20+1), "x.ini": "", "broken.json": "{\n\"a\":\n,}", "broken.toml": "a = \n"} {
		p.file = p.write(filepath.Join(p.project, "d", name), text)
		if _, err := p.load(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v for %s", err, name)
		}
	}
	p.file = p.project
	if _, err := p.load(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v for a directory", err)
	}
	p.file = filepath.Join(p.project, "none.yaml")
	if _, err := p.load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v for a file that is not there", err)
	}
}

func TestLoad_hidesSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hunter2hunter2"
	p := newPlace(t)
	p.user("backends: {box: {driver: subprocess, with: {api_key: 5, password: " + secret + "}}}")
	if _, err := p.load(); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("error %v", err)
	}
	const number = "84728472"
	p.user("backends: {box: {driver: subprocess, with: {templates: {my_token: " + number + "}}}}")
	if _, err := p.load(); err == nil || strings.Contains(err.Error(), number) || !strings.Contains(err.Error(), "my_token: the value is not of the right type") {
		t.Errorf("error %v", err)
	}
	p.user("backends: {box: {driver: subprocess, with: {templates: {my_token: " + secret + ", url: 'https://u:" + secret +
		"@host/x', ref_token: 'env:TOKEN', key_file: /k}}}}")
	l := p.mustLoad()
	for _, e := range l.Show() {
		if s, ok := e.Value.(string); ok && strings.Contains(s, secret) {
			t.Errorf("%s shows the secret", e.Key)
		}
	}
	if v, _ := origin(t, l, "backends.box.with.templates.ref_token"); v != "env:TOKEN" {
		t.Errorf("a reference is shown as %v", v)
	}
	if v, _ := origin(t, l, "backends.box.with.templates.key_file"); v != "/k" {
		t.Errorf("a file's name is shown as %v", v)
	}
	all := strings.Join(l.Warnings, "\n")
	if len(l.Warnings) != 2 || strings.Contains(all, secret) || !strings.Contains(all, "my_token") {
		t.Errorf("warnings %q", all)
	}
}
