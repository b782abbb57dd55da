package cmdline

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
)

// A FlagValue is a flag with its value and the values that this overrides.
type FlagValue struct {
	Flag     string   `json:"flag"`
	Commands []string `json:"commands,omitempty"` // commands with this value; empty: all that have the flag
	Placed
	Beaten []Placed `json:"beaten,omitempty"` // overridden values, the nearest layer first
}

// Placed is a value and its place.
type Placed struct {
	Values []string      `json:"values"` // one value, or any number for a list
	Source config.Source `json:"source"`
}

// BuiltIn reports whether nothing set the flag.
func (f FlagValue) BuiltIn() bool { return f.Source.Layer == config.BuiltIn && len(f.Beaten) == 0 }

// A Below returns the value of a flag that no layer sets, and the place of that value. ""
// means the built-in default.
type Below func(l *Line, flag string) (value string, from config.Source)

// Explain returns the flags of each command, with their values, as if that command were
// typed with the line's global flags. The parameter path names one command; "" means all.
// The result commands is the number of commands.
func (p Program) Explain(l *Line, path string, below Below) (flags []FlagValue, commands int, err error) {
	var paths []string
	Walk(p.App.Commands, func(name string, c *cli.Command) {
		paths = append(paths, name)
		if IsGroup(c) || path != "" && path != name {
			return
		}
		commands++
		of, wrong := p.explainOne(l, name, below)
		err = errors.Join(err, wrong)
		for _, f := range of {
			flags = merge(flags, f, name)
		}
	})
	if commands == 0 {
		return nil, 0, noCommand(p.Rules, l, path, paths)
	}
	return flags, commands, err
}

// noCommand returns the error for a path that names a group or no command.
func noCommand(rules Rules, l *Line, path string, paths []string) error {
	if slices.Contains(paths, path) {
		var inside []string
		for _, name := range paths {
			if rest, ok := strings.CutPrefix(name, path+" "); ok {
				inside = append(inside, rest)
			}
		}
		return &UsageError{Err: fmt.Errorf("%s %s is a group of commands: name one of them", l.program, path), Advice: "they are: " + strings.Join(inside, ", ")}
	}
	err := Usagef("unknown command %q", path)
	if s := rules.nearest(path, paths); s != "" {
		err.Advice = "did you mean: " + l.Name() + " " + s
	}
	return err
}

// merge adds a flag of a command. If other commands have the flag with the same values, it
// adds the command to their entry.
func merge(flags []FlagValue, f FlagValue, command string) []FlagValue {
	for i := range flags {
		if o := &flags[i]; o.Flag == f.Flag && fmt.Sprint(o.Placed, o.Beaten) == fmt.Sprint(f.Placed, f.Beaten) {
			o.Commands = append(o.Commands, command)
			return flags
		}
	}
	f.Commands = []string{command}
	return append(flags, f)
}

// explainOne is Explain for one command.
func (p Program) explainOne(outer *Line, path string, below Below) ([]FlagValue, error) {
	l := &Line{program: p.App.Name, Values: map[string]string{}, Path: strings.Fields(path)}
	for _, f := range p.App.Flags {
		if typed, ok := outer.Values[Name(f)]; ok {
			l.Values[Name(f)] = typed
		}
	}
	levels := []*level{{flags: p.App.Flags}}
	for i := range l.Path {
		levels = append(levels, levelOf(FindCommand(p.App.Commands, l.Path[:i+1]...)))
	}
	l.fill(p.Rules, levels, outer.Layers)
	if err := l.Refusal(); err != nil {
		return nil, err
	}
	var all []FlagValue
	seen := map[string]bool{}
	for _, level := range slices.Backward(levels) {
		for _, f := range level.flags {
			if seen[Name(f)] || p.Rules.Never[Name(f)] != "" && Name(f) != "profile" {
				continue
			}
			seen[Name(f)] = true
			all = append(all, explainFlag(l, path, f, below))
		}
	}
	slices.SortFunc(all, func(a, b FlagValue) int { return strings.Compare(a.Flag, b.Flag) })
	return all, nil
}

func explainFlag(l *Line, path string, f cli.Flag, below Below) FlagValue {
	v := FlagValue{Flag: Name(f)}
	for _, s := range l.Layers.of(path, f) {
		v.Beaten = append(v.Beaten, Placed{s.Values, s.Source})
	}
	chosen, set := l.From[v.Flag]
	switch typed, ok := l.Values[v.Flag]; {
	case ok:
		v.Placed = Placed{[]string{typed}, config.Source{Layer: config.CommandLine}}
	case set:
		v.Placed, v.Beaten = Placed{chosen.Values, chosen.Source}, v.Beaten[1:]
	default:
		v.Placed = Placed{[]string{builtIn(f)}, config.Source{Layer: config.BuiltIn}}
		if value, from := below(l, v.Flag); value != "" {
			v.Placed = Placed{[]string{value}, from}
		}
	}
	if v.Values == nil {
		v.Values = []string{}
	}
	return v
}

func builtIn(f cli.Flag) string {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	return strings.Trim(d.GetDefaultText(), `"`)
}

// FlagTable writes flags as a table. commands is the number of commands. If it is more than
// 0, the first column has each flag's commands.
func FlagTable(flags []FlagValue, commands int) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	head := "FLAG\tVALUE\tFROM"
	if commands > 0 {
		head = "COMMAND\t" + head
	}
	fmt.Fprintln(w, head)
	for _, f := range flags {
		if commands > 0 {
			fmt.Fprint(w, commandsText(f.Commands, commands)+"\t")
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

// commandsText names the commands of a line of the table.
func commandsText(commands []string, all int) string {
	const most = 3
	switch n := len(commands); {
	case n == all || n == 0:
		return "all"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(commands[:most], ", "), n-most)
	}
	return strings.Join(commands, ", ")
}
