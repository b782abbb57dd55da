package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/help"
)

// helpLevel is how much help the command line asks for.
type helpLevel uint8

const (
	noHelp    helpLevel = iota
	shortHelp           // the flags that most users need
	fullHelp            // every flag with all of its names
)

// askedHelp reads a word of the command line that asks for help, with or without a value;
// noHelp means that the word does not.
func askedHelp(word, command string) (helpLevel, error) {
	name, value, valued := strings.Cut(word, "=")
	switch {
	case name != "--help" && name != "-h":
		return noHelp, nil
	case !valued:
		return shortHelp, nil
	case value == "all":
		return fullHelp, nil
	}
	return noHelp, &usageError{err: fmt.Errorf("%s: only all may follow %s=", word, name),
		hint: fmt.Sprintf("type: %s --help, or: %[1]s --help=all", command)}
}

// takeHelp reads a word that asks for help of the command at which it stands. It reports
// whether the word does.
func (inv *invocation) takeHelp(word, command string) (bool, error) {
	level, err := askedHelp(word, command)
	if err != nil {
		inv.refuse(err)
		return false, inv.refusal()
	}
	if level != noHelp && inv.help == noHelp {
		inv.helpPath = slices.Clone(inv.path)
	}
	inv.help = max(inv.help, level)
	return level != noHelp, nil
}

// commandGroups are the commands by what one wants to do, those that few need last.
var commandGroups = []struct {
	title    string
	commands []string
}{
	{"make slices", []string{"network", "qr"}},
	{"run a command on all workers", []string{"run", "job"}},
	{"follow and end runs", []string{"ps", "attach", "logs", "stop"}},
	{"see how a run goes", []string{"top", "metrics", "report", "dump"}},
	{"work on workers by hand", []string{"ssh", "exec", "cp", "preflight"}},
	{"find what is wrong or left", []string{"doctor", "gc"}},
	{"set up multihost", []string{"init", "completion", "version"}},
	{"rarely needed", []string{"hostkey", "manual", "xla", "config", "sim"}},
}

// commonFlags stand first in the help of a command with many flags. The flags of such a
// command stand in flagGroups, together with those of every command.
var commonFlags = map[string][]string{
	"":          {},
	"run":       {"tpu-prefix", "zone", "command", "run-name", "script-dir", "env", "detach", "dry-run"},
	"job":       {"tpu-type", "num-slices", "spot", "zone", "command", "run-name", "script-dir", "dry-run"},
	"qr create": {"tpu-type", "node-count", "node-prefix", "spot", "network", "zone", "wait", "dry-run"},
}

// flagGroups are the flags of the commands in commonFlags.
var flagGroups = []help.Group{
	{
		Title: "what runs",
		Shown: []string{"command", "run-name", "env", "env-file", "secret-env", "venv", "processes-per-worker", "xla-preset", "dry-run"},
		Rest:  []string{"xla-flag", "numa"},
	},
	{
		Title: "where",
		Shown: []string{"project", "zone", "tpu-prefix", "slices", "allow-partial", "hosts", "tpu-type", "num-slices", "node-count",
			"spot", "reserved", "network", "network-create", "runtime-version", "confirm"},
		Rest: []string{"hosts-file", "node-prefix", "node-id", "type", "topology", "on-demand", "flex-start", "best-effort", "guaranteed", "provisioning-model",
			"reservation", "subnetwork", "internal-ips", "ssh-source-ranges", "configuration", "access-token-file", "platform"},
	},
	{
		Title: "code",
		Shown: []string{"script-dir", "no-ignore", "use-existing-folder", "adopt"},
		Rest:  []string{"relay", "relay-fanout", "scp-timeout-secs"},
	},
	{
		Title: "when it fails or ends",
		Shown: []string{"max-restarts", "max-preemptions", "fail-fast", "timeout", "on-interrupt", "replace", "keep-on-failure", "keep", "ttl", "lease"},
		Rest:  []string{"on-stall", "stall-timeout", "lost-timeout", "quiet-after", "grace", "kill-stale", "strict-exit", "enable-autocheckpoint", "autocheckpoint-enabled"},
	},
	{
		Title: "output",
		Shown: []string{"stream", "timestamps", "log-dir", "notify", "output", "quiet"},
		Rest:  []string{"notify-url", "max-log", "log-timeout", "metrics-regex", "cloud-logging", "upload-every", "debug", "state-dir"},
	},
	{
		Title: "advanced",
		Shown: []string{"detach", "bucket-name", "preflight", "skew", "profile", "sim"},
		Rest:  []string{"bucket-dir", "install", "config", "sim-slices", "sim-backend", "sim-step", "sim-fault", "version"},
	},
	{
		Title: "how long to wait",
		Rest:  []string{"wait", "async", "queue-timeout", "provision-timeout", "boot-timeout", "start-timeout"},
	},
	{
		Title: "the request in detail",
		Rest: []string{"cqr-extra-args", "workload-type", "reservation-host-project", "reservation-host-folder", "reservation-host-organization",
			"min-duration", "max-run-duration", "valid-after-duration", "valid-after-time", "valid-until-duration", "valid-until-time",
			"network-config", "range", "service-account", "scopes", "labels", "tags", "metadata", "metadata-from-file",
			"data-disk", "boot-disk", "shielded-secure-boot", "description"},
	},
	{
		Title: loginTitle,
		Rest:  loginFlags(),
	},
}

// whereFlags stand in a section of their own where a command has no other groups.
var whereFlags = []string{"tpu-prefix", "slices", "allow-partial", "hosts", "hosts-file", "bucket-name", "bucket-dir"}

const (
	loginTitle = "how workers are reached"
	everyTitle = "flags of every command"
)

// loginFlags returns the names of sshFlags. The short help of no command shows them.
func loginFlags() (names []string) {
	for _, f := range sshFlags() {
		names = append(names, f.Names()[0])
	}
	return names
}

// showHelp prints the help of the command with that path. A reader that has gone does not
// matter.
func showHelp(w io.Writer, lookup config.Lookup, app *cli.App, path []string, level helpLevel) {
	_, _ = io.WriteString(w, helpPage(app, path, level).Lay(columns(lookup, w)))
}

// helpPage returns the help of the command with that path.
func helpPage(app *cli.App, path []string, level helpLevel) help.Page {
	c := &cli.Command{Usage: app.Usage, Description: app.Description, Subcommands: app.Commands}
	for _, name := range path {
		c = findCommand(c.Subcommands, name)
	}
	name := strings.Join(append([]string{"multihost"}, path...), " ")
	page := help.Page{Name: name, Usage: c.Usage, Synopsis: strings.TrimSpace("[FLAG…] " + c.ArgsUsage)}
	if len(c.Subcommands) > 0 && c.ArgsUsage == "" {
		page.Synopsis = "COMMAND [FLAG…]"
	}
	page.Text, page.End = splitExit(c.Description)
	page.Commands = commandSections(path, c.Subcommands)
	var left int
	page.Flags, left = flagSections(path, c.Flags, app.Flags, level)
	page.End = strings.TrimSpace(page.End + "\n" + moreHelp(name, path, left, level))
	return page
}

// splitExit splits a description before its EXIT STATUS section.
func splitExit(description string) (text, exit string) {
	if text, exit, found := strings.Cut(description, exitHeading); found {
		return strings.TrimRight(text, "\n"), exitHeading + exit
	}
	return description, ""
}

// moreHelp says where the flags are that a page does not show: left flags of the command,
// and those of every command.
func moreHelp(name string, path []string, left int, level helpLevel) string {
	_, together := commonFlags[strings.Join(path, " ")]
	switch {
	case level == fullHelp && len(path) > 0:
		return ""
	case level == fullHelp:
		return "multihost COMMAND --help shows the flags of a command."
	case len(path) == 0:
		return fmt.Sprintf("multihost COMMAND --help shows the flags of a command.\n%s --help=all shows %s of every command.", name, event.Count(left, "more flag"))
	case together:
		return fmt.Sprintf("%s --help=all shows %s, and all names of each flag.", name, event.Count(left, "more flag"))
	case left > 0:
		return fmt.Sprintf("%s --help=all shows %s, and the flags of every command.", name, event.Count(left, "more flag"))
	}
	return name + " --help=all also shows the flags of every command."
}

// commandSections returns the commands below the command with that path.
func commandSections(path []string, commands []*cli.Command) []help.Section {
	if len(path) > 0 {
		rows := commandRows(commands)
		if rows == nil {
			return nil
		}
		return []help.Section{{Title: "commands", Rows: rows}}
	}
	var all []help.Section
	for _, g := range commandGroups {
		var members []*cli.Command
		for _, name := range g.commands {
			if c := findCommand(commands, name); c != nil {
				members = append(members, c)
			}
		}
		all = append(all, help.Section{Title: g.title, Rows: commandRows(members)})
	}
	return all
}

func commandRows(commands []*cli.Command) (rows []help.Row) {
	for _, c := range commands {
		if !c.Hidden {
			rows = append(rows, help.Row{Names: c.Names(), Text: c.Usage})
		}
	}
	return rows
}

// flagSections returns the flags that a page shows. left is how many flags of the command
// it leaves out.
func flagSections(path []string, own, global []cli.Flag, level helpLevel) (sections []help.Section, left int) {
	global = slices.DeleteFunc(slices.Clone(global), func(f cli.Flag) bool {
		return slices.ContainsFunc(own, func(o cli.Flag) bool { return o.Names()[0] == f.Names()[0] })
	})
	all := level == fullHelp
	if common, grouped := commonFlags[strings.Join(path, " ")]; grouped {
		sections, rest := help.Sections(flagRows(flags(own, global)), slices.Insert(slices.Clone(flagGroups), 0, help.Group{Title: "common flags", Shown: common}), all)
		if len(path) == 0 { // a few flags, each of another group
			var rows []help.Row
			for _, s := range sections {
				rows = append(rows, s.Rows...)
			}
			sections = []help.Section{{Title: everyTitle, Rows: append(rows, help.Rows([]help.Flag{helpFlag}, all)...)}}
		}
		return sections, len(rest)
	}
	login := help.Group{Title: loginTitle, Rest: loginFlags()}
	away, rest := help.Sections(flagRows(own), []help.Group{{Title: "where", Shown: whereFlags}, login}, all)
	left = len(rest)
	if !all { // the login flags are among the rest
		_, rest = help.Sections(rest, []help.Group{login}, true)
	}
	left -= len(rest)
	if len(rest) > 0 {
		sections = append(sections, help.Section{Title: "flags", Rows: help.Rows(rest, all)})
	}
	sections = append(sections, away...)
	if all {
		sections = append(sections, help.Section{Title: everyTitle, Rows: help.Rows(everyRows(global), all)})
	}
	return sections, left
}

// helpFlag describes --help, which no command declares: arrange reads it.
var helpFlag = help.Flag{Names: []string{"--help", "-h"}, Value: "all", Optional: true, Text: "show help; all: with every flag and all of its names"}

// everyRows lists the flags of every command, --help too.
func everyRows(global []cli.Flag) []help.Flag { return append(flagRows(global), helpFlag) }

// shortTime writes a default of a flag without units of 0: 10m, not 10m0s.
func shortTime(text string) string {
	for _, zero := range []string{"m0s", "h0m"} {
		if short, found := strings.CutSuffix(text, zero); found {
			text = short + zero[:1]
		}
	}
	return text
}
