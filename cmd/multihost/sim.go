package main

import (
	"github.com/urfave/cli/v2"

	"multihost/cmd/multihost/simcmd"
	"multihost/internal/event"
	"multihost/internal/ui"
)

func simCommand() *cli.Command {
	return simcmd.Command(simcmd.Kit{
		Group:   group,
		Command: endsWith,
		Act: func(f func(*simcmd.Call) error) cli.ActionFunc {
			return act(func(c *call) error {
				return f(&simcmd.Call{
					Call: &c.Call, Lookup: c.lookup, Stderr: c.stderr, Agent: agents().Here(), Ready: func() error { return ready(c) },
					Note: func(text string) error { return note(c, text) },
					Show: func(r event.Result) error { return show(c, r) },
					Tell: func(text string, r event.Result) error { return tell(c, text, r) },
				})
			})
		},
	})
}

// bareView returns a view for commands that need no cloud.
func bareView(c *call) (*ui.Renderer, error) {
	if err := ready(c); err != nil {
		return nil, err
	}
	return newView(c), nil
}

// note tells the user something. A command that needs no cloud calls note before it does
// its work.
func note(c *call, text string) error {
	view, err := bareView(c)
	if err != nil {
		return err
	}
	defer view.Close()
	event.Notef(view, event.Info, "", "%s", text)
	return nil
}

// tell shows the result of a command that has no list to show. People see text, which may be
// empty. Programs get r.
func tell(c *call, text string, r event.Result) error {
	view, err := bareView(c)
	if err != nil {
		return err
	}
	defer view.Close()
	if view.Mode() == ui.JSON {
		view.Emit(r)
	} else if text != "" {
		event.Notef(view, event.Info, "", "%s", text)
	}
	return nil
}
