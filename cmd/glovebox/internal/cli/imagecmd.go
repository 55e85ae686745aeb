package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/term"
)

func (a *App) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Short: "Build, list and remove the images that sandboxes are made from",
		Long: "Build, list and remove the images that sandboxes are made from.\n\n" +
			"Known by themselves are " + strings.Join(image.Standard(), " and ") + ", both Debian 12.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q, known are build, list, rm", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.imageBuild(), a.imageList(), a.imageRemove())
	return cmd
}

// imageStore is the store of our environment.
func (a *App) imageStore() (*image.Store, error) {
	return image.Default(func(name string) string { v, _ := a.getenv(name); return v })
}

// imageReport is an image in documents.
type imageReport struct {
	image.Image
	Ref     string `json:"ref"`
	Rootfs  string `json:"rootfs"`
	Current bool   `json:"current"`
	Built   bool   `json:"built,omitempty"`
}

func newImageReport(i image.Image, packages bool) imageReport {
	r := imageReport{Image: i, Ref: i.Ref(), Rootfs: i.Rootfs(), Current: i.Current}
	if !packages {
		r.Packages = nil
	}
	return r
}

func (a *App) imageBuild() *cobra.Command {
	var asJSON, quiet, refresh bool
	var sources, allow []string
	var file, called string
	cmd := &cobra.Command{
		Use: "build [NAME...] | build -f DOCKERFILE DIR", Short: "Build images that are missing or of an old definition",
		Long: `Build images that are missing or of an old definition: the named ones, standard or a
template's, or else all standard ones. What is there and current is left as it is, at
once. Where a Docker engine is there it gets them too.

With -f the image is made from a Dockerfile, with the files of DIR, and is named
template-NAME. Steps (of a Dockerfile, and packages of pip and npm) run in gVisor,
as a root with capabilities that reaches the package registries and no more.

The packages come from the archive that this host's apt is configured with. It takes
mmdebstrap, and root, or user namespaces and a range of ids in /etc/subuid.`,
		Example: "  glovebox image build base\n  glovebox image build --refresh base   # newer packages\n  glovebox image build -f Dockerfile --name app .",
		RunE: func(cmd *cobra.Command, names []string) error {
			opts := image.BuildOptions{Refresh: refresh, Sources: sources}
			shown := a.imageProgress(quiet || asJSON)
			defer shown.end()
			opts.Progress = shown.show
			if called != "" && file == "" {
				return usagef("--name is for -f")
			}
			what := buildWhat{names: names, file: file, called: called, allow: allow}
			reports, err := a.buildImages(cmd.Context(), what, opts, func(r imageReport, took time.Duration) {
				shown.end()
				if asJSON || quiet {
					return
				}
				what := "is current"
				if r.Built {
					what = "built in " + took.Round(time.Second).String()
				}
				fmt.Fprintf(a.Stdout, "%s:%s %s, %d packages, %s\n", r.Name, r.Short(), what, len(r.Packages), size(r.Size))
			})
			if err == nil && asJSON {
				err = printJSON(a.Stdout, reports)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing but errors")
	cmd.Flags().BoolVar(&refresh, "refresh", false, "build anew, with the packages that the archive has now")
	cmd.Flags().StringVarP(&file, "file", "f", "", "build from this Dockerfile, with the files of `DIR`; a relative path is of the working directory")
	cmd.Flags().StringVar(&called, "name", "", "with -f, the image's name, DIR's by default")
	cmd.Flags().StringArrayVar(&allow, "allow", nil, "let steps reach `HOST[:PORT]`, an address or a range besides the registries (repeatable)")
	cmd.Flags().StringArrayVar(&sources, "source", nil, "take packages from this archive: a `LINE` of sources.list (repeatable)")
	return cmd
}

// buildWhat is what is to be built: images by name, or from a Dockerfile.
type buildWhat struct {
	names        []string // the directory, with file
	file, called string
	allow        []string
}

// specs are the templates to build.
func (w buildWhat) specs(all map[string]image.Spec) ([]image.Spec, error) {
	if w.file != "" {
		if len(w.names) != 1 {
			return nil, usagef("-f takes one directory, whose files the Dockerfile may copy")
		}
		s, err := fileSpec(w.file, w.names[0], w.called)
		return []image.Spec{s}, err
	}
	names := w.names
	if len(names) == 0 {
		names = image.Standard()
	}
	var out []image.Spec
	for _, name := range names {
		s, err := specNamed(all, name)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (a *App) buildImages(ctx context.Context, what buildWhat, build image.BuildOptions, done func(imageReport, time.Duration)) ([]imageReport, error) {
	store, err := a.imageStore()
	if err != nil {
		return nil, err
	}
	l, reg, err := a.load(nil)
	if err != nil {
		return nil, err
	}
	specs, err := what.specs(imageSpecs(l.Config))
	if err != nil {
		return nil, err
	}
	opts := image.TemplateOptions{BuildOptions: build}
	if opts.Runner, opts.NoRunner, err = stepRunner(reg, l.Config, what.allow); err != nil {
		return nil, err
	}
	if e := openEngine(ctx); e != nil {
		defer e.Close() //nolint:errcheck // nothing to do about it
		opts.Importer, opts.Exporter = e, e
	}
	var out []imageReport
	for _, spec := range specs {
		began := time.Now()
		img, built, err := store.BuildTemplate(ctx, spec, opts)
		if err != nil {
			return out, err
		}
		if img.Name == "" {
			return out, fmt.Errorf("the template %s is a directory, %s, which needs no building", spec.Name, spec.Rootfs)
		}
		r := newImageReport(img, true)
		r.Built = built
		out = append(out, r)
		done(r, time.Since(began))
	}
	return out, nil
}

func (a *App) imageList() *cobra.Command {
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the images", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := a.imageStore()
			if err != nil {
				return err
			}
			all, err := store.List()
			if err != nil {
				return err
			}
			if asJSON {
				reports := []imageReport{}
				for _, i := range all {
					reports = append(reports, newImageReport(i, true))
				}
				return printJSON(a.Stdout, reports)
			}
			return a.printImages(all, quiet)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the packages")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names and hashes only")
	return cmd
}

func (a *App) printImages(all []image.Image, quiet bool) error {
	if len(all) == 0 && !quiet {
		_, err := fmt.Fprintf(a.Stdout, "no image is built; run: glovebox image build\n")
		return err
	}
	if !quiet {
		if _, err := fmt.Fprintf(a.Stdout, "%-24s %-12s %-20s %8s %8s  %s\n", "NAME", "HASH", "CREATED", "PACKAGES", "SIZE", "NOTE"); err != nil {
			return err
		}
	}
	for _, i := range all {
		line := i.Name + ":" + i.Short()
		if !quiet {
			note := i.About
			if !i.Current {
				note = "replaced by a newer one"
			}
			line = fmt.Sprintf("%-24s %-12s %-20s %8d %8s  %s", i.Name, i.Short(), i.Created.Format("2006-01-02 15:04 MST"), len(i.Packages), size(i.Size), note)
		}
		if _, err := fmt.Fprintln(a.Stdout, term.String(line)); err != nil {
			return err
		}
	}
	return nil
}

func (a *App) imageRemove() *cobra.Command {
	var force, old, asJSON bool
	cmd := &cobra.Command{
		Use: "rm NAME[:HASH]...", Aliases: []string{"remove"}, Short: "Remove images",
		Long: "Remove images: all versions of NAME, or the one version NAME:HASH. What a sandbox uses\nstays, unless --force is given.",
		RunE: func(cmd *cobra.Command, refs []string) error {
			store, err := a.imageStore()
			if err != nil {
				return err
			}
			if len(refs) == 0 {
				if !old {
					return usagef("name the images to remove")
				}
				if refs, err = allNames(store); err != nil {
					return err
				}
			}
			opts := image.RemoveOptions{Force: force, Old: old, InUse: a.imageUsers}
			if e := openEngine(cmd.Context()); e != nil {
				defer e.Close() //nolint:errcheck // nothing to do about it
				opts.Importer = e
			}
			removed := []imageReport{}
			var errs []error
			for _, ref := range refs {
				gone, err := store.Remove(cmd.Context(), ref, opts)
				for _, i := range gone {
					removed = append(removed, newImageReport(i, false))
					if !asJSON {
						fmt.Fprintf(a.Stdout, "removed %s:%s\n", i.Name, i.Short())
					}
				}
				errs = append(errs, err)
			}
			if asJSON {
				errs = append(errs, printJSON(a.Stdout, removed))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove what a sandbox uses as well")
	cmd.Flags().BoolVar(&old, "old", false, "remove only versions that newer ones have replaced; of all images when none is named")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// imageUsers are the sandboxes whose template is made from img. Which version
// they have is not known, so all of that name count.
func (a *App) imageUsers(ctx context.Context, img image.Image) ([]string, error) {
	l, _, err := a.load(nil)
	if err != nil {
		return nil, err
	}
	fl, err := a.fleet(ctx)
	if err != nil {
		return nil, err
	}
	defer fl.close()
	specs := imageSpecs(l.Config)
	all, unasked := fl.list(ctx)
	if len(unasked) > 0 {
		return nil, fmt.Errorf("which sandboxes use it is not known: %w", errors.Join(unasked...))
	}
	var users []string
	for _, e := range all {
		if s, ok := specs[e.Template]; ok && s.ImageName() == img.Name {
			users = append(users, e.ID)
		}
	}
	return users, nil
}

func allNames(store *image.Store) ([]string, error) {
	all, err := store.List()
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return slices.Compact(names), err
}

// size is bytes for people.
func size(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
