//go:build linux

package files

import (
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

func FuzzResolve(f *testing.F) {
	for _, path := range []string{"", "~", "~/x", "~x", "a/../../b", "/..", "a\x00", "//x", ".", "~\\x", strings.Repeat("a/", 3000)} {
		f.Add(path)
	}
	s := New(Options{})
	f.Fuzz(func(t *testing.T, path string) {
		got, err := s.resolve(path, Account{Name: "user", Home: "/home/user"})
		if err != nil {
			return
		}
		if !filepath.IsAbs(got) || filepath.Clean(got) != got || strings.ContainsRune(got, 0) {
			t.Errorf("%q became %q", path, got)
		}
		again, err := s.resolve(got, Account{Home: "/elsewhere"})
		if len(got) <= maxPath && (err != nil || again != got) {
			t.Errorf("%q became %q and that %q, %v", path, got, again, err)
		}
	})
}

func FuzzPartName(f *testing.F) {
	for _, h := range []string{
		`form-data; name="file"; filename="a"`, `form-data; name=file; filename*=utf-8''%2e%2e%2fx`,
		`form-data; name="file"; filename="../../etc/passwd"`, `form-data; name="file"`, `;;`, `form-data; filename="a\"b"`,
	} {
		f.Add(h)
	}
	p := &put{s: New(Options{}), acct: Account{Home: "/home/user"}}
	f.Fuzz(func(t *testing.T, header string) {
		part := &multipart.Part{Header: textproto.MIMEHeader{"Content-Disposition": {header}}}
		if path, err := p.target(part, nil); err == nil && (!filepath.IsAbs(path) || strings.ContainsRune(path, 0)) {
			t.Errorf("%q became %q", header, path)
		}
	})
}

func FuzzMetadataHeaders(f *testing.F) {
	f.Add("X-Metadata-Author", "me")
	f.Add("X-Metadata-", "x")
	f.Add("X-Metadata-\xff", "\n")
	f.Fuzz(func(t *testing.T, name, value string) {
		meta, err := metadataHeaders(http.Header{name: {value}, wire.HeaderMetadata + "B": {"b"}})
		if err != nil {
			return
		}
		total := 0
		for k, v := range meta {
			total += len(k) + len(v)
			if k == "" || len(k) > maxMetaKey || k != strings.ToLower(k) || !printable(k) || !printable(v) || strings.ContainsRune(k, 0) {
				t.Errorf("%q: %q", k, v)
			}
		}
		if total > maxMetadata || meta["b"] == "" {
			t.Errorf("%v", meta)
		}
	})
}

func FuzzNames(f *testing.F) {
	f.Add("a\xffb", "gzip;q=0.1, *")
	f.Fuzz(func(t *testing.T, name, accept string) {
		if !utf8.ValidString(valid(name)) {
			t.Errorf("%q", name)
		}
		v := mime.FormatMediaType("inline", map[string]string{"filename": valid(name)})
		if strings.ContainsAny(v, "\r\n\x00") {
			t.Errorf("%q became the header %q", name, v)
		}
		if gz, err := acceptGzip(http.Header{"Accept-Encoding": {accept}}); gz && err != nil {
			t.Errorf("%q: both", accept)
		}
	})
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	for magic, want := range map[int64]bool{
		unix.NFS_SUPER_MAGIC: true, unix.CIFS_SUPER_MAGIC: true, unix.SMB_SUPER_MAGIC: true, unix.SMB2_SUPER_MAGIC: true,
		unix.FUSE_SUPER_MAGIC: true, unix.TMPFS_MAGIC: false, unix.EXT4_SUPER_MAGIC: false, unix.OVERLAYFS_SUPER_MAGIC: false,
	} {
		if network(magic) != want {
			t.Errorf("%#x: want %v", magic, want)
		}
	}
}
