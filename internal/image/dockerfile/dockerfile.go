// Package dockerfile reads the Dockerfiles that templates are made of: what one
// says becomes a list of steps, each with all that holds for it. What it does
// not know it refuses with the line, and nothing is run here.
package dockerfile

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of a Dockerfile.
const (
	maxSize  = 1 << 20
	maxSteps = 500
)

// File is what a Dockerfile says.
type File struct {
	// From is what it starts from: an image's name.
	From  string
	Steps []Step
	// Env, Dir and User are what holds at the end, Start the command.
	Env   map[string]string
	Dir   string
	User  string
	Start []string
}

// Step is one thing to do, with what holds for it. Exactly one of Run and Copy
// is set, but for a step that only makes Dir.
type Step struct {
	Line int
	Text string // as it is written, for people
	Run  []string
	Copy *Copy
	// Env is the environment: what ENV and ARG gave before it.
	Env  map[string]string
	Dir  string // absolute; "" is the image's own
	User string // "" is root
}

// Copy brings files of the context in.
type Copy struct {
	Sources []string // patterns, relative to the context
	Dest    string   // absolute; a directory when it ends with a slash
	Owner   string   // USER[:GROUP], names or numbers; "" is root
	Mode    uint32   // of all files; 0 is their own
}

// Error is what is wrong with a line.
type Error struct {
	Line int
	Err  error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Parse reads a Dockerfile. args are the values of ARG that the caller gives.
func Parse(r io.Reader, args map[string]string) (File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	switch {
	case err != nil:
		return File{}, err
	case len(data) > maxSize:
		return File{}, errors.New("a Dockerfile of more than 1 MiB")
	case !utf8.Valid(data) || strings.ContainsRune(string(data), 0):
		return File{}, errors.New("it is no text")
	}
	lines, err := logicalLines(string(data))
	if err != nil {
		return File{}, err
	}
	p := &parser{given: args, args: map[string]string{}, file: File{Env: map[string]string{}}}
	for _, l := range lines {
		if err := p.instruction(l); err != nil {
			return File{}, &Error{l.number, err}
		}
		if len(p.file.Steps) > maxSteps {
			return File{}, &Error{l.number, fmt.Errorf("more than %d steps", maxSteps)}
		}
	}
	if p.file.From == "" {
		return File{}, errors.New("there is no FROM")
	}
	for name := range args {
		if !slices.Contains(p.known, name) {
			return File{}, fmt.Errorf("no ARG is named %s", name)
		}
	}
	p.file.Start = slices.Concat(p.entrypoint, p.cmd)
	return p.file, nil
}

// line is one instruction, whose lines are joined.
type line struct {
	number int
	text   string
}

// logicalLines joins continued lines and leaves comments out.
func logicalLines(text string) ([]line, error) {
	var out []line
	var open *line
	number := 0
	sc := bufio.NewScanner(strings.NewReader(strings.TrimPrefix(text, "\ufeff")))
	sc.Buffer(nil, maxSize+1)
	for sc.Scan() {
		number++
		l := strings.TrimSpace(sc.Text())
		if strings.HasPrefix(l, "#") {
			name, value, ok := strings.Cut(strings.TrimSpace(l[1:]), "=")
			if ok && len(out) == 0 && open == nil && strings.EqualFold(strings.TrimSpace(name), "escape") && strings.TrimSpace(value) != `\` {
				return nil, &Error{number, errors.New("another escape character is not supported")}
			}
			continue
		}
		if l == "" {
			continue // inside a continued line as well
		}
		rest, continued := strings.CutSuffix(l, `\`)
		if open == nil {
			open = &line{number: number}
		}
		open.text += rest
		if !continued {
			out = append(out, *open)
			open = nil
		}
	}
	if open != nil {
		out = append(out, *open)
	}
	return out, sc.Err()
}

type parser struct {
	file            File
	given           map[string]string // of the caller
	args            map[string]string // that are in effect
	known           []string          // names of all ARGs
	entrypoint, cmd []string
}

func (p *parser) instruction(l line) error {
	word, rest, _ := strings.Cut(l.text, " ")
	if i := strings.IndexByte(word, '\t'); i >= 0 {
		word, rest = word[:i], l.text[i:]
	}
	word, rest = strings.ToUpper(word), strings.TrimSpace(rest)
	if p.file.From == "" && word != "FROM" && word != "ARG" {
		return fmt.Errorf("%s before FROM", word)
	}
	if strings.Contains(rest, "<<") && (word == "RUN" || word == "COPY" || word == "ADD") && isHeredoc(rest) {
		return errors.New("here-documents are not supported; write a file and COPY it")
	}
	if rest == "" {
		return fmt.Errorf("%s says nothing", word)
	}
	switch word {
	case "FROM":
		return p.from(rest)
	case "ARG":
		return p.arg(rest)
	case "ENV":
		return p.env(rest)
	case "RUN":
		return p.run(l, rest)
	case "COPY", "ADD":
		return p.copy(l, word, rest)
	case "WORKDIR":
		return p.workdir(l, rest)
	case "USER":
		user, err := p.expand(rest)
		p.file.User = user
		if err == nil && strings.ContainsAny(user, " \t/") {
			err = fmt.Errorf("%q is no user", user)
		}
		return err
	case "CMD", "ENTRYPOINT":
		return p.start(word, rest)
	case "LABEL", "EXPOSE":
		return nil // nothing that a sandbox would do with it
	default:
		return fmt.Errorf("%s is not supported", word)
	}
}

func isHeredoc(rest string) bool {
	for f := range strings.FieldsSeq(rest) {
		if after, ok := strings.CutPrefix(f, "<<"); ok && after != "" && !strings.HasPrefix(after, "<") && !strings.HasPrefix(after, "=") {
			return true
		}
	}
	return false
}

func (p *parser) from(rest string) error {
	if p.file.From != "" {
		return errors.New("a second FROM: builds of several stages are not supported")
	}
	f := strings.Fields(rest)
	if strings.HasPrefix(f[0], "--") {
		return fmt.Errorf("FROM %s is not supported", f[0])
	}
	if len(f) != 1 && (len(f) != 3 || !strings.EqualFold(f[1], "AS")) {
		return errors.New("FROM takes one image's name")
	}
	from, err := p.expand(f[0])
	if err == nil && (from == "" || strings.HasPrefix(from, "-")) {
		err = fmt.Errorf("%q names no image", from)
	}
	p.file.From = from
	p.args = map[string]string{} // those before FROM are FROM's alone
	return err
}

func (p *parser) arg(rest string) error {
	words, err := split(rest)
	if err != nil {
		return err
	}
	for _, w := range words {
		name, value, defaulted := strings.Cut(w, "=")
		if !validName(name) {
			return fmt.Errorf("%q is no variable's name", name)
		}
		p.known = append(p.known, name)
		if v, ok := p.given[name]; ok {
			p.args[name] = v
			continue
		}
		if !defaulted {
			continue
		}
		if p.args[name], err = p.expand(value); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) env(rest string) error {
	words, err := split(rest)
	if err != nil {
		return err
	}
	set := map[string]string{} // all of one ENV see what was before it
	if !strings.Contains(words[0], "=") {
		name, value, _ := strings.Cut(rest, " ")
		v, err := p.expand(strings.TrimSpace(value))
		if err != nil {
			return err
		}
		if strings.TrimSpace(value) == "" {
			return errors.New("ENV takes NAME=VALUE")
		}
		set[name] = v
		words = nil
	}
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			return fmt.Errorf("%q is not NAME=VALUE", w)
		}
		if set[name], err = p.expand(value); err != nil {
			return err
		}
	}
	for name := range set {
		if !validName(name) {
			return fmt.Errorf("%q is no variable's name", name)
		}
	}
	maps.Copy(p.file.Env, set)
	return nil
}

// environment is what a step sees: ENV wins over ARG.
func (p *parser) environment() map[string]string {
	env := maps.Clone(p.args)
	maps.Copy(env, p.file.Env)
	return env
}

func (p *parser) step(l line) Step {
	return Step{Line: l.number, Text: l.text, Env: p.environment(), Dir: p.file.Dir, User: p.file.User}
}

func (p *parser) run(l line, rest string) error {
	if strings.HasPrefix(rest, "--") {
		return fmt.Errorf("RUN %s is not supported", strings.Fields(rest)[0])
	}
	args, err := command(rest)
	if err != nil {
		return err
	}
	s := p.step(l)
	s.Run = args
	p.file.Steps = append(p.file.Steps, s)
	return nil
}

func (p *parser) start(word, rest string) error {
	args, err := command(rest)
	if err != nil {
		return err
	}
	if word == "CMD" {
		p.cmd = args
		return nil
	}
	p.entrypoint, p.cmd = args, nil
	return nil
}

func (p *parser) workdir(l line, rest string) error {
	dir, err := p.expand(unquote(rest))
	if err != nil {
		return err
	}
	if dir == "" {
		return errors.New("WORKDIR is empty")
	}
	p.file.Dir = p.resolve(dir)
	p.file.Steps = append(p.file.Steps, p.step(l))
	return nil
}

// resolve makes a path inside absolute.
func (p *parser) resolve(dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join("/", p.file.Dir, dir)
}

// command is a JSON list of arguments, or else a line for sh.
func command(rest string) ([]string, error) {
	if strings.HasPrefix(rest, "[") {
		var args []string
		if json.Unmarshal([]byte(rest), &args) == nil {
			if len(args) == 0 || args[0] == "" {
				return nil, errors.New("an empty command")
			}
			return args, nil
		}
	}
	return []string{"/bin/sh", "-c", rest}, nil
}
