package cli

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/term"
)

func (a *App) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Show, check and trust configuration",
		Long: `Show, check and trust configuration.

A value comes from the last of these that gives it: built-in defaults; the user's
file (~/.config/glovebox/config.yaml, else /etc/glovebox/config.yaml); the project's
file (./glovebox.yaml or ./.glovebox/config.yaml), once you trust it; environment
variables, GLOVEBOX_A__B for a.b; flags. Files may be YAML, TOML or JSON. --config
or GLOVEBOX_CONFIG names a file to read instead of those two.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q, known are show, validate, schema, trust", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.configShow(), a.configValidate(), a.configSchema(), a.configTrust())
	return cmd
}

func (a *App) configShow() *cobra.Command {
	var asJSON, origin bool
	cmd := &cobra.Command{
		Use: "show", Short: "Print the configuration in effect, secrets redacted", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			l, _, err := a.load(nil)
			if err != nil {
				return err
			}
			switch {
			case origin && asJSON:
				return printJSON(a.Stdout, l.Show())
			case origin:
				return a.printOrigins(l.Show())
			case asJSON:
				return printJSON(a.Stdout, l.Redacted())
			}
			var b bytes.Buffer
			enc := yaml.NewEncoder(&b)
			enc.SetIndent(2)
			if err := errors.Join(enc.Encode(l.Redacted()), enc.Close()); err != nil {
				return err
			}
			_, err = fmt.Fprint(a.Stdout, term.Lines(b.String()))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&origin, "origin", false, "say where each value comes from")
	return cmd
}

func (a *App) printOrigins(entries []config.Entry) error {
	width := 0
	lines := make([]string, len(entries))
	for i, e := range entries {
		lines[i] = term.String(fmt.Sprintf("%s: %v", e.Key, e.Value))
		width = max(width, min(len(lines[i]), 60))
	}
	for i, e := range entries {
		if _, err := fmt.Fprintf(a.Stdout, "%-*s  # %s\n", width, lines[i], term.String(e.Origin)); err != nil {
			return err
		}
	}
	return nil
}

func (a *App) configValidate() *cobra.Command {
	return &cobra.Command{
		Use: "validate [FILE]", Short: "Check the configuration in effect, or one file by itself",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("give one FILE or none")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var l *config.Loaded
			var err error
			if len(args) == 1 {
				l, err = a.loadFile(args[0])
			} else {
				l, _, err = a.load(nil)
			}
			if err != nil {
				return err
			}
			what := "the built-in configuration"
			if n := len(l.Files); n > 0 {
				what = l.Files[n-1]
			}
			_, err = fmt.Fprintf(a.Stdout, "%s is valid\n", term.String(what))
			return err
		},
	}
}

func (a *App) loadFile(file string) (*config.Loaded, error) {
	reg, err := a.Registry()
	if err != nil {
		return nil, err
	}
	l, err := config.Load(config.Options{File: file, OnlyFile: true, Environ: a.Environ, Registry: reg})
	if err != nil {
		return nil, err
	}
	for _, w := range l.Warnings {
		a.warn(w)
	}
	return l, nil
}

func (a *App) configSchema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of configuration files", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			reg, err := a.Registry()
			if err != nil {
				return err
			}
			return printJSON(a.Stdout, config.Schema(reg))
		},
	}
}

func (a *App) configTrust() *cobra.Command {
	var remove, show bool
	cmd := &cobra.Command{
		Use: "trust [FILE]", Short: "Trust the project's configuration file as it is now",
		Long: `Trust the project's configuration file as it is now.

A project's file may be a stranger's, and it can loosen what contains a program. It
counts only once you trust it, and only as long as it stays where it is and as it is.
Read it first.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("give one FILE or none")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := config.NewTrustStore(a.Environ)
			if err != nil {
				return err
			}
			if show {
				return a.listTrusted(store)
			}
			file, err := a.projectFile(args)
			if err != nil {
				return err
			}
			if remove {
				return a.untrust(store, file)
			}
			return a.trust(store, file)
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "stop trusting it")
	cmd.Flags().BoolVar(&show, "list", false, "list what is trusted")
	cmd.MarkFlagsMutuallyExclusive("remove", "list")
	return cmd
}

func (a *App) projectFile(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	file, err := config.ProjectFile(a.Dir)
	if err == nil && file == "" {
		err = errors.New("there is no glovebox.yaml, .toml or .json and no .glovebox/config here")
	}
	return file, err
}

// trust checks the file first: what does not load is of no use trusted.
func (a *App) trust(store config.TrustStore, file string) error {
	if _, err := a.loadFile(file); err != nil {
		return err
	}
	t, err := store.Add(file)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Stdout, "trusted %s (sha256 %s)\n", term.String(t.Path), t.SHA256)
	return err
}

func (a *App) untrust(store config.TrustStore, file string) error {
	was, err := store.Remove(file)
	if err != nil {
		return err
	}
	text := "no longer trusted: "
	if !was {
		text = "was not trusted: "
	}
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	_, err = fmt.Fprintln(a.Stdout, text+term.String(file))
	return err
}

func (a *App) listTrusted(store config.TrustStore) error {
	files, err := store.List()
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := fmt.Fprintf(a.Stdout, "%s  %s\n", f.SHA256, term.String(f.Path)); err != nil {
			return err
		}
	}
	return nil
}
