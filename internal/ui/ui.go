// Package ui renders events for people and programs. It is the only terminal code of the
// project: everything else emits events to the Renderer and prints nothing.
//
// Data goes to standard output: the streams of workers, the answers of list and show
// commands, and JSON lines. Everything else goes to standard error.
//
// Three promises hold in every mode:
//
//   - Emit never waits for a reader. A stalled reader costs a limited amount of memory:
//     what does not fit is dropped from the view, counted and reported. Log files are
//     written elsewhere and stay complete.
//   - A reader that goes away ends the view, never the run.
//   - Bytes from a worker reach a text view only in visible, harmless form.
//
// Each destination has one goroutine that writes to it, or both share one if standard
// output and standard error are the same terminal. So the status line is erased before
// anything else is printed.
//
// # Decisions
//
//   - A question stops the view but not the run. Ask holds the lane that writes to the
//     terminal, so nothing is drawn over the question. Logs are still followed and written
//     to their files.
package ui

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// Mode chooses the renderer.
type Mode string

// The modes. Auto, the default, means TTY if standard output and standard error are both
// terminals, otherwise Plain.
const (
	Auto  Mode = "auto"
	TTY   Mode = "tty"   // one redrawn status line
	Plain Mode = "plain" // no redrawing
	JSON  Mode = "json"  // versioned JSON lines on standard output; nothing for people
	Quiet Mode = "quiet" // only results, warnings and the summary of a run that has failed
)

// A Stream says which workers' output is shown.
type Stream string

// The values of Stream. In JSON mode, First means only the bytes of s0w0.
const (
	First Stream = "first" // s0w0, and lines of other workers that look like an error
	All   Stream = "all"   // every line, with its worker; equal lines are folded
	None  Stream = "none"
)

// Options configure a Renderer. Stdout and Stderr are required.
type Options struct {
	Mode           Mode // default Auto
	Stdout, Stderr io.Writer
	IsTerminal     func(io.Writer) bool // default: the exported IsTerminal
	Width          func() int           // the columns at each redraw; default: those of the terminal at Stderr
	Color          bool
	Stream         Stream // default First
	Debug          bool   // show notes of level debug
	Clock          bool   // phases, states and warnings begin with the time of day
	Timestamps     bool   // lines of the streams begin with the time of their arrival here
	// Now is the clock for pacing and for all times shown. The default is time.Now. It must
	// advance together with the timers of package time.
	Now func() time.Time
}

// Tuned on a machine with 2 cores, for 64 workers that print lines of 100 bytes. Smaller
// batches cost throughput, and larger ones make the output stutter.
const (
	batchEvery  = 50 * time.Millisecond  // pause between two writes of a busy view
	batchBytes  = 256 << 10              // this many bytes are written without waiting for the pause
	redrawEvery = 100 * time.Millisecond // pause between two redraws of the status line

	viewBytes    = 8 << 20 // limit of the output of all workers that waits for one slow reader
	streamMost   = 4 << 20 // one worker's limit within viewBytes
	streamLeast  = 8 << 10 // what each worker gets at least
	controlBytes = 4 << 20 // limit of the notes, phases and states that wait for one slow reader

	foldAll    = 250 * time.Millisecond // with All, equal lines within this time are folded
	foldErrors = time.Second            // with First, equal error lines within this time are folded
)

// A Renderer shows events. It is an event.Sink, safe for concurrent use. Call Close after
// the last event.
type Renderer struct {
	screen
	view view
	wg   sync.WaitGroup // goroutines of the lanes
}

// A screen is where a Renderer writes. The views put their bytes there.
type screen struct {
	o    Options
	mode Mode // never Auto

	out, err *lane // the same lane if both streams are one terminal
	streams  streams

	mu      sync.Mutex // guards the fields below, the lanes' queues, and the state of the views
	closed  bool
	fault   error
	verdict verdict
}

// A view turns events into text for people or into lines of JSON.
type view interface {
	// emit shows an event other than event.Output.
	emit(e event.Event, now time.Time)
	// output shows a part of the output of a worker. The caller holds the stream.
	output(s *stream, data []byte)
	// finish shows a last line without a newline. The caller holds the stream.
	finish(s *stream)
	// tick does what a lane must do at the time now. It returns when to call it next, or
	// zero for never. The caller holds screen.mu.
	tick(l *lane, now time.Time) (next time.Time)
	// status returns the line that a terminal shows, or "" for none. The caller holds
	// screen.mu.
	status(now time.Time) string
	// dropped returns the line that says that n bytes were not shown, and its destination.
	dropped(n int, now time.Time) (dest, []byte)
	// close shows what still waits for its time. The caller holds screen.mu.
	close()
}

// A verdict is the end of a summary: how the run ended, and the next command to type.
type verdict struct {
	said   string // text of the verdict; "": none was shown
	lines  []byte
	buried bool // something was shown after the verdict
}

var _ event.Sink = (*Renderer)(nil)

// New starts a Renderer. The caller closes it.
func New(o Options) *Renderer {
	if o.IsTerminal == nil {
		o.IsTerminal = IsTerminal
	}
	if o.Width == nil {
		w := o.Stderr
		o.Width = func() int { return cmp.Or(TerminalWidth(w), 80) }
	}
	if o.Stream == "" {
		o.Stream = First
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	both := o.IsTerminal(o.Stdout) && o.IsTerminal(o.Stderr)
	r := &Renderer{screen: screen{o: o, mode: o.Mode}}
	if r.mode == Auto || r.mode == "" {
		r.mode = Plain
		if both {
			r.mode = TTY
		}
	}
	if r.view = newTextView(&r.screen); r.mode == JSON {
		r.view = &jsonView{&r.screen}
	}
	r.out = newLane(r, r.mode == TTY)
	r.err = r.out
	// A terminal is one place, however many descriptors lead to it. In the other modes, a
	// stalled pipe must not delay the other stream.
	if r.mode != TTY && !both && !sameWriter(o.Stdout, o.Stderr) {
		r.err = newLane(r, false)
		r.wg.Go(r.err.loop)
	}
	r.wg.Go(r.out.loop)
	return r
}

// Mode returns the mode in use, never Auto.
func (r *Renderer) Mode() Mode { return r.mode }

// Close shows what still waits, erases the status line and waits until everything is
// written. If something was shown after the verdict of a run, such as the deletion of its
// slices, Close repeats the verdict as the last lines. Later events are ignored. Close
// returns the first error of a write, except EPIPE, which means that the reader has gone.
func (r *Renderer) Close() error {
	r.mu.Lock()
	already := r.closed
	r.mu.Unlock()
	if !already {
		for s := range r.streams.all() {
			r.finish(s)
		}
		r.mu.Lock()
		r.view.close()
		if r.verdict.buried {
			r.err.put(toStderr, r.verdict.lines)
		}
		r.closed = true
		r.mu.Unlock()
	}
	r.out.kick()
	r.err.kick()
	r.wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault
}

// Verdict returns the verdict of the run as it was shown, or "" if none was.
func (r *Renderer) Verdict() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verdict.said
}

// Emit shows e. It never waits for a reader.
func (r *Renderer) Emit(e event.Event) {
	switch e := e.(type) {
	case event.Output:
		r.output(e)
		return
	case event.WorkerDone:
		if s := r.streams.known(tpu.WorkerID{Slice: e.Slice, Worker: e.Worker}); s != nil {
			r.finish(s)
		}
	}
	r.view.emit(e, r.o.Now())
}

func (r *Renderer) output(e event.Output) {
	id := tpu.WorkerID{Slice: e.Slice, Worker: e.Worker}
	if r.mode == Quiet || r.o.Stream == None || len(e.Data) == 0 || r.mode == JSON && r.o.Stream != All && id != (tpu.WorkerID{}) {
		return
	}
	s := r.streams.of(id)
	r.streams.hold(s)
	defer r.streams.release(s)
	r.view.output(s, e.Data)
}

func (r *Renderer) finish(s *stream) {
	r.streams.hold(s)
	defer r.streams.release(s)
	r.view.finish(s)
}

func (s *screen) paint() painter { return painter(s.o.Color) }

// warning returns the lines of a warning.
func (s *screen) warning(text string) []byte {
	return appendMessage(s.clock(), s.paint(), string(event.Warn), text)
}

// clock returns the time of day for the beginning of a line, or nil if lines have none.
func (s *screen) clock() []byte {
	if !s.o.Clock {
		return nil
	}
	return s.o.Now().AppendFormat(nil, time.TimeOnly+" ")
}

// control puts a message for standard error into the queue.
func (s *screen) control(b []byte) { s.err.control(toStderr, b) }

// writeFailed records that a write to d failed with err. It is called at most once per
// destination.
func (s *screen) writeFailed(d dest, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !IsClosedPipe(err) && !errors.Is(err, io.ErrClosedPipe) && s.fault == nil {
		s.fault = fmt.Errorf("write %s: %w", d, err)
	}
	if d == toStdout {
		s.control(s.warning(fmt.Sprintf("write standard output: %v; nothing more is shown there, the run and its log files go on", err)))
	}
}
