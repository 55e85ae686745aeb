package strict_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/internal/strict"
)

type level int

func (l *level) UnmarshalText(b []byte) error {
	if string(b) != "high" {
		return errors.New("unknown level")
	}
	*l = 9
	return nil
}

type inner struct {
	Wait  time.Duration `json:"wait"`
	Level level         `json:"level"`
}

type shared struct {
	Flag bool `json:"flag"`
}

type sample struct {
	shared
	Name   string           `json:"name,omitempty"`
	Count  int64            `json:"count"`
	Small  int8             `json:"small"`
	Ratio  float64          `json:"ratio"`
	List   []string         `json:"list"`
	Inner  inner            `json:"inner"`
	Maybe  *bool            `json:"maybe"`
	Named  map[string]inner `json:"named"`
	Raw    map[string]any   `json:"raw"`
	hidden int              //nolint:unused // no key, since it is not exported
}

func TestDecode(t *testing.T) {
	t.Parallel()
	yes := true
	for _, tc := range []struct {
		name string
		from map[string]any
		want sample
	}{
		{"defaults stay", map[string]any{"count": 3}, sample{Name: "kept", Count: 3}},
		{"null is not set", map[string]any{"name": nil}, sample{Name: "kept"}},
		{"JSON's numbers", map[string]any{"count": float64(3), "ratio": 2}, sample{Name: "kept", Count: 3, Ratio: 2}},
		{
			"nested",
			map[string]any{"inner": map[string]any{"wait": "3s", "level": "high"}},
			sample{Name: "kept", Inner: inner{3 * time.Second, 9}},
		},
		{"pointers", map[string]any{"maybe": true}, sample{Name: "kept", Maybe: &yes}},
		{"embedded", map[string]any{"flag": true}, sample{Name: "kept", shared: shared{true}}},
		{
			"maps",
			map[string]any{"named": map[string]any{"a": map[string]any{"wait": "1s"}}},
			sample{Name: "kept", Named: map[string]inner{"a": {Wait: time.Second}}},
		},
		{"raw", map[string]any{"raw": map[string]any{"x": 1}}, sample{Name: "kept", Raw: map[string]any{"x": 1}}},
		{"text is converted", map[string]any{
			"count": strict.Text("7"), "flag": strict.Text("true"), "ratio": strict.Text("0.5"),
			"list": strict.Text("a, b,"), "name": strict.Text("7"), "inner": map[string]any{"wait": strict.Text("1m")},
		}, sample{shared: shared{true}, Name: "7", Count: 7, Ratio: 0.5, List: []string{"a", "b"}, Inner: inner{Wait: time.Minute}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := sample{Name: "kept"}
			if err := strict.Decode(tc.from, &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(sample{})); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDecode_namesTheKeyAtFault(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		from map[string]any
		want string
	}{
		{"misspelt", map[string]any{"cuont": 1}, `cuont: unknown key "cuont", did you mean "count"?`},
		{"far off", map[string]any{"zzzzzz": 1}, "known are count, flag"},
		{"unexported", map[string]any{"hidden": 1}, "unknown key"},
		{"nested", map[string]any{"inner": map[string]any{"wiat": 1}}, `inner.wiat: unknown key "wiat", did you mean "wait"?`},
		{"in a map", map[string]any{"named": map[string]any{"a": map[string]any{"wait": 3}}}, "named.a.wait: 3 is not a duration"},
		{"text for a number", map[string]any{"count": "3"}, `count: "3" is not a whole number`},
		{"fraction", map[string]any{"count": 1.5}, "count: 1.5 is not a whole number"},
		{"out of range", map[string]any{"small": 300}, "small: 300 is not a whole number in range"},
		{"inexact", map[string]any{"count": 1e300}, "whole number"},
		{"huge", map[string]any{"count": uint64(1 << 63)}, "whole number"},
		{"list for text", map[string]any{"name": []any{1}}, "name: a list is not text"},
		{"section for a list", map[string]any{"list": map[string]any{}}, "a section of keys is not a list"},
		{"text for a section", map[string]any{"inner": "x"}, `inner: "x" is not a section`},
		{"odd keys", map[string]any{"named": map[any]any{1: 2}}, "named: a section of keys is not a section of keys"},
		{"a type's own error", map[string]any{"inner": map[string]any{"level": "low"}}, "inner.level: unknown level"},
		{"not a number", map[string]any{"ratio": strict.Text("NaN")}, "ratio:"},
		{"in a list", map[string]any{"list": []any{"a", 1}}, "list.1: 1 is not text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := strict.Decode(tc.from, &sample{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	err := strict.Decode(map[string]any{"a1": 1, "inner": map[string]any{"b1": 1}}, &sample{})
	if got := len(strict.KeyErrors(err)); got != 2 {
		t.Errorf("%d key errors in %v, want both", got, err)
	}
	if err := strict.Decode(nil, sample{}); err == nil {
		t.Error("a struct that is no pointer is accepted")
	}
}

func TestClosest(t *testing.T) {
	t.Parallel()
	known := []string{"memory", "min_isolation", "use", "timeout", "pids"}
	for in, want := range map[string]string{
		"memroy": "memory", "min-isolation": "min_isolation", "minIsolation": "min_isolation", "mem": "memory",
		"tiemout": "timeout", "pid": "pids", "elephant": "", "": "", strings.Repeat("x", 10000): "",
	} {
		if got := strict.Closest(in, known); got != want {
			t.Errorf("Closest(%.20q) = %q, want %q", in, got, want)
		}
	}
}
