package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/tpu"
)

// Categories of flags in the help.
const (
	catCloud = "cloud"
	catSSH   = "ssh"
	catSim   = "simulator"
	catView  = "output"
	catFiles = "defaults"
)

// globalFlags work before and after the command.
func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "project", Aliases: []string{"PROJECT"}, Category: catCloud, Usage: "Google Cloud `PROJECT`; default: gcloud's configuration"},
		&cli.StringFlag{Name: "zone", Aliases: []string{"ZONE"}, Category: catCloud, Usage: "compute `ZONE` of the slices; default: gcloud's configuration"},
		&cli.StringFlag{Name: "profile", Category: catFiles, Usage: "take defaults from the profile `NAME` of multihost.yaml or of your own file"},
		&cli.StringFlag{Name: "config", Category: catFiles, Usage: "`FILE` to take defaults from in place of the multihost.yaml found here or above; none: no file"},
		&cli.StringFlag{Name: "configuration", Category: catCloud, Usage: "gcloud configuration to read, by `NAME`"},
		&cli.StringFlag{Name: "access-token-file", Category: catCloud, Usage: "`FILE` with an access token, instead of application default credentials"},
		&cli.StringFlag{Name: "output", Category: catView, Value: "text", Usage: "text or json: `FORMAT` of stdout"},
		&cli.BoolFlag{Name: "quiet", Category: catView, Usage: "show only results, warnings and errors"},
		&cli.BoolFlag{Name: "debug", Category: catView, Usage: "show retries and other detail"},
		&cli.StringFlag{Name: "state-dir", Category: catView, Usage: "`DIR` for run records and logs; default: $XDG_STATE_HOME/multihost"},
		&cli.BoolFlag{Name: "sim", Category: catSim, Usage: "run this command on a simulator started just for it"},
		&cli.StringSliceFlag{Name: "sim-slices", Category: catSim, Usage: "slices the simulator has at start, as `NAME:COUNTxTYPE`"},
		&cli.StringFlag{Name: "sim-backend", Category: catSim, Value: "process", Usage: "process, or netns (Linux and root): what simulated workers are made of (`KIND`)"},
		&cli.DurationFlag{Name: "sim-step", Category: catSim, Value: 200 * time.Millisecond, Usage: "`TIME` that each state of a simulated resource lasts"},
		&cli.StringSliceFlag{Name: "sim-fault", Category: catSim, Usage: "`FAULT` to set at the simulator's start; see multihost sim fault --help"},
		&cli.BoolFlag{Name: "version", Usage: "print the version"},
	}
}

// sshFlags set how workers are reached.
func sshFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "internal-ip", Aliases: []string{"INTERNAL_IP"}, Category: catSSH, Usage: "same as --ip=internal: the runner is in the workers' network"},
		&cli.StringFlag{Name: "ip", Category: catSSH, Value: "auto", Usage: "auto, internal, external or iap: by which address workers are reached (`WAY`); auto takes external, then Identity-Aware Proxy"},
		&cli.StringFlag{Name: "ssh-proxy-jump", Category: catSSH, Usage: "bastions on the way, as `[USER@]HOST[:PORT],…`"},
		&cli.StringFlag{Name: "ssh-config", Category: catSSH, Usage: "ssh configuration `FILE` for bastions and addresses; default: none"},
		&cli.StringFlag{Name: "iap-endpoint", Category: catSSH, Hidden: true, Usage: "`URL` of the IAP relay"},
		&cli.StringFlag{Name: "user", Category: catSSH, Usage: "`LOGIN` on the workers; default: the local login, never root"},
		&cli.StringFlag{Name: "identity-file", Category: catSSH, Usage: "private key `FILE`; default: ~/.ssh/google_compute_engine, made when missing"},
		&cli.StringFlag{Name: "known-hosts", Category: catSSH, Usage: "`FILE` of pinned host keys; default: known_hosts in the state directory"},
		&cli.IntFlag{Name: "ssh-port", Category: catSSH, Value: 22, Usage: "`PORT` of the workers' sshd"},
		&cli.DurationFlag{Name: "connect-timeout", Category: catSSH, Value: 2 * time.Minute, Usage: "longest `TIME` until a worker must have answered, retries included"},
		&cli.IntFlag{Name: "max-dials", Category: catSSH, Value: 512, Usage: "`N` SSH handshakes under way at once"},
	}
}

// selectFlags select the slices that a command works on.
func selectFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "tpu-prefix", Aliases: []string{"TPU_PREFIX"}, Usage: "exact name of one slice, or `P` of the slices P-0, P-1, …"},
		slicesFlag(),
		&cli.BoolFlag{Name: "allow-partial", Usage: "go on with the slices that are ready and belong together"},
	}
}

func slicesFlag() cli.Flag {
	return &cli.StringFlag{Name: "slices", Usage: "of the slices that --tpu-prefix names, only those with these `NUMBERS` in their names: 0,2-3"}
}

// slicesOf reads --slices.
func (p *program) slicesOf(c *cli.Context) tpu.Numbers {
	text := c.String("slices")
	if text == "" {
		return nil
	}
	numbers, err := tpu.ParseNumbers(text)
	switch {
	case c.String("tpu-prefix") == "":
		p.inv.refuse(&usageError{err: fmt.Errorf("--slices=%s: of which slices? --tpu-prefix is missing", text), hint: "add --tpu-prefix=PREFIX; multihost qr list shows what is there"}, "slices")
	case err != nil:
		p.inv.refuse(usagef("--slices: %w", err), "slices")
	}
	return numbers
}

// hostFlags name machines that no cloud API knows; they replace slices.
func hostFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "hosts", Usage: "machines in place of slices, as `[USER@]HOST[:PORT],…`; order is worker number"},
		&cli.StringFlag{Name: "hosts-file", Usage: "`FILE` with one such machine a line"},
	}
}

func maxRestartsFlag() cli.Flag {
	return &cli.IntFlag{Name: "max-restarts", Usage: "start the command again after up to `N` failures of its own; none for exit codes 126 and 127, or after three failures in a row right after the start"}
}

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "show what would be done, as text or, with --output=json, as a document; change nothing here, in the cloud or on workers"}
}

func graceFlag() cli.Flag {
	return &cli.DurationFlag{Name: "grace", Value: 10 * time.Second, Usage: "`TIME` between TERM and KILL when a command is stopped"}
}

// timestampsFlag makes the lines of the workers' output begin with a time.
func timestampsFlag() cli.Flag {
	return &cli.BoolFlag{Name: "timestamps", Usage: "begin each line of output that is shown with the time when it arrived on this machine, such as 2026-01-02T15:04:05.000+01:00; the log files stay as they are, and lines of --output=json have a time anyway"}
}

// patienceFlags set how long a worker of a run may be away or silent.
func patienceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "lost-timeout", Value: 10 * time.Minute, Usage: "longest `TIME` that the output of a worker is asked for again while it cannot be followed; then the run is given up with status 69 and left running; 0: no limit"},
		&cli.DurationFlag{Name: "log-timeout", Value: 30 * time.Minute, Usage: "longest `TIME` to wait, when the command has ended, for logs that are not whole here, such as for room on a full disk; then a run ends with status 74, and a job leaves its slices to --lease; 0: do not wait"},
		&cli.DurationFlag{Name: "quiet-after", Value: 10 * time.Minute, Usage: "say so when a worker has printed nothing for this `TIME`, with whether its process is alive; 0: never"},
	}
}

// commandFlags set what to run and how; run and job share them.
func commandFlags() []cli.Flag {
	return flags(patienceFlags(), []cli.Flag{
		dryRunFlag(),
		&cli.StringFlag{Name: "command", Aliases: []string{"COMMAND"}, Usage: "bash `SCRIPT` to run on every worker; or give words after --"},
		&cli.StringFlag{Name: "run-name", Aliases: []string{"RUN_NAME"}, Usage: "`NAME` of the run and of its directory on the workers; default: login, time and a random part"},
		&cli.StringFlag{Name: "script-dir", Aliases: []string{"SCRIPT_DIR"}, Value: ".", Usage: "`DIR` to ship; the command runs in its copy"},
		&cli.BoolFlag{Name: "no-ignore", Usage: "ship also what .gitignore and .multihostignore leave out, and what multihost wrote there"},
		&cli.BoolFlag{Name: "adopt", Usage: "ship into the directory ~/NAME of the workers also where no run made it: shipped files replace those of the same names, the others stay"},
		&cli.IntFlag{Name: "scp-timeout-secs", Aliases: []string{"SCP_TIMEOUT_SECS"}, Value: 600, Usage: "`SECONDS` that the copy to a worker may make no progress"},
		&cli.StringFlag{Name: "relay", Value: "auto", Usage: "auto, on or off: `WHETHER` workers pass new files on to each other; auto: when that keeps 32 MiB or more off this machine's link"},
		&cli.IntFlag{Name: "relay-fanout", Usage: "`N` workers get the files from this machine when they are passed on; 0: one of each slice"},
		&cli.StringSliceFlag{Name: "env", Usage: "environment variable `NAME=VALUE` for the command; may be repeated"},
		&cli.StringSliceFlag{Name: "env-file", Usage: "`FILE` of NAME=VALUE lines"},
		&cli.StringSliceFlag{Name: "secret-env", Usage: "pass the runner's variable `NAME`, masked wherever it would be shown; or, with NAME=sm://PROJECT/SECRET[/VERSION], what the workers read from Secret Manager, which this machine does not know and cannot mask"},
		&cli.StringFlag{Name: "preflight", Value: "apply", Usage: "apply, require, check or off: what to do with the network settings (`MODE`)"},
		&cli.StringFlag{Name: "skew", Value: "warn", Usage: "check, warn or off: what it means that workers differ in python, jax, jaxlib, libtpu or the code of --use-existing-folder (`MODE`); check starts nothing then"},
		&cli.StringFlag{Name: "platform", Aliases: []string{"PLATFORM"}, Value: "gce", Usage: "gce or gke: where the workers run (`PLATFORM`)"},
		&cli.BoolFlag{Name: "install", Usage: "install numactl and ethtool on the workers when missing"},
		&cli.BoolFlag{Name: "venv", Usage: "run the command in a Python virtual environment of the run, which each worker makes once; default of jobs with MaxText's flags"},
		&cli.StringFlag{Name: "numa", Value: "auto", Usage: "auto, bind, preferred or off: NUMA binding of the command (`MODE`)"},
		&cli.StringSliceFlag{Name: "xla-preset", Usage: "compiler flags by preset or group `NAME`,…, put into LIBTPU_INIT_ARGS; see multihost xla presets"},
		&cli.StringSliceFlag{Name: "xla-flag", Usage: "one more compiler `FLAG=VALUE`; may be repeated"},
		&cli.StringFlag{Name: "log-dir", Usage: "local `DIR` for the workers' logs; default: in the state directory"},
		&cli.StringFlag{Name: "max-log", Value: "20GB", Usage: "`SIZE` of output that a worker keeps, such as 500MB; none: no limit"},
		&cli.StringFlag{Name: "stream", Value: "first", Usage: "first, all or none: whose output is shown (`WHO`); the files have everybody's"},
		timestampsFlag(),
		&cli.BoolFlag{Name: "detach", Usage: "end after the start; the command goes on"},
		&cli.DurationFlag{Name: "timeout", Usage: "stop the command after this `TIME`"},
		&cli.DurationFlag{Name: "start-timeout", Value: 5 * time.Minute, Usage: "longest `TIME` until every worker has started; 0: no limit"},
		&cli.BoolFlag{Name: "fail-fast", Value: true, Usage: "stop all workers at the first failure"},
		graceFlag(),
		interruptFlag("stop"),
		&cli.BoolFlag{Name: "replace", Usage: "stop a run that lives on these slices"},
		&cli.StringFlag{Name: "kill-stale", Value: "orphans", Usage: "orphans or all: `WHICH` holders of the TPU may be stopped: what ended runs of ours left, or anybody's"},
		&cli.BoolFlag{Name: "strict-exit", Usage: "excuse nothing: without it, SIGABRT or words of the distributed runtime within a minute after worker 0's success are a warning"},
		&cli.StringFlag{Name: "notify", Usage: "`PROGRAM` and arguments to run, without a shell, at start, restart, failure and end; the event is its standard input, as JSON"},
		&cli.StringFlag{Name: "notify-url", Usage: "`URL` to post the same to; https, or http on this machine"},
	})
}

func flags(groups ...[]cli.Flag) []cli.Flag {
	var all []cli.Flag
	for _, g := range groups {
		all = append(all, g...)
	}
	return all
}
