package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
)

// complaint is what the program says about a command line, which it refuses.
func complaint(t *testing.T, home string, env map[string]string, args ...string) string {
	t.Helper()
	var out, errs standardStream
	p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, home: home, dir: home, leave: make(chan struct{}),
		lookup: func(key string) (string, bool) { v, ok := env[key]; return v, ok }}
	if status := p.run(args); status != exitUsage {
		t.Fatalf("%q ended with %d: %s", args, status, errs.String())
	}
	return errs.String()
}

// Of two values that their flags do not take, the first is named, for every
// command and each two neighbours of its flags.
func TestOfTwoBadValuesTheFirstIsNamed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	pairs := 0
	walk((&program{}).app().Commands, "", func(path string, c *cli.Command) {
		if len(c.Subcommands) > 0 {
			return
		}
		var bad []string
		for _, f := range c.Flags {
			switch kindOf(f) {
			case config.Bool, config.Int, config.Float, config.Duration:
				bad = append(bad, "--"+f.Names()[0]+"=wrong")
			}
		}
		for i := 1; i < len(bad); i++ {
			pairs++
			for _, two := range [][]string{{bad[i-1], bad[i]}, {bad[i], bad[i-1]}} {
				said := complaint(t, home, nil, append(strings.Fields(path), two...)...)
				first, _, _ := strings.Cut(two[0], "=")
				if line, _, _ := strings.Cut(said, "\n"); !strings.Contains(line, first) {
					t.Errorf("%s %q: %s", path, two, line)
				}
			}
		}
	})
	if pairs < 100 {
		t.Errorf("only %d pairs", pairs)
	}
}

// Values that are wrong for what they say are named in that order, too, at each
// of many tries.
func TestOfTwoWrongValuesTheFirstIsNamed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	request := []string{"qr", "create", "x", "--tpu-type=v5litepod-16"}
	job := []string{"job", "--tpu-type=v5litepod-16", "--command=true", "--run-name=x"}
	where := []string{"--project=my-project", "--zone=us-central2-b"}
	for _, tt := range []struct {
		command []string
		wrong   [2]string
	}{
		{[]string{"qr", "list"}, [2]string{"--project=a b", "--zone=c d"}},
		{[]string{"run", "--tpu-prefix=x", "--command=true"}, [2]string{"--project=a b", "--zone=c d"}},
		{slices.Concat(job, where), [2]string{"--ttl=1s", "--lease=2s"}},
		{slices.Concat(job, where), [2]string{"--queue-timeout=-1s", "--boot-timeout=-2s"}},
		{slices.Concat(job, where), [2]string{"--provision-timeout=-1s", "--queue-timeout=-2s"}},
		{append([]string{"qr", "wait", "x"}, where...), [2]string{"--queue-timeout=-1s", "--boot-timeout=-2s"}},
		{slices.Concat(request, where), [2]string{"--max-run-duration=x", "--valid-until-duration=y"}},
	} {
		for range 50 {
			for _, two := range [][]string{tt.wrong[:], {tt.wrong[1], tt.wrong[0]}} {
				said := complaint(t, home, nil, append(slices.Clone(tt.command), two...)...)
				first, value, _ := strings.Cut(two[0], "=")
				if !strings.Contains(said, first+"=") && !strings.Contains(said, first+":") && !strings.Contains(said, value) {
					t.Fatalf("%q: %s", two, said)
				}
				if _, other, _ := strings.Cut(two[1], "="); strings.Contains(said, other+":") || strings.Contains(said, "\""+other+"\"") {
					t.Fatalf("%q: %s", two, said)
				}
			}
		}
	}
	// What is typed comes before what the environment says.
	env := map[string]string{"MULTIHOST_FLAG_TTL": "1s"}
	if said := complaint(t, home, env, append(slices.Concat(job, where), "--lease=2s")...); !strings.Contains(said, "--lease=2s") {
		t.Errorf("typed and environment: %s", said)
	}
}

func TestASizeHasOneUnit(t *testing.T) {
	t.Parallel()
	for range 50 {
		if n, err := parseSize("1KBMB"); err == nil {
			t.Fatalf("1KBMB is %d bytes", n)
		}
	}
	if n, err := parseSize("2 MB"); n != 2e6 || err != nil {
		t.Errorf("2 MB: %d, %v", n, err)
	}
}
