package config_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/config"
	"multihost/internal/testkit"
)

func lookup(vars map[string]string) config.Lookup {
	return func(key string) (string, bool) {
		v, ok := vars[key]
		return v, ok
	}
}

// writeFiles makes files below a new directory. The key of a file is its path there.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadGcloud(t *testing.T) {
	files := map[string]string{
		".config/gcloud/active_config": "work\n",
		".config/gcloud/configurations/config_work": `[core]
project = from-work
account = ada@example.com
[compute]
zone = us-central2-b
[api_endpoint_overrides]
tpu = http://127.0.0.1:1/a%%20b/
[auth]
disable_credentials = True
`,
		".config/gcloud/configurations/config_play":    "[core]\nPROJECT: from-play # not a comment\n",
		".config/gcloud/configurations/config_default": "",
		".config/gcloud/configurations/config_broken":  "[core]\nproject\n",
		".config/gcloud/properties":                    "[core]\nproject = from-properties\n[compute]\nregion = us-central2\nzone = us-east1-d\n",
		"elsewhere/configurations/config_default":      "[core]\nproject = from-elsewhere\n",
	}
	tests := []struct {
		story  string
		env    map[string]string
		flag   string
		want   config.Gcloud
		source map[string]string // part of Source; HOME means the directory
	}{
		{story: "active configuration, then properties", want: config.Gcloud{
			Configuration: "work", Project: "from-work", Account: "ada@example.com", Zone: "us-central2-b", Region: "us-central2",
			TPUEndpoint: "http://127.0.0.1:1/a%20b/", DisableAuth: true,
		}, source: map[string]string{
			"Project": "HOME/.config/gcloud/configurations/config_work [core] project",
			"Region":  "HOME/.config/gcloud/properties [compute] region",
		}},
		{story: "environment wins", env: map[string]string{
			"CLOUDSDK_CORE_PROJECT": "from-env", "CLOUDSDK_COMPUTE_ZONE": "us-east5-a", "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "false",
			"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://e/", "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": "http://c/compute/v1/",
			"CLOUDSDK_CORE_ACCOUNT": "",
		}, want: config.Gcloud{
			Configuration: "work", Project: "from-env", Account: "ada@example.com", Zone: "us-east5-a", Region: "us-central2",
			TPUEndpoint: "http://e/", ComputeEndpoint: "http://c/compute/v1/",
		}, source: map[string]string{"Project": "CLOUDSDK_CORE_PROJECT", "Zone": "CLOUDSDK_COMPUTE_ZONE"}},
		{story: "flag names the configuration", flag: "play", env: map[string]string{"CLOUDSDK_ACTIVE_CONFIG_NAME": "work"}, want: config.Gcloud{
			Configuration: "play", Project: "from-play # not a comment", Zone: "us-east1-d", Region: "us-central2",
		}},
		{story: "environment names the configuration", env: map[string]string{"CLOUDSDK_ACTIVE_CONFIG_NAME": "default"}, want: config.Gcloud{
			Configuration: "default", Project: "from-properties", Zone: "us-east1-d", Region: "us-central2",
		}},
		{story: "no configuration", flag: "NONE", want: config.Gcloud{
			Configuration: "NONE", Project: "from-properties", Zone: "us-east1-d", Region: "us-central2",
		}},
		{story: "another directory", env: map[string]string{"CLOUDSDK_CONFIG": "HOME/elsewhere"}, want: config.Gcloud{
			Configuration: "default", Project: "from-elsewhere",
		}},
		{story: "nothing at all", env: map[string]string{"CLOUDSDK_CONFIG": "HOME/missing"}, want: config.Gcloud{Configuration: "default"}},
	}
	home := writeFiles(t, files)
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			env := map[string]string{}
			for k, v := range tt.env {
				env[k] = strings.ReplaceAll(v, "HOME", home)
			}
			got, err := config.LoadGcloud(lookup(env), home, tt.flag)
			if err != nil {
				t.Fatal(err)
			}
			for field, want := range tt.source {
				if want = strings.ReplaceAll(want, "HOME", home); got.Source[field] != want {
					t.Errorf("source of %s = %q, want %q", field, got.Source[field], want)
				}
			}
			got.Source = nil
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("missing configuration", func(t *testing.T) {
		_, err := config.LoadGcloud(lookup(nil), home, "nope")
		var ce *config.ConfigurationError
		if !errors.As(err, &ce) || !strings.Contains(ce.Hint(), "broken, default, play, work") {
			t.Errorf("error = %v", err)
		}
	})
	t.Run("illegal name", func(t *testing.T) {
		if _, err := config.LoadGcloud(lookup(nil), home, "../x"); err == nil || !strings.Contains(err.Error(), "--configuration") {
			t.Errorf("error = %v", err)
		}
	})
	t.Run("broken file", func(t *testing.T) {
		_, err := config.LoadGcloud(lookup(nil), home, "broken")
		if err == nil || !strings.Contains(err.Error(), "config_broken") {
			t.Errorf("error = %v, want one that names the file", err)
		}
	})
	t.Run("bad boolean", func(t *testing.T) {
		_, err := config.LoadGcloud(lookup(map[string]string{"CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "maybe"}), home, "")
		if err == nil || !strings.Contains(err.Error(), "CLOUDSDK_AUTH_DISABLE_CREDENTIALS") {
			t.Errorf("error = %v", err)
		}
	})
}

func TestFlagOverrides(t *testing.T) {
	g := config.Gcloud{Project: "a"}
	if err := g.Override("Project", "--project", ""); err != nil || g.Project != "a" {
		t.Errorf("project = %q, %v", g.Project, err)
	}
	if err := g.Override("Project", "--project", "b"); err != nil || g.Project != "b" || g.Source["Project"] != "--project" {
		t.Errorf("project = %q from %q, %v", g.Project, g.Source["Project"], err)
	}
}

func TestParseBool(t *testing.T) {
	for _, v := range []string{"true", "True", "TRUE"} {
		if got, err := config.ParseBool("internal-ip", v); err != nil || !got {
			t.Errorf("ParseBool(%q) = %v, %v", v, got, err)
		}
	}
	if got, err := config.ParseBool("internal-ip", "False"); err != nil || got {
		t.Errorf("ParseBool(False) = %v, %v", got, err)
	}
	for _, v := range []string{"", "1", "yes", "t", " true", "0"} {
		_, err := config.ParseBool("--internal-ip", v)
		if want := fmt.Sprintf("--internal-ip %q: want --internal-ip=true or --internal-ip=false", v); err == nil || err.Error() != want {
			t.Errorf("ParseBool(%q): error = %v, want %q", v, err, want)
		}
	}
}

func TestParseEnvAssignments(t *testing.T) {
	got, err := config.ParseEnvAssignments([]string{"A=1", "B=x=y z", "C=", "A=$HOME\n'"})
	if err != nil {
		t.Fatal(err)
	}
	want := []config.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "x=y z"}, {Name: "C"}, {Name: "A", Value: "$HOME\n'"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for in, part := range map[string]string{"A": "--secret-env", "=x": "name is empty", "1A=x": `"1A"`, "A B=x": `"A B"`, "A=a\x00b": "NUL"} {
		if _, err := config.ParseEnvAssignments([]string{in}); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: error = %v, want %q in it", in, err, part)
		}
	}
}

func TestSecretEnv(t *testing.T) {
	env := lookup(map[string]string{"TOKEN": "hunter2"})
	got, err := config.SecretEnv(env, []string{"TOKEN"})
	if diff := cmp.Diff([]config.EnvVar{{Name: "TOKEN", Value: "hunter2", Secret: true}}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, name := range []string{"MISSING", "", "TOKEN=hunter2"} {
		_, err := config.SecretEnv(env, []string{name})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: error = %v", name, err)
		}
	}
}

func TestReadEnvFile(t *testing.T) {
	text := "\ufeff# a comment\n\n  \t\nPLAIN=a b  # comment\nHASH=a#b\nEMPTY=\nexport EXPORTED=1\nexport\tTABBED=2\n" +
		"SINGLE='a $x \"\\n # b' # comment\nDOUBLE=\"a\\n\\t\\\"\\$x\\\\ \\d # b\"\nexport=kept\n  INDENTED = x\n"
	text = strings.Replace(text, "  INDENTED = x\n", "  INDENTED= x \r\nMULTI='one\ntwo'\nLAST=\"é\"", 1)
	path := filepath.Join(writeFiles(t, map[string]string{"env": text}), "env")
	got, err := config.ReadEnvFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	want := []config.EnvVar{
		{Name: "PLAIN", Value: "a b"}, {Name: "HASH", Value: "a#b"}, {Name: "EMPTY"},
		{Name: "EXPORTED", Value: "1"}, {Name: "TABBED", Value: "2"},
		{Name: "SINGLE", Value: `a $x "\n # b`}, {Name: "DOUBLE", Value: "a\n\t\"$x\\ \\d # b"},
		{Name: "export", Value: "kept"}, {Name: "INDENTED", Value: "x"},
		{Name: "MULTI", Value: "one\ntwo"}, {Name: "LAST", Value: "é"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadEnvFileErrors(t *testing.T) {
	tests := []struct{ text, want string }{
		{"A=1\nB\n", ":2: want NAME=VALUE"},
		{"A='1\n2'\nB C=secret\n", `:3: name "B C"`},
		{"# x\nA=\"secret\n", ":2: A: double quote is not closed"},
		{"A='secret\n", ":1: A: single quote is not closed"},
		{"A='x'secret\n", ":1: A: text after the closing quote"},
		{"A=sec\x00ret\n", ":1: value of \"A\" holds a NUL byte"},
		{"=x\n", ":1: the name is empty"},
		{"A =x\n", `:1: name "A "`},
		{"\ufeffA=1\nB\n", ":2: want NAME=VALUE"},
	}
	for _, tt := range tests {
		path := filepath.Join(writeFiles(t, map[string]string{"env": tt.text}), "env")
		_, err := config.ReadEnvFile(t.Context(), path)
		if err == nil || !strings.HasPrefix(err.Error(), path+tt.want) {
			t.Errorf("%q: error = %v, want %q", tt.text, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error shows a value: %v", tt.text, err)
		}
	}
	for _, path := range []string{"", filepath.Join(t.TempDir(), "missing"), t.TempDir()} {
		if _, err := config.ReadEnvFile(t.Context(), path); err == nil {
			t.Errorf("ReadEnvFile(%q): no error", path)
		}
	}
}

func TestATextIsReadWholeOrNotAtAll(t *testing.T) {
	dir := writeFiles(t, map[string]string{"whole": "\ufeffabc", "large": "abcdef", "utf16": "\xff\xfea\x00", "empty": ""})
	pipe := filepath.Join(dir, "pipe")
	testkit.Must(t, syscall.Mkfifo(pipe, 0o600))
	for name, want := range map[string]string{
		"whole": "abc", "empty": "",
		"large": "larger than 5 bytes", "utf16": "it is UTF-16, want UTF-8", ".": "is a directory", "none": "no such file or directory",
	} {
		text, err := config.ReadText(t.Context(), filepath.Join(dir, name), 6-strings.Count(name, "large"))
		var told *config.FileError
		switch {
		case err == nil && text == want:
		case errors.As(err, &told) && strings.HasSuffix(err.Error(), ": "+want) && strings.Contains(err.Error(), dir):
		default:
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("interrupted"))
	if _, err := config.ReadText(stopped, pipe, 6); err == nil || err.Error() != "interrupted" {
		t.Errorf("a pipe without writer: %v", err)
	}
	// The read still waits for a writer. Open and close the pipe, so that the read ends.
	w, err := os.OpenFile(pipe, os.O_RDWR, 0)
	testkit.Must(t, err)
	testkit.Must(t, w.Close())
}

// Single quotes mean the same as in a shell.
func FuzzReadEnvFile(f *testing.F) {
	for _, s := range []string{"", "a", "a b", "#", "$x", "`x`", "\\", "\"", "a\nb", "é"} {
		f.Add(s)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, value string) {
		if strings.ContainsAny(value, "'\x00") {
			t.Skip("not expressible in single quotes")
		}
		path := filepath.Join(dir, "env")
		if err := os.WriteFile(path, []byte("A='"+value+"'\nB=2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := config.ReadEnvFile(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]config.EnvVar{{Name: "A", Value: value}, {Name: "B", Value: "2"}}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		out, err := exec.Command("sh", "-c", `. "$0"; printf %s "$A"`, path).Output()
		if err != nil || string(out) != value {
			t.Errorf("a shell reads %q, %v; want %q", out, err, value)
		}
	})
}

func TestCheckZone(t *testing.T) {
	for _, z := range []string{"us-central2-b", "northamerica-northeast1-a", "us-south1-ai1b"} {
		if err := config.CheckZone(z); err != nil {
			t.Error(err)
		}
	}
	for z, part := range map[string]string{"": "--zone", "us-central2": "is a region", "US-central2-b": "want the form", "us central2-b": "want the form", "-": "want the form"} {
		if err := config.CheckZone(z); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("CheckZone(%q) = %v, want %q in it", z, err, part)
		}
	}
}

func TestCheckProject(t *testing.T) {
	for _, p := range []string{"my-project-1", "example.com:my-project", "123456789"} {
		if err := config.CheckProject(p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"", "My Project", "short", "ends-in-dash-", strings.Repeat("a", 31)} {
		if err := config.CheckProject(p); err == nil {
			t.Errorf("CheckProject(%q): no error", p)
		}
	}
}

func TestRunName(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	legal := regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	for user, want := range map[string]string{
		"ada":                           "ada-20260102-150405-ab3f",
		"Ada.Lovelace":                  "ada-lovelace-20260102-150405-ab3f",
		"":                              "u-20260102-150405-ab3f",
		"1a":                            "u1a-20260102-150405-ab3f",
		"_é_":                           "u-20260102-150405-ab3f",
		strings.Repeat("ab", 9) + "c-d": strings.Repeat("ab", 9) + "c-20260102-150405-ab3f",
	} {
		got := config.RunName(user, now, bytes.NewReader([]byte{0xab, 0x3f}))
		if got != want {
			t.Errorf("RunName(%q) = %q, want %q", user, got, want)
		}
		if !legal.MatchString(got) || len(got) > 59 || config.CheckRunName(got) != nil {
			t.Errorf("RunName(%q) = %q is not legal with a slice number", user, got)
		}
	}
	if got := config.RunName("ada", now.Add(0x1234), strings.NewReader("")); got != "ada-20260102-150405-1234" {
		t.Errorf("without randomness: %q", got)
	}
}

func TestCheckRunName(t *testing.T) {
	for _, s := range []string{"a", "Run_1.2-x", "0", strings.Repeat("a", config.MaxRunName)} {
		if err := config.CheckRunName(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", ".", "..", ".multihost", "-x", "a/b", "a b", "a\n", strings.Repeat("a", config.MaxRunName+1)} {
		if err := config.CheckRunName(s); err == nil {
			t.Errorf("CheckRunName(%q): no error", s)
		}
	}
}

func TestLocalUser(t *testing.T) {
	tests := []struct {
		user, account, want string
		note                string // part of the note; empty: no note
	}{
		{"ada", "x@example.com", "ada", ""},
		{"Ada Lovelace", "", "ada_lovelace", "--user"},
		{`CORP\ada`, "", "ada", ""},
		{"1ada", "", "g1ada", "--user"},
		{"root", "grace.hopper@example.com", "grace_hopper", "is root"},
		{"root", "", "multihost", "is root"},
		{"root", "root@example.com", "multihost", "is root"},
		{"", "grace@example.com", "grace", "no legal name"},
		{"日本", "", "multihost", "no legal name"},
		{"ROOT", "", "multihost", "no legal name"},
		{strings.Repeat("a", 40), "", strings.Repeat("a", 32), "--user"},
	}
	for _, tt := range tests {
		got, note := config.LocalUser(lookup(map[string]string{"USER": tt.user}), tt.account)
		if got != tt.want {
			t.Errorf("login for %q, %q = %q, want %q", tt.user, tt.account, got, tt.want)
		}
		if (tt.note == "") != (note == "") || !strings.Contains(note, tt.note) {
			t.Errorf("note for %q, %q = %q, want %q in it", tt.user, tt.account, note, tt.note)
		}
	}
	if got, _ := config.LocalUser(lookup(map[string]string{"LOGNAME": "ada"}), ""); got != "ada" {
		t.Errorf("login by LOGNAME = %q", got)
	}
}

func TestDirectories(t *testing.T) {
	if got := config.StateDir(lookup(nil), "/home/ada"); got != "/home/ada/.local/state/multihost" {
		t.Errorf("state = %q", got)
	}
	if got := config.StateDir(lookup(map[string]string{"XDG_STATE_HOME": "/s"}), "/home/ada"); got != "/s/multihost" {
		t.Errorf("state = %q", got)
	}
	if got := config.StateDir(lookup(map[string]string{"XDG_STATE_HOME": "s"}), "/home/ada"); got != "/home/ada/.local/state/multihost" {
		t.Errorf("state by a relative path = %q", got)
	}
	if got := config.RuntimeDir(lookup(map[string]string{"XDG_RUNTIME_DIR": "/run/user/1"})); got != "/run/user/1/multihost" {
		t.Errorf("runtime = %q", got)
	}
	if got, want := config.RuntimeDir(lookup(map[string]string{"TMPDIR": "/t"})), fmt.Sprintf("/t/multihost-%d", os.Getuid()); got != want {
		t.Errorf("runtime = %q, want %q", got, want)
	}
}
