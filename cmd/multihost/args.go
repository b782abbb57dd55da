package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/qr"
	"multihost/internal/tpu"
)

// An invocation is a command line in canonical form.
//
// The flag package behind cli stops at the first positional, has one spelling rule for
// all flags and does not report it when two aliases of one flag disagree. So arrange
// rewrites the command line before cli sees it: every flag becomes --name=value right
// after the command that owns it.
type invocation struct {
	args        []string                  // for cli.App.Run: program, global flags, command, its flags, …
	positionals []string                  // words before --
	argv        []string                  // words after --
	dashed      bool                      // there was a --
	path        []string                  // the command and its subcommand
	help        helpLevel                 // what --help asks for
	helpPath    []string                  // the path where --help stands
	set         map[string]string         // canonical flag → the spelling used
	order       []string                  // canonical flags as typed, with positional and dashes; then flags set by lower layers
	objections  []objection               // what is wrong with values, in the order found
	values      map[string]string         // canonical flag → the value typed, the last one
	from        map[string]config.Setting // canonical flag → the value that a layer gave it, if it was not typed
	layers      layers
}

// Names for the parts of a command line that are not flags, used in order.
const (
	positional = "WORD" // a word before --
	dashes     = "--"   // -- and the words after it
)

// An objection is something wrong with the values of flags.
type objection struct {
	err   error
	flags []string // all flags it depends on; if none is given, it is that they are missing
}

// refuse records what is wrong and lets the rest of the line be checked too; err may be
// nil. An objection that follows from a flag that is wrong by itself must name that flag
// too and be recorded after that flag's own objection.
func (inv *invocation) refuse(err error, flags ...string) {
	if err != nil {
		inv.objections = append(inv.objections, objection{err, flags})
	}
}

// refused reports whether one of the flags is wrong by itself.
func (inv *invocation) refused(flags ...string) bool {
	return slices.ContainsFunc(inv.objections, func(o objection) bool { return len(o.flags) == 1 && slices.Contains(flags, o.flags[0]) })
}

// refusal returns the objection to report, or nil.
func (inv *invocation) refusal() error { return firstObjection(inv.order, inv.objections) }

// firstObjection returns the objection that a reader of the command line, with its flags
// in that order, meets first; nil if there is none.
func firstObjection(order []string, all []objection) error {
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b objection) int { return cmp.Compare(place(order, a.flags), place(order, b.flags)) }).err
}

// place returns the position in order at which a problem with these flags shows: that of
// the last of them. If none is given, it is behind all.
func place(order, flags []string) int {
	last := -1
	for _, name := range flags {
		last = max(last, slices.Index(order, name))
	}
	if last < 0 {
		return len(order)
	}
	return last
}

// arrange reads argv (without the program name) for the commands of app. It accepts flags
// before and after positionals up to "--", and global flags also after the command.
// Upper-case names are MaxText's: they are case-sensitive, and their booleans take the
// next word as value. Lower-case names may be written with underscores, as gcloud's. For
// a command that takes its words verbatim, every word that is not one of our flags is a
// positional, with or without dashes. A flag that is not given takes its value from a
// layer below: see layers.
func (p *program) arrange(app *cli.App, argv []string) (*invocation, error) {
	inv := &invocation{set: map[string]string{}, values: map[string]string{}}
	if len(argv) > 0 && argv[0] == "help" {
		argv = append(slices.Clone(argv[1:]), "--help")
	}
	root := &level{flags: app.Flags}
	levels := []*level{root}
	commands := app.Commands
	group := true

	for i := 0; i < len(argv); i++ {
		word := argv[i]
		if word == "--" {
			inv.dashed, inv.argv, inv.order = true, argv[i+1:], append(inv.order, dashes)
			break
		}
		if len(word) < 2 || word[0] != '-' {
			next := findCommand(commands, word)
			switch {
			case next != nil && len(inv.positionals) == 0:
				inner := &level{name: next.Name, flags: next.Flags, verbatim: takesVerbatim(next)}
				inner.inherit(levels[len(levels)-1])
				levels = append(levels, inner)
				commands, group = next.Subcommands, isGroup(next)
				inv.path = append(inv.path, next.Name)
			case len(commands) > 0 && !strings.Contains(word, "="):
				return nil, unknownCommand(levels, commands, word)
			default:
				inv.positionals, inv.order = append(inv.positionals, word), append(inv.order, positional)
			}
			continue
		}
		asked, err := inv.takeHelp(word, commandPath(levels))
		if err != nil {
			return nil, err
		}
		if asked {
			continue
		}
		if levels[len(levels)-1].verbatim && !isFlag(levels, word) {
			inv.positionals, inv.order = append(inv.positionals, word), append(inv.order, positional)
			continue
		}
		used, err := inv.takeFlag(levels, argv[i:])
		if err != nil {
			inv.refuse(err)
			return nil, inv.refusal()
		}
		i += used - 1
	}
	if inv.help == noHelp { // help works even if a file or a variable is wrong
		files, err := p.loadFiles(app, inv)
		inv.refuse(err, "config", "profile")
		inv.fill(levels, layers{p.lookup, files})
	}
	if inv.help != noHelp || group { // these never call ready
		if err := inv.refusal(); err != nil {
			return nil, err
		}
	}
	for _, l := range levels {
		if l != root {
			inv.args = append(inv.args, l.name)
		}
		inv.args = append(inv.args, l.given...)
	}
	return inv, nil
}

// level is one command of the path, with its flags and the flags given to it.
type level struct {
	name     string
	flags    []cli.Flag
	given    []string
	verbatim bool
}

// takesVerbatim reports whether the command's words may begin with dashes without being
// flags of ours. A command declares this, also in its help, by an ArgsUsage in quotes:
// 'FLAGS'.
func takesVerbatim(c *cli.Command) bool { return strings.HasPrefix(c.ArgsUsage, "'") }

// isGroup reports whether a command only holds other commands.
func isGroup(c *cli.Command) bool { return len(c.Subcommands) > 0 && c.ArgsUsage == "" }

// isFlag reports whether a word names one of our flags.
func isFlag(levels []*level, word string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-"), "=")
	_, f := findFlag(levels, name)
	if f == nil && name == strings.ToLower(name) {
		_, f = findFlag(levels, strings.ReplaceAll(name, "_", "-"))
	}
	return f != nil
}

// inherit moves flags given before this command's name from the outer command to this
// one, if this command knows them too.
func (l *level) inherit(outer *level) {
	outer.given = slices.DeleteFunc(outer.given, func(word string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		if _, known := findFlag([]*level{l}, name); known == nil {
			return false
		}
		l.given = append(l.given, word)
		return true
	})
}

// takeFlag reads one flag from the front of words into the innermost level
// that knows it and returns how many words it took.
func (inv *invocation) takeFlag(levels []*level, words []string) (int, error) {
	spelling, value, hasValue := strings.Cut(words[0], "=")
	name := strings.TrimPrefix(strings.TrimPrefix(spelling, "-"), "-")
	lvl, flag := findFlag(levels, name)
	if flag == nil && name == strings.ToLower(name) {
		lvl, flag = findFlag(levels, strings.ReplaceAll(name, "_", "-"))
	}
	if positive, negated := strings.CutPrefix(strings.ReplaceAll(name, "_", "-"), "no-"); flag == nil && negated { // gcloud's spelling
		if lvl, flag = findFlag(levels, positive); flag != nil && isBool(flag) && !hasValue {
			hasValue, value = true, "false"
		} else {
			flag = nil
		}
	}
	if flag == nil {
		if refused := qr.Refused(strings.ReplaceAll(name, "_", "-")); refused != nil && len(levels) > 1 && levels[1].name == "qr" {
			return 0, &usageError{err: refused, hint: refused.Hint()}
		}
		err := unknownFlag(levels, spelling)
		if len(inv.positionals) > 0 && slices.Contains([]string{"run", "job", "exec", "ssh"}, levels[len(levels)-1].name) {
			err.hint = "the words of what is to run, flags too, come after --; " + err.hint
		}
		return 0, err
	}
	canonical := flag.Names()[0]
	if earlier, ok := inv.set[canonical]; ok && earlier != spelling {
		return 0, usagef("flag --%s is given twice, as %s and as %s: keep one", canonical, earlier, spelling)
	}
	inv.set[canonical] = spelling
	if kindOf(flag) != config.List && !inv.refused(canonical) { // the last value counts
		inv.order = slices.DeleteFunc(inv.order, func(name string) bool { return name == canonical })
	}
	inv.order = append(inv.order, canonical)

	var wrong error
	used := 1
	upper := name != strings.ToLower(name)
	switch {
	case hasValue:
	case isSwitch(flag) && !(upper && isBool(flag) && len(words) > 1 && !strings.HasPrefix(words[1], "-")):
		value = "true"
	case len(words) < 2 || words[1] == "--":
		return 0, usagef("flag %s needs a value: %s=VALUE", spelling, spelling)
	default:
		value, used = words[1], 2
		if _, next := findFlag(levels, strings.TrimPrefix(strings.TrimPrefix(value, "-"), "-")); next != nil && strings.HasPrefix(value, "--") {
			return 0, usagef("flag %s needs a value, but the flag %s follows; if that is the value, type %s=%s", spelling, value, spelling, value)
		}
	}
	if isBool(flag) {
		b, err := config.ParseBool(spelling, value)
		if err != nil {
			wrong = &usageError{err: err}
		}
		value = fmt.Sprint(b)
	}
	switch kind := kindOf(flag); kind {
	case config.Int, config.Float, config.Duration:
		if kind.Check(value) != nil {
			wrong = wrongValue(kind, "--"+canonical, value)
		}
	}
	inv.values[canonical] = value
	if wrong != nil { // the command then reads the flag's default
		inv.refuse(wrong, canonical)
		return used, nil
	}
	lvl.given = append(lvl.given, "--"+canonical+"="+value)
	return used, nil
}

func findFlag(levels []*level, name string) (*level, cli.Flag) {
	for _, l := range slices.Backward(levels) {
		for _, f := range l.flags {
			if slices.Contains(f.Names(), name) {
				return l, f
			}
		}
	}
	return nil, nil
}

func findCommand(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

func isBool(f cli.Flag) bool {
	_, ok := f.(*cli.BoolFlag)
	return ok
}

// isSwitch reports whether the flag may be given without a value.
func isSwitch(f cli.Flag) bool {
	if g, ok := f.(*cli.GenericFlag); ok {
		_, optional := g.Value.(*optionalValue)
		return optional
	}
	return isBool(f)
}

func commandPath(levels []*level) string {
	path := "multihost"
	for _, l := range levels {
		if l.name != "" {
			path += " " + l.name
		}
	}
	return path
}

func unknownFlag(levels []*level, spelling string) *usageError {
	known := []string{"--help"}
	upper := spelling != strings.ToLower(spelling)
	for _, l := range levels {
		for _, f := range l.flags {
			for _, n := range f.Names() {
				if len(n) > 1 && (upper || n == strings.ToLower(n)) { // nobody means --f
					known = append(known, "--"+n)
				}
			}
		}
	}
	err := usagef("unknown flag %q of %s", spelling, commandPath(levels))
	s := tpu.Suggest(spelling, known)
	if strings.EqualFold(spelling, "-v") {
		s = "--version"
	}
	if s != "" {
		err.hint = "did you mean " + s + "? all flags: " + commandPath(levels) + " --help=all"
	} else {
		err.hint = "all flags: " + commandPath(levels) + " --help=all"
	}
	return err
}

func unknownCommand(levels []*level, commands []*cli.Command, word string) error {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	path := commandPath(levels)
	err := usagef("unknown command %q of %s", word, path)
	s := tpu.Suggest(word, names)
	if i := slices.IndexFunc(otherWords[word], func(ours string) bool { return knows(commands, ours) }); i >= 0 {
		s = otherWords[word][i]
	}
	if s != "" {
		err.hint = "did you mean " + path + " " + s + "?"
	} else {
		err.hint = "commands: " + strings.Join(names, ", ") + "; see " + path + " --help"
	}
	return err
}

// otherWords maps words of other tools to our commands or to their paths, the likeliest
// first.
var otherWords = map[string][]string{
	"ls": {"list", "show", "qr list"}, "list": {"show", "qr list"}, "get": {"show", "qr show"}, "describe": {"show", "qr show"},
	"rm": {"delete", "qr delete"}, "remove": {"delete", "qr delete"}, "delete": {"qr delete"}, "create": {"qr create"}, "wait": {"qr wait"}, "show": {"qr show"},
	"status": {"show", "ps"}, "runs": {"ps"}, "jobs": {"ps"}, "kill": {"stop"}, "cancel": {"stop"}, "log": {"logs"}, "tail": {"logs"},
	"scp": {"cp"}, "copy": {"cp"}, "login": {"ssh"}, "start": {"up", "run"}, "launch": {"run"}, "submit": {"job"},
	"firewall": {"network firewall"}, "cleanup": {"gc"}, "check": {"doctor"}, "diagnose": {"doctor"}, "simulator": {"sim"},
}

// knows reports whether commands contains the command of that path.
func knows(commands []*cli.Command, path string) bool {
	for word := range strings.FieldsSeq(path) {
		c := findCommand(commands, word)
		if c == nil {
			return false
		}
		commands = c.Subcommands
	}
	return true
}

// optionalValue is the value of a flag that may be given with or without a value:
// --keep-on-failure or --keep-on-failure=2h.
type optionalValue struct {
	text string
	set  bool
}

// Set implements flag.Value.
func (v *optionalValue) Set(s string) error { v.text, v.set = s, true; return nil }

// String implements flag.Value.
func (v *optionalValue) String() string { return v.text }
