package strict

import (
	"reflect"
	"strings"
)

// Field is one key of a configuration struct.
type Field struct {
	Name  string // the key
	Index []int  // for reflect.Value.FieldByIndex
	Type  reflect.Type
	Doc   string // the doc tag
}

// Fields lists the keys of struct type t in order, those of embedded structs
// included. A field without a json tag, or with "-", is no key.
func Fields(t reflect.Type) []Field {
	var out []Field
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct && f.Tag.Get("json") == "" {
			for _, inner := range Fields(f.Type) {
				inner.Index = append([]int{i}, inner.Index...)
				out = append(out, inner)
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || !f.IsExported() {
			continue
		}
		out = append(out, Field{Name: name, Index: []int{i}, Type: f.Type, Doc: f.Tag.Get("doc")})
	}
	return out
}
