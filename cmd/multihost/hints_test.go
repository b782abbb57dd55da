package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"multihost/internal/cmdline"

	"github.com/urfave/cli/v2"
)

// prose are the verbs that follow the program's name in a sentence.
var prose = []string{"asks", "knows", "makes", "sets"}

// foreign are --help and flags of other programs. Texts mention them without the program's
// name.
var foreign = []string{"going", "help", "member", "no-archive"}

var (
	namedCommand = regexp.MustCompile(`(?:: |^|with |type |see |again |same )multihost ([a-z](?:[^;()…,:]|:\S)*)`)
	namedFlag    = regexp.MustCompile(`(?:^|[ ("/])--([a-z][a-z0-9-]*)`)
	otherProgram = regexp.MustCompile(`(?:^|[^-\w])(gcloud|kubectl|sudo|git|ssh|docker|podman|crictl|journalctl|dmesg|df|tar|chsh|python3?|pip|install|ps|prlimit|unshare|find|setsid|bash|perl|nvidia-smi|flock)\b[^;]*`)
)

func TestHintsNameOnlyWhatExists(t *testing.T) {
	commands, flags := map[string]*cli.Command{}, map[string]bool{}
	add := func(all []cli.Flag) {
		for _, f := range all {
			for _, name := range f.Names() {
				flags[name] = true
			}
		}
	}
	app := app()
	add(app.Flags)
	cmdline.WalkShown(app, func(path string, c *cli.Command) {
		commands[path] = c
		add(c.Flags)
	})
	named := 0
	for line := range strings.Lines(messages(t, false)) {
		line = strings.TrimSpace(line)
		for _, m := range namedCommand.FindAllStringSubmatch(line, -1) {
			path, rest := "multihost", strings.Fields(m[1])
			for len(rest) > 0 && commands[path+" "+strings.TrimRight(rest[0], ",.:")] != nil {
				path, rest = path+" "+strings.TrimRight(rest[0], ",.:"), rest[1:]
			}
			c := commands[path]
			if c == nil {
				if len(rest) > 0 && slices.Contains(prose, strings.TrimSuffix(rest[0], ",")) {
					continue
				}
				t.Errorf("%q names no command of multihost", line)
				continue
			}
			named++
			if len(c.Subcommands) > 0 && len(rest) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(rest[0]) {
				t.Errorf("%q: %s has no command %s", line, path, rest[0])
			}
			if at := slices.Index(rest, "--"); at >= 0 {
				rest = rest[:at] // the rest are words of the user's command
			}
			for _, f := range namedFlag.FindAllStringSubmatch(strings.Join(rest, " "), -1) {
				if f[1] != "help" && !slices.ContainsFunc(c.Flags, func(have cli.Flag) bool { return slices.Contains(have.Names(), f[1]) }) {
					t.Errorf("%q: %s has no flag --%s", line, path, f[1])
				}
			}
		}
		if !strings.Contains(line, " ") {
			continue // a word of another program
		}
		for _, f := range namedFlag.FindAllStringSubmatch(otherProgram.ReplaceAllString(line, ""), -1) {
			if named++; !flags[f[1]] && !slices.Contains(foreign, f[1]) {
				t.Errorf("%q: no command of multihost has a flag --%s", line, f[1])
			}
		}
	}
	if named < 300 {
		t.Errorf("only %d commands and flags found", named)
	}
}
