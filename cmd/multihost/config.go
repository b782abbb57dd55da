package main

import (
	"cmp"

	"multihost/internal/stage"

	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/event"
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
  3. multihost.yaml in this directory or the nearest one above that has one
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

// shownConfig is the result of config show.
type shownConfig struct {
	Command     string              `json:"command,omitempty"`
	ProjectFile string              `json:"project_file,omitempty"`
	UserFile    string              `json:"user_file"`
	UserExists  bool                `json:"user_file_exists"`
	Profile     string              `json:"profile,omitempty"`
	Profiles    []string            `json:"profiles"`
	Gcloud      string              `json:"gcloud_configuration"`
	Flags       []cmdline.FlagValue `json:"flags"`
	from        config.Source       // of the profile
}

func configShow(c *call) error {
	if c.Dashed {
		c.Refuse(usagef("multihost config show takes nothing after --"), cmdline.Dashes)
	}
	if _, err := loadGcloud(c, c.Line); err != nil {
		c.Refuse(&configError{Err: err}, "configuration")
	}
	if err := ready(c); err != nil {
		return err
	}
	path := strings.Join(c.Words, " ")
	shown := shownConfig{Command: path, UserFile: config.UserFile(c.lookup, c.home), Profiles: []string{}}
	if files := c.Layers.Files; files != nil {
		shown.ProjectFile, shown.UserExists = files.Project, files.User != ""
		shown.Profile, shown.from = files.Profile, files.ProfileSource
		shown.Profiles = append(shown.Profiles, files.Profiles()...)
	}
	flags, commands, err := c.program().Explain(c.Line, path, func(l *cmdline.Line, flag string) (value string, from config.Source) {
		return gcloudValue(c, l, flag, &shown.Gcloud)
	})
	if err != nil {
		return err
	}
	set := slices.DeleteFunc(slices.Clone(flags), cmdline.FlagValue.BuiltIn)
	shown.Flags = flags
	if path == "" {
		shown.Flags = slices.Clone(set)
	}
	inText := set
	if c.Bool("all") {
		inText = slices.Clone(shown.Flags)
	}
	for i := range shown.Flags {
		if path != "" || len(shown.Flags[i].Commands) == commands {
			shown.Flags[i].Commands = nil
		}
	}
	return show(c, event.Result{Name: "config", Text: shown.text(inText, commands), Data: shown})
}

// gcloudValue returns a flag's value in gcloud's configuration and where that comes from,
// or "".
func gcloudValue(c *call, l *cmdline.Line, flag string, configuration *string) (value string, from config.Source) {
	field := gcloudFields[flag]
	if field == "" {
		return "", from
	}
	g, err := loadGcloud(c, l)
	if err != nil { // configShow has reported it
		return "", from
	}
	*configuration = g.Configuration
	return map[string]string{"Project": g.Project, "Zone": g.Zone, "AccessTokenFile": g.AccessTokenFile}[field],
		config.Source{Layer: config.GcloudLayer, Text: g.Source[field]}
}

// loadGcloud reads the gcloud configuration that a command would use.
func loadGcloud(c *call, l *cmdline.Line) (config.Gcloud, error) {
	name := l.Values["configuration"]
	if name == "" {
		name = l.Setting("configuration")
	}
	return config.LoadGcloud(c.lookup, c.home, name)
}

// gcloudFields lists the flags for which gcloud's configuration has a value.
var gcloudFields = map[string]string{"project": "Project", "zone": "Zone", "access-token-file": "AccessTokenFile"}

func (s shownConfig) text(flags []cmdline.FlagValue, commands int) string {
	var b strings.Builder
	user := s.UserFile
	if !s.UserExists {
		user += " (not there)"
	}
	fmt.Fprintf(&b, "project file: %s\nuser file:    %s\n", cmp.Or(s.ProjectFile, "none"), user)
	fmt.Fprintf(&b, "profile:      %s", cmp.Or(s.Profile, "none"))
	if s.from.Line > 0 {
		fmt.Fprintf(&b, " (%s)", s.from)
	}
	if len(s.Profiles) > 0 {
		fmt.Fprintf(&b, "; there are: %s", strings.Join(s.Profiles, ", "))
	}
	fmt.Fprintf(&b, "\ngcloud:       %s\n\n", cmp.Or(s.Gcloud, "none"))
	if len(flags) == 0 {
		b.WriteString("no flag is set; a file to set some in: multihost init\n")
		return b.String()
	}
	if s.Command != "" {
		commands = 0
	}
	b.WriteString(cmdline.FlagTable(flags, commands))
	return b.String()
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
