//go:build linux

// Package egress is the sandbox's side of its way out: a proxy's port and a
// name server on the sandbox's loopback, and addresses there that stand for
// names. It decides nothing: every connection and every name is handed to the
// host, which does.
package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// What user code can make the agent hold.
const (
	maxConns     = 256              // connections at once, above it they are closed
	maxNames     = 256              // names with an address that is listened on
	maxListeners = 1024             // of all names
	maxLookups   = 64               // questions at once
	maxOpen      = 1 << 20          // bytes of a NetOpen
	acceptWait   = 5 * time.Second  // for the host to take a connection
	firstByte    = 10 * time.Second // for a client of the proxy to say something
	answerWait   = 5 * time.Second  // for the host to answer a question
	retryAccept  = 50 * time.Millisecond
	lingering    = time.Second // for a program to end a connection that the host has ended
)

// Options is what a Service is made from.
type Options struct {
	// ProxyAddr and DNSAddr default to the wire's.
	ProxyAddr, DNSAddr string
	// Dir is where the authority's certificate is written, readable to all;
	// os.TempDir when empty.
	Dir string
	// Device, if not nil, is the sandbox's own network in mode full, whose
	// packets the host is given: there is no proxy and no name server then. The
	// service closes it.
	Device *os.File
	// Bundles are files of certificates that are trusted besides: the first
	// that exists. Nil for where distributions have theirs.
	Bundles []string
}

// Service is the sandbox's side. Its methods are safe for concurrent use.
type Service struct {
	opts   Options
	offers chan *offer
	conns  atomic.Int64
	proxy  net.Listener
	dns    *dnsServer
	names  *names

	ctx    context.Context //nolint:containedctx // the service's life
	cancel context.CancelFunc
	wg     sync.WaitGroup

	carrying sync.Mutex // held by the request that carries packets

	mu        sync.Mutex
	owner     owner
	authority string // the certificate that is in bundle
	bundle    string // a file's path; "" for none
}

// New listens, before any user code runs that could be faster. The caller
// closes the service.
func New(o Options) (*Service, error) {
	if o.ProxyAddr == "" {
		o.ProxyAddr = wire.NetProxyAddr
	}
	if o.DNSAddr == "" {
		o.DNSAddr = wire.NetDNSAddr
	}
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	if o.Bundles == nil {
		o.Bundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}
	}
	s := &Service{opts: o, offers: make(chan *offer)}
	s.ctx, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // the service's own life
	s.names = &names{s: s, byName: map[string]*name{}}
	if o.Device != nil {
		return s, nil
	}
	var lc net.ListenConfig
	var err error
	if s.proxy, err = lc.Listen(s.ctx, "tcp", o.ProxyAddr); err != nil {
		s.cancel()
		return nil, fmt.Errorf("egress: proxy: %w", err)
	}
	if s.dns, err = newDNS(s, o.DNSAddr); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("egress: name server: %w", err)
	}
	s.wg.Go(func() { s.accept(s.proxy, s.serveProxy) })
	return s, nil
}

// ProxyAddr and DNSAddr are what is listened on.
func (s *Service) ProxyAddr() string { return s.proxy.Addr().String() }

// DNSAddr is the address of the name server, UDP and TCP.
func (s *Service) DNSAddr() string { return s.dns.tcp.Addr().String() }

// Close ends every connection and waits for all goroutines. It is idempotent.
func (s *Service) Close() error {
	s.cancel()
	if s.opts.Device != nil {
		_ = s.opts.Device.Close()
	}
	if s.proxy != nil {
		_ = s.proxy.Close()
	}
	if s.dns != nil {
		s.dns.close()
	}
	s.names.close()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bundle != "" {
		_ = os.RemoveAll(filepath.Dir(s.bundle))
		s.bundle, s.authority = "", ""
	}
	return nil
}

// noProxy are the names that are the sandbox itself.
const noProxy = "localhost,127.0.0.1,::1"

// Env is what commands get so that programs find the proxy and trust the
// sandbox's own authority where there is one. ALL_PROXY is no SOCKS address:
// some clients fail when they see one and lack a library.
func (s *Service) Env() map[string]string {
	env := map[string]string{}
	if s.proxy != nil {
		proxy := "http://" + s.ProxyAddr()
		for _, k := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
			env[k] = proxy
		}
		env["NO_PROXY"], env["no_proxy"] = noProxy, noProxy
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bundle != "" {
		for _, k := range []string{
			"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
		} {
			env[k] = s.bundle
		}
	}
	return env
}

// Handler answers the host on the wire's paths.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.NetOpenPath, s.serveOpen)
	mux.HandleFunc("POST "+wire.NetAcceptPath, s.serveAccept)
	if s.opts.Device != nil {
		mux.HandleFunc("POST "+wire.NetPacketsPath, s.servePackets)
	}
	return mux
}

// owner is the session that decides.
type owner struct {
	session string
	ctx     context.Context //nolint:containedctx // ends with the ownership
	cancel  context.CancelFunc
}

// own makes session the one that decides. Security: an earlier one, which may
// know an older policy, decides on nothing any more.
func (s *Service) own(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner.ctx != nil && s.owner.session == session {
		return
	}
	if s.owner.cancel != nil {
		s.owner.cancel()
	}
	s.owner.session = session
	s.owner.ctx, s.owner.cancel = context.WithCancel(s.ctx)
}

// owned is the life of session's ownership; nil when it has none.
func (s *Service) owned(session string) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner.ctx == nil || s.owner.session != session {
		return nil
	}
	return s.owner.ctx
}

func (s *Service) serveOpen(w http.ResponseWriter, r *http.Request) {
	var o wire.NetOpen
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOpen)).Decode(&o); err != nil {
		http.Error(w, "open: body is not valid JSON", http.StatusBadRequest)
		return
	}
	s.own(o.Session)
	if err := s.trust(o.Authority); err != nil {
		http.Error(w, "open: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// trust writes the authority's certificate, with those trusted anyway, to a
// file that user code can read and, where it has a uid of its own, not change.
func (s *Service) trust(authority string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if authority == s.authority {
		return nil
	}
	old := s.bundle
	s.authority, s.bundle = authority, ""
	if old != "" {
		defer os.RemoveAll(filepath.Dir(old)) //nolint:errcheck // no command is told of it any more
	}
	if authority == "" {
		return nil
	}
	dir, err := os.MkdirTemp(s.opts.Dir, ".glovebox-ca-")
	if err != nil {
		s.authority = ""
		return err
	}
	file := filepath.Join(dir, "ca.pem")
	data := append([]byte(authority), '\n')
	for _, b := range s.opts.Bundles {
		if known, err := os.ReadFile(b); err == nil {
			data = append(data, known...)
			break
		}
	}
	err = errors.Join(os.WriteFile(file, data, 0o644), os.Chmod(file, 0o644), os.Chmod(dir, 0o755))
	if err != nil {
		_ = os.RemoveAll(dir)
		s.authority = ""
		return err
	}
	s.bundle = file
	return nil
}
