package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/strict"
)

// Use names the backends of an executor in order of preference. Empty, and
// the single name auto, mean all of them.
type Use []string

// IsAuto tells whether all backends are meant.
func (u Use) IsAuto() bool { return len(u) == 0 || len(u) == 1 && u[0] == Auto }

// UnmarshalValue implements strict.ValueUnmarshaler: one name or a list.
func (u *Use) UnmarshalValue(v any, text bool) error {
	var names []string
	switch v := v.(type) {
	case string:
		names = []string{v}
		if text {
			names = strings.Split(v, ",")
		}
	case []any:
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return errors.New("a backend's name is text")
			}
			names = append(names, s)
		}
	default:
		return errors.New("neither a backend's name nor a list of names")
	}
	for i, n := range names {
		names[i] = strings.TrimSpace(n)
		if names[i] == "" {
			return errors.New("an empty name; use auto for all backends")
		}
		if slices.Contains(names[:i], names[i]) {
			return fmt.Errorf("%q stands there twice", names[i])
		}
	}
	if len(names) == 0 {
		return errors.New("an empty list; use auto for all backends")
	}
	if len(names) > 1 && slices.Contains(names, Auto) {
		return errors.New("auto stands alone: it means all backends")
	}
	*u = names
	return nil
}

// JSONSchema describes the two ways to write it.
func (Use) JSONSchema() map[string]any {
	name := map[string]any{"type": "string"}
	return map[string]any{"oneOf": []any{name, map[string]any{"type": "array", "items": name, "minItems": 1, "uniqueItems": true}}}
}

// OutputAction is what happens to a command at its output limit.
type OutputAction string

// What happens at the output limit.
const (
	OutputTruncate OutputAction = "truncate" // what is over it is dropped
	OutputKill     OutputAction = "kill"
)

// UnmarshalText reads an action.
func (a *OutputAction) UnmarshalText(text []byte) error {
	known := []string{string(OutputTruncate), string(OutputKill)}
	if !slices.Contains(known, string(text)) {
		return strict.Unknown("action", string(text), known)
	}
	*a = OutputAction(text)
	return nil
}

// JSONSchema lists the actions.
func (OutputAction) JSONSchema() map[string]any {
	return map[string]any{"enum": []any{string(OutputTruncate), string(OutputKill)}}
}

// Share is a part of a limit, 0.8 or "80%". Zero is off.
type Share float64

// UnmarshalValue implements strict.ValueUnmarshaler.
func (s *Share) UnmarshalValue(v any, _ bool) error {
	text, percent := strings.CutSuffix(number(v), "%")
	f, err := strconv.ParseFloat(text, 64)
	if percent {
		f /= 100
	}
	if err != nil || math.IsNaN(f) || f < 0 || f > 1 {
		return fmt.Errorf("%s is not a share of a limit; write it as 0.8 or 80%%, 0 for none", quote(number(v)))
	}
	*s = Share(f)
	return nil
}

// JSONSchema describes a share.
func (Share) JSONSchema() map[string]any {
	return map[string]any{"oneOf": []any{
		map[string]any{"type": "number", "minimum": 0, "maximum": 1},
		map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)?%$`},
	}}
}
