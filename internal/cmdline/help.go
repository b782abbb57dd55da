package cmdline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/help"
)

// A HelpLevel says how much help a command line asks for.
type HelpLevel uint8

const (
	NoHelp    HelpLevel = iota
	ShortHelp           // the flags that most users need
	FullHelp            // every flag with all of its names
)

// askedHelp returns how much help a word of the command line asks for: --help or -h, with
// or without a value. For every other word it returns NoHelp. The parameter typed has the
// command before the word.
func askedHelp(word, typed string) (HelpLevel, error) {
	name, value, valued := strings.Cut(word, "=")
	switch {
	case name != "--help" && name != "-h":
		return NoHelp, nil
	case !valued:
		return ShortHelp, nil
	case value == "all":
		return FullHelp, nil
	}
	return NoHelp, &UsageError{Err: fmt.Errorf("%s: only all may follow %s=", word, name),
		Advice: fmt.Sprintf("type: %s --help, or: %[1]s --help=all", typed)}
}

// everyTitle is the title of the section of flags of every command.
const everyTitle = "flags of every command"

// Page returns the help of a command, or of the program if path is empty.
func (p Program) Page(path []string, level HelpLevel) help.Page {
	app := p.App
	c := &cli.Command{Usage: app.Usage, Description: app.Description, Subcommands: app.Commands}
	if len(path) > 0 {
		c = FindCommand(app.Commands, path...)
	}
	typed := strings.Join(append([]string{app.Name}, path...), " ")
	page := help.Page{Name: typed, Usage: c.Usage, Synopsis: strings.TrimSpace("[FLAG…] " + c.ArgsUsage)}
	if IsGroup(c) {
		page.Synopsis = "COMMAND [FLAG…]"
	}
	page.Text, page.End = splitExit(c.Description)
	page.Commands = p.Rules.Help.commandSections(path, c.Subcommands)
	var left int
	page.Flags, left = p.Rules.Help.flagSections(path, c.Flags, app.Flags, level)
	page.End = strings.TrimSpace(page.End + "\n" + p.Rules.Help.more(app.Name, path, left, level))
	return page
}

// splitExit splits a description before its section of exit statuses.
func splitExit(description string) (text, exit string) {
	if text, exit, found := strings.Cut(description, ExitHeading); found {
		return strings.TrimRight(text, "\n"), ExitHeading + exit
	}
	return description, ""
}

// more says how to see the flags that a page omits. The parameter left has the number of
// the command's omitted flags. The page may also omit the flags of every command.
func (r HelpRules) more(program string, path []string, left int, level HelpLevel) string {
	_, grouped := r.Common[strings.Join(path, " ")]
	typed := strings.Join(append([]string{program}, path...), " ")
	switch {
	case level == FullHelp && len(path) > 0:
		return ""
	case level == FullHelp:
		return program + " COMMAND --help shows the flags of a command."
	case len(path) == 0:
		return fmt.Sprintf("%s COMMAND --help shows the flags of a command.\n%[1]s --help=all shows %s of every command.", program, event.Count(left, "more flag"))
	case grouped:
		return fmt.Sprintf("%s --help=all shows %s, and all names of each flag.", typed, event.Count(left, "more flag"))
	case left > 0:
		return fmt.Sprintf("%s --help=all shows %s, and the flags of every command.", typed, event.Count(left, "more flag"))
	}
	return typed + " --help=all also shows the flags of every command."
}

// commandSections returns the commands below a command.
func (r HelpRules) commandSections(path []string, commands []*cli.Command) (all []help.Section) {
	if len(path) > 0 {
		if rows := commandRows(commands); rows != nil {
			all = []help.Section{{Title: "commands", Rows: rows}}
		}
		return all
	}
	for _, g := range r.Commands {
		var members []*cli.Command
		for _, name := range g.Commands {
			if c := FindCommand(commands, name); c != nil {
				members = append(members, c)
			}
		}
		all = append(all, help.Section{Title: g.Title, Rows: commandRows(members)})
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

// flagSections returns the flags of a page, and the number of the command's omitted flags.
func (r HelpRules) flagSections(path []string, own, global []cli.Flag, level HelpLevel) (sections []help.Section, left int) {
	global = slices.DeleteFunc(slices.Clone(global), func(f cli.Flag) bool {
		return slices.ContainsFunc(own, func(o cli.Flag) bool { return Name(o) == Name(f) })
	})
	all := level == FullHelp
	if common, grouped := r.Common[strings.Join(path, " ")]; grouped {
		groups := slices.Insert(slices.Clone(r.Groups), 0, help.Group{Title: "common flags", Shown: common})
		sections, rest := help.Sections(FlagRows(slices.Concat(own, global)), groups, all)
		if len(path) == 0 { // a few flags, each from a different group
			sections = []help.Section{{Title: everyTitle, Rows: append(rowsOf(sections), help.Rows([]help.Flag{helpFlag}, all)...)}}
		}
		return sections, len(rest)
	}
	apart, rest := help.Sections(FlagRows(own), r.Apart, all)
	shown := rest
	if !all { // the other sections have the rest
		_, shown = help.Sections(rest, r.Apart, true)
	}
	if left = len(rest) - len(shown); len(shown) > 0 {
		sections = append(sections, help.Section{Title: "flags", Rows: help.Rows(shown, all)})
	}
	sections = append(sections, apart...)
	if all {
		sections = append(sections, help.Section{Title: everyTitle, Rows: help.Rows(EveryRow(global), all)})
	}
	return sections, left
}

func rowsOf(sections []help.Section) (rows []help.Row) {
	for _, s := range sections {
		rows = append(rows, s.Rows...)
	}
	return rows
}

// helpFlag describes --help. No command declares it, because Parse reads it.
var helpFlag = help.Flag{Names: []string{"--help", "-h"}, Value: "all", Optional: true, Text: "show help; all: with every flag and all of its names"}

// EveryRow lists the flags of every command, with --help.
func EveryRow(global []cli.Flag) []help.Flag { return append(FlagRows(global), helpFlag) }

// FlagRows describes the visible flags, for help and documents.
func FlagRows(flags []cli.Flag) (rows []help.Flag) {
	for _, f := range flags {
		if d, ok := f.(cli.DocGenerationFlag); ok && !isHidden(f) {
			rows = append(rows, flagRow(f, d))
		}
	}
	return rows
}

func flagRow(f cli.Flag, d cli.DocGenerationFlag) help.Flag {
	row := help.Flag{Text: strings.ReplaceAll(d.GetUsage(), "`", ""), Optional: KindOf(f) == config.Optional}
	for _, n := range Names(f) {
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
	row.Default = shownDefault(d.GetDefaultText())
	if strings.Contains(row.Text, "default: ") { // the text itself says what happens without the flag
		row.Default = ""
	}
	if KindOf(f) == config.List {
		row.Text += "; may be repeated"
	}
	return row
}

// shownDefault returns a default in help's form: "" for an empty one, and a time without
// units of 0: 10m, not 10m0s.
func shownDefault(text string) string {
	switch text {
	case `""`, "false", "0s":
		return ""
	}
	text = strings.Trim(text, `"`)
	for _, zero := range []string{"m0s", "h0m"} {
		if short, found := strings.CutSuffix(text, zero); found {
			text = short + zero[:1]
		}
	}
	return text
}

// ManualPages returns the manual pages of all commands, by file name.
func (p Program) ManualPages() map[string]string {
	app := p.App
	page := func(typed, usage, words, description string, flags []help.Flag, below []*cli.Command) help.Manual {
		return help.Manual{Name: typed, Usage: usage, Synopsis: words, Text: description, Flags: flags, Commands: commandRows(below), Program: app.Name, Version: p.Version}
	}
	first := page(app.Name, app.Usage, "COMMAND [FLAG…]", app.Description, EveryRow(app.Flags), app.Commands)
	first.Environment = "Each flag takes its default from the variable " + config.FlagVariable("name") + " where that is set: " +
		"its name in upper case, with underscores for dashes."
	pages := map[string]string{app.Name + ".1": first.Roff()}
	WalkShown(app, func(typed string, c *cli.Command) {
		words := strings.TrimSpace("[FLAG…] " + c.ArgsUsage)
		pages[help.ManualName(typed)+".1"] = page(typed, c.Usage, words, c.Description, FlagRows(c.Flags), c.Subcommands).Roff()
	})
	return pages
}
