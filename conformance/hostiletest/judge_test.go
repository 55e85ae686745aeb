//go:build linux

package hostiletest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// parse finds the program's report in its output. What others write there lacks
// the nonce.
func parse(stdout []byte, nonce string) *report {
	_, after, ok := bytes.Cut(stdout, []byte("RESULT "+nonce+" "))
	if !ok {
		return nil
	}
	line, _, _ := bytes.Cut(after, []byte("\n"))
	var r report
	if json.Unmarshal(line, &r) != nil || r.Nonce != nonce {
		return nil
	}
	return &r
}

// report is what the program said; without it the attack did not happen.
func (s *scene) report(o *outcome, where string) *report {
	s.Helper()
	if o.said == nil {
		s.Fatalf("inconclusive: the program %s never reported; it ended with %s%d %v:\n%.1500s\n%.1500s",
			where, o.exit, o.code, o.signal, o.stdout, o.stderr)
	}
	return o.said
}

// tries are the program's, checked for being errors of the kernel's and not of
// the program.
func (s *scene) tries(o *outcome, where string) map[string]string {
	s.Helper()
	r := s.report(o, where)
	if len(r.Tries) == 0 {
		s.Fatalf("the program %s tried nothing", where)
	}
	for name, how := range r.Tries {
		if how != "ok" && !strings.HasPrefix(how, "E") && !strings.HasPrefix(how, "SIG") && !strings.HasPrefix(how, "no ") {
			s.Errorf("the program is wrong: %s %s: %s", name, where, how)
		}
	}
	return r.Tries
}

// blocked demands that nothing worked inside.
func (s *scene) blocked(o *outcome) {
	s.Helper()
	tries := s.tries(o, "inside")
	for _, name := range slices.Sorted(maps.Keys(tries)) {
		if tries[name] == "ok" && !s.emulates(name) {
			s.Errorf("open: %s works inside", name)
		}
	}
}

// discriminates demands that what failed inside works outside.
func (s *scene) discriminates(in *outcome, tries map[string]string) {
	s.Helper()
	var weak []string
	strong := 0
	for _, name := range slices.Sorted(maps.Keys(in.said.Tries)) {
		if tries[name] == "ok" {
			strong++
		} else if tries[name] != "" {
			weak = append(weak, fmt.Sprintf("%s (outside: %s)", name, tries[name]))
		}
	}
	if len(weak) > 0 {
		s.Logf("not discriminating here: %s", strings.Join(weak, ", "))
	}
	for _, name := range s.a.control.shows {
		if rooted() && tries[name] != "ok" {
			s.Errorf("inconclusive: %s does not work outside either: %s", name, tries[name])
		}
	}
	if strong > 0 {
		return
	}
	if s.a.control.fact != "" {
		s.Skipf("inconclusive: %s", s.a.control.fact)
	}
	s.Error("inconclusive: nothing of it works outside either")
}
