//go:build linux

package agent

import (
	"encoding/json"
	"net/http"
)

// writeError answers as E2B's REST endpoints do.
func writeError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	writeJSON(w, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

// writeJSON writes v. An error is the connection's, which its reader sees.
func writeJSON(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v)
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) serveEnvs(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, s.env())
}
