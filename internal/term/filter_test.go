package term_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/iotest"
	"unicode"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/term"
)

func TestWriter_makesControlVisible(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, want string }{
		{"plain text", "hello\tworld\r\n", "hello\tworld\r\n"},
		{"other scripts", "höß 日本語 👩‍🔬\n", "höß 日本語 👩‍🔬\n"},
		{"colour", "\x1b[31mred\x1b[0m", "^[[31mred^[[0m"},
		{"title", "\x1b]0;owned\a", "^[]0;owned^G"},
		{"clipboard", "\x1b]52;c;AAAA\x1b\\", "^[]52;c;AAAA^[\\"},
		{"C1 as UTF-8", "\u009b31m", "<U+009B>31m"},
		{"C1 as a byte", "\x9b31m", `\x9b31m`},
		{"bidi override", "a\u202eb\u2066c", "a<U+202E>b<U+2066>c"},
		{"line separator", "a\u2028b", "a<U+2028>b"},
		{"tag characters", "a\U000e0041", "a<U+E0041>"},
		{"backspace and delete", "a\b\x7f\x00", "a^H^?^@"},
		{"cut off at the end", "a\xe2\x80", `a\xe2\x80`},
		{"overlong", "\xc0\x9b", `\xc0\x9b`},
		{"surrogate", "\xed\xa0\x80", `\xed\xa0\x80`},
		{"replacement character itself", "\ufffd", "\ufffd"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, chunk := range []int{1, 2, 3, 1000} {
				if got := filter(t, []byte(tc.in), chunk); got != tc.want {
					t.Errorf("in chunks of %d: got %q, want %q", chunk, got, tc.want)
				}
			}
		})
	}
}

func filter(t *testing.T, in []byte, chunk int) string {
	t.Helper()
	var out bytes.Buffer
	w := term.NewWriter(&out)
	for len(in) > 0 {
		n := min(chunk, len(in))
		if m, err := w.Write(in[:n]); m != n || err != nil {
			t.Fatalf("Write = %d, %v, want %d", m, err, n)
		}
		in = in[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestWriter_passesErrorsOn(t *testing.T) {
	t.Parallel()
	if _, err := term.NewWriter(failing{}).Write([]byte("x")); err == nil {
		t.Error("an error of the writer below is lost")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, iotest.ErrTimeout }

func TestWriter_MidLine(t *testing.T) {
	t.Parallel()
	w := term.NewWriter(&bytes.Buffer{})
	for _, step := range []struct {
		in   string
		want bool
	}{{"", false}, {"a", true}, {"b\n", false}, {"", false}, {"\n\x1b", true}} {
		if _, err := w.Write([]byte(step.in)); err != nil {
			t.Fatal(err)
		}
		if got := w.MidLine(); got != step.want {
			t.Errorf("after %q: MidLine = %v, want %v", step.in, got, step.want)
		}
	}
}

func TestString_staysOnOneLine(t *testing.T) {
	t.Parallel()
	if got, want := term.String("a\nb\rc\x1b[2J"), "a^Jb^Mc^[[2J"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
	if got, want := term.Lines("a\x1b\nb"), "a^[\nb"; got != want {
		t.Errorf("Lines = %q, want %q", got, want)
	}
}

// FuzzWriter: whatever comes in, however it is cut, nothing a terminal obeys
// comes out, and the cuts make no difference.
func FuzzWriter(f *testing.F) {
	f.Add([]byte("\x1b]0;t\a\u202e\xe2\x80"), uint8(1))
	f.Add([]byte("日本\xf0\x9f"), uint8(2))
	f.Fuzz(func(t *testing.T, in []byte, cut uint8) {
		whole := filter(t, in, len(in)+1)
		if cutUp := filter(t, in, int(cut)%7+1); cutUp != whole {
			t.Errorf("cut up %q, whole %q", cutUp, whole)
		}
		if !utf8.ValidString(whole) {
			t.Errorf("invalid UTF-8: %q", whole)
		}
		for _, r := range whole {
			if unicode.IsControl(r) && !strings.ContainsRune("\n\r\t", r) {
				t.Errorf("control character %U in %q", r, whole)
			}
			if unicode.Is(unicode.Cf, r) && r != '\u200c' && r != '\u200d' {
				t.Errorf("format character %U in %q", r, whole)
			}
		}
		if one := term.String(string(in)); strings.ContainsAny(one, "\n\r\x1b") {
			t.Errorf("String gave %q", one)
		}
	})
}
