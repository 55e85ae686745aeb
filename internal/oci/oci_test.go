package oci_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/glovebox-dev/glovebox/internal/oci"
)

func full() oci.Spec {
	return oci.Spec{
		Args: []string{"/agent"}, Env: []string{"A=1"}, Root: "/srv/root", Hostname: "box",
		Capabilities: []string{"CAP_KILL"}, Rlimits: []oci.Rlimit{{Type: "RLIMIT_CORE"}},
		Mounts: []oci.Mount{
			{Kind: oci.Proc, Target: "/proc"},
			{Kind: oci.Tmpfs, Target: "/tmp", Size: 1 << 20, Mode: 0o1777},
			{Kind: oci.Bind, Source: "/srv/data", Target: "/data", ReadOnly: true, NoExec: true},
		},
		CgroupsPath: "/glovebox-a-b", Limits: oci.Limits{Memory: 512 << 20, Pids: 1024, CPUs: 1.5},
	}
}

func config(t *testing.T, s oci.Spec) specs.Spec {
	t.Helper()
	data, err := s.Config()
	if err != nil {
		t.Fatal(err)
	}
	var c specs.Spec
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfig_saysWhatWasAsked(t *testing.T) {
	t.Parallel()
	c := config(t, full())
	if c.Process.Cwd != "/" || c.Process.User.UID != 0 || !slices.Equal(c.Process.Env, []string{"A=1"}) || !c.Root.Readonly {
		t.Errorf("%+v %+v", c.Process, c.Root)
	}
	caps := c.Process.Capabilities
	if !slices.Equal(caps.Bounding, []string{"CAP_KILL"}) || len(caps.Inheritable) != 0 || len(caps.Ambient) != 0 {
		t.Errorf("%+v", caps)
	}
	for target, want := range map[string]string{
		"/proc": "nosuid,nodev,rw", "/tmp": "nosuid,nodev,rw,size=1048576,mode=1777",
		"/data": "rbind,rprivate,nosuid,nodev,noexec,ro",
	} {
		i := slices.IndexFunc(c.Mounts, func(m specs.Mount) bool { return m.Destination == target })
		if i < 0 || strings.Join(c.Mounts[i].Options, ",") != want {
			t.Errorf("%s: %+v", target, c.Mounts)
		}
	}
	r := c.Linux.Resources
	if *r.Memory.Limit != 512<<20 || *r.Memory.Swap != *r.Memory.Limit || *r.Pids.Limit != 1024 || *r.CPU.Quota != 150_000 {
		t.Errorf("%+v", r)
	}
	if slices.ContainsFunc(c.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace || n.Path != "" }) {
		t.Errorf("%+v", c.Linux.Namespaces)
	}
	s := full()
	s.UIDs, s.GIDs = []oci.Mapping{{0, 5000, 10}}, []oci.Mapping{{0, 5000, 10}}
	c = config(t, s)
	if len(c.Linux.UIDMappings) != 1 || c.Linux.UIDMappings[0].HostID != 5000 || len(c.Linux.Namespaces) != 6 {
		t.Errorf("%+v", c.Linux)
	}
}

func TestConfig_isTheSameEverywhere(t *testing.T) {
	s := full()
	first, err := s.Config()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOST_SECRET", "hunter2")
	t.Setenv("HOME", "/home/somebody")
	s = full()
	second, err := s.Config()
	if err != nil || !bytes.Equal(first, second) || bytes.Contains(second, []byte("hunter2")) {
		t.Errorf("%v\n%s", err, second)
	}
	dir := t.TempDir()
	if err := s.Write(dir); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(dir, "config.json"))
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
}

func TestConfig_refuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*oci.Spec){
		"no program":       func(s *oci.Spec) { s.Args = nil },
		"relative root":    func(s *oci.Spec) { s.Root = "root" },
		"root with dots":   func(s *oci.Spec) { s.Root = "/srv/../etc" },
		"relative dir":     func(s *oci.Spec) { s.Dir = "x" },
		"cgroup with dots": func(s *oci.Spec) { s.CgroupsPath = "/a/../b" },
		"systemd cgroup":   func(s *oci.Spec) { s.CgroupsPath = "a:b:c" },
		"half a mapping":   func(s *oci.Spec) { s.UIDs = []oci.Mapping{{0, 1, 1}} },
		"negative memory":  func(s *oci.Spec) { s.Limits.Memory = -1 },
		"zero byte":        func(s *oci.Spec) { s.Env = []string{"A=\x00"} },
		"target is root":   func(s *oci.Spec) { s.Mounts[0].Target = "/" },
		"target with dots": func(s *oci.Spec) { s.Mounts[0].Target = "/a/../b" },
		"unknown kind":     func(s *oci.Spec) { s.Mounts[0].Kind = "overlay" },
		"relative source":  func(s *oci.Spec) { s.Mounts[2].Source = "x" },
		"source of a proc": func(s *oci.Spec) { s.Mounts[0].Source = "/x" },
		"size of a bind":   func(s *oci.Spec) { s.Mounts[2].Size = 1 },
		"negative size":    func(s *oci.Spec) { s.Mounts[1].Size = -1 },
	} {
		s := full()
		change(&s)
		if data, err := s.Config(); err == nil {
			t.Errorf("%s: %s", name, data)
		}
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	root, data := t.TempDir(), t.TempDir()
	for _, d := range []string{"etc", "home/user"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(data, "file")
	for _, f := range []string{file, filepath.Join(root, "etc/hosts")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(data, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	bind := func(source, target string) oci.Mount {
		return oci.Mount{Kind: oci.Bind, Source: source, Target: target}
	}
	for name, tt := range map[string]struct {
		mounts []oci.Mount
		want   []oci.Target
		fails  bool
	}{
		"a directory that exists": {mounts: []oci.Mount{bind(data, "/home/user")}},
		"a file that exists":      {mounts: []oci.Mount{bind(file, "/etc/hosts")}},
		"a directory":             {mounts: []oci.Mount{bind(data, "/data/x")}, want: []oci.Target{{"/data/x", true}}},
		"a file":                  {mounts: []oci.Mount{bind(file, "/etc/passwd")}, want: []oci.Target{{"/etc/passwd", false}}},
		"others need not exist":   {mounts: []oci.Mount{{Kind: oci.Proc, Target: "/proc"}, {Kind: oci.Tmpfs, Target: "/x"}}},
		"below a tmpfs":           {mounts: []oci.Mount{{Kind: oci.Tmpfs, Target: "/tmp"}, bind(data, "/tmp/x")}, want: []oci.Target{{"/tmp/x", true}}},
		"below a bind":            {mounts: []oci.Mount{bind(data, "/home/user"), bind(data, "/home/user/inner")}},
		"below a bind, missing":   {mounts: []oci.Mount{bind(data, "/home/user"), bind(data, "/home/user/x")}, want: []oci.Target{{"/home/user/x", true}}},
		"through a link":          {mounts: []oci.Mount{bind(file, "/link/hosts")}, fails: true},
		"on a link":               {mounts: []oci.Mount{bind(data, "/link")}, fails: true},
		"a file on a directory":   {mounts: []oci.Mount{bind(file, "/etc")}, fails: true},
		"a directory on a file":   {mounts: []oci.Mount{bind(data, "/etc/hosts")}, fails: true},
		"below a file":            {mounts: []oci.Mount{bind(data, "/etc/hosts/x")}, fails: true},
		"no source":               {mounts: []oci.Mount{bind(data+"/none", "/home")}, fails: true},
	} {
		s := oci.Spec{Args: []string{"x"}, Root: root, Mounts: tt.mounts}
		got, err := s.Missing()
		if (err != nil) != tt.fails || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
