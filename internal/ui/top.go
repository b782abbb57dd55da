package ui

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gdamore/tcell/v2"

	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

// A TopState is what Top shows about a run at one moment.
type TopState struct {
	Run      string
	Document *metrics.Document // nil while there are no logs
	Story    *journal.Story    // never nil
	Ended    bool              // no change will follow
	Now      time.Time

	// Away holds the workers that cannot be reached although only they know their state,
	// with the reasons. Notices are lines that say why the view is not up to date.
	Away    map[tpu.WorkerID]string
	Notices []string
}

// TopOptions configure Top. Source is required.
type TopOptions struct {
	Source func() (TopState, error)
	Color  bool
	After  func(time.Duration) <-chan time.Time // default: time.After
	screen tcell.Screen                         // default: the terminal
}

// topEvery is how often Top reads the run while reading is cheap.
const topEvery = time.Second

// Top shows a run on the whole terminal until the user presses q, Esc or Ctrl-C, or ctx
// ends. It returns nil if the user ends it. A run that has ended stays on the screen.
func Top(ctx context.Context, o TopOptions) error {
	state, err := o.Source()
	if err != nil {
		return err // the view would hide this error
	}
	if o.After == nil {
		o.After = time.After
	}
	screen := o.screen
	if screen == nil {
		if screen, err = tcell.NewScreen(); err != nil {
			return fmt.Errorf("use the terminal: %w", err)
		}
	}
	if err := screen.Init(); err != nil {
		return fmt.Errorf("use the terminal: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	events, quit := make(chan tcell.Event, 16), make(chan struct{})
	states := make(chan TopState)
	group.Go(func() { screen.ChannelEvents(events, quit) })
	group.Go(func() { o.look(ctx, state.Ended, states) })
	defer group.Wait()
	defer close(quit)
	defer cancel(nil)
	defer screen.Fini()

	t := topView{state: state}
	for {
		t.draw(screen, o.Color)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case t.state = <-states:
		case e, ok := <-events:
			if !ok {
				return nil // the terminal is gone
			}
			switch e := e.(type) {
			case *tcell.EventResize:
				screen.Sync()
			case *tcell.EventKey:
				if t.press(e) {
					return nil
				}
			}
		}
	}
}

// look sends states until the run has ended. Reading 2048 logs may be expensive, so look
// spends at most a tenth of its time reading.
func (o *TopOptions) look(ctx context.Context, ended bool, states chan<- TopState) {
	pause := topEvery
	for !ended {
		select {
		case <-ctx.Done():
			return
		case <-o.After(pause):
		}
		begin := time.Now()
		s, err := o.Source()
		pause = max(topEvery, 9*time.Since(begin))
		if err != nil {
			continue // keep showing the last state
		}
		ended = s.Ended
		select {
		case states <- s:
		case <-ctx.Done():
			return
		}
	}
}

// press handles a key, and reports whether the key ends the view.
func (t *topView) press(e *tcell.EventKey) (quit bool) {
	switch e.Key() {
	case tcell.KeyCtrlC, tcell.KeyEscape:
		return true
	case tcell.KeyUp:
		t.scroll--
	case tcell.KeyDown:
		t.scroll++
	case tcell.KeyPgUp:
		t.scroll -= 10
	case tcell.KeyPgDn:
		t.scroll += 10
	case tcell.KeyHome:
		t.scroll = 0
	case tcell.KeyRune:
		switch e.Rune() {
		case 'q', 'Q':
			return true
		case 's':
			t.order = bySpeed
		case 'b':
			t.order = byStep
		case 'n':
			t.order = byName
		}
	}
	return false
}

// draw draws the view for the terminal's size now.
func (t *topView) draw(screen tcell.Screen, color bool) {
	width, height := screen.Size()
	screen.Clear()
	for y, line := range t.lines(width, height) {
		x := 0
		for _, part := range line {
			style := topStyle(part.look, color)
			for _, r := range part.text {
				screen.SetContent(x, y, r, nil, style)
				x += runeWidth(r)
			}
		}
	}
	screen.Show()
}

// topStyle returns the style of a look. Colour alone never carries information: every state
// has a sign of its own, and without colour the looks differ by weight.
func topStyle(l look, color bool) tcell.Style {
	s := tcell.StyleDefault
	if color {
		switch l {
		case lookGood:
			return s.Foreground(tcell.ColorGreen)
		case lookWarn:
			return s.Foreground(tcell.ColorYellow).Bold(true)
		case lookBad:
			return s.Foreground(tcell.ColorRed).Bold(true)
		case lookInfo:
			return s.Foreground(tcell.ColorBlue)
		}
	}
	switch l {
	case lookStrong, lookWarn:
		return s.Bold(true)
	case lookBad:
		return s.Reverse(true)
	case lookDim:
		return s.Dim(true)
	}
	return s
}
