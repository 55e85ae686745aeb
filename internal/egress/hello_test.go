//go:build linux

package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
)

func newReader(c net.Conn) *bufio.Reader { return bufio.NewReader(c) }

func nothing(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("not dialled")
}

// recordHello is a client's hello as its record.
func recordHello(t *testing.T, name string) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		_ = tls.Client(far, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(context.WithoutCancel(t.Context()))
		_ = far.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(near, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(near, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// withExtension adds an extension to a hello.
func withExtension(record []byte, id uint16, data []byte) []byte {
	b := append([]byte(nil), record...)
	at := 5 + 4 + 2 + 32
	at += 1 + int(b[at])                           // session
	at += 2 + int(binary.BigEndian.Uint16(b[at:])) // suites
	at += 1 + int(b[at])                           // compressions
	ext := binary.BigEndian.AppendUint16(nil, id)
	ext = binary.BigEndian.AppendUint16(ext, uint16(len(data)))
	ext = append(ext, data...)
	rest := append(ext, b[at+2:]...)
	b = binary.BigEndian.AppendUint16(b[:at], uint16(len(rest)))
	b = append(b, rest...)
	binary.BigEndian.PutUint16(b[3:], uint16(len(b)-5))
	n := len(b) - 9
	b[6], b[7], b[8] = byte(n>>16), byte(n>>8), byte(n)
	return b
}
