package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/interrupt"
	"multihost/internal/options"
	"multihost/internal/stage"
	"multihost/internal/ui"
)

// A process is multihost's view of its environment: streams, variables, directory.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         config.Lookup // the environment
	home           string        // "": unknown
	dir            string        // the working directory; "": unknown
	leave          chan struct{} // closed when the user wants to leave at once
}

func (p process) quiet() process {
	p.stdin, p.stdout, p.stderr = strings.NewReader(""), io.Discard, io.Discard
	return p
}

// A call carries out one command line.
type call struct {
	process
	options.Call              // Flags is nil until the action of the command begins. Line is nil until the command line is read
	view         *ui.Renderer // the newest renderer
	json         bool         // errors are shown as JSON
	signals      interrupt.Watch
}

// act returns the action of a command. The action calls f.
func act(f func(c *call) error) cli.ActionFunc {
	return func(of *cli.Context) error {
		c := of.App.Metadata[callKey].(*call)
		c.Flags = of
		return f(c)
	}
}

// callKey is the key of the call in the Metadata of its cli.App.
const callKey = "call"

// program returns multihost's commands for the call c.
func (c *call) program() cmdline.Program {
	a := app()
	a.Metadata = map[string]any{callKey: c}
	a.Writer, a.ErrWriter = c.stdout, c.stderr
	return cmdline.Program{App: a, Rules: rules(c.process), Version: version(), Lookup: c.lookup, Home: c.home, Dir: c.dir}
}

func rules(p process) cmdline.Rules { return options.Rules(completions(p)) }

// run carries out the command line argv and returns the exit status. It shows the error
// with which the command ends.
func (c *call) run(ctx context.Context, argv []string) int {
	err := c.dispatch(ctx, argv)
	code := exitCode(err)
	var status *statusError
	if err == nil || errors.As(err, &status) || c.told(err) {
		return code
	}
	if !c.json || ui.PrintErrorJSON(c.stdout, time.Now(), err, hintOf(err), code) != nil {
		ui.PrintError(c.stderr, ui.Colors(c.lookup, c.stderr), err, hintOf(err))
	}
	return code
}

// told reports whether the last text on the screen, the verdict of the run, already
// contains the error.
func (c *call) told(err error) bool {
	said := err.Error()
	if e, ok := err.(*stage.Error); ok { // the verdict shows such an error without its stage. An error that wraps this one has more text
		said = cmp.Or(e.Text, said)
	}
	return c.view != nil && !c.json && hintOf(err) == "" && strings.Contains(c.view.Verdict(), said)
}

func (c *call) dispatch(ctx context.Context, argv []string) error {
	program := c.program()
	if len(argv) > 0 && argv[0] == "__complete" { // the completion scripts call this
		program.Complete(ctx, c.stdout, argv[1:])
		return nil
	}
	line, err := program.Parse(argv)
	if err != nil {
		c.json = slices.Contains(argv, "--output=json")
		return err
	}
	c.Line = line
	c.json = line.Setting("output") == "json" // also for an error before anything is shown
	if line.Help != cmdline.NoHelp {
		c.showHelp(program, line.HelpPath, line.Help)
		return nil
	}
	err = line.Run(ctx, program.App)
	if code := exitCode(err); code == exitUsage || code == exitConfig {
		err = line.Blame(err)
	}
	var told *stage.Error // a *stage.Error says what may still run or exist; the cause of ctx does not
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.As(err, &told) {
		return context.Cause(ctx)
	}
	return err
}

// showHelp prints the help of the command with the given path. It ignores the write error
// if the reader has gone.
func (c *call) showHelp(p cmdline.Program, path []string, level cmdline.HelpLevel) {
	_, _ = io.WriteString(c.stdout, p.Page(path, level).Lay(ui.Columns(c.lookup, c.stdout)))
}
