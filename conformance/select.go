package conformance

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
)

// Selection says which cases are wanted. Each list that is not empty must have
// one that fits.
type Selection struct {
	Cases  []string // IDs, in which * stands for any characters and ? for one
	Areas  []Area
	Levels []Level
}

// Filter is the selection as Options has it. A pattern that is none, and an
// area, level or ID that no case has, is ErrInvalid.
func (s Selection) Filter() (func(Case) bool, error) {
	all := Cases()
	invalid := func(field string, err error, fix string) error {
		return &backend.Error{Op: "conformance", Kind: backend.ErrInvalid, Field: field, Err: err, Fix: fix}
	}
	for _, p := range s.Cases {
		if _, err := path.Match(p, ""); err != nil {
			return nil, invalid("cases", fmt.Errorf("%q: %w", p, err), "use letters, digits, - and *")
		}
		if !slices.ContainsFunc(all, func(c Case) bool { return matches(p, c.ID) }) {
			return nil, invalid("cases", fmt.Errorf("no case is called %q", p), "see glovebox conformance list")
		}
	}
	for _, a := range s.Areas {
		if !slices.ContainsFunc(all, func(c Case) bool { return c.Area == a }) {
			return nil, invalid("area", fmt.Errorf("there is no area %q", a), "see glovebox conformance list")
		}
	}
	for _, l := range s.Levels {
		if !slices.Contains(Levels(), l) {
			return nil, invalid("level", fmt.Errorf("there is no level %q", l), fmt.Sprintf("levels are %v", Levels()))
		}
	}
	fits := func(c Case) bool {
		return (len(s.Cases) == 0 || slices.ContainsFunc(s.Cases, func(p string) bool { return matches(p, c.ID) })) &&
			(len(s.Areas) == 0 || slices.Contains(s.Areas, c.Area)) &&
			(len(s.Levels) == 0 || slices.Contains(s.Levels, c.Level()))
	}
	if !slices.ContainsFunc(all, fits) {
		return nil, invalid("cases", errors.New("no case is all of that"), "see glovebox conformance list")
	}
	return fits, nil
}

func matches(pattern, id string) bool {
	ok, err := path.Match(pattern, id)
	return ok && err == nil
}
