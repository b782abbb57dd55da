package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/options"
	"multihost/internal/testkit"
)

// complaint returns the error that the program prints for a command line.
func complaint(t *testing.T, home string, env map[string]string, args ...string) string {
	t.Helper()
	var out, errs standardStream
	p := process{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, home: home, dir: home, leave: make(chan struct{}),
		lookup: func(key string) (string, bool) { v, ok := env[key]; return v, ok }}
	if status := p.run(args); status != exitUsage && status != exitConfig || out.String() != "" {
		t.Fatalf("%q ended with %d: %s", args, status, errs.String())
	}
	return errs.String()
}

// If two flags get wrong values, the error names the first flag. The test tries every
// command and each pair of neighbouring flags.
func TestOfTwoBadValuesTheFirstIsNamed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	pairs := 0
	cmdline.Walk(app().Commands, func(path string, c *cli.Command) {
		if len(c.Subcommands) > 0 {
			return
		}
		var bad []string
		for _, f := range c.Flags {
			switch cmdline.KindOf(f) {
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

// One wrong value for each check of a command.
var (
	badGlobals  = []string{"--output=x", "--project=a b", "--zone=c d", "--sim-step=x", "--quiet=x", "--configuration=no/such"}
	badLogins   = badOf(options.LoginOptions())
	badHosts    = badOf(options.HostOptions())
	badWatches  = badOf(options.WatchingOptions())
	badWaits    = badOf(options.WaitOptions())
	badRuns     = []string{"stray", "--fail-fast=x"}
	badRequests = []string{
		"--workload-type=x", "--provisioning-model=x", "--reservation=/", "--min-duration=x", "--max-run-duration=-1s",
		"--valid-after-duration=x", "--valid-until-time=x", "--network=A B", "--subnetwork=A C", "--range=x", "--service-account=x", "--scopes=x",
		"--labels=A=b", "--tags=T", "--metadata=a b=c", "--metadata-from-file=a=/no/such", "--data-disk=x", "--boot-disk=x", "--network-config=x",
	}
)

// badOf returns each option with a value that it refuses.
func badOf(rows []options.Option) (bad []string) {
	for _, o := range rows {
		if o.Bad() != "" {
			bad = append(bad, "--"+o.Name()+"="+o.Bad())
		}
	}
	return bad
}

// If several values are wrong, the error names the first one on the line, whichever check
// finds it, and is the same as for that value alone. make test tries only every third value
// as the first one.
func TestOfTwoWrongValuesTheFirstOnTheLineIsNamed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for _, tt := range []struct {
		command string
		bad     []string
	}{
		{"run --tpu-prefix=x --command=true", slices.Concat(badRuns, badGlobals, badOf(options.RunRows()))},
		{"job --tpu-type=v5litepod-16 --command=true --run-name=x", slices.Concat(badRuns, badGlobals, badOf(options.JobRows()), badRequests)},
		{"job --tpu-type=v5litepod-16 --command=true --detach --bucket-name=b-1", []string{"--upload-every=1ms", "--bucket-dir=?", "--lease=1h", "--replace", "--ttl=1s", "--user=root"}},
		{"exec --tpu-prefix=x --command=true", slices.Concat(badGlobals, badLogins, badHosts, []string{"--workers=x", "--exclude-workers=y", "--timeout=-1s", "--grace=-1s", "--slices=x", "--sudo=x", "stray"})},
		{"cp --tpu-prefix=x a all:b", slices.Concat(badGlobals, badLogins, []string{"--exclude-workers=y", "--slices=x"})},
		{"ssh s0w0 --tpu-prefix=x", slices.Concat(badGlobals, badLogins, []string{"--slices=x", "--forward-agent"})},
		{"qr create x --tpu-type=v5litepod-16 --node-count=2", slices.Concat(badGlobals, badLogins, badRequests, badWaits, []string{"--tpu-type=v4-17", "--node-count=0", "--confirm", "--node-prefix=A", "--description=" + strings.Repeat("x", 600)})},
		{"qr list", slices.Concat(badGlobals, []string{"--filter=(", "--sort-by=,", "--limit=x", "--page-size=0", "stray"})},
		{"qr wait x", slices.Concat(badGlobals, badLogins, badWaits)},
		{"slices wait x", slices.Concat(badGlobals, badLogins, badWaits, []string{"--slices-deadline=-1s"})},
		{"cluster create x --tpu-type=v5litepod-16", slices.Concat(badGlobals, []string{"--tpu-type=v4-17", "--num-slices=-1", "--reservation=/", "--network=A", "--subnetwork=B", "--gke-version=x", "--default-pool-cpu-num-nodes=0", "--host-maintenance-interval=x", "--confirm"})},
		{"workload create x --cluster=x --docker-image=i --command=true --tpu-type=v4-16", slices.Concat(badGlobals, []string{"--cluster=A", "--namespace=B", "--tpu-type=v4-17", "--num-slices=0", "--image-repository=A b", "--env=1", "--queue=Q", "--priority=P", "--resource=r", "--max-restarts=-1", "--restart-on-exit-codes=x", "--ttl-seconds-after-finished=9999999999", "--termination-grace-period-seconds=-1", "--stream=x", "--confirm"})},
		{"workload logs x --cluster=x", slices.Concat(badGlobals, []string{"--cluster=A", "--worker=x"})},
		{"xpk cluster create --cluster=x --tpu-type=v4-16", slices.Concat(badGlobals, []string{"--cluster=A", "--tpu-type=v4-17", "--num-slices=0", "--reservation=/", "--custom-cluster-arguments=x", "--custom-nodepool-arguments=--x", "--custom-tpu-nodepool-arguments=--x",
			"--gke-version=x", "--default-pool-cpu-num-nodes=0", "--host-maintenance-interval=x", "stray"})},
		{"xpk workload create --cluster=x --workload=w --docker-image=i --command=true --tpu-type=v4-16", slices.Concat(badGlobals, []string{"--cluster=A", "--workload=W", "--tpu-type=v4-17", "--num-slices=0", "--image-repository=A b", "--docker-name=A", "--priority=P", "--max-restarts=-1",
			"--restart-on-exit-codes=x", "--ttl-seconds-after-finished=9999999999", "--termination-grace-period-seconds=-1", "--env=1", "--stream=x", "stray"})},
		{"xpk workload create --cluster=x --workload=w --docker-image=i --command=true --tpu-type=v4-16", []string{"--env-file=/no/such", "--max-restarts=-1"}},
		{"xpk workload list --cluster=x", slices.Concat(badGlobals, []string{"--cluster=A", "--filter-by-status=x", "--filter-by-job=(", "--timeout=0", "stray"})},
		{"xpk workload delete --cluster=x", slices.Concat(badGlobals, []string{"--cluster=A", "--filter-by-status=x", "--filter-by-job=(", "stray"})},
		{"network create", slices.Concat(badGlobals, []string{"--mtu=1", "--subnet-mode=x", "--bgp-routing-mode=x", "--ssh-source-ranges=x", "--all-ports-from=y", "A"})},
		{"network firewall create x --allow=tcp", slices.Concat(badGlobals, []string{"--network=A", "--allow=?", "--source-ranges=x", "--target-tags=B", "--priority=-1"})},
		{"sim up", []string{"--output=x", "--sim-step=x", "--backend=x", "--listen=x", "--ssh-port=-1", "--step=0s", "--quota=-1", "--fault=x", "--slices=x", "--login=x", "stray"}},
		{"doctor --tpu-prefix=x", slices.Concat(badGlobals, badLogins, badHosts, []string{"--slices=x", "--tpu-type=x", "--num-slices=0", "--reservation=/", "--fix=x", "stray"})},
		{"logs r", slices.Concat(badGlobals, badLogins, badHosts, []string{"--worker=x", "--attempt=-1", "--lost-timeout=-1s", "--tail=-1", "--since=x", "--follow=x"})},
		{"attach r", slices.Concat(badGlobals, badLogins, badHosts, badWatches, []string{"--stream=x", "--lost-timeout=-1s", "--log-timeout=-1s", "--quiet-after=-1s", "--on-interrupt=x", "--grace=x"})},
		{"metrics --log-dir=x", []string{"--output=x", "--skip-steps=-1", "--compare=x", "--metrics-regex=(", "--fail-below=x", "--attempt=x", "--workers=x"}},
		{"report --log-dir=x --follow", []string{"--output=x", "--skip-steps=-1", "--compare=x", "--metrics-regex=(", "--port=-1"}},
	} {
		t.Run(tt.command, func(t *testing.T) {
			t.Parallel()
			command := strings.Fields(tt.command)
			if !slices.Contains([]string{"sim", "metrics", "report"}, command[0]) {
				command = append(command, "--project=my-project", "--zone=us-central2-b")
			}
			said := func(bad ...string) string {
				line, _, _ := strings.Cut(complaint(t, home, nil, slices.Concat(command, bad)...), "\n")
				return strings.Replace(line, `queued resource "/"`, `queued resource "x"`, 1) // the error of --run-name=/
			}
			alone, lines := map[string]string{}, map[string]string{}
			for _, bad := range tt.bad {
				line := said(bad)
				if alone[line] != "" {
					t.Errorf("%s and %s: %s", bad, alone[line], line)
				}
				alone[line], lines[bad] = bad, line
			}
			for _, first := range testkit.Some(t, tt.bad, 6) {
				line := lines[first]
				name, _, _ := strings.Cut(first, "=")
				rest := slices.DeleteFunc(slices.Clone(tt.bad), func(bad string) bool { other, _, _ := strings.Cut(bad, "="); return other == name })
				for order := range 2 {
					if order > 0 && !testkit.All(t) {
						break
					}
					if got := said(append([]string{first}, rest...)...); !strings.HasPrefix(got, line) {
						t.Errorf("%s before all others: %s", first, got)
					}
					slices.Reverse(rest)
				}
			}
		})
	}
}

// If several flags are in conflict, the error names the last of them. If one flag is wrong
// by itself, the program does not report what follows from that.
func TestWhatSeveralFlagsAreWrongWith(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	where := " --project=my-project --zone=us-central2-b"
	job := "job --command=true --run-name=x" + where
	for _, tt := range []struct{ line, want string }{
		{job + " --tpu-type=v5litepod-16 --ttl=1s --numa=bind", "--ttl=1s"},
		{job + " --tpu-type=v5litepod-16 --numa=bind --ttl=1s", "--numa=bind"},
		{job + " --numa=bind --ttl=1s --tpu-type=v5litepod-16", "--ttl=1s"},
		{job + " --numa=bind --tpu-type=v4-17", `"v4-17"`},
		{job + " --numa=bind", "which accelerator type?"},
		{job + " --tpu-type=v5litepod-16 --spot --ttl=1s --reserved", "--ttl=1s"},
		{job + " --tpu-type=v5litepod-16 --spot --reserved --ttl=1s", "--spot and --reserved"},
		{job + " --tpu-type=v5litepod-16 --spot --cqr-extra-args=--reserved --ttl=1s", "--spot and --reserved"},
		{job + " --tpu-type=v5litepod-16 --on-stall=restart --max-restarts=x", "--max-restarts=x"},
		{job + " --tpu-type=v5litepod-16 --on-stall=restart --ttl=1s", "--on-stall=restart"},
		{job + " --tpu-type=v3-8 --ttl=1s --num-slices=2", "--ttl=1s"},
		{job + " --tpu-type=v3-8 --num-slices=2 --ttl=1s", "v3 cannot do multi-slice"},
		{job + " --ttl=5m --lease=1s --ttl=1s --tpu-type=v5litepod-16", "--lease=1s"},
		{job + " --network-create --network=A --ssh-source-ranges=x --tpu-type=v5litepod-16", `network "A"`},
		{"run --tpu-prefix=x --hosts=a --timeout=-1s --command=true" + where, "--hosts"},
		{"run --timeout=-1s --tpu-prefix=x --hosts=a --command=true" + where, "--timeout"},
		{"run --timeout=-1s", "--timeout"},
		{"run --tpu-prefix=x --command=true --internal-ip --timeout=-1s --ip=external" + where, "--timeout"},
		{"run --tpu-prefix=x --command=true --timeout=-1s -- true" + where, "--timeout"},
		{"logs --worker=x", "--worker"},
		{"network create B --mtu=1" + where, `"B"`},
		{"network create --mtu=1 B" + where, "--mtu=1"},
		{"qr create --range=x --tpu-type=v4-17 X" + where, `check queued resource "X": range "x"`},
		{"run --timeout=x --bogus", "--timeout=x"},
	} {
		if line, _, _ := strings.Cut(complaint(t, home, nil, strings.Fields(tt.line)...), "\n"); !strings.Contains(line, tt.want) || strings.Contains(line, "v4-17") != strings.Contains(tt.want, "v4-17") {
			t.Errorf("%s: %s", tt.line, line)
		}
	}
}

// The program names wrong values on the command line first, then those in the environment,
// then those in files.
func TestBadValuesOfLayersAreNamedInTheirOrder(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "multihost.yaml"), []byte("run:\n  grace: -3s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := []string{"run", "--tpu-prefix=x", "--command=true", "--project=my-project", "--zone=us-central2-b"}
	env := map[string]string{"MULTIHOST_FLAG_TIMEOUT": "-2s"}
	for want, said := range map[string]string{
		"--max-restarts=-1": complaint(t, home, env, append(run, "--max-restarts=-1")...),
		"--timeout=-2s":     complaint(t, home, env, run...),
		"--grace=-3s":       complaint(t, home, nil, run...),
		"_FLAG_TIMEOUT: it": complaint(t, home, map[string]string{"MULTIHOST_FLAG_TIMEOUT": "x"}, run...),
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%s: %s", want, said)
		}
	}
}
