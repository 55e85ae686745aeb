package config

import (
	"regexp"
	"strings"
)

const redacted = "<redacted>"

// isReference tells whether s names a secret and is none.
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
