package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// app builds the commands. Nothing in it does I/O.
func (p *program) app() *cli.App {
	return &cli.App{
		Name:  "multihost",
		Usage: "run a command on every worker of Cloud TPU slices, from nothing to the logs",
		Description: `multihost makes a network, asks for TPU slices, puts a command on every worker
of every slice, streams its output back and ends with its exit status.

  multihost network create                     a network with MTU 8896
  multihost qr create ID --node-count=2 …      ask for two slices
  multihost run --tpu-prefix=P --command=C     run C on slices that exist
  multihost job --num-slices=2 --command=C     all of it, and delete them after

Add --sim to any command to try it on a simulator that needs no account.`,
		Flags:                     globalFlags(),
		Commands:                  p.commands(),
		Action:                    p.bare,
		Writer:                    p.stdout,
		ErrWriter:                 p.stderr,
		HideVersion:               true,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*cli.Context, error) {}, // only main exits
		OnUsageError:              asUsageError,
	}
}

func (p *program) commands() []*cli.Command {
	return []*cli.Command{
		p.networkCommand(),
		p.qrCommand(),
		p.runCommand(),
		p.jobCommand(),
		p.execCommand(),
		p.sshCommand(),
		p.cpCommand(),
		p.preflightCommand(),
		p.psCommand(),
		p.logsCommand(),
		p.attachCommand(),
		p.stopCommand(),
		p.reportCommand(),
		p.topCommand(),
		p.metricsCommand(),
		p.dumpCommand(),
		p.gcCommand(),
		p.doctorCommand(),
		p.hostkeyCommand(),
		p.xlaCommand(),
		p.configCommand(),
		p.initCommand(),
		p.completionCommand(),
		p.simCommand(),
		p.manualCommand(),
		p.versionCommand(),
	}
}

// bare is multihost without a command.
func (p *program) bare(c *cli.Context) error {
	if c.Bool("version") {
		fmt.Fprintln(p.stdout, versionText())
		return nil
	}
	if len(p.inv.positionals) > 0 {
		return usagef("unknown command %q of multihost", p.inv.positionals[0])
	}
	return cli.ShowAppHelp(c)
}

func asUsageError(_ *cli.Context, err error, _ bool) error {
	text := strings.Replace(err.Error(), "for flag -", "for --", 1)
	hint := "numbers are written 5; times have a unit: 90s, 10m or 2h"
	if strings.HasSuffix(text, "value out of range") {
		hint = "the number is too large"
	}
	return &usageError{err: errors.New(text), hint: hint}
}

// command completes a command: usage errors in our form, and the EXIT STATUS
// section that lists the statuses it can end with.
func command(c cli.Command, statuses ...int) *cli.Command {
	c.OnUsageError = asUsageError
	c.HideHelpCommand = true
	if len(statuses) > 0 {
		var b strings.Builder
		b.WriteString(strings.TrimRight(c.Description, "\n"))
		b.WriteString("\n\nEXIT STATUS:\n")
		for _, s := range statuses {
			text := exitTexts[s]
			if s == exitOK && slices.Contains(statuses, statusOfCommand) {
				text = "the command ended with 0 on every worker"
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

// statusOfCommand stands in the list of statuses for the user's command's own.
const statusOfCommand = -1

// group is a command that only holds others.
func (p *program) group(c cli.Command) *cli.Command {
	c.Action = func(ctx *cli.Context) error {
		return cli.ShowSubcommandHelp(ctx)
	}
	return command(c)
}

// noArguments refuses words that a command has no use for.
func (p *program) noArguments(name string) error {
	switch {
	case len(p.inv.positionals) > 0:
		return usagef("%s takes no argument, but got %q", name, p.inv.positionals[0])
	case p.inv.dashed:
		return usagef("%s takes nothing after --", name)
	}
	return nil
}

// oneArgument returns the single word that a command takes.
func (p *program) oneArgument(name, what string) (string, error) {
	switch {
	case len(p.inv.positionals) == 0:
		return "", &usageError{err: fmt.Errorf("%s needs the %s", name, what), hint: "type: " + name + " " + strings.ToUpper(strings.ReplaceAll(what, " ", "_"))}
	case len(p.inv.positionals) > 1:
		return "", usagef("%s takes one %s, but got %q too", name, what, p.inv.positionals[1])
	}
	return p.inv.positionals[0], nil
}
