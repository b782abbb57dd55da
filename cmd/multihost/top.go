package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/metrics"
	"multihost/internal/ui"
)

func (p *program) topCommand() *cli.Command {
	return command(cli.Command{
		Name:      "top",
		Usage:     "watch the workers of a run on the terminal: who is at which step, who is slow",
		ArgsUsage: "RUN",
		Description: `Shows a cell for each worker and a list of the slowest, from the logs and the
journal that this machine has of the run; nothing is asked of workers. While a
run goes on, some command must bring its logs here: multihost run or attach.

Keys: q or Ctrl-C ends the view, never the run; arrows and page keys scroll the
cells; s, b and n sort the list by speed, by steps behind and by name. Without
colour (NO_COLOR) nothing is missing.`,
		Flags: trainingFlags(),
		Action: func(c *cli.Context) error {
			name, dir, o, err := p.trainingOptions(c, "multihost top")
			if err != nil {
				return err
			}
			if term, _ := p.lookup("TERM"); !ui.IsTerminal(p.stdout) || term == "" || term == "dumb" {
				return &usageError{err: errors.New("multihost top needs a terminal that can be drawn on"), hint: "without one, type: multihost metrics " + name}
			}
			r := job.OpenReview(dir, name, o)
			noColor, _ := p.lookup("NO_COLOR")
			return ui.Top(c.Context, ui.TopOptions{Color: noColor == "", Source: func() (ui.TopState, error) {
				now := gcp.SystemClock.Now()
				l, err := r.Look(metrics.View{}, now)
				return ui.TopState{Run: name, Document: l.Document, Story: l.Story, Ended: l.Ended, Now: now}, err
			}})
		},
	}, exitOK, exitUsage, exitIO, exitConfig)
}
