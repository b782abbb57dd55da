package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/help"
	"multihost/internal/options"
)

// manyFlags is how many flags a section of a command's help may have.
const manyFlags = 15

// TestEveryFlagHasAGroup: if a command has many flags, each flag is in one group of the
// help, and the groups name nothing else.
func TestEveryFlagHasAGroup(t *testing.T) {
	t.Parallel()
	commands := silent(nil).commands()
	app := commands.App
	groupOf, used := map[string]string{}, map[string]bool{}
	for _, g := range rules(process{}).Help.Groups {
		for _, name := range slices.Concat(g.Shown, g.Rest) {
			if groupOf[name] != "" {
				t.Errorf("--%s has two groups: %s and %s", name, groupOf[name], g.Title)
			}
			groupOf[name] = g.Title
		}
	}
	look := func(path string, own []cli.Flag) {
		common, grouped := rules(process{}).Help.Common[path]
		apart := slices.Concat(options.LoginFlags(), options.WhereFlags)
		if rest := slices.DeleteFunc(cmdline.FlagRows(own), func(r help.Flag) bool { return slices.Contains(apart, r.Name()) }); !grouped && len(rest) > manyFlags {
			t.Errorf("%s has %d flags of its own: give it a place in commonFlags, and its flags groups", path, len(rest))
		}
		if !grouped {
			return
		}
		known := map[string]bool{}
		for _, f := range slices.Concat(own, app.Flags) {
			name := f.Names()[0]
			known[name], used[name] = true, true
			if groupOf[name] == "" {
				t.Errorf("--%s of %q has no place in flagGroups", name, path)
			}
		}
		for _, name := range common {
			if !known[name] {
				t.Errorf("the common flags of %s name --%s, which it does not have", path, name)
			}
		}
		if path != "" && len(common) != 8 {
			t.Errorf("%s has %d common flags, want eight", path, len(common))
		}
	}
	look("", nil)
	cmdline.Walk(app.Commands, func(path string, c *cli.Command) { look(path, c.Flags) })
	for name, group := range groupOf {
		if !used[name] {
			t.Errorf("the group %q names --%s, which no command with groups has", group, name)
		}
	}
}

// TestEveryCommandHasAGroup: multihost --help shows each command once. Commands that are
// rarely needed come last.
func TestEveryCommandHasAGroup(t *testing.T) {
	t.Parallel()
	places := map[string]int{}
	for _, g := range options.CommandGroups {
		for _, name := range g.Commands {
			places[name]++
		}
	}
	for _, c := range app().Commands {
		if places[c.Name] != 1 && !c.Hidden {
			t.Errorf("%s stands in %d groups of multihost --help, want one of commandGroups", c.Name, places[c.Name])
		}
		delete(places, c.Name)
	}
	for name := range places {
		t.Errorf("commandGroups names %s, which is no command", name)
	}
	last := options.CommandGroups[len(options.CommandGroups)-1]
	if want := []string{"hostkey", "manual", "xla", "xpk", "config", "sim"}; !slices.Equal(last.Commands, want) {
		t.Errorf("the last group has %q, want %q", last.Commands, want)
	}
}

// everyPage visits the short and the full help of all commands.
func everyPage(visit func(path []string, level cmdline.HelpLevel, page help.Page)) {
	commands := silent(nil).commands()
	app := commands.App
	look := func(path []string) {
		for _, level := range []cmdline.HelpLevel{cmdline.ShortHelp, cmdline.FullHelp} {
			visit(path, level, commands.Page(path, level))
		}
	}
	look(nil)
	cmdline.Walk(app.Commands, func(path string, c *cli.Command) { look(strings.Fields(path)) })
}

var (
	continued = regexp.MustCompile(` \\\n *`)
	// beside matches a line with a flag and the beginning of its text. hanging matches the
	// further lines of the text.
	beside  = regexp.MustCompile(`^(  -.*?  +)\S`)
	hanging = regexp.MustCompile(`^( +)\S`)
)

// TestHelpFitsTheTerminal: no line of help is wider than the terminal, and no word is
// broken or lost. At 80 columns the text of a flag has 45 columns.
func TestHelpFitsTheTerminal(t *testing.T) {
	t.Parallel()
	pages := 0
	words := func(text string) []string { return strings.Fields(continued.ReplaceAllString(text, " ")) }
	everyPage(func(path []string, level cmdline.HelpLevel, page help.Page) {
		pages++
		want := words(page.Name + ": " + page.Usage + " Usage: " + page.Name + " " + page.Synopsis + " " + strings.ReplaceAll(page.Text, "\\\n", ""))
		for _, s := range slices.Concat(page.Commands, page.Flags) {
			want = append(want, words(strings.ToUpper(s.Title)+":")...)
			for _, r := range s.Rows {
				want = append(want, words(strings.Join(r.Names, ", ")+" "+r.Text+" "+r.Note)...)
			}
		}
		want = append(want, words(page.End)...)
		for _, width := range []int{60, 80, 200} {
			text := page.Lay(width)
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%s at %d columns: a line of %d: %q", page.Name, width, n, line)
				}
			}
			if got := words(text); !slices.Equal(got, want) {
				i := 0
				for i < min(len(got), len(want)) && got[i] == want[i] {
					i++
				}
				t.Errorf("%s at %d columns has other words than its texts from %q on", page.Name, width, got[i:min(i+4, len(got))])
			}
		}
		flags := help.Page{Flags: page.Flags}.Lay(80)
		for line := range strings.Lines(flags) {
			m := beside.FindStringSubmatch(line)
			if m == nil && !strings.HasPrefix(line, "  -") && !strings.HasPrefix(line, "    -") {
				m = hanging.FindStringSubmatch(line)
			}
			if m != nil && 80-len(m[1]) < 45 {
				t.Errorf("%s: the text of a flag has %d columns of 80, want 45: %q", page.Name, 80-len(m[1]), line)
			}
		}
	})
	if pages < 80 {
		t.Errorf("only %d pages", pages)
	}
}

var upperCase = regexp.MustCompile(`--[A-Z]`)

// TestFullHelpHasAllNames: the full help shows each flag under all its names. The short
// help shows fewer flags, and names in upper case only in sentences.
func TestFullHelpHasAllNames(t *testing.T) {
	t.Parallel()
	commands := silent(nil).commands()
	app := commands.App
	shown := func(page help.Page) (names []string) {
		for _, s := range page.Flags {
			for _, r := range s.Rows {
				for _, n := range r.Names {
					name, _, _ := strings.Cut(n, "=")
					names = append(names, strings.Trim(name, "-["))
				}
			}
		}
		return names
	}
	look := func(path []string, own []cli.Flag) {
		full := shown(commands.Page(path, cmdline.FullHelp))
		for _, row := range cmdline.FlagRows(slices.Concat(own, app.Flags)) {
			for _, name := range row.Names {
				if !slices.Contains(full, strings.TrimLeft(name, "-")) {
					t.Errorf("%q --help=all does not show %s", path, name)
				}
			}
		}
		short := shown(commands.Page(path, cmdline.ShortHelp))
		for i, name := range short {
			if slices.Contains(short[:i], name) {
				t.Errorf("%q --help shows --%s twice", path, name)
			}
			if upperCase.MatchString("--" + name) {
				t.Errorf("%q --help shows --%s", path, name)
			}
		}
		if len(own) > manyFlags && len(short) >= len(full)*2/3 {
			t.Errorf("%q --help shows %d of %d names", path, len(short), len(full))
		}
	}
	look(nil, nil)
	cmdline.Walk(app.Commands, func(path string, c *cli.Command) { look(strings.Fields(path), c.Flags) })
	for _, command := range []string{"run", "job"} {
		page := commands.Page([]string{command}, cmdline.ShortHelp)
		if title := page.Flags[0].Title; title != "common flags" || len(page.Flags[0].Rows) != 8 {
			t.Errorf("%s --help begins with %s: %v", command, title, page.Flags[0].Rows)
		}
		var titles []string
		for _, s := range page.Flags[1:] {
			titles = append(titles, s.Title)
		}
		if want := []string{"what runs", "where", "code", "when it fails or ends", "output", "advanced"}; !slices.Equal(titles, want) {
			t.Errorf("%s --help has the groups %q, want %q", command, titles, want)
		}
		if line := "MaxText's upper-case names work, too: multihost " + command + " --help=all lists them."; !strings.Contains(page.Lay(80), line) {
			t.Errorf("%s --help does not say: %s", command, line)
		}
	}
}

// helpOf runs the program with COLUMNS set to columns.
func helpOf(columns string, args ...string) (status int, out, errs string) {
	var stdout, stderr bytes.Buffer
	p := silent(map[string]string{"COLUMNS": columns, "MULTIHOST_FLAG_CONFIG": "none"})
	p.stdout, p.stderr = &stdout, &stderr
	status = p.run(args)
	return status, stdout.String(), stderr.String()
}

// TestHelpIsAskedForAnywhere checks which words ask for help, and for which command.
func TestHelpIsAskedForAnywhere(t *testing.T) {
	for line, want := range map[string]string{
		"":                                  "multihost: short",
		"--help":                            "multihost: short",
		"-h":                                "multihost: short",
		"help":                              "multihost: short",
		"--help=all":                        "multihost: full",
		"qr":                                "multihost qr: short",
		"qr --help":                         "multihost qr: short",
		"help qr":                           "multihost qr: short",
		"help run":                          "multihost run: short",
		"help run --help=all":               "multihost run: full",
		"run --help":                        "multihost run: short",
		"run -h=all":                        "multihost run: full",
		"run --tpu-prefix=x --help --quiet": "multihost run: short",
		"run --help --help=all":             "multihost run: full",
		"--quiet run --help=all":            "multihost run: full",
		"qr create x --help=all --spot":     "multihost qr create: full",
		"run --output=json --help":          "multihost run: short",
		"xla check --help --xla_a=1":        "multihost xla check: short",
		"--help run":                        "multihost: short",
	} {
		status, out, errs := helpOf("", strings.Fields(line)...)
		name, _, _ := strings.Cut(out, ": ")
		got := name + ": short"
		if strings.Contains(out, "--PROJECT=PROJECT") {
			got = name + ": full"
		}
		if status != exitOK || errs != "" || got != want {
			t.Errorf("multihost %s ended with %d, showed %s, want %s, and said: %s", line, status, got, want, errs)
		}
	}
	for line, want := range map[string]string{
		"run --help=nonsense":    "multihost: error: --help=nonsense: only all may follow --help=\nmultihost: hint: type: multihost run --help, or: multihost run --help=all\n",
		"run -h=1":               "multihost: error: -h=1: only all may follow -h=\nmultihost: hint: type: multihost run --help, or: multihost run --help=all\n",
		"--help=":                "multihost: error: --help=: only all may follow --help=\nmultihost: hint: type: multihost --help, or: multihost --help=all\n",
		"rnu --help":             "multihost: error: unknown command \"rnu\" of multihost\nmultihost: hint: did you mean multihost run?\n",
		"run --tpu-prefx --help": "multihost: error: unknown flag \"--tpu-prefx\" of multihost run\nmultihost: hint: did you mean --tpu-prefix? all flags: multihost run --help=all\n",
	} {
		if status, out, errs := helpOf("", strings.Fields(line)...); status != exitUsage || out != "" || errs != want {
			t.Errorf("multihost %s ended with %d and said:\n%s%s", line, status, out, errs)
		}
	}
}

// TestHelpWithoutATerminal: without a terminal, help has as many columns as COLUMNS says,
// or 80.
func TestHelpWithoutATerminal(t *testing.T) {
	for columns, want := range map[string]int{"": 80, "x": 80, "72": 72, "20": help.Narrowest} {
		_, out, _ := helpOf(columns, "run", "--help=all")
		widest := 0
		for line := range strings.Lines(out) {
			widest = max(widest, utf8.RuneCountInString(line)-1)
		}
		if widest > want || widest < want-3 {
			t.Errorf("COLUMNS=%s: the widest line has %d columns, want %d", columns, widest, want)
		}
	}
}
