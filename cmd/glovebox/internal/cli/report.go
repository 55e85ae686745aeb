package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/policy/router"
)

// runReport is the document that --json prints.
type runReport struct {
	OK       bool             `json:"ok"`                 // the program ended with 0
	Exit     *backend.Exit    `json:"exit,omitempty"`     // absent when no command ended
	Code     int              `json:"shell_code"`         // our own exit code
	Stdout   *text            `json:"stdout,omitempty"`   // of the program
	Stderr   *text            `json:"stderr,omitempty"`   // likewise
	Files    []fetched        `json:"files,omitempty"`    // copied out
	Warnings []string         `json:"warnings,omitempty"` // ours
	Receipt  *backend.Receipt `json:"receipt,omitempty"`  // absent when no sandbox was made
	Error    *failure         `json:"error,omitempty"`    // our own failure
}

// text is a program's output: as it is when it is valid UTF-8, in base64
// otherwise.
type text struct {
	Text   *string `json:"text,omitempty"`
	Base64 *string `json:"base64,omitempty"`
}

func newText(b []byte) *text {
	if utf8.Valid(b) {
		s := string(b)
		return &text{Text: &s}
	}
	s := base64.StdEncoding.EncodeToString(b)
	return &text{Base64: &s}
}

// failure is an error in a document.
type failure struct {
	Kind    backend.Kind `json:"kind"`
	Field   string       `json:"field,omitempty"`
	Message string       `json:"message"`
	Fix     string       `json:"fix,omitempty"`
}

func newFailure(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Kind: backend.KindOf(err), Message: err.Error(), Fix: hint(err)}
	if be := (*backend.Error)(nil); errors.As(err, &be) {
		f.Field = be.Field
	}
	if ue := (*usageError)(nil); errors.As(err, &ue) {
		f.Kind = backend.ErrInvalid
	}
	if s := (*signalError)(nil); errors.As(err, &s) {
		f.Kind = "canceled"
	}
	return f
}

func (a *App) printReport(out *outcome, code int) error {
	r := runReport{
		Exit: out.exit, Code: code, Files: out.files, Warnings: out.warnings, Receipt: out.receipt, Error: newFailure(out.err),
		OK: out.err == nil && out.exit != nil && out.exit.Success() && code == 0,
	}
	if out.exit != nil {
		r.Stdout, r.Stderr = newText(out.stdout.data), newText(out.stderr.data)
	}
	return printJSON(a.Stdout, r)
}

// printJSON prints one document. Every control character in it is escaped, so
// that it can be shown on a terminal.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeC1(b.Bytes()))
	return err
}

// escapeC1 escapes what encoding/json leaves as it is and a terminal obeys.
func escapeC1(b []byte) []byte {
	const hexDigits = "0123456789abcdef"
	var out []byte
	last := 0
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f {
			out = append(out, b[last:i]...)
			out = append(out, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			last = i + size
		}
		i += size
	}
	if last == 0 {
		return b
	}
	return append(out, b[last:]...)
}

// writeReceipt writes the receipt where --receipt says.
func (a *App) writeReceipt(where string, r *backend.Receipt) error {
	if where == "" || r == nil {
		return nil
	}
	if where == "-" {
		return printJSON(a.Stderr, r)
	}
	var b bytes.Buffer
	if err := printJSON(&b, r); err != nil {
		return err
	}
	_, err := saveFile(where, &b, int64(b.Len()))
	if errors.Is(err, os.ErrPermission) {
		return &backend.Error{Op: "receipt", Kind: backend.ErrInvalid, Err: err, Fix: "choose a file you may write"}
	}
	return err
}

// explanation is what --explain --json prints.
type explanation struct {
	router.Decision
	Command commandExplained `json:"command"`
}

// commandExplained is the command without what it reads and writes.
type commandExplained struct {
	Args     []string `json:"args"`
	Language string   `json:"language,omitempty"`
	Program  string   `json:"program,omitempty"`
	Env      []string `json:"env,omitempty"` // names only, values may be secrets
	Timeout  string   `json:"timeout"`
}
