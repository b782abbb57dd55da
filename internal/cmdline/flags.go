package cmdline

import (
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
)

// KindOf returns the kind of a flag's values.
func KindOf(f cli.Flag) config.Kind {
	switch f := f.(type) {
	case *cli.BoolFlag:
		return config.Bool
	case *cli.IntFlag:
		return config.Int
	case *cli.Float64Flag:
		return config.Float
	case *cli.DurationFlag:
		return config.Duration
	case *cli.StringSliceFlag:
		return config.List
	case *cli.GenericFlag:
		if _, ok := f.Value.(*Optional); ok {
			return config.Optional
		}
	}
	return config.Text
}

// An Optional is the value of a cli.GenericFlag whose text may be missing: --keep or
// --keep=2h.
type Optional struct {
	Text  string // "true" without a text
	Given bool
}

// Set implements flag.Value.
func (v *Optional) Set(s string) error { v.Text, v.Given = s, true; return nil }

// String implements flag.Value.
func (v *Optional) String() string { return v.Text }

func isBool(f cli.Flag) bool { return KindOf(f) == config.Bool }

// isSwitch reports whether the flag may be given without a value.
func isSwitch(f cli.Flag) bool {
	kind := KindOf(f)
	return kind == config.Bool || kind == config.Optional
}

// Names returns the flag's names, the first one first. For the types that commands use it
// reads the fields: the method Names of a [cli.Flag] searches each name with a regular
// expression, which was a quarter of the time of a short command.
func Names(f cli.Flag) []string {
	first, aliases := fieldsOf(f)
	if first == "" {
		return f.Names()
	}
	return slices.Concat([]string{first}, aliases)
}

// Name returns the flag's first name.
func Name(f cli.Flag) string {
	if first, _ := fieldsOf(f); first != "" {
		return first
	}
	return f.Names()[0]
}

func fieldsOf(f cli.Flag) (name string, aliases []string) {
	switch f := f.(type) {
	case *cli.StringFlag:
		return f.Name, f.Aliases
	case *cli.BoolFlag:
		return f.Name, f.Aliases
	case *cli.IntFlag:
		return f.Name, f.Aliases
	case *cli.DurationFlag:
		return f.Name, f.Aliases
	case *cli.StringSliceFlag:
		return f.Name, f.Aliases
	case *cli.GenericFlag:
		return f.Name, f.Aliases
	case *cli.Float64Flag:
		return f.Name, f.Aliases
	}
	return "", nil
}

// isHidden reports whether help and completion omit a flag.
func isHidden(f cli.Flag) bool {
	v, ok := f.(cli.VisibleFlag)
	return ok && !v.IsVisible()
}

func usage(f cli.Flag) string {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	return d.GetUsage()
}

// A level is one command of a line's path, with its flags and their values on the line.
type level struct {
	name     string
	flags    []cli.Flag
	given    []given
	verbatim bool // words with dashes that name no flag are words of the command
	passes   bool // the words after -- are a program for another machine
}

// A given is a value of a flag, under the flag's first name.
type given struct{ flag, value string }

// values returns the flags with the level's values.
func (l *level) values(flags []cli.Flag) (*flag.FlagSet, error) {
	set := flag.NewFlagSet(l.name, flag.ContinueOnError)
	for _, f := range flags {
		var values []string
		for _, g := range l.given {
			if g.flag == Name(f) {
				values = append(values, g.value)
			}
		}
		if list, ok := f.(*cli.StringSliceFlag); ok && len(values) > 0 { // Set would split the values at commas
			set.Var(cli.NewStringSlice(values...), Name(f), "")
			list.HasBeenSet = true
			continue
		}
		if err := f.Apply(set); err != nil {
			return nil, fmt.Errorf("define flag --%s: %w", Name(f), err)
		}
		for _, value := range values {
			if err := set.Set(Name(f), value); err != nil {
				return nil, &UsageError{Err: fmt.Errorf("--%s=%s: %w", Name(f), value, err)}
			}
		}
	}
	return set, nil
}

// levelOf returns the level of a command, without flags.
func levelOf(c *cli.Command) *level {
	return &level{name: c.Name, flags: c.Flags, verbatim: strings.HasPrefix(c.ArgsUsage, "'"), passes: strings.Contains(c.ArgsUsage, "[-- ")}
}

// inherit moves flags that stand before this command's name from the outer command to this
// one, if this command has them too.
func (l *level) inherit(outer *level) {
	outer.given = slices.DeleteFunc(outer.given, func(g given) bool {
		if _, known := findFlag([]*level{l}, g.flag); known == nil {
			return false
		}
		l.given = append(l.given, g)
		return true
	})
}

// findFlag returns the flag with this name among its names, and its innermost level.
func findFlag(levels []*level, name string) (*level, cli.Flag) {
	for _, l := range slices.Backward(levels) {
		for _, f := range l.flags {
			if slices.Contains(Names(f), name) {
				return l, f
			}
		}
	}
	return nil, nil
}

// IsGroup reports whether a command has only other commands.
func IsGroup(c *cli.Command) bool { return len(c.Subcommands) > 0 && c.ArgsUsage == "" }

// FindCommand returns the command of that path below commands, or nil.
func FindCommand(commands []*cli.Command, path ...string) (found *cli.Command) {
	for _, word := range path {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(word) })
		if i < 0 {
			return nil
		}
		found, commands = commands[i], commands[i].Subcommands
	}
	return found
}

// HasFlag reports whether the command with which words begin has a flag. The app's own flags
// are flags of every command.
func HasFlag(app *cli.App, words []string, flag string) bool {
	flags, commands := app.Flags, app.Commands
	for _, word := range words {
		c := FindCommand(commands, word)
		if c == nil {
			break
		}
		flags, commands = slices.Concat(flags, c.Flags), c.Subcommands
	}
	return slices.ContainsFunc(flags, func(f cli.Flag) bool { return slices.Contains(Names(f), flag) })
}

// Walk visits every command, with groups and hidden ones, and its path: "qr create".
func Walk(commands []*cli.Command, visit func(path string, c *cli.Command)) {
	walk(commands, "", visit)
}

func walk(commands []*cli.Command, outer string, visit func(path string, c *cli.Command)) {
	for _, c := range commands {
		path := strings.TrimSpace(outer + " " + c.Name)
		visit(path, c)
		walk(c.Subcommands, path, visit)
	}
}

// WalkShown visits every command in help, with the words that users type: the program's
// name and the path.
func WalkShown(app *cli.App, visit func(typed string, c *cli.Command)) {
	Walk(app.Commands, func(path string, c *cli.Command) {
		if shown(app.Commands, path) {
			visit(app.Name+" "+path, c)
		}
	})
}

// shown reports whether no command of the path is hidden.
func shown(commands []*cli.Command, path string) bool {
	for word := range strings.FieldsSeq(path) {
		c := FindCommand(commands, word)
		if c.Hidden {
			return false
		}
		commands = c.Subcommands
	}
	return true
}

// typed returns the words that users type for the innermost level: the program's name and
// the names of the commands.
func typed(program string, levels []*level) string {
	for _, l := range levels {
		if l.name != "" {
			program += " " + l.name
		}
	}
	return program
}
