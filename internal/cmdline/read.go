package cmdline

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
)

// Parse reads argv, which has no program name. It accepts flags before and after words up
// to "--", and global flags also after the command. A flag in upper case belongs to another
// tool: its name is case-sensitive, and a boolean one takes the next word as its value.
// Names in lower case may have underscores. If a command takes its words verbatim, every
// word that names none of its flags is a word of the command, even with dashes. A flag that
// is not on the line gets its value from a layer; see Layers.
//
// If a flag refuses its value, Parse returns no error, unless the command never looks at
// its flags. Line.Refusal returns that error.
func (p Program) Parse(argv []string) (*Line, error) {
	if len(argv) > 0 && argv[0] == "help" {
		argv = append(slices.Clone(argv[1:]), "--help")
	}
	r := &reader{
		program: p, rest: argv, levels: []*level{{flags: p.App.Flags}}, commands: p.App.Commands, group: true,
		line: &Line{program: p.App.Name, Typed: map[string]string{}, Values: map[string]string{}},
	}
	for len(r.rest) > 0 && !r.line.Dashed {
		if err := r.next(); err != nil {
			return nil, err
		}
	}
	l := r.line
	if l.Help == NoHelp { // help works even with a wrong file or variable
		files, err := p.loadFiles(l)
		l.Refuse(err, "config", "profile")
		l.fill(p.Rules, r.levels, Layers{p.Lookup, p.Rules, files})
	}
	if l.Help != NoHelp || r.group { // these commands never look at their flags
		if err := l.Refusal(); err != nil {
			return nil, err
		}
	}
	l.levels = r.levels
	return l, nil
}

// A reader is the state of reading a command line.
type reader struct {
	program  Program
	line     *Line
	rest     []string       // words still to be read
	levels   []*level       // path so far, from the program on
	commands []*cli.Command // commands that the next word can name
	group    bool           // the innermost command has only other commands
}

func (r *reader) inner() *level { return r.levels[len(r.levels)-1] }

// typed returns the path so far, as users type it.
func (r *reader) typed() string { return typed(r.program.App.Name, r.levels) }

// next reads the next word, or the next flag with its value.
func (r *reader) next() error {
	word := r.rest[0]
	switch {
	case word == "--":
		r.line.Dashed, r.line.Argv, r.line.Order = true, r.rest[1:], append(r.line.Order, Dashes)
		return nil
	case len(word) < 2 || word[0] != '-':
		return r.takeWord(word)
	}
	if asked, err := r.takeHelp(word); asked || err != nil {
		return r.firstOf(err)
	}
	if r.inner().verbatim && named(r.levels, split(word)).flag == nil {
		r.word(word)
		return nil
	}
	return r.firstOf(r.takeFlag())
}

// firstOf returns err or a recorded objection, whichever is first on the line, or nil if
// err is nil.
func (r *reader) firstOf(err error) error {
	if err == nil {
		return nil
	}
	r.line.Refuse(err)
	return r.line.Refusal()
}

// takeWord reads the name of a command, or a word of a command.
func (r *reader) takeWord(word string) error {
	next := FindCommand(r.commands, word)
	switch {
	case next != nil && len(r.line.Words) == 0:
		inner := levelOf(next)
		inner.inherit(r.inner())
		r.levels, r.commands, r.group = append(r.levels, inner), next.Subcommands, IsGroup(next)
		r.line.Path = append(r.line.Path, next.Name)
		r.rest = r.rest[1:]
	case len(r.commands) > 0 && !strings.Contains(word, "="):
		return r.unknownCommand(word)
	default:
		r.word(word)
	}
	return nil
}

// word adds a word of the command.
func (r *reader) word(word string) {
	r.line.Words, r.line.Order = append(r.line.Words, word), append(r.line.Order, Word)
	r.rest = r.rest[1:]
}

// takeHelp reads a word that asks for help, about the command before it. It returns false
// for other words.
func (r *reader) takeHelp(word string) (asked bool, err error) {
	level, err := askedHelp(word, r.typed())
	if err != nil || level == NoHelp {
		return false, err
	}
	if r.line.Help == NoHelp {
		r.line.HelpPath = slices.Clone(r.line.Path)
	}
	r.line.Help, r.rest = max(r.line.Help, level), r.rest[1:]
	return true, nil
}

// takeFlag reads one flag into the innermost level that knows it.
func (r *reader) takeFlag() error {
	word := split(r.rest[0])
	to := find(r.levels, word)
	if to.flag == nil {
		return r.unknownFlag(word)
	}
	if to.negated {
		word.value, word.valued = "false", true
	}
	l, flag := r.line, Name(to.flag)
	if earlier, ok := l.Typed[flag]; ok && earlier != word.spelling {
		return Usagef("flag --%s is given twice, as %s and as %s: keep one", flag, earlier, word.spelling)
	}
	l.Typed[flag] = word.spelling
	if KindOf(to.flag) != config.List && !l.Refused(flag) { // the last value is used
		l.Order = slices.DeleteFunc(l.Order, func(name string) bool { return name == flag })
	}
	l.Order = append(l.Order, flag)
	value, used, err := valueOf(r.levels, to.flag, word, r.rest[1:])
	if err != nil {
		return err
	}
	r.rest = r.rest[1+used:]
	value, wrong := checked(to.flag, word.spelling, value)
	l.Values[flag] = value
	if wrong != nil { // the command then reads the flag's default
		l.Refuse(wrong, flag)
		return nil
	}
	to.level.given = append(to.level.given, given{flag, value})
	return nil
}

// A flagWord is a word of the line that begins with a dash.
type flagWord struct {
	spelling string // the word with its dashes: --TPU_PREFIX
	name     string // without dashes
	value    string
	valued   bool // it has a =
}

func split(word string) (w flagWord) {
	w.spelling, w.value, w.valued = strings.Cut(word, "=")
	w.name = bare(w.spelling)
	return w
}

// dashed returns the name with dashes for underscores.
func (w flagWord) dashed() string { return strings.ReplaceAll(w.name, "_", "-") }

// upper reports whether the name has upper-case letters.
func (w flagWord) upper() bool { return w.name != strings.ToLower(w.name) }

// A found is the flag that a word names. flag is nil if it names none.
type found struct {
	level   *level
	flag    cli.Flag
	negated bool // the word is --no-NAME
}

// named returns the flag that has the word as one of its names.
func named(levels []*level, w flagWord) found {
	level, flag := findFlag(levels, w.name)
	if flag == nil && !w.upper() {
		level, flag = findFlag(levels, w.dashed())
	}
	return found{level: level, flag: flag}
}

// find returns the flag that a word names. For a boolean, --no-NAME without a value means
// NAME=false.
func find(levels []*level, w flagWord) found {
	if f := named(levels, w); f.flag != nil {
		return f
	}
	if positive, no := strings.CutPrefix(w.dashed(), "no-"); no && !w.valued {
		if level, flag := findFlag(levels, positive); flag != nil && isBool(flag) {
			return found{level, flag, true}
		}
	}
	return found{}
}

// valueOf returns the value of a flag, and how many of the following words belong to it.
func valueOf(levels []*level, flag cli.Flag, w flagWord, following []string) (value string, used int, err error) {
	next, isThere := "", len(following) > 0
	if isThere {
		next = following[0]
	}
	switch {
	case w.valued:
		return w.value, 0, nil
	case isSwitch(flag) && !(w.upper() && isBool(flag) && isThere && !strings.HasPrefix(next, "-")):
		return "true", 0, nil
	case !isThere || next == "--":
		return "", 0, Usagef("flag %s needs a value: %s=VALUE", w.spelling, w.spelling)
	}
	if _, other := findFlag(levels, bare(next)); other != nil && strings.HasPrefix(next, "--") {
		return "", 0, Usagef("flag %s needs a value, but the flag %s follows; if that is the value, type %s=%s", w.spelling, next, w.spelling, next)
	}
	return next, 1, nil
}

// bare drops the dashes at the beginning of a word.
func bare(word string) string { return strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-") }

// checked returns a value in cli's form, and its error, if any.
func checked(flag cli.Flag, spelling, value string) (string, error) {
	switch kind := KindOf(flag); kind {
	case config.Bool:
		b, err := config.ParseBool(spelling, value)
		if err != nil {
			return fmt.Sprint(b), &UsageError{Err: err}
		}
		return fmt.Sprint(b), nil
	case config.Int, config.Float, config.Duration:
		if kind.Check(value) != nil {
			return value, wrongValue(kind, "--"+Name(flag), value)
		}
	}
	return value, nil
}

// plainNumber matches a number without a unit.
var plainNumber = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// wrongValue returns the error for a value of the wrong kind.
func wrongValue(kind config.Kind, flag, value string) error {
	switch {
	case kind == config.Int && strings.Trim(value, "0123456789") == "" && value != "":
		return Usagef("%s=%s: the number is too large", flag, value)
	case kind == config.Duration && plainNumber.MatchString(value):
		return &UsageError{Err: fmt.Errorf("%s=%s: a time has a unit", flag, value), Advice: fmt.Sprintf("type %s=%ss, %[1]s=%[2]sm or %[1]s=%[2]sh", flag, value)}
	case kind == config.Duration:
		return &UsageError{Err: fmt.Errorf("%s=%s: it is no time", flag, value), Advice: "times are written 90s, 10m or 2h"}
	case kind == config.Int:
		return &UsageError{Err: fmt.Errorf("%s=%s: it is no whole number", flag, value), Advice: "numbers are written in digits: " + flag + "=5"}
	}
	return &UsageError{Err: fmt.Errorf("%s=%s: it is no number", flag, value), Advice: "numbers are written in digits: " + flag + "=0.5"}
}

// unknownFlag returns the error for a flag that no level has.
func (r *reader) unknownFlag(w flagWord) error {
	if foreign := r.program.Rules.Foreign; foreign != nil {
		if err := foreign(r.line.Path, w.dashed()); err != nil {
			advice := ""
			var hinted interface{ Hint() string }
			if errors.As(err, &hinted) {
				advice = hinted.Hint()
			}
			return &UsageError{Err: err, Advice: advice}
		}
	}
	advice := "all flags: " + r.typed() + " --help=all"
	s := r.program.Rules.nearest(w.spelling, spellings(r.levels, w.spelling != strings.ToLower(w.spelling)))
	if _, version := findFlag(r.levels, "version"); version != nil && strings.EqualFold(w.spelling, "-v") {
		s = "--version"
	}
	if s != "" {
		advice = "did you mean " + s + "? " + advice
	}
	if len(r.line.Words) > 0 && r.inner().passes {
		advice = "the words of what is to run, flags too, come after --; " + advice
	}
	return &UsageError{Err: fmt.Errorf("unknown flag %q of %s", w.spelling, r.typed()), Advice: advice}
}

// spellings lists the spellings of flags, upper-case names only with upper. It skips names
// of one letter, because nobody means --f.
func spellings(levels []*level, upper bool) []string {
	known := []string{"--help"}
	for _, l := range levels {
		for _, f := range l.flags {
			for _, n := range Names(f) {
				if len(n) > 1 && (upper || n == strings.ToLower(n)) {
					known = append(known, "--"+n)
				}
			}
		}
	}
	return known
}

// unknownCommand returns the error for a word that should have named a command.
func (r *reader) unknownCommand(word string) error {
	var names []string
	for _, c := range r.commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	path := r.typed()
	s := r.program.Rules.nearest(word, names)
	for _, ours := range r.program.Rules.OtherWords[word] {
		if FindCommand(r.commands, strings.Fields(ours)...) != nil {
			s = ours
			break
		}
	}
	advice := "commands: " + strings.Join(names, ", ") + "; see " + path + " --help"
	if s != "" {
		advice = "did you mean " + path + " " + s + "?"
	}
	return &UsageError{Err: fmt.Errorf("unknown command %q of %s", word, path), Advice: advice}
}
