package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"multihost/internal/stage"
	"multihost/internal/ui"
	"multihost/internal/workers"
)

func interruptFlag(otherwise string) cli.Flag {
	return &cli.StringFlag{Name: "on-interrupt", Value: "ask", Usage: "ask, stop or detach: what Ctrl-C does while the command runs (`WHAT`); ask is " + otherwise + " where there is no terminal"}
}

func checkOnInterrupt(c *Call) {
	c.OneOf("on-interrupt", c.String("on-interrupt"), "ask", string(stage.Stop), string(stage.Detach))
}

// onInterrupts sets what signals do, from --on-interrupt.
func onInterrupts(s *session, c *call, d *workers.Deps) {
	mode := stage.Answer(c.String("on-interrupt"))
	if mode != stage.Ask {
		c.signals.Answer(mode)
		d.CtrlC = mode
		return
	}
	in, ok := c.stdin.(*os.File)
	if ok && s.view.Mode() != ui.JSON && ui.CanAsk(in, c.stderr) {
		d.CtrlC = stage.Ask
		s.endQuestions = c.signals.Ask(s.view, in, c.stderr, d.StatusOf)
	}
}
