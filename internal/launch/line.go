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
