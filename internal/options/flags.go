package options

import (
	"fmt"
	"time"

	"multihost/internal/cmdline"
	"multihost/internal/stage"
	"multihost/internal/tpu"

	"github.com/urfave/cli/v2"
)

// GlobalFlags work before and after the command.
func GlobalFlags() []cli.Flag {
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

// SSHFlags set how to reach workers.
func SSHFlags() []cli.Flag { return FlagsOf(LoginOptions()) }

// SelectFlags select the slices that a command works on.
func SelectFlags() []cli.Flag { return FlagsOf(selectOptions()) }

// HostFlags name clusters, and machines that no cloud API knows. Both replace slices of a
// zone.
func HostFlags() []cli.Flag { return append(FlagsOf(HostOptions()), KubeFlags()...) }

// preflightModes are the values of preflightFlag.
func preflightModes() []string { return []string{"apply", "require", "check", "off"} }

func preflightFlag() cli.Flag {
	return &cli.StringFlag{Name: "preflight", Value: "apply", Usage: "apply, require, check or off: what to do about the workers' network settings (`MODE`); require: start only if all are right; check: change nothing"}
}

// SlicesFlag selects some of the slices of --tpu-prefix. See Slices.
func SlicesFlag() cli.Flag {
	return &cli.StringFlag{Name: "slices", Usage: "only the slices with these `NUMBERS` in their names: 0,2-3"}
}

// Slices reads --slices.
func Slices(c *Call) tpu.Numbers {
	text := c.String("slices")
	if text == "" {
		return nil
	}
	numbers, err := tpu.ParseNumbers(text)
	switch {
	case c.String("tpu-prefix") == "":
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--slices=%s: of which slices? --tpu-prefix is missing", text), Advice: "add --tpu-prefix=PREFIX; multihost slices list shows what is there"}, "slices")
	case err != nil:
		c.Refuse(cmdline.Usagef("--slices: %w", err), "slices")
	}
	return numbers
}

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "show what would be done and change nothing; with --output=json, show it as a document"}
}

// GraceFlag is how long a command may take to end before it is killed.
func GraceFlag() cli.Flag {
	return &cli.DurationFlag{Name: "grace", Value: 10 * time.Second, Usage: "`TIME` between TERM and KILL when multihost stops a command"}
}

// TimestampsFlag puts a time before each line of the workers' output.
func TimestampsFlag() cli.Flag {
	return &cli.BoolFlag{Name: "timestamps", Usage: "begin each line of output that is shown with the time when it arrived on this machine, such as 2026-01-02T15:04:05.000+01:00; the log files stay as they are, and lines of --output=json have a time anyway"}
}

// ConfirmFlag makes a command ask before it requests slices.
func ConfirmFlag() cli.Flag {
	return &cli.BoolFlag{Name: "confirm", Usage: "ask on the terminal before slices are requested; Enter means no"}
}

// InterruptFlag says what Ctrl-C does. otherwise is what ask means without a terminal.
func InterruptFlag(otherwise string) cli.Flag {
	return &cli.StringFlag{Name: "on-interrupt", Value: "ask", Usage: "ask, stop or detach: what Ctrl-C does while the command runs (`WHAT`); without a terminal, ask means " + otherwise}
}

func checkOnInterrupt(c *Call) {
	c.OneOf("on-interrupt", c.String("on-interrupt"), "ask", string(stage.Stop), string(stage.Detach))
}

// RunWord returns the name of a run, the only word of a command.
func RunWord(c *Call) string {
	return c.OneWord("run", "list them with: multihost ps --all")
}

// IDWord returns the name of a request for slices, the only word of a command of the groups
// qr and slices.
func IDWord(c *Call) string {
	return c.OneWord("id", "list them with: multihost "+c.Line.Path[0]+" list")
}
