package launch_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/glovebox-dev/glovebox/internal/launch"
)

func TestReadLine(t *testing.T) {
	t.Parallel()
	for _, r := range []io.Reader{strings.NewReader("ab\ncd"), iotest.OneByteReader(strings.NewReader("ab\ncd"))} {
		line, rest, err := launch.ReadLine(r)
		if err != nil || string(line) != "ab" || !strings.HasPrefix("cd", string(rest)) {
			t.Errorf("%q %q %v", line, rest, err)
		}
	}
	exact := strings.NewReader("ab\ncd")
	if line, err := launch.ReadExactly(exact); err != nil || string(line) != "ab" || exact.Len() != 2 {
		t.Errorf("%q, %d left, %v", line, exact.Len(), err)
	}
	for name, tc := range map[string]struct {
		in   io.Reader
		want error
	}{
		"no end":    {strings.NewReader("ab"), io.ErrUnexpectedEOF},
		"nothing":   {strings.NewReader(""), io.EOF},
		"for ever":  {endless{}, nil},
		"a failure": {iotest.ErrReader(io.ErrClosedPipe), io.ErrClosedPipe},
	} {
		_, _, err := launch.ReadLine(tc.in)
		_, exact := launch.ReadExactly(tc.in)
		for _, err := range []error{err, exact} {
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) && !errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// endless is a line without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}
