// Package term makes text that comes from a sandbox safe to show on a terminal.
//
// A terminal obeys what it is sent: escape sequences rewrite the title, read
// back the clipboard, answer with typed input and hide what was printed. What
// this package lets through is printable text, tabs, line feeds and carriage
// returns; everything else becomes visible.
package term

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Writer passes text on to another writer with everything a terminal would
// obey made visible. It keeps at most three bytes back, the beginning of a
// character whose end has not come yet. It is not safe for concurrent use.
type Writer struct {
	w      io.Writer
	buf    []byte // reused between writes
	held   [utf8.UTFMax]byte
	nheld  int
	column bool // something stands on the current line
}

// NewWriter filters what goes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write implements io.Writer. The count is of p, not of what was written on.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	out := w.buf[:0]
	for w.nheld > 0 && len(p) > 0 {
		w.held[w.nheld] = p[0]
		w.nheld++
		p = p[1:]
		if !utf8.FullRune(w.held[:w.nheld]) {
			continue
		}
		r, size := utf8.DecodeRune(w.held[:w.nheld])
		out = appendRune(out, r, size, w.held[0])
		// An invalid beginning is one byte; what followed it is read again.
		rest := make([]byte, 0, len(p)+utf8.UTFMax)
		rest = append(rest, w.held[size:w.nheld]...)
		p = append(rest, p...)
		w.nheld = 0
	}
	for len(p) > 0 {
		if !utf8.FullRune(p) {
			w.nheld = copy(w.held[:], p)
			break
		}
		r, size := utf8.DecodeRune(p)
		out = appendRune(out, r, size, p[0])
		p = p[size:]
	}
	w.buf = out
	return n, w.emit(out)
}

// Close writes what was kept back. It does not close the writer below.
func (w *Writer) Close() error {
	if w.nheld == 0 {
		return nil
	}
	var out []byte
	for _, b := range w.held[:w.nheld] {
		out = appendRune(out, utf8.RuneError, 1, b)
	}
	w.nheld = 0
	return w.emit(out)
}

// MidLine tells whether the last line written has no end yet.
func (w *Writer) MidLine() bool { return w.column }

func (w *Writer) emit(out []byte) error {
	if len(out) == 0 {
		return nil
	}
	w.column = out[len(out)-1] != '\n'
	_, err := w.w.Write(out)
	return err
}

// String is s with everything a terminal would obey made visible, line feeds
// and carriage returns included: it stays on one line.
func String(s string) string {
	if plain(s) {
		return s
	}
	var out []byte
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == '\n' || r == '\r' {
			out = append(out, '^', byte(r)^0x40)
		} else {
			out = appendRune(out, r, size, s[i])
		}
		i += size
	}
	return string(out)
}

// Lines is String for text of several lines: line feeds stay.
func Lines(s string) string {
	if !strings.Contains(s, "\n") {
		return String(s)
	}
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = String(l)
	}
	return strings.Join(lines, "\n")
}

func plain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

func appendRune(out []byte, r rune, size int, first byte) []byte {
	switch {
	case r == '\n' || r == '\t' || r == '\r':
		return append(out, byte(r))
	case r == utf8.RuneError && size <= 1:
		return fmt.Appendf(out, `\x%02x`, first)
	case r < 0x20 || r == 0x7f:
		return append(out, '^', byte(r)^0x40)
	case r < 0x7f:
		return append(out, byte(r))
	case obeyed(r):
		return fmt.Appendf(out, "<U+%04X>", r)
	default:
		return utf8.AppendRune(out, r)
	}
}

// obeyed tells whether r changes how other text is shown instead of showing
// something itself: C1 controls, bidirectional overrides, invisible and tag
// characters, line separators. The joiners stay, since scripts and emoji need
// them.
func obeyed(r rune) bool {
	const zwnj, zwj = '\u200c', '\u200d'
	if r == zwnj || r == zwj {
		return false
	}
	return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)
}
