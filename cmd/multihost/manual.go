package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/internal/event"
)

func manualCommand() *cli.Command {
	return command(cli.Command{
		Name:      "manual",
		Usage:     "write the manual pages, one for each command",
		ArgsUsage: "DIR",
		Description: `Writes multihost.1, multihost-run.1 and so on into a directory where man(1) looks
for pages, and makes the directory if it is missing:

  multihost manual ~/.local/share/man/man1
  man multihost-run`,
		Action: act(func(c *call) error {
			dir := c.OneWord("directory", "")
			if err := ready(c); err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			pages := c.program().ManualPages()
			for _, name := range slices.Sorted(maps.Keys(pages)) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(pages[name]), 0o644); err != nil {
					return err
				}
			}
			return tell(c, fmt.Sprintf("wrote %d manual pages", len(pages)), event.Result{Name: "manual", Data: writtenPages{dir, len(pages)}})
		}),
	}, exitOK, exitUsage, exitIO)
}

// writtenPages is the result of manual.
type writtenPages struct {
	Dir   string `json:"dir"`
	Pages int    `json:"pages"`
}
