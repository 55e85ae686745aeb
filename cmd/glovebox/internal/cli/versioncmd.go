package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/version"
)

func (a *App) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := version.Get()
			if asJSON {
				return printJSON(a.Stdout, v)
			}
			text := "glovebox " + v.Version
			if v.Commit != "" {
				text += " (" + v.Commit[:min(12, len(v.Commit))]
				if v.Modified {
					text += ", modified"
				}
				text += ")"
			}
			_, err := fmt.Fprintf(a.Stdout, "%s %s %s/%s\n", text, v.Go, v.OS, v.Arch)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
