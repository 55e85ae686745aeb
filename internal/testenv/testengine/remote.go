//go:build linux

package testengine

import (
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
)

// freePort is a port of the loopback that nobody listens on now.
func freePort(t testing.TB) int {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nobody came
	return l.Addr().(*net.TCPAddr).Port
}

// Certificates makes an authority with a certificate for 127.0.0.1, to be a
// server's and a client's, in a directory of its own.
func Certificates(t testing.TB) string {
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

// Remote is an engine that is reached over TCP, as if on another machine.
type Remote struct {
	*Engine
	Addr string // tcp://…
	TLS  string // directory of certificates for its users; "" without TLS
}

// NewRemote starts an engine that listens on the loopback.
func NewRemote(t testing.TB, secure bool) *Remote {
	t.Helper()
	r := &Remote{Addr: fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))}
	args := []string{"--host=" + r.Addr}
	if secure {
		r.TLS = Certificates(t)
		args = append(args, "--tlsverify", "--tlscacert="+r.TLS+"/ca.pem", "--tlscert="+r.TLS+"/cert.pem", "--tlskey="+r.TLS+"/key.pem")
	}
	r.Engine = New(t, args...)
	return r
}
