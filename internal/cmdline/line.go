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

// A Line is a command line in canonical form, with its defaults.
type Line struct {
	Words    []string                  // words before --
	Argv     []string                  // words after --
	Dashed   bool                      // the line has a --
	Path     []string                  // command and its subcommand
	Help     HelpLevel                 // what --help asks for
	HelpPath []string                  // path where --help stands
	Typed    map[string]string         // flag → spelling on the line
	Values   map[string]string         // flag → last typed value
	From     map[string]config.Setting // flag → value from a layer, if not typed
	Order    []string                  // flags as typed, with Word and Dashes; then flags set by layers
	Layers   Layers

	program    string      // name of the program
	levels     []*level    // the program and each command of Path, with the values of their flags
	objections []objection // errors of values, in the order of their discovery
}

// Parts of a command line that are not flags.
const (
	Word   = "WORD" // a word before --
	Dashes = "--"   // -- and the words after it
)

// Run calls the action of the line's command. Call it once, with commands of the app for
// which the line was parsed. If a flag refuses its value, the error is a *UsageError.
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
	flags []string // all flags of the problem; if the line has none of them, the problem is that they are missing
}

// Refuse records an error, so that the rest of the line can be checked too; err may be nil.
// If a flag that is wrong by itself causes a further objection, record that one later, and
// let it name the flag too.
func (l *Line) Refuse(err error, flags ...string) {
	if err != nil {
		l.objections = append(l.objections, objection{err, flags})
	}
}

// Refused reports whether one of the flags is wrong by itself.
func (l *Line) Refused(flags ...string) bool {
	return slices.ContainsFunc(l.objections, func(o objection) bool { return len(o.flags) == 1 && slices.Contains(flags, o.flags[0]) })
}

// Sound reports whether nothing has been refused yet.
func (l *Line) Sound() bool { return len(l.objections) == 0 }

// Refusal returns the objection that is first on the line, or nil.
func (l *Line) Refusal() error { return firstObjection(l.Order, l.objections) }

// firstObjection returns the objection that is first on the command line, or nil. The
// parameter order has the flags of the line, in order.
func firstObjection(order []string, all []objection) error {
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b objection) int { return cmp.Compare(place(order, a.flags), place(order, b.flags)) }).err
}

// Place returns the position on the line of a problem with these flags.
func (l *Line) Place(flags ...string) int { return place(l.Order, flags) }

// place returns the position in order of a problem with these flags: the last of them, or
// behind all flags if none of them is in order.
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

// OneOf refuses every value of a flag except the allowed ones.
func (l *Line) OneOf(flag, value string, allowed ...string) {
	if last := len(allowed) - 1; !slices.Contains(allowed, value) {
		l.Refuse(Usagef("--%s=%s: it is %s or %s", flag, value, strings.Join(allowed[:last], ", "), allowed[last]), flag)
	}
}

// Numbers are flags with a number or a time. *cli.Context implements it. Both methods
// return 0 for a flag of another kind.
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

// Name returns what users type for the command: the program's name and the path.
func (l *Line) Name() string { return strings.Join(append([]string{l.program}, l.Path...), " ") }

// NoWords refuses every word of the command, even after --.
func (l *Line) NoWords() {
	switch command := l.Name(); {
	case len(l.Words) > 0:
		l.Refuse(Usagef("%s takes no argument, but got %q", command, l.Words[0]), Word)
	case l.Dashed:
		l.Refuse(Usagef("%s takes nothing after --", command), Dashes)
	}
}

// OneWord returns the single word of a command, and refuses none or several. The parameter
// which is a hint about the possible words, for the error if the word is missing. It may be
// "".
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

// Setting returns the value of a flag, typed or from a layer, or "" for the built-in
// default. It joins a layer's list with commas.
func (l *Line) Setting(flag string) string {
	if v, typed := l.Values[flag]; typed {
		return v
	}
	return strings.Join(l.From[flag].Values, ",")
}
