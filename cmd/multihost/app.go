package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
)

// app builds the commands. Nothing in it does I/O.
func (p *program) app() *cli.App {
	return &cli.App{
		Name:  "multihost",
		Usage: "run a command on every worker of Cloud TPU slices, from nothing to the logs",
		Description: `multihost makes a network, asks for TPU slices, starts a command on every worker
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
		HideHelp:                  true, // arrange reads --help
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

// bare is the action of multihost without a command.
func (p *program) bare(c *cli.Context) error {
	if c.Bool("version") {
		fmt.Fprintln(p.stdout, versionText())
		return nil
	}
	if len(p.inv.positionals) > 0 {
		return usagef("unknown command %q of multihost", p.inv.positionals[0])
	}
	showHelp(p.stdout, p.lookup, c.App, nil, shortHelp)
	return nil
}

// plainNumber matches a number without a unit.
var plainNumber = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// asUsageError wraps an error of package flag. arrange rejects bad flags first, so
// package flag fails only where arrange has a bug.
func asUsageError(_ *cli.Context, err error, _ bool) error { return &usageError{err: err} }

// wrongValue returns the error for a value that does not have its flag's kind.
func wrongValue(kind config.Kind, flag, value string) error {
	switch {
	case kind == config.Int && strings.Trim(value, "0123456789") == "" && value != "":
		return &usageError{err: fmt.Errorf("%s=%s: the number is too large", flag, value)}
	case kind == config.Duration && plainNumber.MatchString(value):
		return &usageError{err: fmt.Errorf("%s=%s: a time has a unit", flag, value), hint: fmt.Sprintf("type %s=%ss, %[1]s=%[2]sm or %[1]s=%[2]sh", flag, value)}
	case kind == config.Duration:
		return &usageError{err: fmt.Errorf("%s=%s: it is no time", flag, value), hint: "times are written 90s, 10m or 2h"}
	case kind == config.Int:
		return &usageError{err: fmt.Errorf("%s=%s: it is no whole number", flag, value), hint: "numbers are written in digits: " + flag + "=5"}
	}
	return &usageError{err: fmt.Errorf("%s=%s: it is no number", flag, value), hint: "numbers are written in digits: " + flag + "=0.5"}
}

// command completes a command: usage errors in our form, and the EXIT STATUS section,
// which lists the statuses that the command can end with.
func command(c cli.Command, statuses ...int) *cli.Command {
	c.OnUsageError = asUsageError
	c.HideHelp = true
	if len(statuses) > 0 {
		var b strings.Builder
		b.WriteString(strings.TrimRight(c.Description, "\n"))
		b.WriteString("\n\n" + exitHeading)
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

// exitHeading begins the section of a description that lists exit statuses.
const exitHeading = "EXIT STATUS:\n"

// statusOfCommand in a list of statuses means: the exit status of the user's command.
const statusOfCommand = -1

// group returns a command that only holds other commands.
func (p *program) group(c cli.Command) *cli.Command {
	c.Action = func(*cli.Context) error {
		showHelp(p.stdout, p.lookup, p.app(), p.inv.path, shortHelp)
		return nil
	}
	return command(c)
}

// ready ends the reading of flags, before the command does anything. It returns the error
// to end with if a flag or word is wrong.
func (p *program) ready(c *cli.Context) error {
	p.viewMode(c)
	return p.inv.refusal()
}

// oneOf refuses a value of a flag that is not one of the allowed values.
func (inv *invocation) oneOf(flag, value string, allowed ...string) {
	if last := len(allowed) - 1; !slices.Contains(allowed, value) {
		inv.refuse(usagef("--%s=%s: it is %s or %s", flag, value, strings.Join(allowed[:last], ", "), allowed[last]), flag)
	}
}

// notNegative refuses values below 0 of flags that hold a number or a time.
func (inv *invocation) notNegative(c *cli.Context, flags ...string) {
	for _, flag := range flags {
		n, d := c.Int(flag), c.Duration(flag)
		if n < 0 || d < 0 {
			inv.refuse(usagef("--%s=%v: it must not be negative", flag, c.Value(flag)), flag)
		}
	}
}

// noArguments refuses every word of the command with that name, also words after --.
func (p *program) noArguments(name string) {
	switch {
	case len(p.inv.positionals) > 0:
		p.inv.refuse(usagef("%s takes no argument, but got %q", name, p.inv.positionals[0]), positional)
	case p.inv.dashed:
		p.inv.refuse(usagef("%s takes nothing after --", name), dashes)
	}
}

// oneArgument returns the single word that a command takes, and refuses none or several.
func (p *program) oneArgument(name, what string) string {
	switch {
	case len(p.inv.positionals) == 0:
		hint := "type: " + name + " " + strings.ToUpper(strings.ReplaceAll(what, " ", "_"))
		switch {
		case what == "run":
			hint += "; which there are: multihost ps --all"
		case what == "id" && name != "multihost qr create":
			hint += "; which there are: multihost qr list"
		}
		p.inv.refuse(&usageError{err: fmt.Errorf("%s needs the %s", name, what), hint: hint}, positional)
		return ""
	case len(p.inv.positionals) > 1:
		p.inv.refuse(usagef("%s takes one %s, but got %q too", name, what, p.inv.positionals[1]), positional)
	}
	return p.inv.positionals[0]
}
