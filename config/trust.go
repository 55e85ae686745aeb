package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/statedir"
)

// A project's file lies in a working directory, which may be a stranger's: it
// counts only when the operator trusted this very content at this very path.

// maxTrusted bounds the list of trusted files.
const maxTrusted = 1000

// Trusted is a project file that the operator trusts.
type Trusted struct {
	Path   string    `json:"path"`   // without symbolic links
	SHA256 string    `json:"sha256"` // of its content, in hexadecimal
	Time   time.Time `json:"time"`   // when it was trusted
}

// TrustStore is the operator's list of trusted project files. It is a file
// that only they can read and write.
type TrustStore struct{ path string }

// NewTrustStore is the store of the user whose environment is environ:
// trust.json in the state directory.
func NewTrustStore(environ []string) (TrustStore, error) {
	return trustStore(lookup(environ))
}

func trustStore(env func(string) string) (TrustStore, error) {
	dir, err := statedir.Dir("", env)
	if err != nil {
		return TrustStore{}, fmt.Errorf("trust: %w", err)
	}
	return TrustStore{filepath.Join(dir, "trust.json")}, nil
}

// Path is the store's file.
func (s TrustStore) Path() string { return s.path }

// List is what is trusted, sorted by path. A store that others can write is an
// error.
func (s TrustStore) List() ([]Trusted, error) {
	info, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	if err := onlyOurs(info); err != nil {
		return nil, fmt.Errorf("trust: %s %w; remove it and trust your files again", s.path, err)
	}
	f, err := os.Open(s.path)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	defer f.Close() //nolint:errcheck // read side
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	var doc struct {
		Files []Trusted `json:"files"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("trust: %s: %w; remove it and trust your files again", s.path, err)
	}
	return doc.Files, nil
}

// Add trusts the file at path with the content it has now.
func (s TrustStore) Add(path string) (Trusted, error) {
	real, err := canonical(path)
	if err != nil {
		return Trusted{}, err
	}
	data, err := readFile(real)
	if err != nil {
		return Trusted{}, err
	}
	t := Trusted{Path: real, SHA256: digest(data), Time: time.Now().UTC().Truncate(time.Second)}
	files, err := s.List()
	if err != nil {
		return t, err
	}
	files = append(slices.DeleteFunc(files, func(o Trusted) bool { return o.Path == real }), t)
	if len(files) > maxTrusted {
		return t, fmt.Errorf("trust: more than %d files are trusted; remove some", maxTrusted)
	}
	return t, s.save(files)
}

// Remove stops trusting the file at path; false when it was not trusted.
func (s TrustStore) Remove(path string) (bool, error) {
	real, err := canonical(path)
	if err != nil {
		// What is gone can still be removed, by the path it was listed with.
		if real, err = filepath.Abs(path); err != nil {
			return false, fmt.Errorf("trust: %w", err)
		}
	}
	files, err := s.List()
	if err != nil {
		return false, err
	}
	n := len(files)
	files = slices.DeleteFunc(files, func(o Trusted) bool { return o.Path == real })
	if len(files) == n {
		return false, nil
	}
	return true, s.save(files)
}

// save replaces the store's file at once, so that a reader never sees half.
func (s TrustStore) save(files []Trusted) (err error) {
	slices.SortFunc(files, func(a, b Trusted) int { return strings.Compare(a.Path, b.Path) })
	data, err := json.MarshalIndent(map[string]any{"version": 1, "files": files}, "", "  ")
	if err != nil {
		return fmt.Errorf("trust: %w", err)
	}
	dir := filepath.Dir(s.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("trust: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".trust-*") // made with 0600
	if err != nil {
		return fmt.Errorf("trust: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
			err = fmt.Errorf("trust: %w", err)
		}
	}()
	_, err = tmp.Write(append(data, '\n'))
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), s.path)
}

// trusted reads the project file at path if its content is trusted. Otherwise
// it says in one sentence why not and what to do. What is compared is what is
// returned, so that a change in between makes no difference.
func trusted(path string, env func(string) string) (data []byte, warning string) {
	store, err := trustStore(env)
	if err != nil {
		return nil, fmt.Sprintf("%s is ignored: %v", path, err)
	}
	files, err := store.List()
	if err != nil {
		return nil, fmt.Sprintf("%s is ignored: %v", path, err)
	}
	real, err := canonical(path)
	if err != nil {
		return nil, fmt.Sprintf("%s is ignored: %v", path, err)
	}
	if data, err = readFile(real); err != nil {
		return nil, fmt.Sprintf("%s is ignored: %v", path, err)
	}
	sum, why := digest(data), "it is not trusted"
	for _, f := range files {
		if f.Path != real {
			continue
		}
		if f.SHA256 == sum {
			return data, ""
		}
		why = "it has changed since it was trusted"
	}
	return nil, fmt.Sprintf("%s is ignored: %s; read it, then run: glovebox config trust", path, why)
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func canonical(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("trust: %w", err)
	}
	return abs, nil
}
