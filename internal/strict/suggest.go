package strict

import (
	"fmt"
	"slices"
	"strings"
)

// Unknown is the error for a name that is not among known: it suggests the one
// it resembles, or lists them. what says what is named, such as "key".
func Unknown(what, name string, known []string) error {
	if c := Closest(name, known); c != "" {
		return fmt.Errorf("unknown %s %q, did you mean %q?", what, trim(name), c)
	}
	if len(known) == 0 {
		return fmt.Errorf("unknown %s %q, none is known here", what, trim(name))
	}
	list := slices.Sorted(slices.Values(known))
	return fmt.Errorf("unknown %s %q, known are %s", what, trim(name), strings.Join(list, ", "))
}

func trim(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

// Closest is the known name that name is probably a misspelling of, or "".
func Closest(name string, known []string) string {
	norm := func(s string) string {
		return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s))
	}
	n := norm(name)
	if len(n) > 64 {
		return ""
	}
	best, bestDist := "", 1+max(1, len(n)/3)
	for _, k := range known {
		kn := norm(k)
		if kn == n || (len(n) >= 3 && (strings.HasPrefix(kn, n) || strings.HasPrefix(n, kn) && len(kn) >= 3)) {
			if d := distance(n, kn); d < bestDist || best == "" {
				best, bestDist = k, min(d, bestDist)
			}
			continue
		}
		if d := distance(n, kn); d < bestDist {
			best, bestDist = k, d
		}
	}
	return best
}

// distance is the Damerau-Levenshtein distance (optimal string alignment).
func distance(a, b string) int {
	ra, rb := []rune(a), []rune(b)
	rows := make([][]int, len(ra)+1)
	for i := range rows {
		rows[i] = make([]int, len(rb)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(ra); i++ {
		for j := 1; j <= len(rb); j++ {
			cost := 1
			if ra[i-1] == rb[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && ra[i-1] == rb[j-2] && ra[i-2] == rb[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(ra)][len(rb)]
}
