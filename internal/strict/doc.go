// Package strict decodes untyped configuration (what YAML, TOML, JSON, the
// environment and flags give) into structs. Nothing is ignored: an unknown key
// is an error that suggests the known one it resembles, and every error names
// the key.
//
// Structs are described by their json tags, so that one declaration serves
// decoding, the JSON Schema and printing.
package strict
