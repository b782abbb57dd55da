package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/help"
)

func (p *program) manualCommand() *cli.Command {
	return command(cli.Command{
		Name:      "manual",
		Usage:     "write the manual pages, one for each command",
		ArgsUsage: "DIR",
		Description: `Writes multihost.1, multihost-run.1 and so on into a directory that man(1) looks
into, and makes it if need be:

  multihost manual ~/.local/share/man/man1
  man multihost-run`,
		Action: func(c *cli.Context) error {
			dir := p.oneArgument("multihost manual", "directory")
			if err := p.ready(c); err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			pages := manualPages(p.app())
			for _, name := range slices.Sorted(maps.Keys(pages)) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(pages[name]), 0o644); err != nil {
					return err
				}
			}
			return p.said(c, fmt.Sprintf("wrote %d manual pages", len(pages)), event.Result{Name: "manual", Data: writtenPages{dir, len(pages)}})
		},
	}, exitOK, exitUsage, exitIO)
}

// walk visits the commands that are not hidden, with all below them; path is what users
// type.
func walk(commands []*cli.Command, parent string, visit func(path string, c *cli.Command)) {
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		path := parent + " " + c.Name
		visit(path, c)
		walk(c.Subcommands, path, visit)
	}
}

// flagRows lists the flags that are not hidden.
func flagRows(flags []cli.Flag) []help.Flag {
	var rows []help.Flag
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if v, hidden := f.(cli.VisibleFlag); !ok || hidden && !v.IsVisible() {
			continue
		}
		row := help.Flag{Text: strings.ReplaceAll(d.GetUsage(), "`", ""), Default: d.GetDefaultText(), Optional: kindOf(f) == config.Optional}
		for _, n := range f.Names() {
			dash := "--"
			if len(n) == 1 {
				dash = "-"
			}
			row.Names = append(row.Names, dash+n)
		}
		if _, rest, quoted := strings.Cut(d.GetUsage(), "`"); quoted {
			row.Value, _, _ = strings.Cut(rest, "`")
		} else if d.TakesValue() {
			row.Value = "VALUE"
		}
		switch row.Default {
		case `""`, "false", "0s":
			row.Default = ""
		}
		if strings.Contains(row.Text, "default: ") { // says what none stands for
			row.Default = ""
		}
		row.Default = shortTime(strings.Trim(row.Default, `"`))
		if kindOf(f) == config.List {
			row.Text += "; may be repeated"
		}
		rows = append(rows, row)
	}
	return rows
}

// writtenPages is the result of manual.
type writtenPages struct {
	Dir   string `json:"dir"`
	Pages int    `json:"pages"`
}

// manualPages returns the manual pages of all commands, by file name.
func manualPages(app *cli.App) map[string]string {
	page := func(path, usage, words, description string, flags []help.Flag, below []*cli.Command) help.Manual {
		return help.Manual{Name: path, Usage: usage, Synopsis: words, Text: description, Flags: flags, Commands: commandRows(below), Program: "multihost", Version: version()}
	}
	first := page("multihost", app.Usage, "COMMAND [FLAG…]", app.Description, everyRows(app.Flags), app.Commands)
	first.Environment = "Each flag takes its default from the variable MULTIHOST_FLAG_NAME where that is set: " +
		"its name in upper case, with underscores for dashes."
	pages := map[string]string{"multihost.1": first.Roff()}
	walk(app.Commands, "multihost", func(path string, c *cli.Command) {
		words := strings.TrimSpace("[FLAG…] " + c.ArgsUsage)
		pages[help.ManualName(path)+".1"] = page(path, c.Usage, words, c.Description, flagRows(c.Flags), c.Subcommands).Roff()
	})
	return pages
}
