package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/config"
)

// flagsForFiles returns commands with the flags that files of defaults can set.
func flagsForFiles() []config.Command {
	path := func(v string, place func(string) (string, error)) (string, error) { return place(v) }
	global := []config.Flag{
		{Names: []string{"zone", "ZONE"}, Kind: config.Text},
		{Names: []string{"profile"}, Kind: config.Text, Never: "it stands at the top"},
	}
	with := func(name string, flags ...config.Flag) config.Command {
		return config.Command{Path: name, Flags: append(flags, global...)}
	}
	prefix := config.Flag{Names: []string{"tpu-prefix", "TPU_PREFIX"}, Kind: config.Text}
	network := config.Flag{Names: []string{"network"}, Kind: config.Text}
	return []config.Command{
		with("run", prefix,
			config.Flag{Names: []string{"timeout"}, Kind: config.Duration},
			config.Flag{Names: []string{"install"}, Kind: config.Bool},
			config.Flag{Names: []string{"env"}, Kind: config.List},
			config.Flag{Names: []string{"script-dir"}, Kind: config.Text, Paths: path},
			config.Flag{Names: []string{"notify"}, Kind: config.Text, Private: "it runs a program"},
			config.Flag{Names: []string{"max-preemptions"}, Kind: config.Text},
			config.Flag{Names: []string{"ratio"}, Kind: config.Float},
			config.Flag{Names: []string{"follow", "f"}, Kind: config.Bool},
			config.Flag{Names: []string{"preflight"}, Kind: config.Text}),
		with("job", network, config.Flag{Names: []string{"num-slices", "NUM_SLICES", "node-count"}, Kind: config.Int}),
		with("exec", config.Flag{Names: []string{"workers"}, Kind: config.Text}),
		with("metrics", config.Flag{Names: []string{"workers"}, Kind: config.Bool}),
		with("qr"),
		with("qr create", network, config.Flag{Names: []string{"node-count"}, Kind: config.Int}),
		with("network"),
		with("network create", config.Flag{Names: []string{"mtu"}, Kind: config.Int}),
		with("preflight", prefix),
	}
}

// defaultsFiles writes the files of a project and of a user. It returns the options that
// load them.
func defaultsFiles(t *testing.T, project, user string) config.DefaultsOptions {
	t.Helper()
	dir := writeFiles(t, map[string]string{"p/below/x": "", "home/.config/multihost/config.yaml": user, "p/multihost.yaml": project})
	return config.DefaultsOptions{Lookup: lookup(nil), Home: filepath.Join(dir, "home"), Dir: filepath.Join(dir, "p", "below"), Commands: flagsForFiles}
}

// said returns the settings of a flag in the files, in order of precedence.
func said(d *config.Defaults, command, flag string) []string {
	for _, c := range flagsForFiles() {
		for _, f := range c.Flags {
			if c.Path != command || f.Names[0] != flag {
				continue
			}
			var all []string
			for _, s := range d.Find(command, f) {
				all = append(all, strings.Join(s.Values, "|")+" @"+filepath.Base(s.Source.File)+strings.TrimPrefix(s.Source.String(), s.Source.File))
			}
			return all
		}
	}
	return []string{"no such flag"}
}

func TestWhichDefaultCounts(t *testing.T) {
	const project = `
zone: project-all          # line 2
TPU_PREFIX: upper
node_count: 3
network: mtu9k
workers: s0w*
run:
  zone: project-run
  env: [A=1, "B=x, y"]
  preflight: off
  timeout: 90s
  max-preemptions: 3
network create:
  mtu: 8896
qr:
  node-count: 5
profiles:
  big:
    zone: big-all
    run: {zone: big-run}
    job: {num-slices: 8}
`
	const user = `
profile: big
zone: user-all
run:
  env: A=2
  install: true
profiles:
  mine: {zone: mine-all}
`
	tests := []struct {
		story, profile, command, flag string
		want                          []string
	}{
		{"the default profile of a file; command before all, project before user", "", "run", "zone", []string{
			"big-run @multihost.yaml:20:17", "big-all @multihost.yaml:19:11", "project-run @multihost.yaml:8:9", "project-all @multihost.yaml:2:7", "user-all @config.yaml:3:7"}},
		{"a profile of the other file, below the project's all the same", "mine", "run", "zone", []string{
			"project-run @multihost.yaml:8:9", "project-all @multihost.yaml:2:7", "mine-all @config.yaml:8:16", "user-all @config.yaml:3:7"}},
		{"MaxText's spelling", "mine", "run", "tpu-prefix", []string{"upper @multihost.yaml:3:13"}},
		{"one key, the alias of a flag here", "mine", "job", "num-slices", []string{"3 @multihost.yaml:4:13"}},
		{"and a flag there, of a group", "mine", "qr create", "node-count", []string{"5 @multihost.yaml:16:15", "3 @multihost.yaml:4:13"}},
		{"a flag called like a command", "mine", "job", "network", []string{"mtu9k @multihost.yaml:5:10"}},
		{"and that command", "mine", "network create", "mtu", []string{"8896 @multihost.yaml:14:8"}},
		{"lists take the place of lists, one text is a list", "mine", "run", "env", []string{"A=1|B=x, y @multihost.yaml:9:8", "A=2 @config.yaml:5:8"}},
		{"a name that two commands have for different things", "mine", "exec", "workers", []string{"s0w* @multihost.yaml:6:10"}},
		{"and means one of them", "mine", "metrics", "workers", nil},
		{"off is a text", "mine", "run", "preflight", []string{"off @multihost.yaml:10:14"}},
		{"a number where a text is wanted", "mine", "run", "max-preemptions", []string{"3 @multihost.yaml:12:20"}},
		{"a switch", "mine", "run", "install", []string{"true @config.yaml:6:12"}},
		{"nothing", "mine", "preflight", "zone", []string{"project-all @multihost.yaml:2:7", "mine-all @config.yaml:8:16", "user-all @config.yaml:3:7"}},
	}
	o := defaultsFiles(t, project, user)
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			o.Profile = tt.profile
			d, err := config.LoadDefaults(o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, said(d, tt.command, tt.flag)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	o.Profile = "bigg"
	_, err := config.LoadDefaults(o)
	var unknown *config.ProfileError
	if !errors.As(err, &unknown) || unknown.Hint() != "did you mean big?" {
		t.Errorf("unknown profile: error = %v", err)
	}
}

func TestFaultsOfAFileAreTold(t *testing.T) {
	tests := []struct{ text, want string }{
		{"zoen: x\n", `:1:1: "zoen" is neither a flag nor a command: did you mean zone?`},
		{"--zone: x\n", `:1:1: "--zone" is neither a flag nor a command: write it without dashes, zone`},
		{"run:\n  tpu_prefx: x\n", `:2:3: "tpu_prefx" is no flag of run: did you mean tpu-prefix?`},
		{"run:\n  num-slices: 2\n", `:2:3: "num-slices" is no flag of run, but of job`},
		{"rnu: {zone: x}\n", `:1:1: "rnu" is neither a flag nor a command: did you mean run?`},
		{"qr:\n  create:\n    zone: x\n", `:2:3: sections are not nested: write "qr create": at the outer level`},
		{"zone: {a: b}\n", `:1:7: "zone" takes a text, not a mapping`},
		{"zone: [a, b]\n", `:1:7: "zone" takes a text, not a list`},
		{"zone:\n", `:1:6: "zone" takes a text, not nothing`},
		{"zone: true\n", `:1:7: "zone" takes a text, not true (a text that looks like that stands in quotes)`},
		{"install: yes\n", `:1:10: "install" takes true or false, not "yes"`},
		{"install: \"true\"\n", `:1:10: "install" takes true or false, not a text in quotes`},
		{"num-slices: two\n", `:1:13: "num-slices" takes a whole number, not "two"`},
		{"num-slices: 1.5\n", `:1:13: "num-slices" takes a whole number, not "1.5"`},
		{"timeout: 90\n", `:1:10: "timeout" takes a time such as 90s, 10m or 2h, not "90" without a unit`},
		{"timeout: soon\n", `:1:10: "timeout" takes a time such as 90s, 10m or 2h, not "soon"`},
		{"ratio: x\n", `:1:8: "ratio" takes a number, not "x"`},
		{"env: [A=1, [B=2]]\n", `:1:12: "env": want a single value here`},
		{"zone: a\nzone: b\n", `:2:1: "zone" is set twice, first in line 1`},
		{"zone: a\nZONE: b\n", `:2:1: "ZONE" and "zone" in line 1 are one flag of run: keep one`},
		{"num-slices: 1\nnode-count: 2\n", `:2:1: "node-count" and "num-slices" in line 1 are one flag of job: keep one`},
		{"f: true\n", `:1:1: "f" is neither a flag nor a command`},
		{"run:\n  profile: x\n", `:2:3: "profile" cannot be set in a file: it stands at the top`},
		{"profile: [x]\n", `:1:10: profile: want the name of a profile`},
		{"profile: x\n", `:1:10: profile "x": no file has it`},
		{"profiles: [x]\n", `:1:11: profiles: want a name for each profile, and its settings below`},
		{"profiles:\n  v5p.x_1-a: {}\n  $(touch x): {}\n", `:3:3: profile "$(touch x)": want a name of letters, digits`},
		{"profiles:\n  a b: {}\n", `:2:3: profile "a b": want a name of`},
		{"profiles:\n  a: {}\n  a: {}\n", `:3:3: profile "a" is there twice`},
		{"profiles:\n  a:\n    profiles: {}\n", `:3:5: "profiles" is neither a flag nor a command`},
		{"notify: /bin/x\n", `:1:1: "notify" is not taken from the file of a project: it runs a program`},
		{"script-dir: ..\n", `:1:13: "script-dir": the file of a project may only name what is in its directory, and ".." is not`},
		{"script-dir: ~/.ssh\n", `:1:13: "script-dir": the file of a project may only name what is in its directory, and "~/.ssh" is not`},
		{"script-dir: link/deeper\n", `:1:13: "script-dir": the file of a project may only name what is in its directory, and "link/deeper" is not`},
		{"base: &b {zone: a}\nrun:\n  <<: *b\n", `:3:3: want the name of a flag or of a command; values are shared by profiles`},
		{"- zone\n", `:1:1: want lines of the form name: value`},
		{"zone: a\n---\nzone: b\n", `:2:1: a second document: put all into one`},
		{"zone: \"a\n", `:2: `},
		{"zone: a\n\tb: c\n", `:2: `},
		{"zone: a\nzoen: b\ninstall: 1\n", `:3:10: "install" takes true or false, not "1"`},
	}
	for _, tt := range tests {
		o := defaultsFiles(t, tt.text, "")
		path := filepath.Join(filepath.Dir(o.Dir), config.ProjectFile)
		if err := os.Symlink(o.Home, filepath.Join(filepath.Dir(path), "link")); err != nil {
			t.Fatal(err)
		}
		_, err := config.LoadDefaults(o)
		if err == nil || !strings.Contains(err.Error(), path+tt.want) {
			t.Errorf("%q: error = %v, want %q", tt.text, err, tt.want)
		}
	}
}

func TestPathsOfAFileAreRelativeToIt(t *testing.T) {
	o := defaultsFiles(t, "script-dir: code/../src\n", "script-dir: ~/x\nnotify: prog --flag\n")
	d, err := config.LoadDefaults(o)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(filepath.Dir(o.Dir), "src") + " @multihost.yaml:1:13", filepath.Join(o.Home, "x") + " @config.yaml:1:13"}
	if diff := cmp.Diff(want, said(d, "run", "script-dir")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := said(d, "run", "notify"); len(got) != 1 {
		t.Errorf("the user's own file sets notify: %v", got)
	}
}

// A project's file that other users may write is refused, because it decides what the user runs.
func TestAProjectFileOfOthersIsRefused(t *testing.T) {
	o := defaultsFiles(t, "zone: a\nnotify: prog\nscript-dir: /\n", "")
	path := filepath.Join(filepath.Dir(o.Dir), config.ProjectFile)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := config.LoadDefaults(o)
	var bad *config.FileError
	if !errors.As(err, &bad) || bad.Err.Error() != "everybody may write it" || !strings.Contains(bad.Hint(), "--config="+path) {
		t.Errorf("a file that everybody may write: error = %v", err)
	}
	o.Named = path // a named file is trusted
	if d, err := config.LoadDefaults(o); err != nil || len(said(d, "run", "notify")) != 1 {
		t.Errorf("a file that was named: error = %v", err)
	}
	o.Named = "none"
	if d, err := config.LoadDefaults(o); err != nil || d.Project != "" || len(said(d, "run", "zone")) > 0 {
		t.Errorf("no file was wanted: error = %v", err)
	}
	o.Named = ""
	if os.Geteuid() != 0 {
		return // only root can give files away
	}
	if err := errors.Join(os.Chmod(path, 0o644), os.Chown(path, 12345, -1)); err != nil {
		t.Fatal(err)
	}
	if _, err := config.LoadDefaults(o); err == nil || !strings.Contains(err.Error(), "it belongs to another user (uid 12345)") {
		t.Errorf("a file of another user: error = %v", err)
	}
}

func TestOddFilesOfDefaults(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a/multihost.yml": "zone: a\n", "b/multihost.yaml/x": "", "c/multihost.yaml": "# nothing\n", "d/multihost.yaml": "run:\nprofiles:\n  a:\n"})
	for sub, want := range map[string]string{"a": "rename", "b": "it is no file", "c": "", "d": ""} {
		_, err := config.LoadDefaults(config.DefaultsOptions{Lookup: lookup(nil), Home: dir, Dir: filepath.Join(dir, sub), Commands: flagsForFiles})
		var hint string
		var bad *config.FileError
		if errors.As(err, &bad) {
			hint = bad.Error() + bad.Hint()
		}
		if (want == "") != (err == nil) || !strings.Contains(hint, want) {
			t.Errorf("%s: error = %v, want %q", sub, err, want)
		}
	}
	if _, err := config.LoadDefaults(config.DefaultsOptions{Lookup: lookup(nil), Home: dir, Named: filepath.Join(dir, "nowhere")}); err == nil {
		t.Error("a file that was named is not there: no error")
	}
}

// LoadDefaults either reads a text or returns an error that names the file.
func FuzzDefaults(f *testing.F) {
	for _, s := range []string{"", "zone: a\nrun:\n  env: [A=1]\n", "a: &a [*a]\n", "? [a]\n: b\n", "profiles: {a: {run: {timeout: 5m}}}", "<<: {zone: a}", "!!binary x: y", "zone: !foo b"} {
		f.Add(s)
	}
	dir := f.TempDir()
	path := filepath.Join(dir, config.ProjectFile)
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := config.LoadDefaults(config.DefaultsOptions{Lookup: lookup(nil), Home: dir, Dir: dir, Commands: flagsForFiles})
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%q: the error does not name the file: %v", text, err)
		}
	})
}
