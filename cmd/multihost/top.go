package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/journal"
	"multihost/internal/logs"
	"multihost/internal/metrics"
	"multihost/internal/options"
	"multihost/internal/runs"
	"multihost/internal/ui"
)

func topCommand() *cli.Command {
	return command(cli.Command{
		Name:      "top",
		Usage:     "watch the workers of a run on the terminal: who is at which step, who is slow",
		ArgsUsage: "RUN",
		Description: `Shows a cell for each worker and a list of the slowest. While multihost run, job
or attach follows the run on this machine, top reads the logs and the journal
that they keep here. Otherwise it goes on where the local logs end: it reads on
the workers, or in the bucket of a job without runner. It writes no log, changes
nothing on the workers and stops nothing. It shows which workers it cannot reach,
and tries again.

Keys: q or Ctrl-C ends the view, never the run; arrow and page keys scroll the
cells; s, b and n sort the list by speed, by steps behind and by name. Without
colour (NO_COLOR) the view shows the same. --output=json prints the state once
and ends.`,
		Flags: slices.Concat(options.TrainingFlags(), options.HostFlags(), options.BucketFlags(), []cli.Flag{options.PrefixFlag()}, options.SSHFlags()),
		Action: act(func(c *call) error {
			name, dir, o := options.Training(&c.Call, config.StateDir(c.lookup, c.home))
			if err := ready(c); err != nil {
				return err
			}
			out := &lookout{c: c}
			defer out.close()
			r := logs.OpenReview(dir, name, o)
			defer r.Close()
			far := logs.Far{Deps: out.deps, Prefix: c.String("tpu-prefix"), Clock: gcp.SystemClock}
			if viewMode(c) == ui.JSON {
				if err := r.Fetch(c.Context, far); err != nil {
					return err
				}
				return topOnce(c, r, name)
			}
			if term, _ := c.lookup("TERM"); !ui.IsTerminal(c.stdout) || term == "" || term == "dumb" {
				return &usageError{Err: errors.New("multihost top needs a terminal that can be drawn on"), Advice: "without one, type: multihost metrics " + name + "; or multihost top " + name + " --output=json"}
			}
			if err := r.Follow(c.Context, far); err != nil {
				return err
			}
			out.drawn.Store(true)
			return ui.Top(c.Context, ui.TopOptions{Color: ui.Colors(c.lookup, c.stdout), Source: func() (ui.TopState, error) {
				now := gcp.SystemClock.Now()
				l, err := r.Look(metrics.View{}, now)
				return ui.TopState{Run: name, Document: l.Document, Story: l.Story, Ended: l.Ended, Now: now, Away: l.Away, Notices: l.Notices}, err
			}})
		}),
	}, exitOK, exitUsage, exitUnavailable, exitIO, exitPermission, exitConfig, exitInterrupt)
}

// A lookout reaches workers for a view that fills the terminal. It prints nothing, and asks
// the user nothing once the view is drawn.
type lookout struct {
	c     *call
	s     *session // nil until it is first needed
	drawn atomic.Bool
}

func (l *lookout) deps() (runs.Deps, error) {
	quiet := l.c.process
	quiet.stdout = io.Discard
	if l.drawn.Load() {
		quiet = quiet.quiet()
	}
	c := &call{process: quiet, Call: l.c.Call}
	if l.s == nil {
		s, err := openOn(c, ui.New(ui.Options{Mode: ui.Quiet, Stdout: io.Discard, Stderr: io.Discard}))
		if err != nil {
			return runs.Deps{}, err
		}
		l.s = s
	}
	d, err := l.s.workers(c)
	if err != nil {
		return runs.Deps{}, err
	}
	// From now on the view is drawn, so d must not ask the user.
	d.Access.Passphrase = func(path string) (string, error) {
		return ui.ReadPassphrase(c.Context, strings.NewReader(""), io.Discard, path)
	}
	overSSH(d, nil)
	return runsDeps(d), nil
}

func (l *lookout) close() {
	if l.s != nil {
		l.s.close()
	}
}

// topLook is one look of top in JSON.
type topLook struct {
	Run     string            `json:"run"`
	State   string            `json:"state"` // starting, running, succeeded, failed, …
	Text    string            `json:"text"`
	Ended   bool              `json:"ended"`             // the run has ended
	Notices []string          `json:"notices,omitempty"` // why the look is not up to date, such as workers out of reach
	Metrics *metrics.Document `json:"metrics"`           // null while there are no logs
}

func topOnce(c *call, r *logs.Review, name string) error {
	now := gcp.SystemClock.Now()
	l, err := r.Look(trainingView, now)
	if err != nil {
		return err
	}
	var newest *metrics.Attempt
	if l.Document != nil {
		newest = l.Document.Newest()
	}
	v := l.Story.Verdict(journal.KnownOf(newest), now)
	return show(c, event.Result{Name: "top", Data: topLook{Run: name, State: string(v.State), Text: v.Text, Ended: l.Ended, Notices: l.Notices, Metrics: l.Document}})
}
