package help

import (
	"strings"
	"testing"
)

var page = Page{
	Name: "multihost run", Usage: "run a command on every worker of slices that exist", Synopsis: "[FLAG…] [-- PROGRAM ARG…]",
	Text: `Ships the current directory to every worker
of the slices and starts the command.

  multihost run --tpu-prefix=train --command='bash setup.sh && python3 train.py'
  multihost qr create train --node-count=2 --node-prefix=train \
    --tpu-type=v5litepod-16
  multihost network create                     a network with MTU 8896
  3. multihost.yaml in this directory or the nearest one above that has one`,
	Commands: []Section{{"commands", []Row{{[]string{"ps"}, "list the runs", ""}}}},
	Flags: []Section{
		{"common", []Row{
			{[]string{"--tpu-prefix=P"}, "exact name of one slice, or P of the slices P-0, P-1, and so on until there is none", ""},
			{[]string{"--scp-timeout-secs=SECONDS", "--SCP_TIMEOUT_SECS=SECONDS"}, "give up a copy without progress", "(default: 600)"},
		}},
		{"advanced", []Row{{[]string{"--quiet"}, "show only results, and what is wrong, in as few lines as possible", "(default: false)"}}},
	},
	End: `EXIT STATUS:
   0      success
   78     configuration: project, zone, key or file is missing or malformed`,
}

// The test has the expected page for each width at which the layout changes.
func TestLay(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		60: `
multihost run: run a command on every worker of slices that
  exist

Usage: multihost run [FLAG…] [-- PROGRAM ARG…]

Ships the current directory to every worker of the slices
and starts the command.

  multihost run --tpu-prefix=train \
    --command='bash setup.sh && python3 train.py'
  multihost qr create train --node-count=2 \
    --node-prefix=train --tpu-type=v5litepod-16
  multihost network create
      a network with MTU 8896
  3. multihost.yaml in this directory or the nearest one
     above that has one

COMMANDS:
  ps  list the runs

COMMON:
  --tpu-prefix=P
      exact name of one slice, or P of the slices P-0, P-1,
      and so on until there is none
  --scp-timeout-secs=SECONDS, --SCP_TIMEOUT_SECS=SECONDS
      give up a copy without progress (default: 600)

ADVANCED:
  --quiet
      show only results, and what is wrong, in as few lines
      as possible (default: false)

EXIT STATUS:
   0      success
   78     configuration: project, zone, key or file is
          missing or malformed
`,
		80: `
multihost run: run a command on every worker of slices that exist

Usage: multihost run [FLAG…] [-- PROGRAM ARG…]

Ships the current directory to every worker of the slices and starts the
command.

  multihost run --tpu-prefix=train --command='bash setup.sh && python3 train.py'
  multihost qr create train --node-count=2 --node-prefix=train \
    --tpu-type=v5litepod-16
  multihost network create                     a network with MTU 8896
  3. multihost.yaml in this directory or the nearest one above that has one

COMMANDS:
  ps  list the runs

COMMON:
  --tpu-prefix=P  exact name of one slice, or P of the slices P-0, P-1, and so
                  on until there is none
  --scp-timeout-secs=SECONDS, --SCP_TIMEOUT_SECS=SECONDS
                  give up a copy without progress (default: 600)

ADVANCED:
  --quiet         show only results, and what is wrong, in as few lines as
                  possible (default: false)

EXIT STATUS:
   0      success
   78     configuration: project, zone, key or file is missing or malformed
`,
	} {
		if got := "\n" + page.Lay(width); got != want {
			t.Errorf("at %d columns:\n%s\nwant:\n%s", width, got, want)
		}
	}
	if narrow := page.Lay(1); narrow != page.Lay(Narrowest) {
		t.Errorf("on a terminal of one column:\n%s", narrow)
	}
	if page.Lay(200) != page.Lay(widest) {
		t.Error("lines of 200 columns are too long to read")
	}
}

// At every width, no line is wider than the page, and no word is lost.
func TestEveryWidthFits(t *testing.T) {
	t.Parallel()
	words := func(text string) string {
		return strings.Join(strings.Fields(strings.ReplaceAll(text, "\\\n", "")), " ")
	}
	wide := words(page.Lay(widest))
	for width := Narrowest; width <= widest; width++ {
		got := page.Lay(width)
		for line := range strings.Lines(got) {
			if n := columns(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("a line of %d columns at %d: %q", n, width, line)
			}
			if strings.TrimRight(line, " \n")+"\n" != line {
				t.Errorf("a line ends with spaces: %q", line)
			}
		}
		if words(got) != wide {
			t.Errorf("at %d columns the words differ from those at %d:\n%s", width, widest, got)
		}
	}
}
