package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
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
func sshFlags() []cli.Flag { return flagsOf(loginOptions()) }

// selectFlags select the slices that a command works on.
func selectFlags() []cli.Flag { return flagsOf(selectOptions()) }

// hostFlags name machines that no cloud API knows; they replace slices.
func hostFlags() []cli.Flag { return flagsOf(hostOptions()) }

func slicesFlag() cli.Flag {
	return &cli.StringFlag{Name: "slices", Usage: "only the slices with these `NUMBERS` in their names: 0,2-3"}
}

// slicesOf reads --slices.
func slicesOf(c *Call) tpu.Numbers {
	text := c.String("slices")
	if text == "" {
		return nil
	}
	numbers, err := tpu.ParseNumbers(text)
	switch {
	case c.String("tpu-prefix") == "":
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--slices=%s: of which slices? --tpu-prefix is missing", text), Advice: "add --tpu-prefix=PREFIX; multihost qr list shows what is there"}, "slices")
	case err != nil:
		c.Refuse(cmdline.Usagef("--slices: %w", err), "slices")
	}
	return numbers
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
