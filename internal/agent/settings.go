//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// settings is what /init sets. Server.mu guards it.
type settings struct {
	token string
	user  string
	dir   string
	env   map[string]string
}

// isProtected tells the variables that describe the sandbox itself; /init
// cannot set them.
func isProtected(name string) bool {
	switch name {
	case "E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID", "E2B_EVENTS_ADDRESS":
		return true
	}
	return false
}

// AccessToken is what requests must carry; "" while everything is open.
func (s *Server) AccessToken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.init.token
}

// DefaultUser is the account of requests that name none.
func (s *Server) DefaultUser() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.init.user != "" {
		return s.init.user
	}
	return s.opts.DefaultUser
}

// DefaultDir is the working directory of commands that name none; "" for the
// account's home.
func (s *Server) DefaultDir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.init.dir
}

// env is a copy of the default environment.
func (s *Server) env() map[string]string {
	out := make(map[string]string)
	if s.opts.MoreEnv != nil {
		maps.Copy(out, s.opts.MoreEnv())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(out, s.opts.Env)
	maps.Copy(out, s.renewed.Env)
	maps.Copy(out, s.init.env)
	return out
}

// initRequest is the body of POST /init. What E2B sends beyond it is ignored:
// a timestamp would set the clock, which a sandbox shares with its host, and
// the rest belongs to Firecracker.
type initRequest struct {
	AccessToken    *string           `json:"accessToken"`
	EnvVars        map[string]string `json:"envVars"`
	DefaultUser    *string           `json:"defaultUser"`
	DefaultWorkdir *string           `json:"defaultWorkdir"`
}

func (s *Server) serveInit(w http.ResponseWriter, r *http.Request) {
	var req initRequest
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInit)).Decode(&req)
	if err != nil && !errors.Is(err, io.EOF) {
		writeError(w, http.StatusBadRequest, "init: body is not valid JSON")
		return
	}
	for k, v := range req.EnvVars {
		if err := checkEnv(k, v); err != nil {
			writeError(w, http.StatusBadRequest, "init: envVars: "+err.Error())
			return
		}
	}
	if msg := s.apply(&req); msg != "" {
		http.Error(w, msg, http.StatusUnauthorized)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set(wire.HeaderEnvdVersion, wire.EnvdVersion)
	w.WriteHeader(http.StatusNoContent)
}

// apply takes a request over, or says why its token does not allow that. Once
// set, a token can only be confirmed.
func (s *Server) apply(req *initRequest) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch sent := req.AccessToken; {
	case s.init.token == "":
		if sent != nil {
			s.init.token = *sent
		}
	case sent == nil || *sent == "":
		return "access token reset not authorized"
	case !equalToken(*sent, s.init.token):
		return "access token validation failed"
	}
	if req.EnvVars != nil {
		env := make(map[string]string, len(req.EnvVars))
		for k, v := range req.EnvVars {
			if !isProtected(k) {
				env[k] = v
			}
		}
		s.init.env = env
	}
	if req.DefaultUser != nil && *req.DefaultUser != "" && s.opts.OnlyUser == nil {
		s.init.user = *req.DefaultUser
	}
	if req.DefaultWorkdir != nil && *req.DefaultWorkdir != "" {
		s.init.dir = *req.DefaultWorkdir
	}
	return ""
}
