//go:build linux

package agent

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process/processconnect"
)

// Warm readies what the first command would otherwise wait for. It is meant for
// a goroutine beside the making of the sandbox.
func Warm() {
	wire.Warm()
	processconnect.NewProcessHandler(processconnect.UnimplementedProcessHandler{})
}

// SetDeadline arms the sandbox's own end, as the RPC does; 0 disarms it.
func (s *Server) SetDeadline(after time.Duration) error { return s.setDeadline(after) }

// KillAll ends every running command's tree for a reason of the sandbox's. A
// command whose start is under way counts as running.
func (s *Server) KillAll(reason gloveboxv1.End_Reason) {
	s.mu.Lock()
	s.swept, s.sweepReason = time.Now(), reason
	s.mu.Unlock()
	for _, c := range s.table.live() {
		c.kill(reason)
	}
}

// catchUp ends c if it began before the last KillAll and was not listed yet
// then: whoever called that may have killed it already.
func (s *Server) catchUp(c *command) {
	s.mu.Lock()
	swept, reason := s.swept, s.sweepReason
	s.mu.Unlock()
	if swept.IsZero() || c.started.After(swept) {
		return
	}
	c.mu.Lock()
	if c.end == nil && c.killed == gloveboxv1.End_REASON_UNSPECIFIED {
		c.killed = reason
	}
	c.mu.Unlock()
	c.kill(reason)
}

// UserName is the name of a uid inside the sandbox, "" when it has none.
func (s *Server) UserName(uid uint32) string {
	a := s.accounts
	if a.only != nil {
		if uid == a.only.UID {
			return a.only.Name
		}
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refresh() != nil {
		return ""
	}
	if i := slices.IndexFunc(a.users, func(u Account) bool { return u.UID == uid }); i >= 0 {
		return a.users[i].Name
	}
	return ""
}

// GroupName is the name of a gid inside the sandbox, "" when it has none.
func (s *Server) GroupName(gid uint32) string {
	a := s.accounts
	if a.only != nil {
		if gid == a.only.GID {
			return a.only.Name
		}
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refresh() != nil {
		return ""
	}
	if i := slices.IndexFunc(a.groups, func(g group) bool { return g.gid == gid }); i >= 0 {
		return a.groups[i].name
	}
	return ""
}

// AuthorizeFiles tells whether a request for /files carries the access token
// or a signature that verify accepts. The error's text is E2B's.
func (s *Server) AuthorizeFiles(r *http.Request, verify func(q url.Values, op, token string, now time.Time) error) error {
	token := s.AccessToken()
	if token == "" {
		return nil
	}
	if got := r.Header.Get(wire.HeaderAccessToken); got != "" {
		if equalToken(got, token) {
			return nil
		}
		return errTokenMismatch
	}
	op := "read"
	if r.Method == http.MethodPost {
		op = "write"
	}
	return verify(r.URL.Query(), op, token, time.Now())
}

type textError string

func (e textError) Error() string { return string(e) }

const errTokenMismatch textError = "access token present in header but does not match"

// WriteError answers as E2B's REST endpoints do.
func WriteError(w http.ResponseWriter, status int, message string) { writeError(w, status, message) }
