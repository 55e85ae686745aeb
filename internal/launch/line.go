package launch

import (
	"bytes"
	"errors"
	"io"
)

// ReadLine reads a line of at most MaxLine bytes and gives what came after it
// as rest.
func ReadLine(r io.Reader) (line, rest []byte, err error) {
	var got []byte
	buf := make([]byte, 8<<10)
	for len(got) < MaxLine {
		n, err := r.Read(buf)
		seen := len(got)
		got = append(got, buf[:n]...)
		if i := bytes.IndexByte(got[seen:], '\n'); i >= 0 {
			return got[:seen+i], got[seen+i+1:], nil
		}
		switch {
		case errors.Is(err, io.EOF) && len(got) > 0:
			return nil, nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, nil, err
		}
	}
	return nil, nil, errors.New("the line is too long")
}

// ReadExactly reads a line of at most MaxLine bytes and not a byte more, for
// connections on which something else follows at once.
func ReadExactly(r io.Reader) ([]byte, error) {
	var line []byte
	var b [1]byte
	for len(line) < MaxLine {
		n, err := r.Read(b[:])
		switch {
		case n == 1 && b[0] == '\n':
			return line, nil
		case n == 1:
			line = append(line, b[0])
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
	}
	return nil, errors.New("the line is too long")
}
