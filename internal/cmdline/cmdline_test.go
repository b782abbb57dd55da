package cmdline

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/help"
)

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestFirstObjection(t *testing.T) {
	t.Parallel()
	about := func(flags ...string) objection { return objection{errors.New(strings.Join(flags, "+")), flags} }
	order := []string{"a", "b", Word, "c", Dashes}
	for _, tt := range []struct {
		name string
		all  []objection
		want string
	}{
		{name: "none"},
		{"the first on the line", []objection{about("c"), about("a"), about("b")}, "a"},
		{"words have their place", []objection{about("c"), about(Word)}, Word},
		{"two flags stand where the last does", []objection{about("a", "c"), about("b")}, "b"},
		{"of which one is not given", []objection{about("a", "z"), about("b")}, "a+z"},
		{"what one flag is wrong with was found first", []objection{about("c"), about("a", "c")}, "c"},
		{"what is missing comes last", []objection{about("z"), about(), about(Dashes)}, Dashes},
		{"in the order in which it was found", []objection{about("z"), about(), about("y")}, "z"},
	} {
		if err := firstObjection(order, tt.all); text(err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

// tool is a program that is not multihost.
func tool(env map[string]string) Program {
	return Program{
		App: &cli.App{
			Name: "tool", Usage: "do things",
			Flags: []cli.Flag{
				&cli.BoolFlag{Name: "quiet", Usage: "show less"},
				&cli.BoolFlag{Name: "version", Usage: "print the version"},
				&cli.StringFlag{Name: "config", Usage: "read `FILE`"},
			},
			Commands: []*cli.Command{
				{Name: "bake", Usage: "bake bread", ArgsUsage: "BREAD [-- PROGRAM ARG…]", Description: "Bakes.\n\n" + ExitHeading + "   0      success\n", Flags: []cli.Flag{
					&cli.StringFlag{Name: "flour-type", Aliases: []string{"FLOUR"}, Usage: "rye, wheat or spelt: `KIND` of flour"},
					&cli.BoolFlag{Name: "hot", Aliases: []string{"HOT"}, Usage: "bake hot"},
					&cli.IntFlag{Name: "count", Value: 1, Usage: "bake `N` loaves"},
					&cli.DurationFlag{Name: "time", Value: 10 * time.Minute, Usage: "bake for `TIME`"},
					&cli.StringSliceFlag{Name: "seed", Usage: "add `SEED`"},
					&cli.GenericFlag{Name: "keep", Value: &Optional{}, Usage: "keep it; with =`TIME`, for that time"},
					&cli.StringFlag{Name: "cold", Usage: "bake `SLOWLY`"},
				}},
				{Name: "check", ArgsUsage: "'WORDS'", Flags: []cli.Flag{&cli.BoolFlag{Name: "strict"}}},
				{Name: "shop", Subcommands: []*cli.Command{{Name: "open", ArgsUsage: "ID"}, {Name: "close"}}},
				{Name: "secret", Hidden: true},
			},
		},
		Rules: Rules{
			Alternatives: [][]string{{"hot", "cold"}, {"seed", Dashes}}, BelongsTo: map[string]string{"time": "cold"},
			Nearest:    nearest,
			OtherWords: map[string][]string{"start": {"open", "bake"}},
			Help:       HelpRules{Commands: []CommandGroup{{"work", []string{"bake", "check", "shop"}}}, Common: map[string][]string{"": {}}, Groups: []help.Group{{Title: "all", Rest: []string{"quiet", "version", "config"}}}},
		},
		Lookup: func(key string) (string, bool) { v, ok := env[key]; return v, ok },
	}
}

// assigned shows the values of a line's flags: --name=value after the command of the flag.
func assigned(l *Line) string {
	var words []string
	for _, level := range l.levels {
		if level.name != "" {
			words = append(words, level.name)
		}
		for _, g := range level.given {
			words = append(words, "--"+g.flag+"="+g.value)
		}
	}
	return strings.Join(words, " ")
}

// An action finds values in its own flags and in the program's. A list keeps commas and
// bytes that are not UTF-8.
func TestActionGetsTheValues(t *testing.T) {
	type key struct{}
	p := tool(map[string]string{})
	var got []any
	look := func(of *cli.Context) error {
		got = []any{of.Bool("quiet"), of.String("flour-type"), of.Int("count"), of.Duration("time"), of.StringSlice("seed"),
			of.IsSet("seed"), of.IsSet("count"), of.IsSet("time"), of.Context.Value(key{})}
		return nil
	}
	FindCommand(p.App.Commands, "bake").Action = look
	for _, tt := range []struct {
		words []string
		want  []any
	}{
		{[]string{"bake", "--count=2", "x"}, []any{false, "", 2, 10 * time.Minute, []string(nil), false, true, false, "value"}},
		{[]string{"bake", "--seed=a,b", "--quiet", "--FLOUR", "rye", "--seed=\xff"}, []any{true, "rye", 1, 10 * time.Minute, []string{"a,b", "\xff"}, true, false, false, "value"}},
	} {
		line, err := p.Parse(tt.words)
		if err == nil {
			err = line.Run(context.WithValue(t.Context(), key{}, "value"), p.App)
		}
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q: %#v, want %#v, %v", tt.words, got, tt.want, err)
		}
	}
	p = tool(map[string]string{})
	line, err := p.Parse([]string{"shop", "open"})
	if err != nil {
		t.Fatal(err)
	}
	line.levels[0].given = []given{{"quiet", "perhaps"}}
	var usage *UsageError
	if err := line.Run(t.Context(), p.App); !errors.As(err, &usage) {
		t.Errorf("a value that is no boolean: %v", err)
	}
}

// nearest suggests the candidate with the same letters in another order.
func nearest(word string, candidates []string) string {
	sorted := func(s string) string { r := []rune(s); slices.Sort(r); return string(r) }
	for _, c := range candidates {
		if sorted(c) == sorted(word) {
			return c
		}
	}
	return ""
}

// The package is for any cli.App. Its sources name no program, command or flag, except
// those that doc.go lists.
func TestKnowsNoProgram(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasSuffix(file, "_test.go") && strings.Contains(strings.ReplaceAll(line, `"multihost/internal/`, ""), "multihost") {
				t.Errorf("%s: %s", file, line)
			}
		}
	}
}

var noFile = map[string]string{config.FlagVariable("config"): "none"}

func TestParse(t *testing.T) {
	for _, tt := range []struct{ line, args, words, fault string }{
		{line: "bake rye", args: "--config=none bake", words: "rye"},
		{line: "bake rye --count 3 x --quiet", args: "--quiet=true --config=none bake --count=3", words: "rye x"},
		{line: "--quiet bake", args: "--quiet=true --config=none bake"},
		{line: "--count=2 bake", fault: `unknown flag "--count" of tool`},
		{line: "bake -count=2", args: "--config=none bake --count=2"},
		{line: "bake --flour_type=rye", args: "--config=none bake --flour-type=rye"},
		{line: "bake --FLOUR rye", args: "--config=none bake --flour-type=rye"},
		{line: "bake --Flour rye", fault: `unknown flag "--Flour"`},
		{line: "bake --HOT false", args: "--config=none bake --hot=false"},
		{line: "bake --hot no", args: "--config=none bake --hot=true", words: "no"},
		{line: "bake --HOT --quiet", args: "--quiet=true --config=none bake --hot=true"},
		{line: "bake --no-hot", args: "--config=none bake --hot=false"},
		{line: "bake --no-hot=1", fault: `unknown flag "--no-hot"`},
		{line: "bake --no-count", fault: `unknown flag "--no-count"`},
		{line: "bake --keep 2h", args: "--config=none bake --keep=true", words: "2h"},
		{line: "bake --keep=2h", args: "--config=none bake --keep=2h"},
		{line: "bake --seed=a --seed b", args: "--config=none bake --seed=a --seed=b"},
		{line: "bake --count=1 --count=2", args: "--config=none bake --count=1 --count=2"},
		{line: "bake --FLOUR=a --flour-type=b", fault: "is given twice"},
		{line: "bake --count", fault: "flag --count needs a value: --count=VALUE"},
		{line: "bake --count -- x", fault: "flag --count needs a value"},
		{line: "bake --cold --quiet", fault: "if that is the value, type --cold=--quiet"},
		{line: "bake --cold -quiet", args: "--config=none bake --cold=-quiet"},
		{line: "bake -- --count x", args: "--config=none bake"},
		{line: "check --a --strict b -c", args: "--config=none check --strict=true", words: "--a b -c"},
		{line: "shop open 3", args: "--config=none shop open", words: "3"},
		{line: "shop opne", fault: `unknown command "opne" of tool shop`},
		{line: "bkae", fault: `unknown command "bkae" of tool`},
		{line: "bake --count=x --bogus", fault: "--count=x: it is no whole number"},
		{line: "shop --quiet=x", fault: "--quiet"},
	} {
		l, err := tool(noFile).Parse(strings.Fields(tt.line))
		if err != nil || tt.fault != "" {
			if tt.fault == "" || !strings.Contains(text(err), tt.fault) {
				t.Errorf("%s: %v, want %q", tt.line, err, tt.fault)
			}
			continue
		}
		if got := assigned(l); got != tt.args {
			t.Errorf("%s: the flags get %q, want %q", tt.line, got, tt.args)
		}
		if got := strings.Join(l.Words, " "); got != tt.words {
			t.Errorf("%s: words %q, want %q", tt.line, got, tt.words)
		}
	}
}

func TestHintsOfBadLines(t *testing.T) {
	for line, want := range map[string]string{
		"bkae":             "did you mean tool bake?",
		"start":            "did you mean tool bake?",
		"shop start":       "did you mean tool shop open?",
		"xyz":              "commands: bake, check, shop; see tool --help",
		"bake --cuont=1":   "did you mean --count? all flags: tool bake --help=all",
		"bake a --zzzzzzz": "the words of what is to run, flags too, come after --; all flags: tool bake --help=all",
		"-V":               "did you mean --version? all flags: tool --help=all",
		"--help=x":         "type: tool --help, or: tool --help=all",
	} {
		_, err := tool(noFile).Parse(strings.Fields(line))
		var wrong *UsageError
		if !errors.As(err, &wrong) || wrong.Hint() != want {
			t.Errorf("%s: %v, hint %q, want %q", line, err, wrong.Hint(), want)
		}
	}
}

func TestWrongValue(t *testing.T) {
	for _, tt := range []struct {
		kind        config.Kind
		value, want string
	}{
		{config.Int, "x", "it is no whole number"},
		{config.Int, "", "it is no whole number"},
		{config.Int, "99999999999999999999", "the number is too large"},
		{config.Float, "x", "it is no number"},
		{config.Duration, "5", "a time has a unit"},
		{config.Duration, "1.5", "a time has a unit"},
		{config.Duration, "5y", "it is no time"},
	} {
		if got := wrongValue(tt.kind, "--f", tt.value); !strings.HasSuffix(got.Error(), tt.want) {
			t.Errorf("%s %q: %v, want %s", tt.kind, tt.value, got, tt.want)
		}
	}
}

// If a higher layer sets an alternative to a flag, the flag's value from a lower layer is
// dropped. So are values of flags that belong to it.
func TestBeaten(t *testing.T) {
	rules := Rules{Alternatives: [][]string{{"a", "b", "c"}, {"c", "d"}}, BelongsTo: map[string]string{"of-b": "b"}}
	for _, tt := range []struct {
		name string
		rank map[string]int
		want string
	}{
		{"nothing is set", nil, ""},
		{"one is set", map[string]int{"a": 2}, ""},
		{"two in one layer contradict each other there", map[string]int{"a": 1, "b": 1}, ""},
		{"the higher one wins", map[string]int{"a": 0, "b": 1, "c": 3}, "b c"},
		{"another group", map[string]int{"c": 1, "d": 3}, "d"},
		{"what belongs to it goes along", map[string]int{"a": 1, "b": 3, "of-b": 2}, "b of-b"},
		{"unless it was set as high as the winner", map[string]int{"a": 1, "b": 3, "of-b": 1}, "b"},
	} {
		if got := strings.Join(beaten(rules, tt.rank), " "); got != tt.want {
			t.Errorf("%s: %q gives way, want %q", tt.name, got, tt.want)
		}
	}
}

// The environment sets flags that the user did not type, as if they had been typed.
func TestLayersFillTheLine(t *testing.T) {
	v := config.FlagVariable
	env := map[string]string{v("config"): "none", v("cold"): "very", v("time"): "5m", v("quiet"): "TRUE", v("count"): "x", v("seed"): "a"}
	for _, tt := range []struct{ line, args, fault string }{
		{"bake", "--quiet=true --config=none bake --time=5m --seed=a --cold=very", v("count")},
		{"bake --count=2", "--quiet=true --config=none bake --count=2 --time=5m --seed=a --cold=very", ""},
		{"bake --count=2 --hot", "--quiet=true --config=none bake --count=2 --hot=true --seed=a", ""},
		{"bake --count=2 --hot=false", "--quiet=true --config=none bake --count=2 --hot=false --time=5m --seed=a --cold=very", ""},
		{"bake --count=2 -- x", "--quiet=true --config=none bake --count=2 --time=5m --cold=very", ""},
	} {
		l, err := tool(env).Parse(strings.Fields(tt.line))
		if err != nil {
			t.Errorf("%s: %v", tt.line, err)
			continue
		}
		if got := assigned(l); got != tt.args {
			t.Errorf("%s: the flags get %q, want %q", tt.line, got, tt.args)
		}
		if got := text(l.Refusal()); !strings.Contains(got, tt.fault) || (got == "") != (tt.fault == "") {
			t.Errorf("%s: refused: %q, want %q", tt.line, got, tt.fault)
		}
	}
}

// An error about a value that the user did not type names the place of the value.
func TestBlame(t *testing.T) {
	l := &Line{From: map[string]config.Setting{
		"count": {Values: []string{"-1"}, Source: config.Source{Layer: config.Environment, Variable: "TOOL_COUNT"}},
		"zone":  {Values: []string{"here"}, Source: config.Source{Layer: config.UserLayer, File: "f.yaml", Line: 2, Column: 3}},
	}}
	for said, want := range map[string]string{
		"--count=-1: it must not be negative":   "TOOL_COUNT: --count=-1: it must not be negative",
		"--count-more: unknown":                 "--count-more: unknown",
		`zone "here": there is none`:            `f.yaml:2:3: zone "here": there is none`,
		`zone "there": there is none`:           `zone "there": there is none`,
		"--count and --zone exclude each other": "TOOL_COUNT, f.yaml:2:3: --count and --zone exclude each other",
		"TOOL_COUNT: --count takes a number":    "TOOL_COUNT: --count takes a number",
	} {
		if got := l.Blame(errors.New(said)).Error(); got != want {
			t.Errorf("%s: %s, want %s", said, got, want)
		}
	}
}

func TestShownDefault(t *testing.T) {
	for given, want := range map[string]string{`""`: "", "false": "", "0s": "", "10m0s": "10m", "1h0m0s": "1h", `"x"`: "x", "1m30s": "1m30s"} {
		if got := shownDefault(given); got != want {
			t.Errorf("%s: %q, want %q", given, got, want)
		}
	}
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"tool b":                     "words bake",
		"tool sh":                    "words shop",
		"tool sec":                   "words",
		"tool shop ":                 "words open close",
		"tool bake --co":             "open --count= --cold= --config=",
		"tool bake --ho":             "words --hot",
		"tool bake --count=1 --co":   "open --cold= --config=",
		"tool bake --seed=1 --se":    "open --seed=",
		"tool bake --FL":             "open --FLOUR=",
		"tool bake --flour-type=":    "words rye wheat spelt",
		"tool bake --flour-type sp":  "words spelt",
		"tool bake --hot=":           "words true false",
		"tool bake -- x":             "files",
		"tool bake --help=":          "words all",
		"tool bake --qui":            "words --quiet",
		"tool bake --nonsense=":      "words",
		"tool bake --count 1 --hot ": "words",
	} {
		var out strings.Builder
		tool(noFile).Complete(t.Context(), &out, []string{"bash", "=:", line})
		var got []string
		for l := range strings.Lines(out.String()) {
			word, _, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
			got = append(got, word)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// Every line has at least the program's name and a word to complete.
func FuzzSplitLine(f *testing.F) {
	for _, s := range []string{"", "m", "m 'a", `m "a\"b`, `m a\`, "m\ta\n", "m $(x) `y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if words := splitLine(line); len(words) < 2 {
			t.Errorf("%q: %q", line, words)
		}
	})
}

// Explain returns the layer of a flag's value, and the values that it overrides.
func TestExplain(t *testing.T) {
	env := map[string]string{config.FlagVariable("config"): "none", config.FlagVariable("count"): "7"}
	p := tool(env)
	l, err := p.Parse([]string{"check", "--quiet"})
	if err != nil {
		t.Fatal(err)
	}
	below := func(_ *Line, flag string) (string, config.Source) {
		if flag == "cold" {
			return "icy", config.Source{Text: "elsewhere"}
		}
		return "", config.Source{}
	}
	flags, commands, err := p.Explain(l, "bake", below)
	if err != nil || commands != 1 {
		t.Fatal(commands, err)
	}
	got := map[string]string{}
	for _, f := range flags {
		got[f.Flag] = strings.Join(f.Values, " ") + " of " + string(f.Source.Layer) + f.Source.Text
	}
	for flag, want := range map[string]string{"quiet": "true of command line", "count": "7 of environment", "time": "10m0s of built-in default", "cold": "icy of elsewhere"} {
		if got[flag] != want {
			t.Errorf("%s: %s, want %s", flag, got[flag], want)
		}
	}
	for path, want := range map[string]string{"shop": "they are: open, close", "bkae": "did you mean: tool check bake"} {
		_, _, err := p.Explain(l, path, below)
		var wrong *UsageError
		if !errors.As(err, &wrong) || wrong.Hint() != want {
			t.Errorf("%s: %v, want the hint %q", path, err, want)
		}
	}
}

// Help of a command shows its flags and where the others are.
func TestPage(t *testing.T) {
	p := tool(noFile)
	short := p.Page([]string{"bake"}, ShortHelp)
	if got := short.Lay(80); !strings.Contains(got, "--flour-type=KIND") || strings.Contains(got, "--FLOUR") || !strings.HasSuffix(strings.TrimSpace(got), "tool bake --help=all also shows the flags of every command.") {
		t.Errorf("short help:\n%s", got)
	}
	if got := p.Page([]string{"bake"}, FullHelp).Lay(80); !strings.Contains(got, "--FLOUR=KIND") || !strings.Contains(got, "--quiet") || !strings.Contains(got, "EXIT STATUS:") {
		t.Errorf("full help:\n%s", got)
	}
	if got := p.Page(nil, ShortHelp).Lay(80); !strings.Contains(got, "WORK:") || strings.Contains(got, "secret") {
		t.Errorf("help of the program:\n%s", got)
	}
	pages := p.ManualPages()
	if len(pages) != 6 || pages["tool-shop-open.1"] == "" || pages["tool-secret.1"] != "" {
		t.Errorf("manual pages: %d", len(pages))
	}
	var paths []string
	Walk(p.App.Commands, func(path string, _ *cli.Command) { paths = append(paths, path) })
	if !slices.Contains(paths, "shop open") || !slices.Contains(paths, "secret") {
		t.Errorf("paths: %q", paths)
	}
}

func TestHasFlag(t *testing.T) {
	app := tool(nil).App
	for _, tt := range []struct {
		words, flag string
		want        bool
	}{
		{"bake", "hot", true},
		{"bake", "HOT", true},
		{"bake rye --count=2", "quiet", true},
		{"check hot", "hot", false},
		{"shop open", "strict", false},
		{"shop open", "config", true},
		{"unknown", "hot", false},
	} {
		if got := HasFlag(app, strings.Fields(tt.words), tt.flag); got != tt.want {
			t.Errorf("%s has --%s: %t", tt.words, tt.flag, got)
		}
	}
}
