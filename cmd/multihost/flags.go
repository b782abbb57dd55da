package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/tpu"
)

// globalFlags work before and after the command.
func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "project", Aliases: []string{"PROJECT"}, Usage: "Google Cloud `PROJECT`; default: gcloud's configuration"},
		&cli.StringFlag{Name: "zone", Aliases: []string{"ZONE"}, Usage: "`ZONE` of the slices; default: gcloud's configuration"},
		&cli.StringFlag{Name: "profile", Usage: "use the defaults of the profile `NAME`, from multihost.yaml or your own file"},
		&cli.StringFlag{Name: "config", Usage: "read defaults from `FILE` in place of the multihost.yaml of this directory or one above; none: read no file"},
		&cli.StringFlag{Name: "configuration", Usage: "`NAME` of the gcloud configuration to read"},
		&cli.StringFlag{Name: "access-token-file", Usage: "`FILE` with an access token, in place of application default credentials"},
		&cli.StringFlag{Name: "output", Value: "text", Usage: "text or json: `FORMAT` of stdout"},
		&cli.BoolFlag{Name: "quiet", Usage: "show only results, warnings and errors"},
		&cli.BoolFlag{Name: "debug", Usage: "show retries and other details"},
		&cli.StringFlag{Name: "state-dir", Usage: "`DIR` for the records and logs of runs; default: $XDG_STATE_HOME/multihost"},
		&cli.BoolFlag{Name: "sim", Usage: "start a simulator and run this command on it"},
		&cli.StringSliceFlag{Name: "sim-slices", Usage: "slices that the simulator has at its start, as `NAME:COUNTxTYPE`"},
		&cli.StringFlag{Name: "sim-backend", Value: "process", Usage: "process or netns: what simulated workers are made of (`KIND`); netns needs Linux and root"},
		&cli.DurationFlag{Name: "sim-step", Value: 200 * time.Millisecond, Usage: "`TIME` that a simulated resource stays in each state"},
		&cli.StringSliceFlag{Name: "sim-fault", Usage: "`FAULT` of the simulator from its start; see multihost sim fault --help"},
		&cli.BoolFlag{Name: "version", Usage: "print the version"},
	}
}

// sshFlags set how workers are reached.
func sshFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "internal-ip", Aliases: []string{"INTERNAL_IP"}, Usage: "reach workers by their internal addresses; same as --ip=internal"},
		&cli.StringFlag{Name: "ip", Value: "auto", Usage: "auto, internal, external or iap: how workers are reached (`WAY`); auto: by their external addresses, or else through Identity-Aware Proxy"},
		&cli.StringFlag{Name: "ssh-proxy-jump", Usage: "bastions between this machine and the workers, as `[USER@]HOST[:PORT],…`"},
		&cli.StringFlag{Name: "ssh-config", Usage: "ssh configuration `FILE` for bastions and addresses; default: none"},
		&cli.StringFlag{Name: "iap-endpoint", Hidden: true, Usage: "`URL` of the IAP relay"},
		&cli.StringFlag{Name: "user", Usage: "`LOGIN` on the workers; default: your login on this machine, never root"},
		&cli.StringFlag{Name: "identity-file", Usage: "`FILE` of your private key; default: ~/.ssh/google_compute_engine, which is made if it is missing"},
		&cli.StringFlag{Name: "known-hosts", Usage: "`FILE` with the host keys of the workers; default: known_hosts in the state directory"},
		&cli.IntFlag{Name: "ssh-port", Value: 22, Usage: "`PORT` of the workers' SSH server"},
		&cli.DurationFlag{Name: "connect-timeout", Value: 2 * time.Minute, Usage: "longest `TIME` until a worker must answer, with all retries"},
		&cli.IntFlag{Name: "max-dials", Value: 512, Usage: "set up at most `N` SSH connections at the same time; connections that are set up do not count"},
	}
}

// selectFlags select the slices that a command works on.
func selectFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "tpu-prefix", Aliases: []string{"TPU_PREFIX"}, Usage: "the slice named `P`, or the slices P-0, P-1, …"},
		slicesFlag(),
		&cli.BoolFlag{Name: "allow-partial", Usage: "use the slices that are ready and belong together, even if others are missing"},
	}
}

func slicesFlag() cli.Flag {
	return &cli.StringFlag{Name: "slices", Usage: "only the slices with these `NUMBERS` in their names: 0,2-3"}
}

// slicesOf reads --slices.
func slicesOf(c *call) tpu.Numbers {
	text := c.String("slices")
	if text == "" {
		return nil
	}
	numbers, err := tpu.ParseNumbers(text)
	switch {
	case c.String("tpu-prefix") == "":
		c.Refuse(&usageError{Err: fmt.Errorf("--slices=%s: of which slices? --tpu-prefix is missing", text), Advice: "add --tpu-prefix=PREFIX; multihost qr list shows what is there"}, "slices")
	case err != nil:
		c.Refuse(usagef("--slices: %w", err), "slices")
	}
	return numbers
}

// hostFlags name machines that no cloud API knows; they replace slices.
func hostFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "hosts", Usage: "machines in place of slices, as `[USER@]HOST[:PORT],…`; their order gives the worker numbers"},
		&cli.StringFlag{Name: "hosts-file", Usage: "`FILE` with the machines of --hosts, one in each line"},
	}
}

func maxRestartsFlag() cli.Flag {
	return &cli.IntFlag{Name: "max-restarts", Usage: "start the command again after up to `N` failures of its own; not after exit codes 126 and 127, and not after three failures in a row right after the start"}
}

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "show what would be done and change nothing; with --output=json, show it as a document"}
}

func graceFlag() cli.Flag {
	return &cli.DurationFlag{Name: "grace", Value: 10 * time.Second, Usage: "`TIME` between TERM and KILL when multihost stops a command"}
}

// timestampsFlag makes the lines of the workers' output begin with a time.
func timestampsFlag() cli.Flag {
	return &cli.BoolFlag{Name: "timestamps", Usage: "begin each line of output that is shown with the time when it arrived on this machine, such as 2026-01-02T15:04:05.000+01:00; the log files stay as they are, and lines of --output=json have a time anyway"}
}

// patienceFlags set how long a worker of a run may be away or silent.
func patienceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "lost-timeout", Value: 10 * time.Minute, Usage: "give up a worker that cannot be followed for this `TIME`: the run ends with status 69 and the command goes on; 0: no limit"},
		&cli.DurationFlag{Name: "log-timeout", Value: 30 * time.Minute, Usage: "longest `TIME` to wait for whole logs after the command has ended, for example for room on a full disk; then a run ends with status 74, and a job leaves its slices to --lease; 0: do not wait"},
		&cli.DurationFlag{Name: "quiet-after", Value: 10 * time.Minute, Usage: "report a worker that has printed nothing for this `TIME`, and whether its process is alive; 0: never"},
	}
}

// commandFlags set what to run and how; run and job share them.
func commandFlags() []cli.Flag {
	return slices.Concat(patienceFlags(), []cli.Flag{
		dryRunFlag(),
		&cli.StringFlag{Name: "command", Aliases: []string{"COMMAND"}, Usage: "bash `SCRIPT` that every worker runs; or give a program after --"},
		&cli.StringFlag{Name: "run-name", Aliases: []string{"RUN_NAME"}, Usage: "`NAME` of the run and of its directory on the workers; default: login, time and a random part"},
		&cli.StringFlag{Name: "script-dir", Aliases: []string{"SCRIPT_DIR"}, Value: ".", Usage: "`DIR` to copy to every worker; the command runs in the copy"},
		&cli.BoolFlag{Name: "no-ignore", Usage: "copy also the files that .gitignore and .multihostignore leave out, and the files that multihost wrote there"},
		&cli.BoolFlag{Name: "adopt", Usage: "copy also into a directory ~/NAME of the workers that no run made: files of the same names are replaced, the others stay"},
		&cli.IntFlag{Name: "scp-timeout-secs", Aliases: []string{"SCP_TIMEOUT_SECS"}, Value: 600, Usage: "give up when the copy to a worker makes no progress for `SECONDS`"},
		&cli.StringFlag{Name: "relay", Value: "auto", Usage: "auto, on or off: `WHETHER` workers pass new files on to each other; auto: if that saves this machine an upload of 32 MiB or more"},
		&cli.IntFlag{Name: "relay-fanout", Usage: "when workers pass files on, send them from this machine to `N` workers; 0: to one of each slice"},
		&cli.StringSliceFlag{Name: "env", Usage: "set the environment variable `NAME=VALUE` for the command"},
		&cli.StringSliceFlag{Name: "env-file", Usage: "set the variables of the NAME=VALUE lines in `FILE` for the command"},
		&cli.StringSliceFlag{Name: "secret-env", Usage: "pass this machine's variable `NAME` to the command and mask its value in all output; NAME=sm://PROJECT/SECRET[/VERSION]: the workers read the value from Secret Manager, and it is not masked"},
		&cli.StringFlag{Name: "preflight", Value: "apply", Usage: "apply, require, check or off: what to do about the workers' network settings (`MODE`); require: start only if all are right; check: change nothing"},
		&cli.StringFlag{Name: "skew", Value: "warn", Usage: "check, warn or off: what to do if workers differ in Python, jax, jaxlib, libtpu or the code of --use-existing-folder (`MODE`); check: do not start"},
		&cli.StringFlag{Name: "platform", Aliases: []string{"PLATFORM"}, Value: "gce", Usage: "gce or gke: where the workers run (`PLATFORM`)"},
		&cli.BoolFlag{Name: "install", Usage: "install numactl and ethtool on workers that lack them"},
		&cli.BoolFlag{Name: "venv", Usage: "run the command in a Python virtual environment, which each worker makes once for the run; jobs with MaxText's flags do so by default"},
		&cli.StringFlag{Name: "numa", Value: "auto", Usage: "auto, bind, preferred or off: how the command is bound to NUMA nodes (`MODE`)"},
		&cli.StringSliceFlag{Name: "xla-preset", Usage: "add the compiler flags of the presets or groups `NAME`,… to LIBTPU_INIT_ARGS; see multihost xla presets"},
		&cli.StringSliceFlag{Name: "xla-flag", Usage: "add one compiler flag, as `FLAG=VALUE`"},
		&cli.StringFlag{Name: "log-dir", Usage: "local `DIR` for the workers' logs; default: in the state directory"},
		&cli.StringFlag{Name: "max-log", Value: "20GB", Usage: "keep at most `SIZE` of output on a worker, such as 500MB; none: no limit"},
		&cli.StringFlag{Name: "stream", Value: "first", Usage: "first, all or none: whose output is shown (`WHO`); the log files hold all of it"},
		timestampsFlag(),
		&cli.BoolFlag{Name: "detach", Usage: "end when the command has started, and leave it running"},
		&cli.DurationFlag{Name: "timeout", Usage: "stop the command after this `TIME`"},
		&cli.DurationFlag{Name: "start-timeout", Value: 5 * time.Minute, Usage: "longest `TIME` until every worker has started the command; 0: no limit"},
		&cli.BoolFlag{Name: "fail-fast", Value: true, Usage: "stop the command on all workers when it fails on one"},
		graceFlag(),
		interruptFlag("stop"),
		&cli.BoolFlag{Name: "replace", Usage: "stop the run that is active on these slices, and start this one"},
		&cli.StringFlag{Name: "kill-stale", Value: "orphans", Usage: "orphans or all: `WHICH` processes that hold the TPU may be killed; orphans: what your ended runs left; all: anybody's"},
		&cli.BoolFlag{Name: "strict-exit", Usage: "fail if any worker ends with an error, even after worker 0 has succeeded"},
		&cli.StringFlag{Name: "notify", Usage: "run `PROGRAM` with its arguments, without a shell, at start, restart, failure and end; it gets the event on its standard input, as JSON"},
		&cli.StringFlag{Name: "notify-url", Usage: "post the events of --notify to `URL`: https, or http on this machine"},
	})
}
