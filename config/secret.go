package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strings"
)

// maxSecret bounds a secret's file.
const maxSecret = 64 << 10

const redacted = "<redacted>"

// Secret is a secret by reference: "env:NAME", "file:/path", or, discouraged,
// the secret itself. It never prints the secret.
type Secret struct{ ref string }

// UnmarshalText reads a reference.
func (s *Secret) UnmarshalText(text []byte) error {
	s.ref = string(text)
	return nil
}

// Literal tells whether the secret itself stands in the configuration.
func (s Secret) Literal() bool { return s.ref != "" && !isReference(s.ref) }

// String is the reference; a literal secret is redacted.
func (s Secret) String() string {
	if s.Literal() {
		return redacted
	}
	return s.ref
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText is String, for JSON and others.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Reveal is the secret itself, without the line feed a file may end with.
// getenv looks up the environment.
func (s Secret) Reveal(getenv func(string) string) (string, error) {
	if name, ok := strings.CutPrefix(s.ref, "env:"); ok {
		v := getenv(name)
		if v == "" {
			return "", fmt.Errorf("secret: the environment variable %s is not set", name)
		}
		return v, nil
	}
	path, ok := strings.CutPrefix(s.ref, "file:")
	if !ok {
		return s.ref, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("secret: %w", err)
	}
	defer f.Close() //nolint:errcheck // read side
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("secret: %w", err)
	}
	if len(data) > maxSecret {
		return "", errors.New("secret: " + path + " is larger than 64KiB")
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

// JSONSchema describes a reference.
func (Secret) JSONSchema() map[string]any {
	return map[string]any{"type": "string", "pattern": "^(env|file):.+"}
}

func isReference(s string) bool {
	return strings.HasPrefix(s, "env:") || strings.HasPrefix(s, "file:")
}

// isSecretKey tells whether a key's name says that its value is a secret. A
// driver's section is untyped here, so the name is all there is.
func isSecretKey(path []string) bool {
	for _, segment := range path {
		name := strings.ToLower(segment)
		if strings.HasSuffix(name, "_file") || strings.HasSuffix(name, "_path") || strings.HasSuffix(name, "_ref") {
			continue
		}
		for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '_' || r == '-' }) {
			switch part {
			case "secret", "secrets", "token", "tokens", "password", "passwd", "passphrase", "credential", "credentials",
				"key", "apikey", "authorization", "cookie":
				return true
			}
		}
	}
	return false
}

var userinfo = regexp.MustCompile(`(://)[^/@\s]*:[^/@\s]*@`)

// redact is v as it may be shown: secrets by key and passwords in URLs are
// taken out, references stay.
func redact(path []string, v any) any {
	s, ok := v.(string)
	if !ok {
		if isSecretKey(path) && v != nil {
			return redacted
		}
		return v
	}
	if isSecretKey(path) && s != "" && !isReference(s) {
		return redacted
	}
	return userinfo.ReplaceAllString(s, "${1}"+redacted+"@")
}
