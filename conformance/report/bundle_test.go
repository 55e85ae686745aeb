package report_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/conformance/report"
)

// entry is a member of a tar.
type entry struct {
	tar.Header
	data []byte
}

func unpack(t *testing.T, bundle []byte) (out []entry) {
	t.Helper()
	zr, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, entry{*h, data})
	}
}

func pack(t *testing.T, entries []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		e.Size = int64(len(e.data))
		if err := tw.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func signed(t testing.TB, d *report.Document) ([]byte, ed25519.PublicKey) {
	t.Helper()
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	var b bytes.Buffer
	if err := d.WriteBundle(&b, map[string][]byte{"cases.json": []byte("[]"), "programs/a.sh": []byte("true\n")}, key); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), key.Public().(ed25519.PublicKey)
}

func TestBundle_whole(t *testing.T) {
	t.Parallel()
	data, key := signed(t, sample())
	again, _ := signed(t, sample())
	if !bytes.Equal(data, again) {
		t.Error("the same document makes another bundle")
	}
	for _, k := range []ed25519.PublicKey{nil, key} {
		b, err := report.Verify(bytes.NewReader(data), k)
		if err != nil {
			t.Fatal(err)
		}
		if !b.Key.Equal(key) || len(b.Files) != 10 || b.Document.Reports[1].Target != "weak" {
			t.Errorf("%v %v", b.Key, b.Files)
		}
	}
	parsed, err := report.ParseKey(report.KeyText(key))
	if err != nil || !parsed.Equal(key) {
		t.Error(parsed, err)
	}
	if err := sample().WriteBundle(io.Discard, map[string][]byte{"../out": nil}, ed25519.NewKeyFromSeed(make([]byte, 32))); backend.KindOf(err) != backend.ErrInvalid {
		t.Errorf("a name that leads out: %v", err)
	}
}

// One byte, one file, one name: nothing can be changed, added or taken away.
func TestVerify_tampered(t *testing.T) {
	t.Parallel()
	whole, _ := signed(t, sample())
	refused := func(what string, data []byte, key ed25519.PublicKey) {
		t.Helper()
		if b, err := report.Verify(bytes.NewReader(data), key); backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%s: %v, %v", what, b, err)
		}
	}
	n := len(unpack(t, whole))
	if _, err := report.Verify(bytes.NewReader(pack(t, unpack(t, whole))), nil); err != nil {
		t.Fatalf("control: packed again: %v", err)
	}
	for i := range n {
		e := unpack(t, whole)
		e[i].data[len(e[i].data)/2] ^= 1
		refused("a bit of "+e[i].Name, pack(t, e), nil)
		e = unpack(t, whole)
		refused("without "+e[i].Name, pack(t, append(e[:i:i], e[i+1:]...)), nil)
		e = unpack(t, whole)
		refused("twice "+e[i].Name, pack(t, append(e, e[i])), nil)
	}
	for _, name := range []string{"more", "../more", "/etc/passwd", "a/../b", strings.Repeat("x", 101), "new\nline"} {
		refused("with "+name, pack(t, append(unpack(t, whole), entry{tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}, []byte("x")})), nil)
	}
	refused("with a link", pack(t, append(unpack(t, whole), entry{tar.Header{Name: "l", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}, nil})), nil)
	refused("cut", whole[:len(whole)/2], nil)
	refused("empty", nil, nil)
	stranger := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey)
	refused("somebody else's", whole, stranger)
}

func FuzzVerify(f *testing.F) {
	whole, _ := signed(f, sample())
	f.Add(whole)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := report.Verify(bytes.NewReader(data), nil)
		if (b == nil) == (err == nil) && err == nil {
			t.Fatal("neither a bundle nor an error")
		}
	})
}
