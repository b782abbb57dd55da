package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/options"
)

// app builds the commands. It does no I/O.
func app() *cli.App {
	return &cli.App{
		Name:  "multihost",
		Usage: "run a command on every worker of Cloud TPU slices, from nothing to the logs",
		Description: `multihost makes a network, asks for TPU slices, starts a command on every worker
of every slice, streams its output back and ends with its exit status.

  multihost network create                     a network with MTU 8896
  multihost qr create ID --node-count=2 …      ask for two slices
  multihost run --tpu-prefix=P --command=C     run C on slices that exist
  multihost job --num-slices=2 --command=C     make slices, run C on them, delete them

Add --sim to any command to try it on a simulator that needs no account.`,
		Flags:    options.GlobalFlags(),
		Commands: commands(),
		Action:   act(bare),
	}
}

func commands() []*cli.Command {
	return []*cli.Command{
		networkCommand(),
		qrCommand(),
		slicesCommand(),
		clusterCommand(),
		runCommand(),
		jobCommand(),
		workloadCommand(),
		execCommand(),
		sshCommand(),
		cpCommand(),
		preflightCommand(),
		psCommand(),
		logsCommand(),
		attachCommand(),
		stopCommand(),
		reportCommand(),
		topCommand(),
		metricsCommand(),
		dumpCommand(),
		gcCommand(),
		doctorCommand(),
		hostkeyCommand(),
		xlaCommand(),
		configCommand(),
		initCommand(),
		completionCommand(),
		xpkCommand(),
		simCommand(),
		manualCommand(),
		versionCommand(),
	}
}

// bare is the action of multihost without a command.
func bare(c *call) error {
	if c.Bool("version") {
		fmt.Fprintln(c.stdout, versionText())
		return nil
	}
	if len(c.Words) > 0 {
		return usagef("unknown command %q of multihost", c.Words[0])
	}
	c.showHelp(c.program(), nil, cmdline.ShortHelp)
	return nil
}

// command adds the EXIT STATUS section to a command. The section lists the statuses with
// which the command can end.
func command(c cli.Command, statuses ...int) *cli.Command {
	if len(statuses) > 0 {
		var b strings.Builder
		b.WriteString(strings.TrimRight(c.Description, "\n"))
		b.WriteString("\n\n" + cmdline.ExitHeading)
		for _, s := range statuses {
			text := exitTexts[s]
			if s == exitOK && slices.Contains(statuses, statusOfCommand) {
				text = "the command ended with 0 on every worker"
				if slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return cmdline.Name(f) == "strict-exit" }) {
					text += ", or see --strict-exit"
				}
			}
			if s == exitPreflight && slices.Contains(statuses, statusOfCommand) {
				text = "preflight failed, or workers differ (--skew=check)"
			}
			if s == statusOfCommand {
				b.WriteString("   other  the exit code of the first worker to fail; 128+n for signal n\n")
				continue
			}
			fmt.Fprintf(&b, "   %-5d  %s\n", s, text)
		}
		c.Description = strings.TrimLeft(b.String(), "\n")
	}
	return &c
}

// In a list of statuses, statusOfCommand means the exit status of the user's command.
const statusOfCommand = -1

// group returns a command that only holds other commands.
func group(of cli.Command) *cli.Command {
	of.Action = act(func(c *call) error {
		c.showHelp(c.program(), c.Line.Path, cmdline.ShortHelp)
		return nil
	})
	return command(of)
}

// ready ends the reading of flags. A command calls it before it does anything else. If a
// flag or word is wrong, ready returns the error with which the command must end.
func ready(c *call) error {
	viewMode(c)
	return c.Refusal()
}
