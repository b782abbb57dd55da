package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/job"
	"multihost/internal/tpu"
)

func (p *program) configCommand() *cli.Command {
	return p.group(cli.Command{
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

In a file, the profile asked for counts before the rest, and the part of a
command before what stands there for all commands. See docs/configuration.md.

  multihost config show
  multihost config show qr create --all`,
			Flags: []cli.Flag{
				&cli.BoolFlag{Name: "all", Usage: "show flags that have their built-in default, too"},
			},
			Action: p.configShow,
		}, exitOK, exitUsage, exitConfig)},
	})
}

// shownConfig is the result of config show.
type shownConfig struct {
	Command     string        `json:"command,omitempty"`
	ProjectFile string        `json:"project_file,omitempty"`
	UserFile    string        `json:"user_file"`
	UserExists  bool          `json:"user_file_exists"`
	Profile     string        `json:"profile,omitempty"`
	Profiles    []string      `json:"profiles"`
	Gcloud      string        `json:"gcloud_configuration"`
	Flags       []shownFlag   `json:"flags"`
	from        config.Source // of the profile
}

// shownFlag is one flag with the value in force and the values that it overrides.
type shownFlag struct {
	Flag     string   `json:"flag"`
	Commands []string `json:"commands,omitempty"` // commands with this value; empty: all that take it
	shownValue
	Beaten []shownValue `json:"beaten,omitempty"` // overridden values, the nearest layer first
}

type shownValue struct {
	Values []string      `json:"values"` // one value; for a list any number
	Source config.Source `json:"source"`
}

func (p *program) configShow(c *cli.Context) error {
	if p.inv.dashed {
		p.inv.refuse(usagef("multihost config show takes nothing after --"), dashes)
	}
	if _, err := p.loadGcloud(p.inv); err != nil {
		p.inv.refuse(&configError{err: err, hint: hintOf(err)}, "configuration")
	}
	if err := p.ready(c); err != nil {
		return err
	}
	path := strings.Join(p.inv.positionals, " ")
	files := p.inv.layers.files
	shown := shownConfig{Command: path, UserFile: config.UserFile(p.lookup, p.home), Profiles: []string{}, Flags: []shownFlag{}}
	if files != nil {
		shown.ProjectFile, shown.UserExists = files.Project, files.User != ""
		shown.Profile, shown.from = files.Profile, files.ProfileSource
		shown.Profiles = append(shown.Profiles, files.Profiles()...)
	}
	leaves := 0
	var paths []string
	var wrong error
	walkCommands(c.App.Commands, "", func(name string, cmd *cli.Command) {
		paths = append(paths, name)
		if isGroup(cmd) || path != "" && path != name {
			return
		}
		leaves++
		flags, err := p.valuesOf(c.App, name, &shown.Gcloud)
		wrong = errors.Join(wrong, err)
		for _, f := range flags {
			shown.add(f, name)
		}
	})
	if wrong != nil {
		return wrong
	}
	if leaves == 0 {
		if slices.Contains(paths, path) {
			var inside []string
			for _, name := range paths {
				if rest, ok := strings.CutPrefix(name, path+" "); ok {
					inside = append(inside, rest)
				}
			}
			return &usageError{err: fmt.Errorf("multihost %s is a group of commands: name one of them", path), hint: "they are: " + strings.Join(inside, ", ")}
		}
		err := usagef("unknown command %q", path)
		if s := tpu.Suggest(path, paths); s != "" {
			err.hint = "did you mean: multihost config show " + s
		}
		return err
	}
	if path != "" {
		for i := range shown.Flags {
			shown.Flags[i].Commands = nil
		}
	} else {
		shown.Flags = slices.DeleteFunc(shown.Flags, shownFlag.builtIn)
	}
	text := shown
	if !c.Bool("all") {
		text.Flags = slices.DeleteFunc(slices.Clone(shown.Flags), shownFlag.builtIn)
	}
	for i := range shown.Flags {
		if len(shown.Flags[i].Commands) == leaves {
			shown.Flags[i].Commands = nil
		}
	}
	return p.show(c, event.Result{Name: "config", Text: text.text(leaves), Data: shown})
}

// builtIn reports whether nothing set the flag.
func (f shownFlag) builtIn() bool { return f.Source.Layer == config.BuiltIn && len(f.Beaten) == 0 }

// add adds a flag of command. If other commands have it with the same values, it adds
// command to their entry.
func (s *shownConfig) add(f shownFlag, command string) {
	for i := range s.Flags {
		if o := &s.Flags[i]; o.Flag == f.Flag && fmt.Sprint(o.shownValue, o.Beaten) == fmt.Sprint(f.shownValue, f.Beaten) {
			o.Commands = append(o.Commands, command)
			return
		}
	}
	f.Commands = []string{command}
	s.Flags = append(s.Flags, f)
}

// valuesOf returns the flags that a command would have if it were typed here.
func (p *program) valuesOf(app *cli.App, path string, configuration *string) ([]shownFlag, error) {
	inv := &invocation{values: map[string]string{}}
	for _, f := range app.Flags {
		if typed, ok := p.inv.values[f.Names()[0]]; ok {
			inv.values[f.Names()[0]] = typed
		}
	}
	levels := []*level{{flags: app.Flags}}
	commands := app.Commands
	for _, word := range strings.Fields(path) {
		cmd := findCommand(commands, word)
		levels = append(levels, &level{name: cmd.Name, flags: cmd.Flags})
		inv.path, commands = append(inv.path, cmd.Name), cmd.Subcommands
	}
	inv.fill(levels, p.inv.layers)
	if err := inv.refusal(); err != nil {
		return nil, err
	}
	var all []shownFlag
	seen := map[string]bool{}
	for _, l := range slices.Backward(levels) {
		for _, f := range l.flags {
			name := f.Names()[0]
			if seen[name] || neverInFiles[name] != "" && name != "profile" {
				continue
			}
			seen[name] = true
			all = append(all, p.valueOf(inv, path, f, configuration))
		}
	}
	slices.SortFunc(all, func(a, b shownFlag) int { return strings.Compare(a.Flag, b.Flag) })
	return all, nil
}

func (p *program) valueOf(inv *invocation, path string, f cli.Flag, configuration *string) shownFlag {
	name := f.Names()[0]
	shown := shownFlag{Flag: name}
	for _, s := range inv.layers.of(path, f) {
		shown.Beaten = append(shown.Beaten, shownValue{s.Values, s.Source})
	}
	chosen, set := inv.from[name]
	switch typed, ok := inv.values[name]; {
	case ok:
		shown.shownValue = shownValue{[]string{typed}, config.Source{Layer: config.CommandLine}}
	case set:
		shown.shownValue, shown.Beaten = shownValue{chosen.Values, chosen.Source}, shown.Beaten[1:]
	default:
		shown.shownValue = shownValue{[]string{defaultOf(f)}, config.Source{Layer: config.BuiltIn}}
		if value, from := p.gcloudValue(inv, name, configuration); value != "" {
			shown.shownValue = shownValue{[]string{value}, config.Source{Layer: config.GcloudLayer, Text: from}}
		}
	}
	if shown.Values == nil {
		shown.Values = []string{}
	}
	return shown
}

func defaultOf(f cli.Flag) string {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	return strings.Trim(d.GetDefaultText(), `"`)
}

// gcloudValue returns a flag's value in gcloud's configuration and where that comes from,
// or "".
func (p *program) gcloudValue(inv *invocation, flag string, configuration *string) (value, from string) {
	field := gcloudFields[flag]
	if field == "" {
		return "", ""
	}
	g, err := p.loadGcloud(inv)
	if err != nil { // configShow has reported it
		return "", ""
	}
	*configuration = g.Configuration
	return map[string]string{"Project": g.Project, "Zone": g.Zone, "AccessTokenFile": g.AccessTokenFile}[field], g.Source[field]
}

// loadGcloud reads the gcloud configuration that a command would use.
func (p *program) loadGcloud(inv *invocation) (config.Gcloud, error) {
	name := inv.values["configuration"]
	if s := inv.from["configuration"]; name == "" && len(s.Values) > 0 {
		name = s.Values[0]
	}
	return config.LoadGcloud(p.lookup, p.home, name)
}

// gcloudFields lists the flags for which gcloud's configuration has a value.
var gcloudFields = map[string]string{"project": "Project", "zone": "Zone", "access-token-file": "AccessTokenFile"}

func (s shownConfig) text(leaves int) string {
	var b strings.Builder
	orNone := func(path, why string) string {
		if path == "" {
			return "none"
		}
		return path + why
	}
	missing := ""
	if !s.UserExists {
		missing = " (not there)"
	}
	fmt.Fprintf(&b, "project file: %s\nuser file:    %s\n", orNone(s.ProjectFile, ""), s.UserFile+missing)
	fmt.Fprintf(&b, "profile:      %s", orNone(s.Profile, ""))
	if s.from.Line > 0 {
		fmt.Fprintf(&b, " (%s)", s.from)
	}
	if len(s.Profiles) > 0 {
		fmt.Fprintf(&b, "; there are: %s", strings.Join(s.Profiles, ", "))
	}
	fmt.Fprintf(&b, "\ngcloud:       %s\n\n", orNone(s.Gcloud, ""))
	if len(s.Flags) == 0 {
		b.WriteString("no flag is set; a file to set some in: multihost init\n")
		return b.String()
	}
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	head := "FLAG\tVALUE\tFROM"
	if s.Command == "" {
		head = "COMMAND\t" + head
	}
	fmt.Fprintln(w, head)
	for _, f := range s.Flags {
		if s.Command == "" {
			fmt.Fprint(w, commandsText(f.Commands, leaves)+"\t")
		}
		from := sourceText(f.Source)
		for _, v := range f.Beaten {
			from += ", over " + strings.Join(v.Values, " ") + " of " + sourceText(v.Source)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Flag, strings.Join(f.Values, " "), from)
	}
	w.Flush()
	return b.String()
}

func sourceText(s config.Source) string {
	text := string(s.Layer)
	if place := s.String(); place != text {
		text += " " + place
	}
	if s.Profile != "" {
		text += " (profile " + s.Profile + ")"
	}
	return text
}

// commandsText names the commands that a line of config show covers.
func commandsText(commands []string, leaves int) string {
	const most = 3
	switch n := len(commands); {
	case n == leaves || n == 0:
		return "all"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(commands[:most], ", "), n-most)
	}
	return strings.Join(commands, ", ")
}

//go:embed init.yaml
var initText string

func (p *program) initCommand() *cli.Command {
	return command(cli.Command{
		Name:  "init",
		Usage: "write a multihost.yaml with comments, for defaults of flags",
		Description: `Writes multihost.yaml into this directory or, with --own, your own file. All of
it is commented out: nothing changes before you edit it. An existing file is left
as it is.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "own", Usage: "write your own file, which counts in every directory"},
		},
		Action: func(c *cli.Context) error {
			p.noArguments("multihost init")
			if err := p.ready(c); err != nil {
				return err
			}
			path, mode := filepath.Join(p.dir, config.ProjectFile), fs.FileMode(0o644)
			if c.Bool("own") {
				path, mode = config.UserFile(p.lookup, p.home), 0o600
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					return &job.Error{Stage: job.StageLocal, Text: err.Error(), Err: err}
				}
			}
			err := writeNew(path, initText, mode)
			if errors.Is(err, fs.ErrExist) {
				return &usageError{err: fmt.Errorf("%s is there already, and left as it is", path), hint: "see what it sets: multihost config show"}
			}
			if err != nil {
				return &job.Error{Stage: job.StageLocal, Text: err.Error(), Err: err}
			}
			return p.show(c, event.Result{Name: "init", Data: writtenFile{path},
				Text: "wrote " + path + "\nedit it, then see what holds: multihost config show\n"})
		},
	}, exitOK, exitUsage, exitIO)
}

// writtenFile is the result of init.
type writtenFile struct {
	Path string `json:"path"`
}

// writeNew writes a new file. It is an error if the file exists.
func writeNew(path, text string, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
