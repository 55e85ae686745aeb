package strict

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Text is a value that came as text whatever it means, from the environment or
// a flag. It is converted to the type of the key it is for; a list is split at
// commas.
type Text string

// ValueUnmarshaler is a type that reads an untyped value itself. text tells
// that the value came as Text.
type ValueUnmarshaler interface {
	UnmarshalValue(v any, text bool) error
}

// KeyError is what is wrong with one key.
type KeyError struct {
	Path []string // from the outermost key to the one at fault
	Err  error
}

// Error is the key, joined with dots, and the cause.
func (e *KeyError) Error() string {
	if len(e.Path) == 0 {
		return e.Err.Error()
	}
	return e.Key() + ": " + e.Err.Error()
}

// Key is the path joined with dots.
func (e *KeyError) Key() string { return strings.Join(e.Path, ".") }

// Unwrap gives the cause.
func (e *KeyError) Unwrap() error { return e.Err }

// Decode fills into, a pointer to a struct, with from. Keys that from does not
// have keep their values, so into carries the defaults. The error joins one
// *KeyError for each key at fault.
func Decode(from map[string]any, into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("strict: cannot decode into %T", into)
	}
	d := &decoder{}
	d.value(nil, from, v.Elem())
	return errors.Join(d.errs...)
}

// KeyErrors lists the key errors that err joins; an error of another kind is
// given back as one without a key.
func KeyErrors(err error) []*KeyError {
	if err == nil {
		return nil
	}
	var ke *KeyError
	if !errors.As(err, &ke) {
		return []*KeyError{{Err: err}}
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []*KeyError
		for _, e := range joined.Unwrap() {
			out = append(out, KeyErrors(e)...)
		}
		return out
	}
	return []*KeyError{ke}
}

type decoder struct{ errs []error }

func (d *decoder) fail(path []string, format string, args ...any) {
	d.errs = append(d.errs, &KeyError{Path: slices.Clone(path), Err: fmt.Errorf(format, args...)})
}

func (d *decoder) value(path []string, from any, dst reflect.Value) {
	if from == nil {
		return
	}
	if dst.Kind() == reflect.Pointer {
		if dst.IsNil() {
			dst.Set(reflect.New(dst.Type().Elem()))
		}
		d.value(path, from, dst.Elem())
		return
	}
	text, isText := from.(Text)
	if u, ok := reflect.TypeAssert[ValueUnmarshaler](dst.Addr()); ok {
		v := from
		if isText {
			v = string(text)
		}
		if err := u.UnmarshalValue(v, isText); err != nil {
			d.fail(path, "%w", err)
		}
		return
	}
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](dst.Addr()); ok {
		s, ok := asString(from)
		if !ok {
			d.fail(path, "%s is not text; write it in quotes%s", show(from), example(dst.Type()))
			return
		}
		if err := u.UnmarshalText([]byte(s)); err != nil {
			d.fail(path, "%w", err)
		}
		return
	}
	if dst.Type() == reflect.TypeFor[time.Duration]() {
		d.duration(path, from, dst)
		return
	}
	d.kind(path, from, dst)
}

// example is a hint for types that are written with a unit.
func example(t reflect.Type) string {
	if e, ok := reflect.TypeAssert[interface{ Example() string }](reflect.Zero(t)); ok {
		return ", such as " + strconv.Quote(e.Example())
	}
	return ""
}

func (d *decoder) duration(path []string, from any, dst reflect.Value) {
	s, ok := asString(from)
	if !ok {
		d.fail(path, "%s is not a duration; write it with its unit, such as \"30s\"", show(from))
		return
	}
	dur, err := time.ParseDuration(s)
	if err != nil {
		d.fail(path, "%q is not a duration; write it with its unit, such as \"30s\"", s)
		return
	}
	dst.SetInt(int64(dur))
}

func (d *decoder) kind(path []string, from any, dst reflect.Value) {
	switch dst.Kind() {
	case reflect.Struct:
		d.structure(path, from, dst)
	case reflect.Map:
		d.mapping(path, from, dst)
	case reflect.Slice:
		d.list(path, from, dst)
	case reflect.String:
		s, ok := asString(from)
		if !ok {
			d.fail(path, "%s is not text; write it in quotes", show(from))
			return
		}
		dst.SetString(s)
	case reflect.Bool:
		b, ok := asBool(from)
		if !ok {
			d.fail(path, "%s is not true or false", show(from))
			return
		}
		dst.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, ok := asInt(from)
		if !ok || dst.OverflowInt(i) {
			d.fail(path, "%s is not a whole number in range", show(from))
			return
		}
		dst.SetInt(i)
	case reflect.Float64:
		f, ok := asFloat(from)
		if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
			d.fail(path, "%s is not a number", show(from))
			return
		}
		dst.SetFloat(f)
	case reflect.Interface:
		dst.Set(reflect.ValueOf(from))
	default:
		d.fail(path, "a %s cannot be configured", dst.Type())
	}
}

func (d *decoder) structure(path []string, from any, dst reflect.Value) {
	m, ok := from.(map[string]any)
	if !ok {
		d.fail(path, "%s is not a section of keys", show(from))
		return
	}
	fields := Fields(dst.Type())
	known := make([]string, 0, len(fields))
	byName := make(map[string]Field, len(fields))
	for _, f := range fields {
		known = append(known, f.Name)
		byName[f.Name] = f
	}
	for _, key := range sortedKeys(m) {
		f, ok := byName[key]
		if !ok {
			d.fail(append(path, key), "%w", Unknown("key", key, known))
			continue
		}
		d.value(append(path, key), m[key], dst.FieldByIndex(f.Index))
	}
}

func (d *decoder) mapping(path []string, from any, dst reflect.Value) {
	m, ok := from.(map[string]any)
	if !ok {
		d.fail(path, "%s is not a section of keys", show(from))
		return
	}
	if dst.Type().Key().Kind() != reflect.String {
		d.fail(path, "a %s cannot be configured", dst.Type())
		return
	}
	if dst.IsNil() {
		dst.Set(reflect.MakeMapWithSize(dst.Type(), len(m)))
	}
	for _, key := range sortedKeys(m) {
		k := reflect.ValueOf(key).Convert(dst.Type().Key())
		elem := reflect.New(dst.Type().Elem()).Elem()
		if old := dst.MapIndex(k); old.IsValid() {
			elem.Set(old)
		}
		d.value(append(path, key), m[key], elem)
		dst.SetMapIndex(k, elem)
	}
}

func (d *decoder) list(path []string, from any, dst reflect.Value) {
	var items []any
	switch v := from.(type) {
	case []any:
		items = v
	case Text:
		for part := range strings.SplitSeq(string(v), ",") {
			if part = strings.TrimSpace(part); part != "" {
				items = append(items, Text(part))
			}
		}
	default:
		d.fail(path, "%s is not a list", show(from))
		return
	}
	out := reflect.MakeSlice(dst.Type(), len(items), len(items))
	for i, item := range items {
		d.value(append(path, strconv.Itoa(i)), item, out.Index(i))
	}
	dst.Set(out)
}
