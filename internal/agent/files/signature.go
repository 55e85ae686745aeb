//go:build linux

package files

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func sign(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// VerifySignature checks the signature in a /files query for op under token.
// The error's text is what E2B answers with status 401. An empty token signs
// nothing.
func VerifySignature(query url.Values, op, token string, now time.Time) error {
	invalid := errors.New("invalid signature")
	if !query.Has("signature") {
		return errors.New("missing signature query parameter")
	}
	user := query.Get("username")
	// Security: the parts are joined by colons, so a user name with one could
	// make a signature for reading one path hold for writing another.
	if token == "" || strings.Contains(user, ":") {
		return invalid
	}
	parts := []string{query.Get("path"), op, user, token}
	expiration, limited := int64(0), query.Has("signature_expiration")
	if limited {
		var err error
		if expiration, err = strconv.ParseInt(query.Get("signature_expiration"), 10, 64); err != nil {
			return invalid
		}
		parts = append(parts, strconv.FormatInt(expiration, 10))
	}
	if subtle.ConstantTimeCompare([]byte(sign(parts...)), []byte(query.Get("signature"))) != 1 {
		return invalid
	}
	if limited && expiration < now.Unix() {
		return errors.New("signature is already expired")
	}
	return nil
}
