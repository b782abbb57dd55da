package main

import (
	"os"

	"multihost/internal/stage"
	"multihost/internal/ui"
)

// onInterrupts sets what signals do, as --on-interrupt says.
func onInterrupts(s *session, c *call, d *deps) {
	mode := stage.Answer(c.String("on-interrupt"))
	if mode != stage.Ask {
		c.signals.Answer(mode)
		d.CtrlC = mode
		return
	}
	in, ok := c.stdin.(*os.File)
	if ok && s.view.Mode() != ui.JSON && ui.CanAsk(in, c.stderr) {
		d.CtrlC = stage.Ask
		s.endQuestions = c.signals.Ask(s.view, in, c.stderr, d.WatchStatus)
	}
}
