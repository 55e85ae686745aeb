package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/images"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

// builderVersion changes when the same definition comes to make other bytes.
const builderVersion = "1"

var (
	namePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,79}$`)
	suitePattern   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{1,80}$`)
)

// Definition says what an image is built of.
type Definition struct {
	Name string `json:"-"`
	// About is a line for people.
	About string `json:"about,omitempty"`
	// From is the image whose packages this one adds to.
	From string `json:"from,omitempty"`
	// Suite is Debian's release. Empty: that of From.
	Suite string `json:"suite,omitempty"`
	// Packages are names of Debian packages.
	Packages []string `json:"packages"`
}

// Standard names the images that this program knows by itself.
func Standard() []string {
	entries, err := fs.Glob(images.Files, "*.json")
	if err != nil {
		return nil // only a malformed pattern is an error
	}
	for i, e := range entries {
		entries[i] = strings.TrimSuffix(e, ".json")
	}
	return entries
}

// Define is the definition of a standard image, with everything that it takes
// from others in it. An unknown name is ErrNotFound.
func Define(name string) (Definition, error) {
	data, err := images.Files.ReadFile(name + ".json")
	if err != nil || !namePattern.MatchString(name) {
		return Definition{}, &backend.Error{Op: "image", Kind: backend.ErrNotFound, Err: strict.Unknown("image", name, Standard())}
	}
	d := Definition{Name: name}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, fmt.Errorf("image %s: %w", name, err)
	}
	return d.resolve()
}

// With is d under another name with more Debian packages.
func (d Definition) With(name string, packages ...string) (Definition, error) {
	return Definition{Name: name, Suite: d.Suite, Packages: slices.Concat(d.Packages, packages)}.resolve()
}

// resolve takes over what From defines, sorts and checks.
func (d Definition) resolve() (Definition, error) {
	if d.From != "" {
		base, err := Define(d.From)
		if err != nil {
			return d, err
		}
		d.Packages = slices.Concat(base.Packages, d.Packages)
		if d.Suite == "" {
			d.Suite = base.Suite
		}
		d.From = ""
	}
	slices.Sort(d.Packages)
	d.Packages = slices.Compact(d.Packages)
	return d, d.check()
}

func (d Definition) check() error {
	if !namePattern.MatchString(d.Name) {
		return invalid("name", fmt.Errorf("%q names no image: 1 to 80 lower-case letters, digits, dots, dashes and underscores", d.Name))
	}
	if !suitePattern.MatchString(d.Suite) {
		return invalid("suite", fmt.Errorf("%q is no Debian release", d.Suite))
	}
	// Security: they become arguments of apt.
	for _, p := range d.Packages {
		if !packagePattern.MatchString(p) {
			return invalid("packages", fmt.Errorf("%q is no name of a Debian package", p))
		}
	}
	if len(d.Packages) > 1000 {
		return invalid("packages", errors.New("more than 1000 packages"))
	}
	return nil
}

// Hash is the hash of all that decides what is built, but for the versions that
// the archive has.
func (d Definition) Hash() (string, error) {
	finish, err := finishScript()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n%x\n", builderVersion, architecture(), d.Suite, strings.Join(d.Packages, " "), sha256.Sum256(finish))
	return hex.EncodeToString(h.Sum(nil)), nil
}

func finishScript() ([]byte, error) {
	data, err := images.Files.ReadFile("finish.sh")
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	return data, nil
}

func invalid(field string, err error) error {
	return &backend.Error{Op: "image", Kind: backend.ErrInvalid, Field: field, Err: err}
}
