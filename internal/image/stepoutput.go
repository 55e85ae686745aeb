package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
)

// caFile is where programs of steps find the authorities to trust. What lies
// there is no part of the image.
const caFile = "/.glovebox/ca.crt"

// trust brings the authorities in.
func (s *Sandboxed) trust(ctx context.Context, sb backend.Sandbox) error {
	if len(s.CA) == 0 {
		return nil
	}
	args := []string{"/bin/sh", "-c", "mkdir -p /.glovebox && cat >" + caFile + " && chmod 0644 " + caFile}
	return s.run(ctx, sb, backend.Command{Args: args, Dir: "/", User: "root", Stdin: bytes.NewReader(s.CA)})
}

// environment is what every step starts from.
func (s *Sandboxed) environment() map[string]string {
	env := map[string]string{"HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
	if len(s.CA) == 0 {
		return env
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE",
	} {
		env[name] = caFile
	}
	return env
}

// failed is the error of a step that ended otherwise than with 0.
func failed(exit backend.Exit, text string) error {
	e := &backend.Error{Op: "step", Kind: backend.ErrInvalid}
	why := exit.String()
	if len(exit.Hits) > 0 {
		why += fmt.Sprintf(", at the limit of %v", exit.Hits)
		e.Fix = "raise the limit in builds"
	}
	if exit.Reason != backend.ReasonExited && exit.Reason != backend.ReasonSignaled {
		e.Fix = "raise the limit in builds"
	}
	if text != "" {
		why += ": " + text
	}
	e.Err = errors.New(why)
	return e
}

// maxLine bounds a line that is reported.
const maxLine = 200

// tail keeps the end of what is written, and reports its lines.
type tail struct {
	line func(string) // nil for nobody

	mu   sync.Mutex
	b    []byte
	part []byte // of a line
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 2*tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	if t.line != nil {
		t.report(p)
	}
	return len(p), nil
}

// report tells of the last line that has ended, since nobody can read more.
func (t *tail) report(p []byte) {
	end := bytes.LastIndexAny(p, "\r\n")
	if end < 0 {
		t.part = append(t.part, p[:min(len(p), max(0, maxLine-len(t.part)))]...)
		return
	}
	last := p[:end]
	if i := bytes.LastIndexAny(last, "\r\n"); i >= 0 {
		last = last[i+1:]
	} else {
		last = slices.Concat(t.part, last)
	}
	t.part = append(t.part[:0], p[end+1:min(len(p), end+1+maxLine)]...)
	if text := printable(last[:min(len(last), maxLine)]); text != "" {
		t.line(text)
	}
}

// String is the end of it in one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return printable(t.b[max(0, len(t.b)-tailBytes):])
}

// printable is b in one line.
func printable(b []byte) string {
	text := strings.ToValidUTF8(strings.Join(strings.Fields(string(b)), " "), "?")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, text)
}
