package report

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// The files of a bundle besides its documents. Sums has the SHA-256 of every
// other file in the form of sha256sum, Signature is the ed25519 signature of
// Sums in hexadecimal, PublicKey the key that it was made with.
const (
	Sums      = "SHA256SUMS"
	Signature = "SHA256SUMS.sig"
	PublicKey = "public-key"
)

const (
	maxBundle = 256 << 20 // bytes, unpacked
	maxFiles  = 256
)

// Bundle is what can be filed as evidence.
type Bundle struct {
	Document *Document
	Key      ed25519.PublicKey // who signed it
	Files    []string
}

// WriteBundle writes a gzipped tar of the document in all formats and of inputs,
// with checksums that key signs. Names of inputs are relative slash-separated
// paths. The same document, inputs and key give the same bytes.
func (d *Document) WriteBundle(w io.Writer, inputs map[string][]byte, key ed25519.PrivateKey) error {
	files := map[string][]byte{}
	for name, write := range map[string]func(io.Writer) error{
		"report.json": d.WriteJSON, "report.html": d.WriteHTML, "report.md": d.WriteMarkdown, "junit.xml": d.WriteJUnit, "sarif.json": d.WriteSARIF,
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return err
		}
		files[name] = b.Bytes()
	}
	for name, data := range inputs {
		inside := path.Join("inputs", name)
		if !plain(name) || !plain(inside) {
			return invalidBundle("%q is no name for a file in it", name)
		}
		files[inside] = data
	}
	var sums bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[name]), name)
	}
	files[Sums] = sums.Bytes()
	files[Signature] = []byte(hex.EncodeToString(ed25519.Sign(key, sums.Bytes())) + "\n")
	files[PublicKey] = []byte(KeyText(key.Public().(ed25519.PublicKey)) + "\n") //nolint:forcetypeassert // what ed25519 documents
	return writeTar(w, files, d.Started)
}

func writeTar(w io.Writer, files map[string][]byte, stamp time.Time) error {
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: stamp.UTC().Truncate(time.Second), Format: tar.FormatUSTAR}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(files[name]); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), zw.Close())
}

// KeyText is a public key as people compare it.
func KeyText(k ed25519.PublicKey) string { return "ed25519:" + hex.EncodeToString(k) }

// ParseKey reads what KeyText wrote.
func ParseKey(s string) (ed25519.PublicKey, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(s), "ed25519:")
	key, err := hex.DecodeString(text)
	if !ok || err != nil || len(key) != ed25519.PublicKeySize {
		return nil, &backend.Error{
			Op: "conformance", Kind: backend.ErrInvalid, Field: "key", Err: errors.New("it is no public key"), Fix: "give ed25519: and 64 hexadecimal digits",
		}
	}
	return key, nil
}

// Verify reads a bundle and refuses one that is not whole: a file that is missing,
// changed, or not listed, or a signature that is not its key's. Where key is
// given, the signature must be that one's; else Bundle.Key is whoever signed it,
// which proves nothing about who that is.
func Verify(r io.Reader, key ed25519.PublicKey) (*Bundle, error) {
	files, err := readTar(r)
	if err != nil {
		return nil, err
	}
	b := &Bundle{Files: slices.Sorted(maps.Keys(files))}
	if b.Key, err = ParseKey(string(files[PublicKey])); err != nil {
		return nil, invalidBundle("it has no public key that can be read")
	}
	if key != nil {
		if !key.Equal(b.Key) {
			return nil, invalidBundle("it is signed by %s, not by %s", KeyText(b.Key), KeyText(key))
		}
	}
	sig, err := hex.DecodeString(strings.TrimSpace(string(files[Signature])))
	if err != nil || !ed25519.Verify(b.Key, files[Sums], sig) {
		return nil, invalidBundle("the signature of %s is not right", Sums)
	}
	if err := checkSums(files); err != nil {
		return nil, err
	}
	b.Document, err = Read(bytes.NewReader(files["report.json"]))
	return b, err
}

func checkSums(files map[string][]byte) error {
	listed := map[string]bool{Sums: true, Signature: true, PublicKey: true}
	for line := range strings.Lines(string(files[Sums])) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		data, there := files[name]
		if !ok || !there || listed[name] {
			return invalidBundle("%q is listed and is not there", name)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != sum {
			return invalidBundle("%s was changed", name)
		}
		listed[name] = true
	}
	for name := range files {
		if !listed[name] {
			return invalidBundle("%s is not listed in %s", name, Sums)
		}
	}
	return nil
}

// readTar reads the files of a bundle, which may be anybody's.
func readTar(r io.Reader) (map[string][]byte, error) {
	zr, err := gzip.NewReader(r)
	if err != nil {
		return nil, invalidBundle("it is no gzipped tar: %v", err)
	}
	tr := tar.NewReader(io.LimitReader(zr, maxBundle))
	files := map[string][]byte{}
	left := int64(maxBundle)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, invalidBundle("it is no whole tar: %v", err)
		}
		_, twice := files[h.Name]
		if h.Typeflag != tar.TypeReg || !plain(h.Name) || twice || len(files) == maxFiles || h.Size > left {
			return nil, invalidBundle("%q is nothing that a bundle has", h.Name)
		}
		left -= h.Size
		data, err := io.ReadAll(tr)
		if err != nil {
			return nil, invalidBundle("%s is cut short: %v", h.Name, err)
		}
		files[h.Name] = data
	}
}

// plain tells whether name is a short relative path of printable ASCII without
// a step upwards.
func plain(name string) bool {
	if name == "" || len(name) > 100 || name != path.Clean(name) || strings.HasPrefix(name, "/") || name == ".." || strings.HasPrefix(name, "../") {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' })
}

func invalidBundle(format string, args ...any) error {
	return &backend.Error{Op: "conformance", Kind: backend.ErrInvalid, Field: "bundle", Err: fmt.Errorf(format, args...)}
}
