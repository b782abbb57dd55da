package options

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"multihost/internal/cmdline"
	"multihost/internal/config"
)

// Defaults say which value each flag has and where it comes from, as config show prints
// them.
type Defaults struct {
	Command     string              `json:"command,omitempty"`
	ProjectFile string              `json:"project_file,omitempty"`
	UserFile    string              `json:"user_file"`
	UserExists  bool                `json:"user_file_exists"`
	Profile     string              `json:"profile,omitempty"`
	Profiles    []string            `json:"profiles"`
	Gcloud      string              `json:"gcloud_configuration"`
	Flags       []cmdline.FlagValue `json:"flags"`

	from     config.Source       // source of the profile
	told     []cmdline.FlagValue // values for String to show
	commands int                 // number of the program's commands
}

// CheckGcloud refuses a configuration of gcloud that cannot be read.
func CheckGcloud(c *Call, m Machine) {
	if _, err := loadGcloud(c.Line, m); err != nil {
		c.Refuse(&cmdline.ConfigError{Err: err}, "configuration")
	}
}

// loadGcloud reads the configuration of gcloud for a command line.
func loadGcloud(l *cmdline.Line, m Machine) (config.Gcloud, error) {
	return config.LoadGcloud(m.Lookup, m.Home, cmp.Or(l.Values["configuration"], l.Setting("configuration")))
}

// Explain returns the values of flags. The words of c name a command of p, whose flags are
// shown. Without words, the flags of all commands are shown. With --all, String also shows
// the built-in values.
func Explain(c *Call, m Machine, p cmdline.Program) (Defaults, error) {
	path := strings.Join(c.Words, " ")
	d := Defaults{Command: path, UserFile: config.UserFile(m.Lookup, m.Home), Profiles: []string{}}
	if files := c.Layers.Files; files != nil {
		d.ProjectFile, d.UserExists = files.Project, files.User != ""
		d.Profile, d.from = files.Profile, files.ProfileSource
		d.Profiles = append(d.Profiles, files.Profiles()...)
	}
	flags, commands, err := p.Explain(c.Line, path, func(l *cmdline.Line, flag string) (value string, from config.Source) {
		return d.ofGcloud(l, m, flag)
	})
	if err != nil {
		return d, err
	}
	set := slices.DeleteFunc(slices.Clone(flags), cmdline.FlagValue.BuiltIn)
	d.Flags, d.told, d.commands = flags, set, commands
	if path == "" {
		d.Flags = slices.Clone(set)
	}
	if c.Bool("all") {
		d.told = slices.Clone(d.Flags)
	}
	for i := range d.Flags {
		if path != "" || len(d.Flags[i].Commands) == commands {
			d.Flags[i].Commands = nil
		}
	}
	return d, nil
}

// ofGcloud returns a flag's value in gcloud's configuration and its source, or "".
func (d *Defaults) ofGcloud(l *cmdline.Line, m Machine, flag string) (value string, from config.Source) {
	field := gcloudFields[flag]
	if field == "" {
		return "", from
	}
	g, err := loadGcloud(l, m)
	if err != nil { // reported by CheckGcloud
		return "", from
	}
	d.Gcloud = g.Configuration
	return map[string]string{"Project": g.Project, "Zone": g.Zone, "AccessTokenFile": g.AccessTokenFile}[field],
		config.Source{Layer: config.GcloudLayer, Text: g.Source[field]}
}

// String returns the defaults for people: the sources, then a table of the values.
func (d Defaults) String() string {
	var b strings.Builder
	user := d.UserFile
	if !d.UserExists {
		user += " (not there)"
	}
	fmt.Fprintf(&b, "project file: %s\nuser file:    %s\n", cmp.Or(d.ProjectFile, "none"), user)
	fmt.Fprintf(&b, "profile:      %s", cmp.Or(d.Profile, "none"))
	if d.from.Line > 0 {
		fmt.Fprintf(&b, " (%s)", d.from)
	}
	if len(d.Profiles) > 0 {
		fmt.Fprintf(&b, "; there are: %s", strings.Join(d.Profiles, ", "))
	}
	fmt.Fprintf(&b, "\ngcloud:       %s\n\n", cmp.Or(d.Gcloud, "none"))
	if len(d.told) == 0 {
		b.WriteString("no flag is set; a file to set some in: multihost init\n")
		return b.String()
	}
	commands := d.commands
	if d.Command != "" {
		commands = 0
	}
	b.WriteString(cmdline.FlagTable(d.told, commands))
	return b.String()
}
