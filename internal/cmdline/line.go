package cmdline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
)

// A Line is a command line in canonical form, with the defaults that apply to it.
type Line struct {
	Words    []string                  // words before --
	Argv     []string                  // words after --
	Dashed   bool                      // there was a --
	Path     []string                  // the command and its subcommand
	Help     HelpLevel                 // what --help asks for
	HelpPath []string                  // the path where --help stands
	Typed    map[string]string         // flag → the spelling used
	Values   map[string]string         // flag → the value typed, the last one
	From     map[string]config.Setting // flag → the value that a layer gave it, if it was not typed
	Order    []string                  // flags as typed, with Word and Dashes; then flags set by layers
	Layers   Layers

	program    string      // its name
	levels     []*level    // the program and each command of Path, with the values given to its flags
	objections []objection // errors of values, in the order found
}

// Names for the parts of a command line that are not flags.
const (
	Word   = "WORD" // a word before --
	Dashes = "--"   // -- and the words after it
)

// Run calls the action of the line's command. It must be called once. The commands of app
// must be those of the app for which the line was parsed. If a flag does not take its
// value, Run returns a *UsageError.
func (l *Line) Run(ctx context.Context, app *cli.App) error {
	inner, c := &cli.Context{Context: ctx}, &cli.Command{Name: app.Name, Flags: app.Flags, Subcommands: app.Commands, Action: app.Action}
	for i, level := range l.levels {
		if i > 0 {
			c = FindCommand(c.Subcommands, level.name)
		}
		values, err := level.values(c.Flags)
		if err != nil {
			return err
		}
		inner = cli.NewContext(app, values, inner)
		inner.Command = c
	}
	return c.Action(inner)
}

// An objection is something wrong with the values of flags.
type objection struct {
	err   error
	flags []string // all flags that the problem depends on; if the line gives none of them, the problem is that they are missing
}

// Refuse records an error, so that the rest of the line can be checked too; err may be nil.
// A flag that is wrong by itself may cause a further objection. That objection must name
// the flag too. It must be recorded after the flag's own objection.
func (l *Line) Refuse(err error, flags ...string) {
	if err != nil {
		l.objections = append(l.objections, objection{err, flags})
	}
}

// Refused reports whether one of the flags is wrong by itself.
func (l *Line) Refused(flags ...string) bool {
	return slices.ContainsFunc(l.objections, func(o objection) bool { return len(o.flags) == 1 && slices.Contains(flags, o.flags[0]) })
}

// Sound reports whether nothing has been refused so far.
func (l *Line) Sound() bool { return len(l.objections) == 0 }

// Refusal returns the objection that a reader of the line meets first, or nil.
func (l *Line) Refusal() error { return firstObjection(l.Order, l.objections) }

// firstObjection returns the objection that a reader of the command line meets first. order
// has the flags of the line, in their order. It returns nil if there is no objection.
func firstObjection(order []string, all []objection) error {
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b objection) int { return cmp.Compare(place(order, a.flags), place(order, b.flags)) }).err
}

// A problem with these flags shows at one position of the line. Place returns that
// position.
func (l *Line) Place(flags ...string) int { return place(l.Order, flags) }

// place returns the position in order at which a problem with these flags shows. This is
// the position of the last of them. If none of them is in order, place returns the position
// behind all flags.
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

// OneOf refuses a value of a flag that is not one of the allowed values.
func (l *Line) OneOf(flag, value string, allowed ...string) {
	if last := len(allowed) - 1; !slices.Contains(allowed, value) {
		l.Refuse(Usagef("--%s=%s: it is %s or %s", flag, value, strings.Join(allowed[:last], ", "), allowed[last]), flag)
	}
}

// Numbers are the flags that hold a number or a time; *cli.Context implements it. Both
// methods return 0 for a flag of another kind.
type Numbers interface {
	Int(flag string) int
	Duration(flag string) time.Duration
}

// NotNegative refuses values below 0.
func (l *Line) NotNegative(n Numbers, flags ...string) {
	for _, flag := range flags {
		switch number, d := n.Int(flag), n.Duration(flag); {
		case number < 0:
			l.Refuse(Usagef("--%s=%d: it must not be negative", flag, number), flag)
		case d < 0:
			l.Refuse(Usagef("--%s=%s: it must not be negative", flag, d), flag)
		}
	}
}

// Name returns the words that users type for the command: the program's name and the path.
func (l *Line) Name() string { return strings.Join(append([]string{l.program}, l.Path...), " ") }

// NoWords refuses every word of the command, also words after --.
func (l *Line) NoWords() {
	switch command := l.Name(); {
	case len(l.Words) > 0:
		l.Refuse(Usagef("%s takes no argument, but got %q", command, l.Words[0]), Word)
	case l.Dashed:
		l.Refuse(Usagef("%s takes nothing after --", command), Dashes)
	}
}

// OneWord returns the single word that a command takes, and refuses none or several. The
// last parameter is a hint about the possible words, which the error for a line without a
// word shows. It may be "".
func (l *Line) OneWord(what, which string) string {
	switch command := l.Name(); {
	case len(l.Words) == 0:
		hint := "type: " + command + " " + strings.ToUpper(strings.ReplaceAll(what, " ", "_"))
		if which != "" {
			hint += "; " + which
		}
		l.Refuse(&UsageError{Err: fmt.Errorf("%s needs the %s", command, what), Advice: hint}, Word)
		return ""
	case len(l.Words) > 1:
		l.Refuse(Usagef("%s takes one %s, but got %q too", command, what, l.Words[1]), Word)
	}
	return l.Words[0]
}

// Setting returns the value of a flag, typed or from a layer. If a layer gives a list,
// Setting returns its values separated by commas. The value of a list from a layer is its
// values separated by commas. It is "" for a flag that has its built-in default.
func (l *Line) Setting(flag string) string {
	if v, typed := l.Values[flag]; typed {
		return v
	}
	return strings.Join(l.From[flag].Values, ",")
}
