package engine

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/docker/docker/client"

	"github.com/glovebox-dev/glovebox/backend"
)

// Options say how an engine is reached.
type Options struct {
	// TLSDir holds ca.pem, cert.pem and key.pem for an engine over TCP. Empty:
	// the docker command's choice, which is DOCKER_CERT_PATH, or its own
	// directory, where DOCKER_TLS_VERIFY is set, and no TLS where it is not.
	TLSDir string
	// Plain accepts an engine over TCP on another machine without TLS.
	Plain bool
	// Elsewhere says that what a Unix socket leads to is on another machine.
	Elsewhere bool
}

// Variables of the docker command.
const (
	envTLS       = "DOCKER_TLS"
	envTLSVerify = client.EnvTLSVerify
	envCertPath  = client.EnvOverrideCertPath
	envConfig    = "DOCKER_CONFIG"
)

// Remote tells whether the engine counts as one on another machine: everything
// over TCP does, on this machine's own addresses too, since nothing proves
// whose files and processes it sees.
func (e *Engine) Remote() bool { return e.remote }

// reach settles how host is reached. Its second result refuses every call.
func (o Options) reach(u *url.URL) (*tls.Config, error) {
	if u.Scheme == "unix" || u.Scheme == "npipe" {
		return nil, nil
	}
	dir := o.TLSDir
	switch {
	case dir != "":
	case os.Getenv(envTLSVerify) != "":
		dir = cmp.Or(os.Getenv(envCertPath), os.Getenv(envConfig))
		if dir == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return nil, unsafeHost(errors.New("DOCKER_TLS_VERIFY is set, and there is no directory with certificates"))
			}
			dir = filepath.Join(home, ".docker")
		}
	case os.Getenv(envTLS) != "" && !o.Plain:
		return nil, unsafeHost(errors.New("DOCKER_TLS without DOCKER_TLS_VERIFY proves nothing about who answers"))
	case u.Scheme == "https":
		return nil, unsafeHost(errors.New("there are no certificates"))
	case !loopback(u.Hostname()) && !o.Plain:
		return nil, unsafeHost(errors.New("without TLS whoever is on the way has the engine, and with it all of its machine"))
	default:
		return nil, nil
	}
	cfg, err := certificates(dir)
	if err != nil {
		return nil, &backend.Error{Kind: backend.ErrInvalid, Field: "tls_dir", Err: err, Fix: "put ca.pem, cert.pem and key.pem there, as for the docker command"}
	}
	cfg.ServerName = u.Hostname()
	return cfg, nil
}

func unsafeHost(err error) error {
	return &backend.Error{
		Kind: backend.ErrDenied, Field: "host", Err: err,
		Fix: "set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH, or tls_dir; or forward the engine's socket through ssh",
	}
}

// loopback tells this machine's own addresses from others, by what is written:
// what a name means can change.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// certificates reads what the docker command reads: the authority must be
// there, a certificate of one's own may.
func certificates(dir string) (*tls.Config, error) {
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !cfg.RootCAs.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(dir, "ca.pem"))
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	switch {
	case err == nil:
		cfg.Certificates = []tls.Certificate{pair}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return cfg, nil
}

// dialer makes connections that end within half a minute when the other machine
// is gone without a word.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         10 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
}
