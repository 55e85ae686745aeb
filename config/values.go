package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Size is a number of bytes, written with its unit: "512MiB", "1GiB", or as
// Docker writes it, "512m". All units are powers of 1024.
type Size int64

// ParseSize reads a size. It must be more than zero and at most
// backend.MaxBytes. A number without a unit is bytes.
func ParseSize(s string) (Size, error) {
	bad := fmt.Errorf("%s is not a size; write it as 512MiB, 1GiB or 512m", quote(s))
	digits := strings.TrimSpace(s)
	end := strings.IndexFunc(digits, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	unit := ""
	if end >= 0 {
		digits, unit = digits[:end], strings.ToLower(strings.TrimSpace(digits[end:]))
	}
	shift, ok := map[string]uint{
		"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20, "g": 30, "gb": 30, "gib": 30,
		"t": 40, "tb": 40, "tib": 40, "p": 50, "pb": 50, "pib": 50,
	}[unit]
	if !ok {
		return 0, bad
	}
	whole, fraction, dotted := strings.Cut(digits, ".")
	n, err := strconv.ParseUint(whole, 10, 64)
	tooLarge := fmt.Errorf("%s is larger than %s", quote(s), Size(backend.MaxBytes))
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, tooLarge
	case err != nil, dotted && (fraction == "" || len(fraction) > 6 || shift == 0):
		return 0, bad
	case n > uint64(backend.MaxBytes)>>shift:
		return 0, tooLarge
	}
	total := n << shift
	if dotted {
		f, err := strconv.ParseUint(fraction, 10, 64)
		if err != nil {
			return 0, bad
		}
		scale := uint64(math.Pow10(len(fraction)))
		// f < 10^6 and shift <= 50 would overflow, so the small end is cut off.
		low := min(shift, 40)
		total += (f << low / scale) << (shift - low)
	}
	switch {
	case total == 0:
		return 0, fmt.Errorf("%s must be more than zero; leave it out for the default", quote(s))
	case total > uint64(backend.MaxBytes):
		return 0, tooLarge
	}
	return Size(total), nil
}

// String is the size with the largest unit that divides it: "512MiB".
func (s Size) String() string {
	units := []string{"", "KiB", "MiB", "GiB", "TiB", "PiB"}
	n, i := int64(s), 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatInt(n, 10) + units[i]
}

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}

// Example is a size as it is written.
func (Size) Example() string { return "512MiB" }

// JSONSchema describes a size.
func (Size) JSONSchema() map[string]any {
	return map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]{1,6})? ?([kKmMgGtTpP]([iI]?[bB])?|[bB])?$`, "examples": []any{"512MiB", "1g"}}
}

// Count is a whole number above zero.
type Count int64

// ParseCount reads a count.
func ParseCount(s string) (Count, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s is not a whole number above zero", quote(s))
	}
	return Count(n), nil
}

// UnmarshalValue implements strict.ValueUnmarshaler.
func (c *Count) UnmarshalValue(v any, text bool) (err error) {
	if s, ok := v.(string); ok && !text {
		return fmt.Errorf("%s is text; write the number without quotes", quote(s))
	}
	*c, err = ParseCount(number(v))
	return err
}

// JSONSchema describes a count.
func (Count) JSONSchema() map[string]any { return map[string]any{"type": "integer", "minimum": 1} }

// Cores is a number of CPU cores, fractions allowed.
type Cores float64

// ParseCores reads a number of cores.
func ParseCores(s string) (Cores, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || f < 0.01 || f > backend.MaxCPUs {
		return 0, fmt.Errorf("%s is not a number of cores between 0.01 and %v", quote(s), backend.MaxCPUs)
	}
	return Cores(f), nil
}

// UnmarshalValue implements strict.ValueUnmarshaler.
func (c *Cores) UnmarshalValue(v any, text bool) (err error) {
	if s, ok := v.(string); ok && !text {
		return fmt.Errorf("%s is text; write the number without quotes", quote(s))
	}
	*c, err = ParseCores(number(v))
	return err
}

// JSONSchema describes a number of cores.
func (Cores) JSONSchema() map[string]any {
	return map[string]any{"type": "number", "minimum": 0.01, "maximum": backend.MaxCPUs}
}

// Duration is a time above zero, written with its unit: "30s".
type Duration time.Duration

// ParseDuration reads a duration.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s is not a duration; write it with its unit, such as 30s or 5m", quote(s))
	case d <= 0:
		return 0, fmt.Errorf("%s must be more than zero; leave it out for the default", quote(s))
	}
	return Duration(d), nil
}

// String is the duration as time.Duration writes it.
func (d Duration) String() string { return time.Duration(d).String() }

// UnmarshalText reads a duration.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDuration(string(text))
	return err
}

// Example is a duration as it is written.
func (Duration) Example() string { return "30s" }

// JSONSchema describes a duration.
func (Duration) JSONSchema() map[string]any {
	return map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`, "examples": []any{"30s", "5m"}}
}

// number prints a decoded number; what is none gives text that no parser of
// numbers takes.
func number(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Sprintf("%v", v)
	}
}

func quote(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}
