package boot

import (
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stdio is standard input and output as one connection.
type stdio struct{ in, out *os.File }

// newStdio takes the descriptors over: whatever is written to them by mistake
// later goes nowhere.
func newStdio() *stdio {
	s := &stdio{in: take(0, "input"), out: take(1, "output")}
	if null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0); err == nil {
		for fd := range 2 {
			unix.Dup3(int(null.Fd()), fd, 0) //nolint:errcheck // the descriptors stay open then
		}
		null.Close() //nolint:errcheck // duplicated
	}
	return s
}

func take(fd int, name string) *os.File {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.NewFile(uintptr(fd), name)
	}
	unix.SetNonblock(n, true) //nolint:errcheck // a blocking one has no deadlines
	return os.NewFile(uintptr(n), name)
}

func (s *stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *stdio) Write(p []byte) (int, error) { return s.out.Write(p) }

func (s *stdio) Close() error {
	s.out.Close() //nolint:errcheck // the input's error is told
	return s.in.Close()
}

func (s *stdio) LocalAddr() net.Addr  { return &net.UnixAddr{Name: "stdio", Net: "unix"} }
func (s *stdio) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "stdio", Net: "unix"} }

func (s *stdio) SetDeadline(t time.Time) error {
	s.out.SetWriteDeadline(t) //nolint:errcheck // the input's error is told
	return s.in.SetReadDeadline(t)
}

func (s *stdio) SetReadDeadline(t time.Time) error  { return s.in.SetReadDeadline(t) }
func (s *stdio) SetWriteDeadline(t time.Time) error { return s.out.SetWriteDeadline(t) }

var _ net.Conn = (*stdio)(nil)
