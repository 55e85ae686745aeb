package examples_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// document reads a file of the module.
func document(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// rows are the cells of the tables of a document's part.
func rows(part string) (out [][]string) {
	for l := range strings.Lines(part) {
		l = strings.TrimSpace(l)
		if !strings.HasPrefix(l, "| `") {
			continue
		}
		var cells []string
		for c := range strings.SplitSeq(strings.Trim(l, "|"), "|") {
			cells = append(cells, strings.TrimSpace(c))
		}
		out = append(out, cells)
	}
	return out
}

// section is what stands below a heading, up to the next one that is not below
// it.
func section(t *testing.T, doc, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(doc, heading+"\n")
	if !ok {
		t.Fatalf("there is no heading %q", heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	if next := regexp.MustCompile(fmt.Sprintf("(?m)^#{2,%d} ", max(len(level), 2))).FindStringIndex(rest); next != nil && strings.HasPrefix(level, "#") {
		rest = rest[:next[0]]
	}
	return rest
}

// measured are the numbers of a receipt that differ from run to run.
var measured = regexp.MustCompile(`[0-9.]+ ?(µs|ms|s|[KM]iB)\b|[0-9]+ process(es)?\b`)

// TestReadme_firstCommand runs what the README shows, and compares what it
// shows: the program's lines as they are, the receipt's but for what is
// measured anew.
func TestReadme_firstCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	doc := document(t, "README.md")
	shown, _, _ := strings.Cut(section(t, doc, "## Two commands"), "\n```\n")
	_, shown, ok := strings.Cut(shown, "```console\n$ CGO_ENABLED=0 go run ./cmd/glovebox ")
	if !ok {
		t.Fatal("the first command is not there")
	}
	args, want, _ := strings.Cut(shown, "\n")
	stdout, stderr, code := w.shell("glovebox " + args)

	lines := strings.Split(strings.TrimSuffix(want, "\n"), "\n")
	if last := lines[len(lines)-1]; last != fmt.Sprintf("exit status %d", code) {
		t.Errorf("it ended with %d, and the README shows %q", code, last)
	}
	receipt := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "receipt: ") })
	if receipt < 0 {
		t.Fatal("no receipt is shown")
	}
	if diff := cmp.Diff(strings.Join(lines[:receipt], "\n")+"\n", stdout); diff != "" {
		t.Errorf("standard output (-README +run):\n%s", diff)
	}
	if os.Geteuid() != 0 {
		return // others have other receipts
	}
	stable := func(s string) string { return measured.ReplaceAllString(s, "#") }
	if diff := cmp.Diff(stable(strings.Join(lines[receipt:len(lines)-1], "\n")), stable(strings.TrimSpace(stderr))); diff != "" {
		t.Errorf("the receipt (-README +run):\n%s", diff)
	}
}

// TestSecurity_attacksAreThere: each test and attack that the page names exists.
func TestSecurity_attacksAreThere(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	for _, dir := range []string{"../conformance", "../subprocess", "../internal", "."} {
		addSources(t, &tests, dir, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	}
	doc := document(t, "docs/security.md")
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(doc, -1) {
		if !strings.Contains(tests.String(), "func "+name[1]+"(") {
			t.Errorf("there is no test %s", name[1])
		}
	}
	attacks := regexp.MustCompile(`\b[A-Z]{2}-[0-9]{2}(-\w+)?\b`).FindAllString(doc, -1)
	if len(attacks) < 30 {
		t.Errorf("only %d attacks are named", len(attacks))
	}
	for _, id := range attacks {
		if !strings.Contains(tests.String(), `"`+id+`"`) {
			t.Errorf("there is no attack %s", id)
		}
	}
}

func addSources(t *testing.T, to *strings.Builder, dir string, wanted func(string) bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || !wanted(path) {
			return err
		}
		data, err := os.ReadFile(path)
		to.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var helpFlag = regexp.MustCompile(`(?m)^ +(?:(-\w), +)?(--[a-z-]+)\b`)

// TestCLI_flags: the flags that each command's help lists are those that the
// page describes.
func TestCLI_flags(t *testing.T) {
	t.Parallel()
	w := bareWorld(t)
	doc := document(t, "docs/cli.md")
	for heading, commands := range map[string][]string{
		"## glovebox run":         {"run"},
		"## glovebox image":       {"image build", "image list", "image rm"},
		"## glovebox conformance": {"conformance run", "conformance list", "conformance show", "conformance report", "conformance diff", "conformance verify"},
		"## glovebox doctor":      {"doctor"},
		"## glovebox config":      {"config show", "config validate", "config schema", "config trust"},
	} {
		want, got := map[string]string{}, map[string]string{}
		for _, c := range commands {
			help, errs, code := w.shell("glovebox " + c + " --help")
			if code != 0 {
				t.Fatal(errs)
			}
			for _, m := range helpFlag.FindAllStringSubmatch(help, -1) {
				want[m[2]] = m[1]
			}
		}
		if heading != "## glovebox run" {
			delete(want, "--config") // of all commands, described once
		}
		delete(want, "--help")
		for _, row := range rows(section(t, doc, heading)) {
			names := strings.Split(strings.ReplaceAll(row[0], "`", ""), ", ")
			short := ""
			if len(names) == 2 {
				short = names[0]
			}
			got[names[len(names)-1]] = short
		}
		delete(got, "--help")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-program +page):\n%s", heading, diff)
		}
	}
}

func TestCLI_commands(t *testing.T) {
	t.Parallel()
	w := bareWorld(t)
	doc := document(t, "docs/cli.md")
	help, _, _ := w.shell("glovebox --help")
	for _, m := range regexp.MustCompile(`(?m)^  (\w+) +[A-Z]`).FindAllStringSubmatch(section(t, help, "Available Commands:"), -1) {
		if m[1] != "help" && !strings.Contains(doc, "glovebox "+m[1]) {
			t.Errorf("the command %s is not described", m[1])
		}
	}
}

// schema is what the test needs of a JSON Schema.
type schema struct {
	Description string            `json:"description"`
	Properties  map[string]schema `json:"properties"`
	Additional  json.RawMessage   `json:"additionalProperties"`
}

// keys are the keys of s and what they mean; the page stops at limits of
// templates and settings of drivers, and describes maps by what is in them.
func (s schema) keys(prefix string, into map[string]string) {
	for name, p := range s.Properties {
		key := prefix + name
		var item schema
		isMap := json.Unmarshal(p.Additional, &item) == nil && len(item.Properties) > 0
		switch {
		case key == "templates.NAME.limits" || len(p.Properties) == 0 && !isMap:
			into[key] = p.Description
		case isMap:
			item.keys(key+".NAME.", into)
		default:
			p.keys(key+".", into)
		}
	}
}

func TestConfiguration_keys(t *testing.T) {
	t.Parallel()
	w := bareWorld(t)
	var s schema
	w.decode(&s, "glovebox config schema")
	want := map[string]string{}
	s.keys("", want)
	var effective []struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	}
	w.decode(&effective, "glovebox config show --origin --json")
	defaults := map[string]string{}
	name := regexp.MustCompile(`^(backends|executors)\.\w+`)
	for _, e := range effective {
		defaults[name.ReplaceAllString(e.Key, "$1.NAME")] = fmt.Sprint(e.Value)
	}

	doc := document(t, "docs/configuration.md")
	got := map[string]string{}
	for _, row := range rows(section(t, doc, "## Keys")) {
		key := strings.Trim(row[0], "`")
		got[key] = row[2]
		if d := strings.Trim(row[1], "`"); d != defaults[key] && !(d == "false" && defaults[key] == "") {
			t.Errorf("%s: the default is %q, and %q is written", key, defaults[key], d)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys (-schema +page):\n%s", diff)
	}

	drivers := s.drivers(t)
	if len(drivers) < 3 {
		t.Errorf("the schema knows only of the drivers %v", slices.Sorted(maps.Keys(drivers)))
	}
	for driver, want := range drivers {
		var got []string
		for _, row := range rows(section(t, doc, "## Settings of the driver "+driver)) {
			got = append(got, strings.Trim(row[0], "`"))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("settings of %s (-schema +page):\n%s", driver, diff)
		}
	}
}

// drivers are the settings of each driver, sorted.
func (s schema) drivers(t *testing.T) map[string][]string {
	t.Helper()
	var backends struct {
		AllOf []struct {
			If struct {
				Properties struct {
					Driver struct {
						Const string `json:"const"`
					} `json:"driver"`
				} `json:"properties"`
			} `json:"if"`
			Then schema `json:"then"`
		} `json:"allOf"`
	}
	if err := json.Unmarshal(s.Properties["backends"].Additional, &backends); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, b := range backends.AllOf {
		out[b.If.Properties.Driver.Const] = slices.Sorted(maps.Keys(b.Then.Properties["with"].Properties))
	}
	return out
}

func TestConfiguration_exampleIsValid(t *testing.T) {
	t.Parallel()
	w := bareWorld(t)
	for i, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(document(t, "docs/configuration.md"), -1) {
		file := filepath.Join(w.dir, fmt.Sprintf("example%d.yaml", i))
		if err := os.WriteFile(file, []byte(m[1]), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := w.shell("glovebox config validate " + file); code != 0 {
			t.Error(errs)
		}
	}
}

// TestTroubleshooting_texts: what the page quotes of us stands in our sources.
func TestTroubleshooting_texts(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	addSources(t, &all, "..", func(name string) bool { return !strings.HasSuffix(name, "_test.go") })
	ours, _, ok := strings.Cut(document(t, "docs/troubleshooting.md"), "\n## What programs say\n")
	if !ok {
		t.Fatal("the section on what programs say is gone")
	}
	headings := regexp.MustCompile("(?m)^### `(.*)`$").FindAllStringSubmatch(ours, -1)
	if len(headings) < 20 {
		t.Errorf("only %d texts are explained", len(headings))
	}
	for _, h := range headings {
		for _, part := range regexp.MustCompile(`…|: `).Split(h[1], -1) {
			if part = strings.TrimSpace(part); !strings.Contains(all.String(), part) {
				t.Errorf("%q: nothing says %q", h[1], part)
			}
		}
	}
}

// TestGoAPI_snippets: the page shows the programs as they are.
func TestGoAPI_snippets(t *testing.T) {
	t.Parallel()
	doc := document(t, "docs/go-api.md")
	for program, want := range map[string]int{"embed": 4, "choose": 2} {
		source := document(t, "examples/"+program+"/main.go")
		parts := regexp.MustCompile(`(?s)// \[(\w+)\]\n(.*?)\n\n// \[end\]`).FindAllStringSubmatch(source, -1)
		if len(parts) < want {
			t.Errorf("the program %s has %d parts", program, len(parts))
		}
		for _, p := range parts {
			if !strings.Contains(doc, "<!-- "+program+":"+p[1]+" -->\n```go\n"+p[2]+"\n```\n") {
				t.Errorf("%s of %s is not shown as it is; it should be\n%s", p[1], program, p[2])
			}
		}
	}
}

func TestEmbed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if os.Getenv("GLOVEBOX_TEST_BIN") != "" {
		t.Skip("it is not among the programs that were built before")
	}
	t.Run("embed", func(t *testing.T) { testEmbed(t, w) })
	t.Run("choose", func(t *testing.T) { testChoose(t, w) })
}

func testEmbed(t *testing.T, w *world) {
	t.Helper()
	stdout, stderr, code := w.shell("'" + programs.Build(t, "examples/embed") + "'")
	want := fmt.Sprintf(`exited(0): 3 lines
sum.txt: %d
isolation process, network none
sh ended with exited(3)
kept
cat ended with exited(0)
sleep ended with timeout
no-such-program ended with exited(127)
`, 17+4+21)
	if got, found := strings.CutSuffix(stdout, lastLine(stdout)); code != 0 || !found || got != want || !strings.HasPrefix(lastLine(stdout), "unsupported - ") {
		t.Errorf("it ended with %d and printed\n%s%s", code, stdout, stderr)
	}
}

// testChoose: of three backends the two stronger ones are not to be had, and the
// reasons are told.
func testChoose(t *testing.T, w *world) {
	t.Helper()
	stdout, stderr, code := w.shell("GLOVEBOX_STATE_DIR='" + filepath.Join(w.dir, "empty") + "' DOCKER_HOST='unix://" +
		filepath.Join(w.dir, "none") + "' '" + programs.Build(t, "examples/choose") + "'")
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	want := []string{
		"on subprocess, isolation process: 42",
		"passed over gvisor, isolation kernel: ", "passed over docker, isolation container: ", "vm: unsupported",
	}
	if code != 0 || len(lines) != len(want) {
		t.Fatalf("it ended with %d and printed\n%s%s", code, stdout, stderr)
	}
	for i, l := range lines {
		if !strings.HasPrefix(l, want[i]) {
			t.Errorf("it printed %q, want %q", l, want[i])
		}
	}
}

func lastLine(s string) string {
	lines := strings.SplitAfter(strings.TrimSuffix(s, "\n"), "\n")
	return lines[len(lines)-1] + "\n"
}

// TestDocs_linksLead: what the pages link to in the repository is there.
func TestDocs_linksLead(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for _, page := range append(pages, "../README.md") {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}
