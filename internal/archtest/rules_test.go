package archtest_test

// rule says what one part of the module may import. Paths are relative to the
// module; each entry covers what is below it. An entry that nothing uses any
// more fails the test, as does a package without a rule.
type rule struct {
	part string
	// own are the module's packages that it may import besides itself.
	own []string
	// libraries are import paths of others; the standard library is free.
	libraries []string
	why       string
}

func rules() []rule {
	wire := []string{"connectrpc.com/connect", "google.golang.org/protobuf"}
	return []rule{
		{
			part: "backend",
			why:  "the contract is for everybody, so it brings nothing along",
		},
		{
			part: "backend/backendtest", own: []string{"backend"},
			why: "a fake of the contract needs the contract alone",
		},
		{
			part:      "subprocess",
			own:       []string{"backend", "internal/agent/boot", "internal/box", "internal/launch", "internal/state", "internal/tree", "internal/unixsock"},
			libraries: []string{"golang.org/x/sys"},
			why:       "drivers know the contract and the helpers, never each other, policy, config or server; its executable can be the agent",
		},
		{
			part:      "gvisor",
			own:       []string{"backend", "internal/agent/boot", "internal/box", "internal/dockerbox", "internal/engine", "internal/image", "internal/keeper", "internal/launch", "internal/oci", "internal/state", "internal/treecopy", "internal/unixsock"},
			libraries: []string{"golang.org/x/sys"},
			why:       "as for subprocess, and its root file systems are images",
		},
		{
			part: "docker", own: []string{"backend", "internal/box", "internal/dockerbox", "internal/engine", "internal/launch", "internal/state"},
			why: "a driver; its containers are dockerbox's",
		},
		{
			part: "internal/dockerbox",
			own: []string{
				"backend", "internal/agent/boot", "internal/box", "internal/engine", "internal/image", "internal/keeper", "internal/launch", "internal/state", "internal/unixsock",
			},
			libraries: []string{"golang.org/x/sys"},
			why:       "containers of an engine, for the drivers that make them",
		},
		{
			part: "conformance", own: []string{"backend"},
			why: "its cases know the contract and no driver",
		},
		{
			part: "conformance/report", own: []string{"backend", "conformance", "internal/term"},
			why: "documents of what came of cases",
		},
		{
			part: "policy", own: []string{"backend"},
			why: "layers wrap any backend",
		},
		{
			part: "config", own: []string{"backend", "internal/registry", "internal/statedir", "internal/strict", "policy"},
			libraries: []string{"github.com/knadh/koanf", "github.com/pelletier/go-toml", "go.yaml.in/yaml"},
			why:       "it assembles drivers and layers, and is the only one to know koanf",
		},
		{
			part: "cmd/glovebox",
			own: []string{
				"backend", "config", "conformance", "internal/builtin", "internal/engine", "internal/image", "internal/lang", "internal/registry", "internal/state", "internal/statedir", "internal/strict",
				"internal/term", "internal/version", "policy", "subprocess",
			},
			libraries: []string{"github.com/spf13", "go.yaml.in/yaml", "golang.org/x/sys", "golang.org/x/term"},
			why:       "the command line uses what is assembled; subprocess turns it into an agent",
		},
		{
			part: "packaging", own: []string{"backend", "internal/engine", "internal/image", "internal/launch"},
			libraries: []string{"golang.org/x/sys"},
			why:       "it makes the container image of what was built",
		},
		{
			part: "cmd/glovebox-agent", own: []string{"internal/agent"},
			why: "the slim agent is the agent and nothing else",
		},
		{
			part: "internal/agent", own: []string{"internal/envd/wire", "internal/launch"},
			libraries: append([]string{"github.com/fsnotify/fsnotify", "golang.org/x/net/dns", "golang.org/x/sys"}, wire...),
			why:       "it is a small static program in every sandbox",
		},
		{
			part: "internal/launch", libraries: []string{"golang.org/x/sys", "golang.org/x/net/bpf"},
			why: "it is part of the agent",
		},
		{
			part: "internal/envd/wire", libraries: wire,
			why: "types alone",
		},
		{
			part: "internal/envd", own: []string{"backend", "internal/envd/wire"}, libraries: wire,
			why: "the one client of the wire",
		},
		{
			part: "internal/netstack", libraries: []string{"gvisor.dev/gvisor"},
			why: "the only one to know gVisor's network stack, which is never part of an agent",
		},
		{
			part: "internal/egress", own: []string{"backend", "internal/envd/wire", "internal/netstack"},
			libraries: []string{"golang.org/x/net/dns", "golang.org/x/net/proxy"},
			why:       "the host's side of a sandbox's network needs the agent's wire, not the agent",
		},
		{
			part: "internal/keeper", own: []string{"backend", "internal/egress", "internal/envd", "internal/state", "internal/unixsock"},
			libraries: []string{"golang.org/x/net/netutil", "golang.org/x/sys"},
			why:       "the process behind kept sandboxes knows their streams and proxies, no driver",
		},
		{
			part: "internal/unixsock", libraries: []string{"golang.org/x/sys"},
			why: "sockets alone",
		},
		{
			part: "internal/statedir", own: []string{"backend"},
			why: "where state lies, for those who must not bring a database along",
		},
		{
			part: "internal/state", own: []string{"backend", "internal/statedir"}, libraries: []string{"modernc.org/sqlite"},
			why: "the only one to know the database",
		},
		{
			part: "internal/engine", own: []string{"backend", "internal/unixsock"},
			libraries: []string{"github.com/containerd/errdefs", "github.com/docker/docker", "golang.org/x/sys"},
			why:       "the only one to know the Docker SDK",
		},
		{
			part: "internal/registry", own: []string{"backend", "internal/strict"},
			why: "factories of any driver",
		},
		{part: "images", why: "definitions alone"},
		{
			part: "internal/image", own: []string{"backend", "images", "internal/statedir", "internal/strict"},
			libraries: []string{"github.com/moby/patternmatcher", "golang.org/x/sys"},
			why:       "drivers, server and command line take images from it; engines come in through its interfaces",
		},
		{
			part: "internal/builtin", own: []string{"backend", "docker", "gvisor", "internal/image", "internal/registry", "subprocess"},
			why: "the only list of drivers",
		},
		{
			part: "internal/lang", own: []string{"backend"}, libraries: []string{"github.com/evanw/esbuild"},
			why: "languages become commands",
		},
		{
			part: "internal/box", own: []string{"backend", "internal/agent/boot", "internal/egress", "internal/envd", "internal/keeper", "internal/launch", "internal/state", "internal/tree", "internal/unixsock"},
			libraries: []string{"golang.org/x/sys"},
			why:       "what the local drivers share",
		},
		{
			part: "internal/oci", libraries: []string{"github.com/opencontainers/runtime-spec"},
			why: "the runtime's own types and nothing else",
		},
		{part: "internal/tree", why: "a helper without dependencies"},
		{part: "internal/treecopy", libraries: []string{"golang.org/x/sys"}, why: "a helper that knows files alone"},
		{part: "internal/strict", why: "a helper without dependencies"},
		{part: "internal/term", why: "a helper without dependencies"},
		{part: "internal/version", why: "a helper without dependencies"},
		{part: "internal/testenv/testimage", own: []string{"internal/engine", "internal/image"}, why: "it finds the template that tests use"},
		{
			part: "internal/testenv/testengine", own: []string{"internal/engine", "internal/testenv", "internal/tree"},
			libraries: []string{"golang.org/x/sys"}, why: "engines of a test's own",
		},
		{part: "internal/testenv/benchtable", own: []string{"conformance/host", "internal/version"}, why: "figures with the machine that they are of"},
		{part: "internal/testenv", why: "a helper of tests without dependencies"},
		{part: "internal/leak", own: []string{"internal/state"}, why: "it knows where state lies"},
		{part: "internal/archtest", why: "it reads sources only"},
	}
}

// agentModules are the modules that the slim agent is made of besides ours: it
// runs in every sandbox, so what it is made of is reviewed.
func agentModules() []string {
	return []string{
		"connectrpc.com/connect",
		"github.com/fsnotify/fsnotify",
		"golang.org/x/net",
		"golang.org/x/sys",
		"google.golang.org/protobuf",
	}
}

// longFunctions are those that may be longer than others, with the reason.
func longFunctions() map[string]string {
	return map[string]string{
		"internal/launch/spawn/fork.go fork": "between fork and exec nothing may be called that could grow the stack",
	}
}
