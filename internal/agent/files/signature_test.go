//go:build linux

package files_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/agent/files"
)

const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

// signature is E2B's of a /files URL: path and user are the literal query
// values, empty when absent; expiration is Unix seconds, 0 for none.
func signature(path, op, user, token string, expiration int64) string {
	text := strings.Join([]string{path, op, user, token}, ":")
	if expiration != 0 {
		text += ":" + strconv.FormatInt(expiration, 10)
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func TestVerifySignature_vector(t *testing.T) {
	t.Parallel()
	const want = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	if got := signature("hello.txt", "read", "user", token, 0); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	q := url.Values{"path": {"hello.txt"}, "username": {"user"}, "signature": {want}}
	if err := files.VerifySignature(q, "read", token, time.Now()); err != nil {
		t.Error(err)
	}
}

func TestVerifySignature(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	good, soon, late := signature("p", "read", "user", token, 0),
		signature("p", "read", "user", token, now.Unix()), signature("p", "read", "user", token, now.Unix()-1)
	tests := []struct {
		name, query, want string
	}{
		{"good", "path=p&username=user&signature=" + url.QueryEscape(good), ""},
		{"not yet expired", "path=p&username=user&signature_expiration=1800000000&signature=" + url.QueryEscape(soon), ""},
		{"expired", "path=p&username=user&signature_expiration=1799999999&signature=" + url.QueryEscape(late), "signature is already expired"},
		{"none", "path=p&username=user", "missing signature query parameter"},
		{"empty", "path=p&username=user&signature=", "invalid signature"},
		{"another path", "path=q&username=user&signature=" + url.QueryEscape(good), "invalid signature"},
		{"another user", "path=p&username=root&signature=" + url.QueryEscape(good), "invalid signature"},
		{"no user", "path=p&signature=" + url.QueryEscape(good), "invalid signature"},
		{"expiration taken away", "path=p&username=user&signature=" + url.QueryEscape(soon), "invalid signature"},
		{"expiration put off", "path=p&username=user&signature_expiration=1900000000&signature=" + url.QueryEscape(late), "invalid signature"},
		{"expiration not a number", "path=p&username=user&signature_expiration=x&signature=" + url.QueryEscape(good), "invalid signature"},
		{"colon in the user", "path=p&username=a:b&signature=" + url.QueryEscape(signature("p", "read", "a:b", token, 0)), "invalid signature"},
		{"for nobody", "signature=" + url.QueryEscape(signature("", "read", "", token, 0)), ""},
	}
	for _, tt := range tests {
		q, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := files.VerifySignature(q, "read", token, now); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	q := url.Values{"path": {"p"}, "username": {"user"}, "signature": {signature("p", "read", "user", "", 0)}}
	if files.VerifySignature(q, "read", "", now) == nil {
		t.Error("an empty token signs")
	}
	q.Set("signature", good)
	if files.VerifySignature(q, "write", token, now) == nil {
		t.Error("a read's signature lets write")
	}
}

func FuzzVerifySignature(f *testing.F) {
	f.Add("path=p&username=user&signature=v1_x&signature_expiration=5", "p", "user", int64(0))
	f.Add("", "a:write:b", "", int64(7))
	f.Fuzz(func(t *testing.T, query, path, user string, expiration int64) {
		now := time.Unix(100, 0)
		if q, err := url.ParseQuery(query); err == nil && files.VerifySignature(q, "read", token, now) == nil {
			t.Errorf("%q needs no signature", query)
		}
		// One signature holds for one operation only, wherever the colons are.
		q := url.Values{"path": {path}, "username": {user}, "signature": {signature(path, "read", user, token, expiration)}}
		if files.VerifySignature(q, "write", token, now) == nil {
			t.Errorf("%v: a read's signature lets write", q)
		}
	})
}
