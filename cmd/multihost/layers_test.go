package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/testkit"
)

func everyFlag(visit func(command string, f cli.Flag)) {
	app := app()
	for _, f := range app.Flags {
		visit("every command", f)
	}
	cmdline.Walk(app.Commands, func(path string, c *cli.Command) {
		for _, f := range c.Flags {
			visit(path, f)
		}
	})
}

// TestFilesKnowWhatEachFlagIs: each flag that names a local file, runs a program or names
// an address is in the right table of options.Rules.
func TestFilesKnowWhatEachFlagIs(t *testing.T) {
	kinds := map[string]config.Kind{}
	placeholder := regexp.MustCompile("`([^`]*)`")
	elsewhere := []string{"bucket-dir"} // names a directory in the bucket
	everyFlag(func(command string, f cli.Flag) {
		name := f.Names()[0]
		kinds[name] = cmdline.KindOf(f)
		switch f.(type) {
		case *cli.StringFlag, *cli.BoolFlag, *cli.IntFlag, *cli.Float64Flag, *cli.DurationFlag, *cli.StringSliceFlag, *cli.GenericFlag:
		default:
			t.Errorf("--%s of %s is a %T, which kindOf does not know", name, command, f)
		}
		if strings.Contains(name, "_") || name == "profiles" {
			t.Errorf("--%s of %s: files have another meaning for such a name", name, command)
		}
		m := placeholder.FindStringSubmatch(f.(cli.DocGenerationFlag).GetUsage())
		if m == nil {
			return
		}
		switch word := m[1]; {
		case (strings.Contains(word, "FILE") || word == "DIR") && rules(process{}).FileFlag(f).Paths == nil && rules(process{}).FileFlag(f).Never == "" && !slices.Contains(elsewhere, name):
			t.Errorf("--%s of %s names a local file: it belongs in pathFlags", name, command)
		case (word == "PROGRAM" || word == "URL" || word == "ADDRESS" || word == "EMAIL" || strings.HasPrefix(word, "CIDR")) && rules(process{}).FileFlag(f).Private == "":
			t.Errorf("--%s of %s runs a program, names an address or an identity, or opens a network: it belongs in privateFlags", name, command)
		}
	})
	for _, table := range [][]string{rules(process{}).Paths, keys(rules(process{}).Private), keys(rules(process{}).Never)} {
		for _, name := range table {
			if _, ok := kinds[name]; !ok {
				t.Errorf("options.Rules name the flag --%s, which there is not", name)
			}
		}
	}
}

// TestAProjectFileHasNoReachBeyondItsDirectory: a project file may come from somebody else.
// Each of these flags in it would open a network, end the runs of others, delete something,
// or choose an identity, although the user types a command that seems to do none of this.
func TestAProjectFileHasNoReachBeyondItsDirectory(t *testing.T) {
	dir := t.TempDir()
	commands := rules(process{}).FileCommands(app())
	for _, line := range []string{
		"ssh-source-ranges: 0.0.0.0/0", "source-ranges: 0.0.0.0/0", "all-ports-from: 0.0.0.0/0", "allow: all", "network create: {ssh_source_ranges: 0.0.0.0/0}",
		"replace: true", "kill-stale: all", "all-users: true", "force: true", "delete: true", "yes: true", "fix: true", "sudo: true",
		"ssh-config: config", "identity-file: key", "known-hosts: hosts", "forward-agent: true", "configuration: other",
		"service-account: a@b", "cqr-extra-args: --service-account=a@b", "CQR_EXTRA_ARGS: --service-account=a@b", "profiles: {p: {run: {replace: true}}}",
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, config.ProjectFile), []byte(line+"\n"), 0o600))
		_, err := config.LoadDefaults(config.DefaultsOptions{Lookup: silent(nil).lookup, Home: t.TempDir(), Dir: dir, Commands: func() []config.Command { return commands }})
		if err == nil || !strings.Contains(err.Error(), "is not taken from the file of a project") {
			t.Errorf("%s: error = %v", line, err)
		}
	}
}

func keys(m map[string]string) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	return all
}

// TestAlternativesGiveWay: a value from a file does not count if the user types a flag that
// excludes it.
func TestAlternativesGiveWay(t *testing.T) {
	env := map[string]string{
		"MULTIHOST_FLAG_COMMAND": "true", "MULTIHOST_FLAG_TPU_PREFIX": "t", "MULTIHOST_FLAG_FLEX_START": "true",
		"MULTIHOST_FLAG_MAX_RUN_DURATION": "5h", "MULTIHOST_FLAG_INTERNAL_IP": "TRUE", "MULTIHOST_FLAG_CONFIG": "none",
	}
	p := silent(env).commands()
	for line, want := range map[string]string{
		"run":                           "--internal-ip=true --tpu-prefix=t --command=true",
		"run -- x":                      "--internal-ip=true --tpu-prefix=t",
		"run --hosts=a,b":               "--internal-ip=true --command=true",
		"run --ip=iap":                  "--tpu-prefix=t --command=true",
		"qr create q":                   "--flex-start=true --max-run-duration=5h --internal-ip=true",
		"qr create q --spot":            "--internal-ip=true",
		"qr create q --spot=false":      "--flex-start=true --max-run-duration=5h --internal-ip=true",
		"qr create --reservation=r q":   "--internal-ip=true",
		"qr create q --flex-start=true": "--max-run-duration=5h --internal-ip=true",
	} {
		read, err := p.Parse(strings.Fields(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		var got []string
		for name, s := range read.From {
			if name != "config" {
				got = append(got, "--"+name+"="+strings.ToLower(s.Values[0]))
			}
		}
		slices.Sort(got)
		wanted := strings.Fields(want)
		slices.Sort(wanted)
		if !slices.Equal(got, wanted) {
			t.Errorf("%s: not typed: %s, want %s", line, got, wanted)
		}
	}
}

// Package cmdline reads the names of a flag from the fields of the flag. The test compares
// them with the names that package cli uses.
func TestNamesOfFlagsAreThoseOfCLI(t *testing.T) {
	t.Parallel()
	everyFlag(func(command string, f cli.Flag) {
		if got := cmdline.Names(f); !slices.Equal(got, f.Names()) || cmdline.Name(f) != got[0] {
			t.Errorf("%s: %q and %q, want %q", command, got, cmdline.Name(f), f.Names())
		}
	})
}
