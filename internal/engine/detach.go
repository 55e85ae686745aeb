package engine

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/glovebox-dev/glovebox/backend"
)

// Detached is an attach stream in the state in which it was left, for another
// process to go on with.
type Detached struct {
	// File is the connection to the daemon. The caller closes it.
	File *os.File
	// Ahead is what was read of the daemon's frames already, as it came.
	Ahead []byte
	// Left is how much is missing of the frame that was being read, before
	// Ahead; LeftError says that it is one of the error output.
	Left      uint32
	LeftError bool
}

// Detach gives the stream away and closes it here. It is unsupported where the
// connection has no descriptor of its own, as with TLS.
func (s *Stream) Detach() (Detached, error) {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	filer, ok := s.conn.(interface{ File() (*os.File, error) })
	if !ok {
		return Detached{}, &backend.Error{Op: "attach", Kind: backend.ErrUnsupported, Err: errors.New("this connection cannot be given to another process")}
	}
	ahead := bytes.Clone(s.header[:s.have])
	if r, ok := s.in.(*bufio.Reader); ok {
		more := make([]byte, r.Buffered())
		if _, err := io.ReadFull(r, more); err != nil {
			return Detached{}, err
		}
		ahead = append(ahead, more...)
	}
	f, err := filer.File()
	if err != nil {
		return Detached{}, err
	}
	d := Detached{File: f, Ahead: ahead}
	if s.have == 0 {
		d.Left, d.LeftError = s.left, s.left > 0 && s.kind != frameOut
	}
	return d, s.Close()
}
