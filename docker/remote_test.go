//go:build linux

package docker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/engine"
)

// freePort is a port of the loopback that nobody listens on now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// certificates makes an authority with a certificate for 127.0.0.1, to be a
// server's and a client's, in a directory of its own.
func certificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must := func(v []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "engine"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	write("ca.pem", "CERTIFICATE", must(x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)))
	write("cert.pem", "CERTIFICATE", must(x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)))
	write("key.pem", "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key)))
	return dir
}

// remote is a second engine that is reached over TCP.
type remote struct {
	*daemon
	addr string // tcp://…
	tls  string // directory of certificates; "" without TLS
}

func newRemote(t *testing.T, withTLS bool) *remote {
	t.Helper()
	r := &remote{addr: fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))}
	args := []string{"--host=" + r.addr}
	if withTLS {
		r.tls = certificates(t)
		args = append(args, "--tlsverify", "--tlscacert="+r.tls+"/ca.pem", "--tlscert="+r.tls+"/cert.pem", "--tlskey="+r.tls+"/key.pem")
	}
	r.daemon = newDaemon(t, args...)
	return r
}

// setUp is a fixture of the engine, which is looked at over its Unix socket.
func (r *remote) setUp(t *testing.T, change func(*docker.Config)) *fixture {
	t.Helper()
	return setUpAt(t, r.host(), func(c *docker.Config) {
		c.Host, c.TLSDir = r.addr, r.tls
		if change != nil {
			change(c)
		}
	})
}

// TestRemote_tls: a sandbox on an engine elsewhere that demands certificates.
func TestRemote_tls(t *testing.T) {
	r := newRemote(t, true)
	f := r.setUp(t, nil)
	began := time.Now()
	sb := f.create(backend.Spec{})
	t.Log("first:", time.Since(began))
	began = time.Now()
	works(t, f.create(backend.Spec{}))
	t.Log("second:", time.Since(began))
	works(t, sb)
	rec := sb.Receipt()
	t.Logf("%+v", rec)
	e, err := engine.OpenWith(r.addr, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Ping(context.WithoutCancel(t.Context())); err == nil {
		t.Error("control: the engine answers without certificates")
	}
}
