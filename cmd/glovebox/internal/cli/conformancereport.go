package cli

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/conformance/report"
	"github.com/glovebox-dev/glovebox/internal/statedir"
	"github.com/glovebox-dev/glovebox/internal/term"
)

// maxReport bounds a file that is written, in bytes.
const maxReport = 1 << 30

// reportFlags say which files are written.
type reportFlags struct {
	reports []string
	bundle  string
	key     string
}

func (f *reportFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.reports, "report", nil, "write a report to `FILE`, whose ending says in which form: .json, .html, .md, .xml (JUnit), .sarif; can be given again")
	fs.StringVar(&f.bundle, "bundle", "", "write a signed bundle of all reports to `FILE`, a .tar.gz")
	fs.StringVar(&f.key, "key", "", "sign with the ed25519 key in this PEM `FILE`; by default one in the state directory, made when missing")
}

// formats are the forms of a report, by ending.
func formats() map[string]func(*report.Document, io.Writer) error {
	return map[string]func(*report.Document, io.Writer) error{
		".json": (*report.Document).WriteJSON, ".html": (*report.Document).WriteHTML, ".md": (*report.Document).WriteMarkdown,
		".xml": (*report.Document).WriteJUnit, ".sarif": (*report.Document).WriteSARIF,
	}
}

// check refuses what could not be written, before hours were spent.
func (f *reportFlags) check() error {
	known := formats()
	for _, name := range f.reports {
		if known[filepath.Ext(name)] == nil {
			return usagef("--report: %s: known endings are %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
	for _, name := range append(slices.Clone(f.reports), f.bundle) {
		if name == "" {
			continue
		}
		if st, err := os.Stat(filepath.Dir(name)); err != nil || !st.IsDir() {
			return usagef("%s: there is no directory %s", name, filepath.Dir(name))
		}
	}
	if f.key != "" && f.bundle == "" {
		return usagef("--key signs a --bundle, and there is none")
	}
	return nil
}

// writeReports writes the files that f names. match says which cases were run.
func (a *App) writeReports(doc *report.Document, f reportFlags, match func(conformance.Case) bool) error {
	write := func(name string, to func(io.Writer) error) error {
		var b bytes.Buffer
		if err := to(&b); err != nil {
			return err
		}
		_, err := saveFile(name, &b, maxReport)
		return err
	}
	for _, name := range f.reports {
		if err := write(name, func(w io.Writer) error { return formats()[filepath.Ext(name)](doc, w) }); err != nil {
			return err
		}
	}
	if f.bundle == "" {
		return nil
	}
	key, err := a.signingKey(f.key)
	if err != nil {
		return err
	}
	inputs, err := reportInputs(doc, match)
	if err != nil {
		return err
	}
	if err := write(f.bundle, func(w io.Writer) error { return doc.WriteBundle(w, inputs, key) }); err != nil {
		return err
	}
	fmt.Fprintf(a.Stderr, "%s is signed by %s\n", f.bundle, report.KeyText(key.Public().(ed25519.PublicKey))) //nolint:forcetypeassert // what ed25519 documents
	return nil
}

// signingKey is the key of a PEM file (PKCS #8); without a name this user's own,
// which is made when there is none.
func (a *App) signingKey(name string) (ed25519.PrivateKey, error) {
	if name != "" {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		return parseKey(name, data)
	}
	dir, err := statedir.Dir("", func(n string) string { v, _ := a.getenv(n); return v })
	if err != nil {
		return nil, err
	}
	name = filepath.Join(dir, "conformance-key.pem")
	data, err := os.ReadFile(name)
	if err == nil {
		return parseKey(name, data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Of two processes that make one, the later one's is not taken.
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return key, errors.Join(pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: der}), f.Close())
}

func parseKey(name string, data []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s is no PEM file", name)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T, not an ed25519 key", name, k)
	}
	return key, nil
}

func (a *App) conformanceReport() *cobra.Command {
	var out reportFlags
	cmd := &cobra.Command{
		Use: "report FILE", Short: "Write a JSON report in other forms", Args: oneArg("a JSON report"),
		Example: "  glovebox conformance report report.json --report report.html",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(out.reports) == 0 && out.bundle == "" {
				return usagef("say what to write, with --report or --bundle")
			}
			if err := out.check(); err != nil {
				return err
			}
			doc, err := readDocument(args[0])
			if err != nil {
				return err
			}
			ran := map[string]bool{}
			for _, r := range doc.Reports {
				for _, res := range r.Results {
					ran[res.ID] = true
				}
			}
			return a.writeReports(doc, out, func(c conformance.Case) bool { return ran[c.ID] })
		},
	}
	out.add(cmd)
	return cmd
}

// readDocument reads a JSON report from a file.
func readDocument(name string) (*report.Document, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read side
	doc, err := report.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return doc, nil
}

func (a *App) conformanceDiff() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "diff OLD NEW", Short: "Compare two JSON reports, and end with 1 when something became worse",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("give two JSON reports, the older one first")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			before, err := readDocument(args[0])
			if err != nil {
				return err
			}
			after, err := readDocument(args[1])
			if err != nil {
				return err
			}
			changes := report.Diff(before, after)
			if asJSON {
				if changes == nil {
					changes = []report.Change{}
				}
				err = printJSON(a.Stdout, changes)
			} else {
				err = report.WriteChanges(a.Stdout, changes)
			}
			if err != nil {
				return err
			}
			if n := len(slices.DeleteFunc(changes, func(c report.Change) bool { return !c.Worse })); n > 0 {
				return fmt.Errorf("%d became worse", n)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *App) conformanceVerify() *cobra.Command {
	var want string
	var strictly bool
	cmd := &cobra.Command{
		Use: "verify BUNDLE", Short: "Check a bundle's signature and files, and say what its report says", Args: oneArg("a bundle"),
		Long: `Check a bundle's signature and files, and say what its report says.

Without --key the signature proves only that nobody changed the bundle since it was
signed by the key that it names. It needs no network. The exit codes are those of
conformance run, and 3 for a bundle that is not whole.`,
		Example: "  glovebox conformance verify evidence.tar.gz --key ed25519:…",
		RunE: func(_ *cobra.Command, args []string) error {
			broke := func(err error) error { return &exitError{code: exitBroke, err: fmt.Errorf("%s: %w", args[0], err)} }
			var key ed25519.PublicKey
			if want != "" {
				var err error
				if key, err = report.ParseKey(want); err != nil {
					return &usageError{err}
				}
			}
			f, err := os.Open(args[0])
			if err != nil {
				return &exitError{code: exitBroke, err: err}
			}
			defer f.Close() //nolint:errcheck // read side
			b, err := report.Verify(f, key)
			if err != nil {
				return broke(err)
			}
			fmt.Fprintf(a.Stdout, "whole: %d files, signed by %s\n", len(b.Files), report.KeyText(b.Key))
			if key == nil {
				a.warn("nobody said whose key that must be; compare it, or give it with --key")
			}
			for _, r := range b.Document.Reports {
				fmt.Fprintf(a.Stdout, "%s (isolation %s): %s\n", term.String(r.Target), r.Capabilities.Isolation, term.String(r.Summary()))
			}
			return conformanceOutcome(b.Document, strictly)
		},
	}
	cmd.Flags().StringVar(&want, "key", "", "refuse a bundle that is not signed by this public `KEY`")
	cmd.Flags().BoolVar(&strictly, "strict", false, "end with 4 when a case said nothing")
	return cmd
}
