package cmdline

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
)

// A Candidate is a possible text of the current word.
type Candidate struct {
	Text  string
	About string // a few words, or ""
}

// Plain returns candidates without descriptions.
func Plain(texts []string) []Candidate {
	list := make([]Candidate, len(texts))
	for i, t := range texts {
		list[i].Text = t
	}
	return list
}

// A Kind of answer tells the shell what to do after the candidates, or instead of them.
type Kind string

const (
	Finished Kind = "words" // a space follows the word
	Open     Kind = "open"  // no space: the word continues
	Files    Kind = "files" // the shell completes files
	Dirs     Kind = "dirs"
)

// Complete answers a shell's completion script. It writes a line with the kind of the
// answer to w, then one candidate in each line. argv comes from the script: the shell, then
// the words up to the cursor. From bash, it is the shell, then the characters at which bash
// breaks words, then the line. After any error, there are no candidates.
func (p Program) Complete(ctx context.Context, w io.Writer, argv []string) {
	if len(argv) < 2 {
		return
	}
	shell, words, cut := argv[0], argv[1:], 0
	if shell == "bash" {
		if len(argv) < 3 {
			return
		}
		words = splitLine(argv[2])[1:]
		cut = strings.LastIndexAny(words[len(words)-1], keepOnly(argv[1], "=:")) + 1
	}
	q := p.Query(ctx, words)
	kind, list := q.answer()
	b := bufio.NewWriter(w)
	defer b.Flush()
	fmt.Fprintln(b, kind)
	for _, c := range list {
		if !strings.HasPrefix(c.Text, q.Current) || !plainWord.MatchString(c.Text) {
			continue
		}
		about, _, _ := strings.Cut(strings.ReplaceAll(c.About, "`", ""), "\n")
		fmt.Fprintf(b, "%s\t%s\n", c.Text[cut:], about)
	}
}

// plainWord matches words that a shell takes literally. The scripts insert candidates
// without quotes, and a name can come from another user's file or directory. A candidate
// must never put $(…) into the line.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9._:/=,@*+-]+$`)

// keepOnly drops the characters of s that are not in set.
func keepOnly(s, set string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(set, r) {
			return r
		}
		return -1
	}, s)
}

// splitLine splits the beginning of a command line like a shell. The last word is the word
// under the cursor, whose quote may still be open. The result has at least two words.
func splitLine(line string) []string {
	words := []string{""}
	var quote rune
	escaped, inside := false, false
	for _, r := range line {
		last := &words[len(words)-1]
		switch {
		case escaped:
			*last, escaped = *last+string(r), false
		case r == '\\' && quote != '\'':
			escaped, inside = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			*last += string(r)
		case r == '\'' || r == '"':
			quote, inside = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if inside {
				words, inside = append(words, ""), false
			}
		default:
			*last, inside = *last+string(r), true
		}
	}
	if len(words) == 1 {
		words = append(words, "")
	}
	return words
}

// A Query is a command line that is being completed.
type Query struct {
	Context context.Context
	Words   []string // words of the command before the current word
	Current string   // word under the cursor

	program  Program
	before   []string // words of the line before the current word
	levels   []*level
	commands []*cli.Command
	path     string
	flag     cli.Flag // flag whose value is the current word, or nil
	after    bool     // the current word is after --
	given    map[string]bool
}

// Query reads the words of a line up to the cursor. There must be at least one word.
func (p Program) Query(ctx context.Context, words []string) *Query {
	q := &Query{Context: ctx, program: p, before: words[:len(words)-1], Current: words[len(words)-1],
		levels: []*level{{flags: p.App.Flags}}, commands: p.App.Commands, given: map[string]bool{}}
	for i := 0; i < len(q.before); i++ {
		word := q.before[i]
		c := FindCommand(q.commands, word)
		switch {
		case word == "--":
			q.after = true
			return q
		case len(word) > 1 && word[0] == '-':
			name, _, valued := strings.Cut(strings.TrimLeft(word, "-"), "=")
			if q.takeFlag(name, valued) {
				if i++; i == len(q.before) {
					_, q.flag = findFlag(q.levels, name)
					q.before = q.before[:i-1]
				}
			}
		case len(q.Words) == 0 && c != nil:
			q.levels = append(q.levels, levelOf(c))
			q.commands = c.Subcommands
			q.path = strings.TrimSpace(q.path + " " + c.Name)
		default:
			q.Words = append(q.Words, word)
		}
	}
	return q
}

// takeFlag notes a given flag. It reports whether the next word is its value.
func (q *Query) takeFlag(typed string, valued bool) bool {
	_, f := findFlag(q.levels, typed)
	if f == nil {
		return false
	}
	q.given[Name(f)] = true
	return !valued && !isSwitch(f)
}

// Line returns the line before the current word, or nil if it has an error.
func (q *Query) Line() *Line {
	l, err := q.program.Parse(q.before)
	if err != nil {
		return nil
	}
	return l
}

// Setting returns the value of a flag, typed or from a layer, or "" if the line has an
// error.
func (q *Query) Setting(flag string) string {
	if l := q.Line(); l != nil {
		return l.Setting(flag)
	}
	return ""
}

func (q *Query) answer() (kind Kind, list []Candidate) {
	name, value, hasValue := strings.Cut(q.Current, "=")
	rules := q.program.Rules.Complete
	switch {
	case q.after:
		return Files, nil
	case q.flag != nil:
		return q.values(q.flag, "", q.Current)
	case strings.HasPrefix(q.Current, "-") && hasValue:
		if _, f := findFlag(q.levels, strings.TrimLeft(name, "-")); f != nil {
			return q.values(f, name+"=", value)
		}
		if name == "--help" {
			return Finished, []Candidate{{"--help=all", helpFlag.Text}}
		}
		return Finished, nil
	case strings.HasPrefix(q.Current, "-"):
		return q.flags()
	}
	if kind := rules.Files[q.path]; kind != "" {
		return kind, nil
	}
	if len(q.Words) == 0 {
		for _, c := range q.commands {
			if !c.Hidden {
				list = append(list, Candidate{c.Name, c.Usage})
			}
		}
	}
	if complete := rules.Words[q.path]; complete != nil {
		list = append(list, complete(q)...)
	}
	return Finished, list
}

// flags lists the flags that are not yet given or may be repeated.
func (q *Query) flags() (kind Kind, list []Candidate) {
	upper := q.Current != strings.ToLower(q.Current)
	seen := map[string]bool{}
	kind = Finished
	for _, l := range slices.Backward(q.levels) {
		for _, f := range l.flags {
			if isHidden(f) || seen[Name(f)] || q.given[Name(f)] && KindOf(f) != config.List {
				continue
			}
			seen[Name(f)] = true
			for i, n := range Names(f) {
				if len(n) > 1 && (i == 0 || n == strings.ToUpper(n) && upper) {
					list = append(list, Candidate{"--" + n, usage(f)})
					if !isSwitch(f) {
						list[len(list)-1].Text += "="
					}
				}
			}
		}
	}
	fits := func(c Candidate) bool { return strings.HasPrefix(c.Text, q.Current) }
	goesOn := func(c Candidate) bool { return strings.HasSuffix(c.Text, "=") }
	for _, text := range []string{"--help", "--help=all"} {
		list = append(list, Candidate{text, helpFlag.Text})
	}
	if slices.ContainsFunc(list, fits) && !slices.ContainsFunc(list, func(c Candidate) bool { return fits(c) && !goesOn(c) }) {
		kind = Open
	}
	return kind, list
}

// values completes the value of a flag. prefix is the part of the word before the value.
func (q *Query) values(f cli.Flag, prefix, value string) (kind Kind, list []Candidate) {
	rules := q.program.Rules
	complete := rules.Complete.Values[Name(f)]
	switch {
	case slices.Contains(rules.Complete.Dirs, Name(f)):
		return Dirs, nil
	case slices.Contains(rules.Paths, Name(f)):
		return Files, nil
	case isBool(f):
		list = Plain([]string{"true", "false"})
	case complete != nil:
		list = complete(q)
	default:
		list = Plain(Listed(usage(f)))
	}
	kind = Finished
	if slices.Contains(rules.Complete.Commas, Name(f)) { // complete the last of several names
		prefix += value[:strings.LastIndexByte(value, ',')+1]
		kind = Open
	}
	for i := range list {
		list[i].Text = prefix + list[i].Text
		if strings.HasSuffix(list[i].Text, "=") {
			kind = Open
		}
	}
	return kind, list
}

var (
	listed  = regexp.MustCompile(`^([a-z0-9-]+(?:, [a-z0-9-]+)*,? or [a-z0-9-]+)(?::| \()`)
	bracket = regexp.MustCompile(` \([^)]*\)`)
)

// Listed returns the words that a flag takes, if they begin its usage text: "auto, on or
// off: …".
func Listed(usage string) []string {
	m := listed.FindStringSubmatch(bracket.ReplaceAllString(usage, "") + " (")
	if m == nil {
		return nil
	}
	return strings.FieldsFunc(strings.ReplaceAll(m[1], " or ", " "), func(r rune) bool { return r == ' ' || r == ',' })
}

// Completed reports whether a flag's value can be completed.
func (p Program) Completed(f cli.Flag) bool {
	if p.Rules.Complete.Values[Name(f)] != nil {
		return true
	}
	kind, list := p.Query(context.Background(), []string{""}).values(f, "", "")
	return kind != Finished || len(list) > 0
}

// WordsCompleted reports whether the command of that path has completion for its words.
func (p Program) WordsCompleted(path string) bool {
	return p.Rules.Complete.Words[path] != nil || p.Rules.Complete.Files[path] != ""
}

// Profiles is the Source of the profiles in files of defaults.
func Profiles(q *Query) []Candidate {
	l, err := q.program.Parse(nil)
	if err != nil {
		return nil
	}
	return Plain(l.Layers.Files.Profiles())
}

// CommandNames is the Source of a command's path: the words that can come next in it.
func CommandNames(q *Query) (list []Candidate) {
	commands := q.program.App.Commands
	if len(q.Words) > 0 {
		c := FindCommand(commands, q.Words...)
		if c == nil {
			return nil
		}
		commands = c.Subcommands
	}
	for _, c := range commands {
		list = append(list, Candidate{c.Name, c.Usage})
	}
	return list
}
