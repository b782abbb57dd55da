package main

import (
	"context"
	"errors"
	"os"

	"multihost/internal/event"
	"multihost/internal/ui"
)

// canConfirm reports whether confirm has a terminal on which it can ask.
func canConfirm(c *call, view *ui.Renderer) bool {
	return view.Mode() != ui.JSON && ui.CanAsk(c.stdin, c.stderr)
}

// confirm asks a yes-or-no question. Only the key y means yes. After any other key it
// returns an error. The caller must have checked canConfirm.
func confirm(ctx context.Context, c *call, view *ui.Renderer, question string) error {
	in, _ := c.stdin.(*os.File)
	key, err := view.AskAfter(ctx, in, "multihost: "+question+" y or n? [n]", ui.AnyKey)
	if err != nil {
		return err
	}
	if key != 'y' {
		return &statusError{code: exitInterrupt}
	}
	return nil
}

// refuseConfirm refuses --confirm if there is nobody to ask. A dry run asks nothing.
func refuseConfirm(s *session, c *call) {
	if c.Bool("confirm") && !s.dryRun && !canConfirm(c, s.view) {
		c.Refuse(&usageError{Err: errors.New("--confirm: there is no terminal to ask on"), Advice: "see what would be requested with --dry-run, then leave out --confirm"}, "confirm")
	}
}

// asking returns deps for commands that request slices and reach workers. With --confirm,
// these deps ask the user before the request.
func asking(s *session, c *call) (*deps, error) {
	refuseConfirm(s, c)
	d, err := s.workers(c)
	if err != nil {
		return nil, err
	}
	confirms(s, c, d)
	return d, nil
}

// With --confirm, confirms sets d.Confirm, so that the user is asked before slices are
// requested.
func confirms(s *session, c *call, d *deps) {
	if !c.Bool("confirm") {
		return
	}
	d.Confirm = func(ctx context.Context, line string) error {
		question := "request these slices?"
		if s.view.Mode() == ui.Quiet { // this view does not show the line
			question = line + "\nmultihost: " + question
		}
		err := confirm(ctx, c, s.view, question)
		var no *statusError
		if errors.As(err, &no) {
			s.view.Emit(event.Note{Level: event.Info, Text: "no slices were requested"})
		}
		return err
	}
}
