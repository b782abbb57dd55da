package options

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/attempt"
	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/fault"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/logs"
	"multihost/internal/metrics"
	"multihost/internal/network"
	"multihost/internal/notify"
	"multihost/internal/ops"
	"multihost/internal/preflight"
	"multihost/internal/qr"
	"multihost/internal/runs"
	"multihost/internal/tpu"
	"multihost/internal/training"
	"multihost/internal/workers"
	"multihost/internal/xla"

	"github.com/urfave/cli/v2"
)

// machine is the machine on which the lines of the tests are typed.
var machine = Machine{Lookup: env, Home: "/home/ada", User: "ada", LeastTerm: time.Minute}

func env(key string) (string, bool) {
	v, ok := map[string]string{"TOKEN": "hush", "MULTIHOST_FLAG_CONFIG": "none"}[key]
	return v, ok
}

// read carries out a line whose command takes flags and reads what f returns. err says what
// is wrong with the line.
func read[T any](t *testing.T, flags []cli.Flag, f func(c *Call) T, words ...string) (got T, err error) {
	t.Helper()
	var line *cmdline.Line
	app := &cli.App{
		Name: "multihost", Flags: GlobalFlags(),
		Commands: []*cli.Command{{Name: words[0], Flags: flags, Action: func(of *cli.Context) error {
			c := &Call{of, line}
			got = f(c)
			return c.Refusal()
		}}},
	}
	p := cmdline.Program{App: app, Rules: Rules(cmdline.CompleteRules{}), Lookup: env, Home: t.TempDir(), Dir: t.TempDir()}
	if line, err = p.Parse(words); err != nil {
		return got, err
	}
	return got, line.Run(t.Context(), app)
}

func readRun(t *testing.T, words ...string) (attempt.Options, error) {
	t.Helper()
	return read(t, RunFlags(), func(c *Call) attempt.Options { return Run(c, machine, false) }, append([]string{"run"}, words...)...)
}

func readJob(t *testing.T, words ...string) (job.JobOptions, error) {
	t.Helper()
	return read(t, JobFlags(), func(c *Call) job.JobOptions {
		o := Job(c, machine)
		Notify(c, o.Run.Run, o.Run.Env)
		if o.Run.Detach {
			Detach(c, gcp.Roots{})
			RefuseRunnerless(c)
		}
		return o
	}, append([]string{"job"}, words...)...)
}

// refusal fails the test unless err refuses the line and its text contains want.
func refusal(t *testing.T, line any, err error, want string) {
	t.Helper()
	if kind := fault.Of(err); err == nil || !strings.Contains(err.Error(), want) || kind != fault.Usage && kind != fault.Configuration {
		t.Errorf("%v: %v (%v), want %q", line, err, kind, want)
	}
}

// TestBadValuesOfTheTableAreRefused leaves out values that the session reads.
func TestBadValuesOfTheTableAreRefused(t *testing.T) {
	t.Parallel()
	tried := 0
	for path, rows := range map[string][]Option{"run": RunRows(), "job": JobRows()} {
		for _, o := range rows {
			if o.Bad() == "" || o.with == inSession {
				continue
			}
			tried++
			bad := "--" + o.Name() + "=" + o.Bad()
			var err error
			if path == "run" {
				line := []string{"--tpu-prefix=t", bad}
				if o.Name() != "command" {
					line = append(line, "--command=true")
				}
				_, err = readRun(t, line...)
				if o.with == withNotify {
					_, err = read(t, RunFlags(), func(c *Call) notify.Options { return Notify(c, "r", nil) }, "run", bad)
				}
			} else {
				line := []string{"--run-name=r", bad}
				if o.Name() != "command" {
					line = append(line, "--command=true")
				}
				if o.Name() != "tpu-type" {
					line = append(line, "--tpu-type=v5litepod-16")
				}
				if o.Name() == "cloud-logging" {
					continue // the command refuses it without --detach
				}
				_, err = readJob(t, line...)
			}
			refusal(t, path+" "+bad, err, "")
		}
	}
	if tried < 40 {
		t.Errorf("only %d values", tried)
	}
}

func TestOptionsOfRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testFile := filepath.Join(dir, "env")
	if err := os.WriteFile(testFile, []byte("A=1\nB=2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := readRun(t, "--tpu-prefix=t", "--slices=0,2-3", "--run-name=r", "--script-dir="+dir, "--env-file="+testFile, "--env=B=3", "--secret-env=TOKEN",
		"--max-log=5MB", "--numa=off", "--platform=gke", "--timeout=9s", "--scp-timeout-secs=7", "--on-stall=stop", "--stall-timeout=90s", "--kill-stale=all", "--", "true", "-x")
	if err != nil {
		t.Fatal(err)
	}
	if o.Run != "r" || o.Dir != dir || o.Prefix != "t" || len(o.Slices) != 2 || !slices.Equal(o.Argv, []string{"true", "-x"}) || o.MaxLog != 5e6 ||
		o.NUMA != preflight.NUMAOff || o.Platform != preflight.GKE || o.Timeout != 9*time.Second || o.SyncTimeout != 7*time.Second || o.Home != "/home/ada" ||
		o.Watch.OnStall != follow.StallStop || o.Watch.StallTimeout != 90*time.Second {
		t.Errorf("%+v", o)
	}
	values := map[string]string{}
	for _, v := range o.Env {
		values[v.Name] = v.Value
	}
	if want := map[string]string{"A": "1", "B": "3", "TOKEN": "hush"}; !reflect.DeepEqual(values, want) {
		t.Errorf("environment %v, want %v", values, want)
	}
	if o, err := readRun(t, "--tpu-prefix=t", "--command=true"); err != nil || !strings.HasPrefix(o.Run, "ada-") || o.Script != "true" {
		t.Errorf("without a name: %q, %v", o.Run, err)
	}
}

func TestRunsThatAreRefused(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"--command=true":                                                 "which slices? --tpu-prefix is missing",
		"--tpu-prefix=t":                                                 "nothing to run",
		"--tpu-prefix=t --command=true -- true":                          "give either --command or words after --, not both",
		"--tpu-prefix=t --command=true stray":                            `word "stray" is neither a flag nor after --`,
		"--tpu-prefix=t --command=true --on-stall=restart":               "no restart is allowed",
		"--tpu-prefix=t --command=true --detach --max-restarts=1":        "nobody would be there to start it again",
		"--tpu-prefix=t --command=true --sim --detach":                   "the simulator ends with this command",
		"--tpu-prefix=t --command=true --use-existing-folder":            "needs the run whose folder it is",
		"--tpu-prefix=t --command=true --env=MULTIHOST_RUN=x":            "names beginning with MULTIHOST_ are set by multihost",
		"--tpu-prefix=t --command=true --env=1A=x":                       "1A",
		"--tpu-prefix=t --command=true --secret-env=NOT_SET":             "NOT_SET",
		"--tpu-prefix=t --command=true --secret-env=A=sm://x/y/z/w":      "--secret-env",
		"--tpu-prefix=t --command=true --env-file=/no/such":              "--env-file",
		"--tpu-prefix=t --command=true --script-dir=/etc/hostname":       "it is no directory",
		"--slices=1 --command=true":                                      "of which slices? --tpu-prefix is missing",
		"--tpu-prefix=t --command=true --slices=x":                       "--slices",
		"--tpu-prefix=t --command=true --grace=-1s":                      "--grace",
		"--tpu-prefix=t --command=true --processes-per-worker=0":         "it must be 1 or more",
		"--tpu-prefix=t --command=true --stream=all --metrics-regex=(((": "--metrics-regex",
	} {
		_, err := readRun(t, strings.Fields(line)...)
		refusal(t, line, err, want)
	}
}

func TestOptionsOfJob(t *testing.T) {
	t.Parallel()
	base := []string{"--run-name=r", "--command=true"}
	o, err := readJob(t, append(base, "--tpu-type=v5litepod-16", "--num-slices=2", "--spot", "--ttl=2h", "--keep-on-failure=3h", "--max-preemptions=4", "--max-restarts=5",
		"--queue-timeout=0", "--cqr-extra-args=--network=n --labels=team=a")...)
	if err != nil {
		t.Fatal(err)
	}
	r := o.Request
	if r.ID != "r" || r.NodeCount != 2 || r.Tier != qr.Spot || r.Network != "n" || r.Labels["team"] != "a" || r.Labels["multihost-user"] != "ada" || r.Labels["multihost-job"] == "" {
		t.Errorf("request %+v", r)
	}
	if o.TTL != 2*time.Hour || !o.KeepOnFailure || o.KeepFor != 3*time.Hour || o.Budget != (job.Budget{Preemptions: 4, Restarts: 5}) || o.QueueLimit != qr.NoLimit || o.Run.MaxText {
		t.Errorf("%+v", o)
	}
	// With MaxText's flags, run has MaxText's defaults.
	o, err = readJob(t, "--RUN_NAME=r", "--COMMAND=true")
	if err != nil || o.Request.NodeCount != 2 || o.Request.Type.Name != "v4-8" || !o.Run.Venv || !o.Run.MaxText {
		t.Errorf("as MaxText: %+v, %v", o.Request, err)
	}
	o, err = readJob(t, append(base, "--tpu-type=v5litepod-16", "--network-create", "--ssh-source-ranges=10.0.0.0/8,10.1.0.0/16")...)
	if err != nil || o.Network == nil || o.Network.Name != network.DefaultName || o.Request.Network != network.DefaultName || len(o.Network.SSHSourceRanges) != 2 || o.Network.MTU != network.DefaultMTU {
		t.Errorf("with a network: %+v, %v", o.Network, err)
	}
	for line, want := range map[string]string{
		"":                 "which accelerator type? --tpu-type is missing",
		"--tpu-type=v4-17": "--tpu-type",
		"--type=v4 --topology=2x2x1 --tpu-type=v4-8 --num-slices=0":                                   "at least 1 slice is needed",
		"--tpu-type=v3-8 --num-slices=2":                                                              "cannot do multi-slice",
		"--tpu-type=v5litepod-16 --spot --reserved":                                                   "--spot and --reserved exclude each other",
		"--tpu-type=v5litepod-16 --cqr-extra-args=--bogus":                                            "--cqr-extra-args: unknown flag --bogus",
		"--tpu-type=v5litepod-16 --metadata-from-file=a=/no/such":                                     "no such file",
		"--tpu-type=v5litepod-16 --numa=bind":                                                         "numa",
		"--tpu-type=v5litepod-16 --network-create --network=A":                                        `network "A"`,
		"--tpu-type=v5litepod-16 --ttl=1s":                                                            "it must be 1m or more, or 0",
		"--tpu-type=v5litepod-16 --detach --bucket-name=b-1 --lease=2h":                               "it does nothing for a job without runner",
		"--tpu-type=v5litepod-16 --detach --bucket-name=b-1 --bucket-dir=?":                           "?",
		"--tpu-type=v5litepod-16 --detach --bucket-name=B":                                            "B",
		"--tpu-type=v5litepod-16 --detach --bucket-name=b-1 --upload-every=1ms":                       "it must be 1s or more",
		"--tpu-type=v5litepod-16 --xla-preset=no-such":                                                "no-such",
		"--tpu-type=v5litepod-16 --valid-until-duration=1h --valid-after-duration=2h --description=x": "is not longer than valid-after",
	} {
		_, err := readJob(t, append(slices.Clone(base), strings.Fields(line)...)...)
		refusal(t, line, err, want)
	}
}

func TestRequestOfQRCreate(t *testing.T) {
	t.Parallel()
	flags := slices.Concat(RequestFlags(&cli.IntFlag{Name: "node-count", Value: 1}, TypeFlag(), RuntimeFlag()), WaitFlags())
	create := func(words ...string) (qr.Request, error) {
		return read(t, flags, func(c *Call) qr.Request {
			r := QueuedResource(c, machine)
			if l := WaitLimits(c); l.QueueLimit != qr.NoLimit {
				t.Errorf("limits %+v", l)
			}
			return r
		}, append([]string{"create"}, words...)...)
	}
	r, err := create("q", "--accelerator-type=v5litepod-16", "--tags=a,b", "--data-disk=source=projects/p/zones/z/disks/d,mode=read-only")
	if err != nil || r.ID != "q" || r.NodeCount != 1 || r.Type.Name != "v5litepod-16" || len(r.Tags) != 2 || len(r.DataDisks) != 1 || r.Labels["multihost-run"] != "q" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = create("Q", "--tpu-type=v5litepod-16", "--range=x")
	refusal(t, "two problems", err, `"Q" is not legal`)
	_, err = create("q", "--tpu-type=v5litepod-16", "--range=x", "--tags=T")
	refusal(t, "the first is named first", err, `check queued resource "q": range "x"`)
}

func TestPartsOfQRList(t *testing.T) {
	t.Parallel()
	flags := []cli.Flag{&cli.StringFlag{Name: "filter"}, &cli.StringFlag{Name: "sort-by"}, &cli.StringFlag{Name: "limit", Value: "unlimited"}, &cli.IntFlag{Name: "page-size", Value: 1000}}
	if c, err := read(t, flags, Choice, "list", "--limit=3", "--sort-by=~createTime"); err != nil || c.Limit != 3 || len(c.Keys) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []string{"--filter=(", "--sort-by=,", "--limit=0", "--page-size=0"} {
		_, err := read(t, flags, Choice, "list", bad)
		name, _, _ := strings.Cut(bad, "=")
		refusal(t, bad, err, name)
	}
}

func TestOptionsOfCommandsOnWorkers(t *testing.T) {
	t.Parallel()
	flags := slices.Concat(WorkersFlags(), QuickFlags(), []cli.Flag{&cli.StringFlag{Name: "command"}, &cli.BoolFlag{Name: "sudo"}, &cli.DurationFlag{Name: "timeout"}, GraceFlag()})
	exec := func(c *Call) ops.ExecOptions { return Exec(c, false) }
	if o, err := read(t, flags, exec, "exec", "--tpu-prefix=t", "--workers=s0w*", "--command=uname"); err != nil || !slices.Equal(o.Argv, []string{"bash", "-c", "uname"}) || o.Workers.Prefix != "t" || o.Grace != 10*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
	for line, want := range map[string]string{
		"s0w0 --tpu-prefix=t --command=true":               `word "s0w0" is neither`,
		"true --tpu-prefix=t --command=true":               `word "true" is neither`,
		"--tpu-prefix=t --command=true --workers=x":        "--workers",
		"--tpu-prefix=t --command=true --timeout=-1s":      "--timeout",
		"--tpu-prefix=t":                                   "nothing to run",
		"--tpu-prefix=t -- " + strings.Repeat("x", 200000): "a word of the command has 200000 bytes",
	} {
		_, err := read(t, flags, exec, append([]string{"exec"}, strings.Fields(line)...)...)
		refusal(t, line[:min(len(line), 50)], err, want)
	}
	onHosts := func(c *Call) workers.Workers { return Workers(c, true) }
	_, err := read(t, flags, onHosts, "exec", "--tpu-prefix=t")
	refusal(t, "slices and hosts", err, "not both")

	cp := func(c *Call) ops.CopyOptions { o, _ := Copy(c, false); return o }
	if o, err := read(t, flags, cp, "cp", "--tpu-prefix=t", "a", "all:b"); err != nil || !slices.Equal(o.Sources, []string{"a"}) || o.Dest != "b" {
		t.Errorf("%+v, %v", o, err)
	}
	_, err = read(t, flags, cp, "cp", "--tpu-prefix=t", "a")
	refusal(t, "one file", err, "needs a source and a destination")
	_, err = read(t, flags, cp, "cp", "--tpu-prefix=t", "a", "b")
	refusal(t, "nothing on workers", err, "multihost cp")
}

func TestWhichWorkerToLogInTo(t *testing.T) {
	t.Parallel()
	ssh := func(c *Call) workers.Workers { return LoginTo(c, false) }
	for line, want := range map[string]string{"s1w3 --tpu-prefix=t": "t", "train": "train"} {
		if w, err := read(t, QuickFlags(), ssh, append([]string{"ssh"}, strings.Fields(line)...)...); err != nil || w.Prefix != want {
			t.Errorf("%s: %+v, %v", line, w, err)
		}
	}
	for line, want := range map[string]string{
		"s0w0 htop --tpu-prefix=t": "multihost ssh takes one worker",
		"ada@s0w0 --tpu-prefix=t":  "ada@s0w0",
		"s0w0":                     "--tpu-prefix is missing",
		"train --tpu-prefix=t":     "train",
	} {
		_, err := read(t, QuickFlags(), ssh, append([]string{"ssh"}, strings.Fields(line)...)...)
		refusal(t, line, err, want)
	}
	none := &tpu.NoSlicesError{Prefix: "w0", Present: []string{"train-0"}}
	err := MeantWorker("w0", none)
	var better *NoSliceError
	if !errors.As(err, &better) || !strings.Contains(better.Hint(), "multihost ssh s0w0 --tpu-prefix=train-0") || !errors.Is(err, error(none)) {
		t.Errorf("%v", err)
	}
	if got := MeantWorker("other", none); got != error(none) {
		t.Errorf("another error became %v", got)
	}
}

func TestOptionsOfRunsThatLive(t *testing.T) {
	t.Parallel()
	flags := slices.Concat(FlagsOf(WatchingOptions()), FlagsOf(PatienceOptions()), []cli.Flag{PrefixFlag(), GraceFlag(), InterruptFlag("detach"), &cli.BoolFlag{Name: "strict-exit"}})
	attach := func(c *Call) runs.AttachOptions { return Attach(c, env) }
	if o, err := read(t, flags, attach, "attach", "--tpu-prefix=t", "--lost-timeout=0", "--stall-timeout=off"); err != nil || o.Prefix != "t" || o.Patience.Lost != 0 || o.Watch.StallTimeout != -1 {
		t.Errorf("%+v, %v", o, err)
	}
	for bad, want := range map[string]string{
		"--on-stall=restart": "only the command that started the run", "--quiet-after=-1s": "--quiet-after", "--on-interrupt=x": "--on-interrupt", "--stall-timeout=x": "--stall-timeout",
	} {
		_, err := read(t, flags, attach, "attach", bad)
		refusal(t, bad, err, want)
	}
	flags = []cli.Flag{
		&cli.StringFlag{Name: "worker", Value: "s0w0"}, &cli.BoolFlag{Name: "all"}, &cli.BoolFlag{Name: "first-failure"}, &cli.BoolFlag{Name: "verify"}, &cli.BoolFlag{Name: "follow"},
		&cli.BoolFlag{Name: "timestamps"}, &cli.IntFlag{Name: "tail"}, &cli.IntFlag{Name: "attempt"}, &cli.StringFlag{Name: "since"}, &cli.DurationFlag{Name: "lost-timeout"},
	}
	of := func(c *Call) logs.LogOptions { return Logs(c, false) }
	if o, err := read(t, flags, of, "logs", "--worker=s1w2", "--tail=5", "--since=10m", "--follow", "--lost-timeout=9s"); err != nil || o.Worker.String() != "s1w2" || o.Tail != 5 || !o.Named || o.Since.IsZero() {
		t.Errorf("%+v, %v", o, err)
	}
	for line, want := range map[string]string{"--worker=x": "--worker", "--all --worker=s0w0": "give only one of --worker and --all", "--since=x": "x", "--tail=-1": "--tail",
		"--verify --follow": "--follow: it does nothing with --verify", "--tail=1 --verify": "--tail: it does nothing with --verify", "--lost-timeout=1s": "--lost-timeout: it does nothing without --follow"} {
		_, err := read(t, flags, of, append([]string{"logs"}, strings.Fields(line)...)...)
		refusal(t, line, err, want)
	}
}

func TestOptionsOfTraining(t *testing.T) {
	t.Parallel()
	type result struct {
		run, dir string
		o        training.TrainingOptions
	}
	of := func(c *Call) (r result) {
		r.run, r.dir, r.o = Training(c, "/own")
		return r
	}
	if r, err := read(t, TrainingFlags(), of, "metrics", "r", "--skip-steps=0", "--compare=v5e/32b"); err != nil || r.run != "r" || r.dir != "/own" || r.o.Skip != -1 || r.o.Compare != "v5e/32b" {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := read(t, TrainingFlags(), of, "metrics", "--log-dir=/logs", "--state-dir=/s", "--metrics-regex=step (?P<step>[0-9]+) took (?P<seconds>[0-9.]+)"); err != nil || r.run != "/logs" || r.dir != "/s" || r.o.Skip != metrics.DefaultSkip || r.o.Pattern == nil {
		t.Errorf("%+v, %v", r, err)
	}
	for line, want := range map[string]string{"": "run", "/": "/", "r --skip-steps=-1": "--skip-steps", "r --compare=x": "--compare"} {
		_, err := read(t, TrainingFlags(), of, append([]string{"metrics"}, strings.Fields(line)...)...)
		refusal(t, line, err, want)
	}
	kind := func(c *Call) string { return Generation(c, xla.Load()) }
	if g, err := read(t, TrainingFlags(), kind, "check", "--tpu-type=v5litepod-16"); err != nil || g == "" {
		t.Errorf("%q, %v", g, err)
	}
	_, err := read(t, TrainingFlags(), kind, "check", "--tpu-type=x")
	refusal(t, "--tpu-type=x", err, "--tpu-type")
	on := func(c *Call) preflight.Platform { return Platform(c, c.String("platform"), "platform") }
	if p, err := read(t, []cli.Flag{PlatformFlag()}, on, "print", "--PLATFORM=GKE"); err != nil || p != preflight.GKE {
		t.Errorf("%v, %v", p, err)
	}
}

func TestOptionsOfNetworks(t *testing.T) {
	t.Parallel()
	flags := []cli.Flag{
		&cli.IntFlag{Name: "mtu", Value: network.DefaultMTU}, &cli.StringFlag{Name: "subnet-mode", Value: "auto"}, &cli.StringFlag{Name: "bgp-routing-mode", Value: "regional"},
		&cli.StringFlag{Name: "ssh-source-ranges", Value: network.IAPRange}, &cli.StringFlag{Name: "all-ports-from"},
	}
	if o, err := read(t, flags, Network, "create", "--all-ports-from=10.0.0.0/8,10.1.0.0/16"); err != nil || o.Name != network.DefaultName || len(o.AllPortsFrom) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	for line, want := range map[string]string{"A": `"A"`, "--mtu=1": "--mtu=1", "--mtu=0": "--mtu=0", "--subnet-mode=x": "x", "--all-ports-from=y": "y", "A --all-ports-from=y": `"A"`} {
		_, err := read(t, flags, Network, append([]string{"create"}, strings.Fields(line)...)...)
		refusal(t, line, err, want)
	}
	_, err := read(t, flags, MTU, "update", "--mtu=9000")
	refusal(t, "--mtu=9000", err, "want 1300 to 8896")
	flags = []cli.Flag{
		&cli.StringFlag{Name: "network", Value: network.DefaultName}, &cli.StringFlag{Name: "allow"}, &cli.StringFlag{Name: "source-ranges"},
		&cli.StringFlag{Name: "target-tags"}, &cli.IntFlag{Name: "priority", Value: 1000},
	}
	if r, err := read(t, flags, FirewallRule, "create", "x", "--allow=tcp:22,udp"); err != nil || r.Name != "x" || len(r.Allow) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	for line, want := range map[string]string{"x": "allow", "A --allow=tcp": `"A"`, "x --allow=tcp --priority=-1": "-1", "x --allow=tcp --target-tags=B": "B"} {
		_, err := read(t, flags, FirewallRule, append([]string{"create"}, strings.Fields(line)...)...)
		refusal(t, line, err, want)
	}
}

func TestNotificationsKeepSecrets(t *testing.T) {
	t.Parallel()
	flags := []cli.Flag{&cli.StringFlag{Name: "notify"}, &cli.StringFlag{Name: "notify-url"}}
	of := func(c *Call) notify.Options {
		return Notify(c, "r", []config.EnvVar{{Name: "A", Value: "x"}, {Name: "B", Value: "hush", Secret: true}})
	}
	o, err := read(t, flags, of, "run", "--notify=sh -v")
	if err != nil || o.Run != "r" || !slices.Equal(o.Secrets, []string{"hush"}) || len(o.Program) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}
