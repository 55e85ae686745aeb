//go:build linux

package files_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/agent/files"
)

const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

func TestSign_vector(t *testing.T) {
	t.Parallel()
	const want = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	if got := files.Sign("hello.txt", files.OpRead, "user", token, 0); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestVerifySignature(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	good, soon, late := files.Sign("p", "read", "user", token, 0),
		files.Sign("p", "read", "user", token, now.Unix()), files.Sign("p", "read", "user", token, now.Unix()-1)
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
		{"colon in the user", "path=p&username=a:b&signature=" + url.QueryEscape(files.Sign("p", "read", "a:b", token, 0)), "invalid signature"},
		{"for nobody", "signature=" + url.QueryEscape(files.Sign("", "read", "", token, 0)), ""},
	}
	for _, tt := range tests {
		q, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := files.VerifySignature(q, files.OpRead, token, now); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	q := url.Values{"path": {"p"}, "username": {"user"}, "signature": {files.Sign("p", "read", "user", "", 0)}}
	if files.VerifySignature(q, files.OpRead, "", now) == nil {
		t.Error("an empty token signs")
	}
	q.Set("signature", good)
	if files.VerifySignature(q, files.OpWrite, token, now) == nil {
		t.Error("a read's signature lets write")
	}
}

func FuzzVerifySignature(f *testing.F) {
	f.Add("path=p&username=user&signature=v1_x&signature_expiration=5", "p", "user", int64(0))
	f.Add("", "a:write:b", "", int64(7))
	f.Fuzz(func(t *testing.T, query, path, user string, expiration int64) {
		now := time.Unix(100, 0)
		if q, err := url.ParseQuery(query); err == nil && files.VerifySignature(q, files.OpRead, token, now) == nil {
			t.Errorf("%q needs no signature", query)
		}
		// One signature holds for one operation only, wherever the colons are.
		q := url.Values{"path": {path}, "username": {user}, "signature": {files.Sign(path, files.OpRead, user, token, expiration)}}
		if files.VerifySignature(q, files.OpWrite, token, now) == nil {
			t.Errorf("%v: a read's signature lets write", q)
		}
	})
}
