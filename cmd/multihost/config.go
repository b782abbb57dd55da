package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/options"
	"multihost/internal/stage"

	"github.com/urfave/cli/v2"
)

func configCommand() *cli.Command {
	return group(cli.Command{
		Name:  "config",
		Usage: "show where the defaults of flags come from",
		Subcommands: []*cli.Command{command(cli.Command{
			Name:      "show",
			Usage:     "say which value each flag has and from where: files, environment, gcloud",
			ArgsUsage: "[COMMAND]",
			Description: `The first of these that sets a flag counts:

  1. the command line
  2. the environment variable MULTIHOST_FLAG_<NAME>
  3. multihost.yaml in this directory, or in the nearest directory above that has one
  4. your own file, $XDG_CONFIG_HOME/multihost/config.yaml (~/.config)
  5. gcloud's configuration, for project, zone and access token
  6. the default that is built in

In a file, the chosen profile overrides the rest. The section of a command
overrides the values for all commands. See docs/configuration.md.

  multihost config show
  multihost config show qr create --all`,
			Flags: []cli.Flag{
				&cli.BoolFlag{Name: "all", Usage: "show flags that have their built-in default, too"},
			},
			Action: act(configShow),
		}, exitOK, exitUsage, exitConfig)},
	})
}

func configShow(c *call) error {
	if c.Dashed {
		c.Refuse(usagef("multihost config show takes nothing after --"), cmdline.Dashes)
	}
	m := options.Machine{Lookup: c.lookup, Home: c.home}
	options.CheckGcloud(&c.Call, m)
	if err := ready(c); err != nil {
		return err
	}
	shown, err := options.Explain(&c.Call, m, c.program())
	if err != nil {
		return err
	}
	return show(c, event.Result{Name: "config", Text: shown.String(), Data: shown})
}

//go:embed init.yaml
var initText string

func initCommand() *cli.Command {
	return command(cli.Command{
		Name:  "init",
		Usage: "write a multihost.yaml with comments, for defaults of flags",
		Description: `Writes multihost.yaml into this directory or, with --own, your own file. All of
it is commented out: nothing changes before you edit it. An existing file is left
as it is.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "own", Usage: "write your own file, which counts in every directory"},
		},
		Action: act(func(c *call) error {
			c.NoWords()
			if err := ready(c); err != nil {
				return err
			}
			path, mode := filepath.Join(c.dir, config.ProjectFile), fs.FileMode(0o644)
			if c.Bool("own") {
				path, mode = config.UserFile(c.lookup, c.home), 0o600
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					return &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err}
				}
			}
			err := config.WriteNew(path, initText, mode)
			if errors.Is(err, fs.ErrExist) {
				return &usageError{Err: fmt.Errorf("%s is there already, and left as it is", path), Advice: "see what it sets: multihost config show"}
			}
			if err != nil {
				return &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err}
			}
			return show(c, event.Result{Name: "init", Data: writtenFile{path},
				Text: "wrote " + path + "\nedit it, then see what holds: multihost config show\n"})
		}),
	}, exitOK, exitUsage, exitIO)
}

// writtenFile is the result of init.
type writtenFile struct {
	Path string `json:"path"`
}
