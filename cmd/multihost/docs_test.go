package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/help"
	"multihost/internal/testkit"
)

var update = flag.Bool("update", false, "write what a test compares anew: docs/cli.md, or the picture of README.md")

// TestCLIDocumentIsUpToDate compares docs/cli.md with the commands as they are. make docs
// writes the file.
func TestCLIDocumentIsUpToDate(t *testing.T) {
	const path = "../../docs/cli.md"
	want := cliDocument()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read the document: %v; write it with: make docs", err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/cli.md is not what the commands say; write it with: make docs (-want +got):\n%s", diff)
	}
}

// TestEveryPromiseHasItsTest: each test and script that the tables of promises name exists.
func TestEveryPromiseHasItsTest(t *testing.T) {
	var tests strings.Builder
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		tests.Write(code)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, table := range map[string]struct{ columns, least int }{"reliability.md": {2, 30}, "detached.md": {4, 10}} {
		text, err := os.ReadFile("../../docs/" + path)
		if err != nil {
			t.Fatal(err)
		}
		promises := 0
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(line, "|")
			if len(cells) != table.columns+2 || strings.HasPrefix(cells[1], "-") || strings.TrimSpace(cells[table.columns]) == "test" {
				continue
			}
			promises++
			for _, name := range regexp.MustCompile("`([A-Za-z0-9_]+)`").FindAllStringSubmatch(cells[table.columns], -1) {
				if strings.Contains(tests.String(), "func "+name[1]+"(") {
					continue
				}
				if _, err := os.Stat("testdata/script/" + name[1] + ".txtar"); err != nil {
					t.Errorf("%s: %s: there is no test or script %s", path, strings.TrimSpace(cells[1]), name[1])
				}
			}
		}
		if promises < table.least {
			t.Errorf("%s: only %d promises found", path, promises)
		}
	}
}

func TestEveryCommandHasAnExitStatusSection(t *testing.T) {
	cmdline.WalkShown(app(), func(path string, c *cli.Command) {
		if len(c.Subcommands) == 0 && !strings.Contains(c.Description, "EXIT STATUS:") {
			t.Errorf("%s has no EXIT STATUS section", path)
		}
		if c.Usage == "" {
			t.Errorf("%s has no usage line", path)
		}
	})
}

// cliDocument writes all commands and flags as Markdown.
func cliDocument() string {
	app := app()
	var b strings.Builder
	fmt.Fprintf(&b, "# multihost: commands\n\nMade from the commands by `make docs`; do not edit.\n\n%s\n", fence(app.Description))
	b.WriteString("\nFlags stand before or after words, up to `--`. Upper-case names are MaxText's and\ncase-sensitive. Each flag takes its default from the environment variable\n`MULTIHOST_FLAG_<NAME>` where that is set, else from a file: [configuration.md](configuration.md).\n\n`multihost COMMAND --help` shows the flags that most users need, `--help=all` every flag\nunder all of its names.\n")
	b.WriteString("\n## Flags of every command\n\n")
	flagTable(&b, cmdline.EveryRow(app.Flags))
	cmdline.WalkShown(app, func(path string, c *cli.Command) {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n", path, strings.ToUpper(c.Usage[:1])+c.Usage[1:])
		if len(c.Subcommands) == 0 || c.ArgsUsage != "" {
			fmt.Fprintf(&b, "\n%s\n", fence(strings.TrimSpace(path+" [FLAG…] "+c.ArgsUsage)))
		}
		if c.Description != "" {
			fmt.Fprintf(&b, "\n%s\n", fence(c.Description))
		}
		if len(c.Flags) > 0 {
			b.WriteString("\n")
			flagTable(&b, cmdline.FlagRows(c.Flags))
		}
	})
	return b.String()
}

func fence(text string) string { return "```text\n" + strings.TrimRight(text, "\n") + "\n```" }

func flagTable(b *strings.Builder, flags []help.Flag) {
	b.WriteString("| flag | meaning | default |\n|---|---|---|\n")
	for _, row := range flags {
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", strings.Join(row.Names, "`, `"), strings.ReplaceAll(row.Text, "|", "\\|"), row.Default)
	}
}

// TestEveryFlagNamesItsValue: help names the value of a flag, as in `--max-dials N`, and
// does not call it value.
func TestEveryFlagNamesItsValue(t *testing.T) {
	everyFlag(func(command string, f cli.Flag) {
		help := f.(cli.DocGenerationFlag)
		if help.TakesValue() && strings.Count(help.GetUsage(), "`") != 2 {
			t.Errorf("--%s of %s: its help does not name its value in backquotes: %q", f.Names()[0], command, help.GetUsage())
		}
	})
}

// TestManualPagesAreClean checks all manual pages with a strict reader.
func TestManualPagesAreClean(t *testing.T) {
	mandoc := testkit.Need(t, "mandoc")
	dir := filepath.Join(t.TempDir(), "man1")
	if out, err := exec.Command("multihost", "manual", dir).CombinedOutput(); err != nil {
		t.Fatalf("multihost manual: %v\n%s", err, out)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	testkit.Must(t, err)
	out, _ := exec.Command(mandoc, append([]string{"-T", "lint", "-W", "warning"}, pages...)...).Output()
	for line := range strings.Lines(string(out)) {
		// The date is missing because a build contains no date.
		if !strings.Contains(line, "missing date") {
			t.Error(line)
		}
	}
	shown, err := exec.Command(mandoc, "-T", "utf8", filepath.Join(dir, "multihost-run.1")).Output()
	testkit.Must(t, err)
	plain := regexp.MustCompile(".\b").ReplaceAllString(string(shown), "")
	for _, text := range []string{"multihost-run - ", "--tpu-prefix=P, --TPU_PREFIX=P", "EXIT STATUS", "SEE ALSO"} {
		if !strings.Contains(plain, text) {
			t.Errorf("the page of multihost run does not show %q:\n%s", text, plain)
		}
	}
	if len(pages) < 40 {
		t.Errorf("only %d pages", len(pages))
	}
}
