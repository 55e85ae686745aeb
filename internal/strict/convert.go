package strict

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
)

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// show prints a value for an error, bounded.
func show(v any) string {
	var s string
	switch v := v.(type) {
	case map[string]any, map[any]any:
		return "a section of keys"
	case []any:
		return "a list"
	case string:
		s = strconv.Quote(v)
	case Text:
		s = strconv.Quote(string(v))
	default:
		s = fmt.Sprint(v)
	}
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return s
}

func asString(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case Text:
		return string(v), true
	}
	return "", false
}

func asBool(v any) (bool, bool) {
	switch v := v.(type) {
	case bool:
		return v, true
	case Text:
		b, err := strconv.ParseBool(string(v))
		return b, err == nil
	}
	return false, false
}

func asInt(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	case uint64:
		if v > math.MaxInt64 {
			return 0, false
		}
		return int64(v), true
	case float64:
		// JSON has one kind of number; beyond 2^53 it is no longer exact.
		if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
			return 0, false
		}
		return int64(v), true
	case Text:
		i, err := strconv.ParseInt(string(v), 10, 64)
		return i, err == nil
	}
	return 0, false
}

func asFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case Text:
		f, err := strconv.ParseFloat(string(v), 64)
		return f, err == nil
	}
	return 0, false
}
