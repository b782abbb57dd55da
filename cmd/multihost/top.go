package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/journal"
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
colour (NO_COLOR) nothing is missing. --output=json gives one look, and ends.`,
		Flags: trainingFlags(),
		Action: func(c *cli.Context) error {
			name, dir, o := p.trainingOptions(c, "multihost top")
			if err := p.ready(c); err != nil {
				return err
			}
			r := job.OpenReview(dir, name, o)
			if p.viewMode(c) == ui.JSON {
				return p.topOnce(c, r, name)
			}
			if term, _ := p.lookup("TERM"); !ui.IsTerminal(p.stdout) || term == "" || term == "dumb" {
				return &usageError{err: errors.New("multihost top needs a terminal that can be drawn on"), hint: "without one, type: multihost metrics " + name}
			}
			return ui.Top(c.Context, ui.TopOptions{Color: p.color(p.stdout), Source: func() (ui.TopState, error) {
				now := gcp.SystemClock.Now()
				l, err := r.Look(metrics.View{}, now)
				return ui.TopState{Run: name, Document: l.Document, Story: l.Story, Ended: l.Ended, Now: now}, err
			}})
		},
	}, exitOK, exitUsage, exitIO, exitConfig)
}

// topLook is one look of top, for programs.
type topLook struct {
	Run     string            `json:"run"`
	State   string            `json:"state"` // starting, running, succeeded, failed, …
	Text    string            `json:"text"`
	Ended   bool              `json:"ended"`   // nothing more will come
	Metrics *metrics.Document `json:"metrics"` // null while there are no logs
}

func (p *program) topOnce(c *cli.Context, r *job.Review, name string) error {
	now := gcp.SystemClock.Now()
	l, err := r.Look(trainingView, now)
	if err != nil {
		return err
	}
	known := journal.Known{}
	if l.Document != nil {
		if a := l.Document.Newest(); a != nil {
			known.Logs, known.Ended = true, a.Ended
			if a.ExitCode != nil {
				known.Code = *a.ExitCode
			}
		}
	}
	v := l.Story.Verdict(known, now)
	return p.show(c, event.Result{Name: "top", Data: topLook{Run: name, State: string(v.State), Text: v.Text, Ended: l.Ended, Metrics: l.Document}})
}
