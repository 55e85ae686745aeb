package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
)

// What one cp brings out at most, unless told otherwise.
const (
	defaultCopySize  = config.Size(1 << 30)
	defaultCopyFiles = config.Count(65536)
)

// maxDepth bounds how deep directories are followed.
const maxDepth = 200

// notFollowed is why a link is left out.
const notFollowed = "it is a symbolic link; --follow-links copies the file it points to"

// maxNotes bounds how many skipped files are named.
const maxNotes = 20

// cpFlags are the flags of cp.
type cpFlags struct {
	user         string
	follow, json bool
	quiet        bool
	size         config.Size
	files        config.Count
}

func (a *App) cpCommand() *cobra.Command {
	f := &cpFlags{size: defaultCopySize, files: defaultCopyFiles}
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC SANDBOX:DST | SANDBOX:SRC DST",
		Short: "Copy files and directories into or out of a kept sandbox",
		Long: `Copy files and directories into or out of a kept sandbox.

Names inside are relative to the user's home. A directory is copied whole: into DST when
that is there, as DST otherwise; SRC/. is what is in it. - is a tar stream on standard
input or output. A local name with a colon is written ./a:b.

What comes out is a stranger's: nothing is written outside of DST nor through a symbolic
link, only files that are replaced whole and directories are made, without set-id bits,
and no more than --max-size bytes and --max-files names. Symbolic links, devices, sockets
and FIFOs are left out with a warning; --follow-links copies the files that links point to, as
the sandbox sees them, and in the other direction only those inside of SRC.`,
		Example: "  glovebox cp data/ s1a2:data\n  glovebox cp s1a2:out/report.pdf .\n  glovebox cp s1a2:out - | tar t",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.orDocument(a.cp(cmd.Context(), f, args), f.json, exitFailed)
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.user, "user", "u", "", "as `USER` inside")
	fl.BoolVarP(&f.follow, "follow-links", "L", false, "copy the files that symbolic links point to")
	fl.Var(limit(&f.size, config.ParseSize, "SIZE"), "max-size", "bytes that may come out of the sandbox")
	fl.Var(limit(&f.files, config.ParseCount, "NUMBER"), "max-files", "files and directories that may come out")
	fl.BoolVar(&f.json, "json", false, "print what was copied as JSON")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no warnings")
	return cmd
}

// remote splits SANDBOX:PATH. What has a slash before its colon is local.
func remote(arg string) (sandbox, path string, ok bool) {
	sandbox, path, ok = strings.Cut(arg, ":")
	if !ok || sandbox == "" || strings.ContainsAny(sandbox, `/\`) || strings.HasPrefix(sandbox, ".") {
		return "", "", false
	}
	if path == "" {
		path = "."
	}
	return sandbox, path, true
}

func (a *App) cp(ctx context.Context, f *cpFlags, args []string) error {
	if len(args) != 2 {
		return usagef("cp wants SRC and DST, one of them as SANDBOX:PATH")
	}
	fromBox, fromPath, out := remote(args[0])
	toBox, toPath, in := remote(args[1])
	name := fromBox
	switch {
	case in && out:
		return usagef("cp copies between a sandbox and this machine, not between sandboxes")
	case !in && !out:
		return usagef("neither %s nor %s is SANDBOX:PATH", args[0], args[1])
	case in:
		name = toBox
	case args[1] == "-" && f.json:
		return usagef("--json and - both want standard output")
	}
	if _, tty := terminal(a.Stdout); out && args[1] == "-" && tty {
		return usagef("standard output is a terminal; send the tar stream into a file or a program")
	}
	fl, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer fl.close()
	sb, e, err := fl.one(ctx, name)
	if err != nil {
		return because(ctx, err)
	}
	c := &copier{files: sb.Files(), follow: f.follow, size: int64(f.size), names: int64(f.files), flags: f}
	if f.user != "" {
		uf, ok := backend.As[backend.UserFiles](c.files)
		if !ok {
			return unsupported("files of "+f.user, e)
		}
		c.files = uf.FilesAs(f.user)
	}
	if in {
		err = c.in(ctx, args[0], toPath, a.Stdin)
	} else {
		err = c.out(ctx, fromPath, args[1], a.Stdout)
	}
	return a.copied(c, because(ctx, err))
}

// copied tells what came of a copy.
func (a *App) copied(c *copier, err error) error {
	if !c.flags.quiet {
		for _, n := range c.notes {
			a.warn(n)
		}
		if more := c.done.Skipped - int64(len(c.notes)); more > 0 {
			a.warn(fmt.Sprintf("and %d more were left out", more))
		}
	}
	if err != nil || !c.flags.json {
		return err
	}
	return printJSON(a.Stdout, c.done)
}

// copier copies between a sandbox and the host.
type copier struct {
	files  backend.Filesystem
	follow bool
	flags  *cpFlags
	size   int64 // bytes that may still come out
	names  int64 // files and directories that may
	notes  []string
	done   copyDone
}

// copyDone is what was copied.
type copyDone struct {
	Files   int64 `json:"files"`
	Dirs    int64 `json:"directories"`
	Bytes   int64 `json:"bytes"`
	Skipped int64 `json:"skipped"`
}

// skip leaves something out.
func (c *copier) skip(name, why string) {
	c.done.Skipped++
	if len(c.notes) < maxNotes {
		c.notes = append(c.notes, fmt.Sprintf("%s is left out: %s", name, why))
	}
}

// count takes one name from what may come out.
func (c *copier) count() error {
	if c.names--; c.names < 0 {
		return &backend.Error{
			Op: "cp", Kind: backend.ErrTooLarge, Err: fmt.Errorf("there are more than %d files and directories", c.flags.files),
			Fix: "allow more with --max-files",
		}
	}
	return nil
}

func (c *copier) tooLarge() error {
	return &backend.Error{
		Op: "cp", Kind: backend.ErrTooLarge, Err: fmt.Errorf("there are more than %s", c.flags.size),
		Fix: "allow more with --max-size",
	}
}

// errTooDeep is a tree of directories without an end.
func errTooDeep(name string) error {
	return &backend.Error{Op: "cp", Kind: backend.ErrTooLarge, Field: name, Err: fmt.Errorf("directories are nested deeper than %d", maxDepth)}
}

// contents tells whether a name asks for what is in a directory instead of the
// directory.
func contents(name string) bool {
	last := name[strings.LastIndexByte(name, '/')+1:]
	return last == "." || last == ".." || strings.Trim(name, "/") == ""
}

// place is where copied files go.
type place interface {
	// dir is a directory in the place.
	dir(name string, e element) (place, error)
	// file makes a file of what r gives, at most limit bytes of it.
	file(name string, e element, r io.Reader, limit int64) (int64, error)
	close() error
}

// slashed tells whether a host's name says that it is a directory.
func slashed(name string) bool {
	return strings.HasSuffix(name, "/") || strings.HasSuffix(name, string(filepath.Separator))
}
