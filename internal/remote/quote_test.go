package remote_test

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/remote"
)

func TestQuote(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, ``},
		{[]string{""}, `''`},
		{[]string{"echo", "hello"}, `echo hello`},
		{[]string{"python3", "train.py", "--steps=10"}, `python3 train.py '--steps=10'`},
		{[]string{"A=1"}, `'A=1'`},
		{[]string{"/usr/bin/env", "-i", "a@b:c,d+e%f_g.h"}, `/usr/bin/env -i a@b:c,d+e%f_g.h`},
		{[]string{"a b", "$HOME", "`id`", "a;b", "a&&b", "*", "~", "#x", "!"}, "'a b' '$HOME' '`id`' 'a;b' 'a&&b' '*' '~' '#x' '!'"},
		{[]string{"it's"}, `'it'\''s'`},
		{[]string{"''"}, `''\'''\'''`},
		{[]string{"a\nb\tc"}, "'a\nb\tc'"},
		{[]string{"\xff\x01é"}, "'\xff\x01é'"},
		{[]string{`\`, `"`}, `'\' '"'`},
	} {
		if got := remote.Quote(tt.args...); got != tt.want {
			t.Errorf("Quote(%q) is %s, want %s", tt.args, got, tt.want)
		}
	}
}

func TestCommandLineIsAsPeopleTypeIt(t *testing.T) {
	got := remote.CommandLine("multihost", "run", "--tpu-prefix=t", "--command=echo hi", "a=b", "--x y=z")
	if want := `multihost run --tpu-prefix=t --command='echo hi' 'a=b' '--x y=z'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzQuote proves that a real shell sees the arguments as they were.
func FuzzQuote(f *testing.F) {
	f.Add("echo\x00a b\x00")
	f.Add("it's\x00$HOME\x00`id`\x00a\nb\x00\\\x00\"\x00")
	f.Add("-n\x00~\x00*\x00!\x00A=1\x00#\x00\xff\xfe\x00\r\n")
	f.Add("\x00\x00")
	f.Add("--flag=a b\x00--x;id=1\x00--=\x00--a='\x00--$(id)=$(id)")
	shells := shells(f)
	f.Fuzz(func(t *testing.T, joined string) {
		// An argument cannot contain NUL, so NUL separates arguments here.
		args := strings.Split(joined, "\x00")
		if len(joined) > 32<<10 {
			t.Skip("longer than what one argument of the test's shell may be")
		}
		for _, words := range []string{remote.Quote(args...), remote.CommandLine(args...)} {
			for _, shell := range shells {
				out, err := exec.Command(shell, "-c", "printf '%s\\0' "+words).Output()
				if err != nil {
					t.Fatalf("%s: %v", shell, err)
				}
				got := strings.Split(string(bytes.TrimSuffix(out, []byte{0})), "\x00")
				if diff := cmp.Diff(args, got); diff != "" {
					t.Errorf("%s: %s", shell, diff)
				}
			}
		}
		// As the first word of a line, an argument must be a command, whatever it looks
		// like.
		if word := args[0]; word != "" && !slices.Contains([]string{"[", ":", "."}, word) {
			line := "f() { printf %s \"$1\"; }; f " + remote.Quote(word)
			out, err := exec.Command(shells[0], "-c", line).Output()
			if err != nil || string(out) != word {
				t.Errorf("got %q, %v, want %q", out, err, word)
			}
		}
	})
}

func shells(t testing.TB) []string {
	t.Helper()
	var found []string
	for _, shell := range []string{"/bin/sh", "bash"} {
		if path, err := exec.LookPath(shell); err == nil {
			found = append(found, path)
		}
	}
	if len(found) == 0 {
		t.Fatal("no shell on this machine")
	}
	return found
}
