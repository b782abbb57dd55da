// Package ui renders events for people and programs. It is the only terminal
// code of the project: everything else emits events to the Renderer and prints
// nothing.
//
// What goes where: data goes to standard output (the streams of workers, the
// answers of list and show commands, JSON lines), everything else to standard
// error.
//
// Three promises hold in every mode:
//
//   - Emit never waits for a reader. A reader that stalls costs a bounded amount
//     of memory; what does not fit is dropped from the view, counted and reported.
//     The log files are written elsewhere and stay complete.
//   - A reader that goes away ends the view, never the run.
//   - Bytes from a worker reach a text view only in visible, harmless form.
//
// Each destination has one goroutine that writes to it; when standard output
// and standard error are one terminal they share it, so that the status line is
// erased before anything else is printed.
package ui

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// Mode chooses the renderer.
type Mode string

// The modes. Auto, the default, is TTY when standard output and standard error
// are both terminals and Plain otherwise.
const (
	Auto  Mode = "auto"
	TTY   Mode = "tty"   // one redrawn status line
	Plain Mode = "plain" // no redrawing
	JSON  Mode = "json"  // versioned JSON lines on standard output, nothing for people
	Quiet Mode = "quiet" // results, warnings and the summary of a failed run only
)

// Stream chooses which workers' output is shown.
type Stream string

// The choices for Stream. In JSON mode First means the bytes of s0w0 only.
const (
	First Stream = "first" // s0w0, and lines of other workers that look like an error
	All   Stream = "all"   // every line, with its worker; equal lines folded
	None  Stream = "none"
)

// Options configure a Renderer. Stdout and Stderr are required.
type Options struct {
	Mode           Mode // default Auto
	Stdout, Stderr io.Writer
	IsTerminal     func(io.Writer) bool // default: the exported IsTerminal
	Width          func() int           // columns, asked at every redraw; default: those of the terminal at Stderr
	Color          bool
	Stream         Stream // default First
	Debug          bool   // show notes of level debug
	Clock          bool   // begin phases, states and warnings with the time of day
	Timestamps     bool   // begin lines of the streams with the time at which they arrived here
	// Now is the clock of everything shown and of pacing; default time.Now. It
	// must advance with the timers of package time.
	Now func() time.Time
}

// Tuned on a 2-core machine with 64 workers that print 100-byte lines: smaller
// batches cost throughput, larger ones are seen as stutter.
const (
	batchEvery  = 50 * time.Millisecond  // pause between two writes of a busy view
	batchBytes  = 256 << 10              // written without waiting for the pause
	redrawEvery = 100 * time.Millisecond // between two redraws of the status line

	viewBytes    = 8 << 20 // output waiting for one slow reader, all workers together
	streamMost   = 4 << 20 // the most one worker may take of it
	streamLeast  = 8 << 10 // the least each worker gets
	controlBytes = 4 << 20 // notes, phases and states waiting for one slow reader

	foldAll    = 250 * time.Millisecond // equal lines this close are folded, Stream All
	foldErrors = time.Second            // the same for the error lines of Stream First
)

// A Renderer shows events. It is an event.Sink, safe for concurrent use. Call
// Close when the last event is emitted.
type Renderer struct {
	o    Options
	mode Mode // never Auto
	wg   sync.WaitGroup

	out, err *lane // the same lane when both are one terminal

	streams   sync.Map  // tpu.WorkerID → *stream
	scratches sync.Pool // of *scratch

	mu      sync.Mutex // guards what follows, the lanes' queues and the fold window
	closed  bool
	nstream int
	width   int // of the widest worker tag so far
	fold    foldWindow
	phases  []*phaseView
	tail    []byte // unfinished line of s0w0, for the status line
	ended   []event.WorkerDone
	failed  int // ended workers that failed on their own
	fault   error
	verdict verdict
}

// A verdict is the end of a summary: how the run ended, and the command to type.
type verdict struct {
	said   string // its text; "": none was shown
	lines  []byte
	buried bool // something was shown after it
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
	r := &Renderer{o: o, mode: o.Mode}
	if r.mode == Auto || r.mode == "" {
		r.mode = Plain
		if both {
			r.mode = TTY
		}
	}
	r.fold.init(foldAll)
	if o.Stream == First {
		r.fold.window = foldErrors
	}
	r.out = newLane(r, r.mode == TTY)
	r.err = r.out
	// A terminal is one place however many descriptors lead to it. In the other
	// modes a stalled pipe on one side must not hold up the other.
	if r.mode != TTY && !both && !sameWriter(o.Stdout, o.Stderr) {
		r.err = newLane(r, false)
		r.wg.Go(r.err.loop)
	}
	r.wg.Go(r.out.loop)
	return r
}

// Mode returns the mode in use, Auto resolved.
func (r *Renderer) Mode() Mode { return r.mode }

// Close shows what is still waiting, erases the status line and waits until everything is
// written. If something was shown after the verdict of a run, such as the deletion of its
// slices, Close repeats the verdict as the last lines. It ignores events emitted later. It
// returns the first error of a write, except EPIPE, which means that the reader has gone
// away.
func (r *Renderer) Close() error {
	r.mu.Lock()
	already := r.closed
	r.mu.Unlock()
	if !already {
		r.streams.Range(func(_, v any) bool {
			r.finish(v.(*stream))
			return true
		})
		r.mu.Lock()
		r.flushFold(time.Time{})
		if r.verdict.buried {
			r.err.put(toStderr, r.verdict.lines)
		}
		r.phases = nil
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

// Verdict returns how the run ended, as it was shown; "" if it was not.
func (r *Renderer) Verdict() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verdict.said
}

// Emit shows e. It never blocks on a reader.
func (r *Renderer) Emit(e event.Event) {
	switch e := e.(type) {
	case event.Output:
		r.output(e)
		return
	case event.WorkerDone:
		r.finishWorker(tpu.WorkerID{Slice: e.Slice, Worker: e.Worker})
	}
	now := r.o.Now()
	if r.mode == JSON {
		r.emitJSON(e, now)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	switch e := e.(type) {
	case event.Note:
		r.note(e)
	case event.Phase:
		r.phase(e, now)
	case event.Progress:
		r.progress(e, now)
	case event.Training:
		r.training(e)
	case event.Stall:
		r.stall(e)
	case event.Request:
		r.note(event.Note{Level: event.Info, Text: e.Text})
	case event.State:
		if r.mode != Quiet {
			r.control(stateLine(r.clock(), e))
		}
	case event.WorkerDone:
		r.workerDone(e)
	case event.Attempt:
		r.ended, r.failed = nil, 0 // the summary is about the last attempt
	case event.AttemptEnd:
		r.attemptEnd(e)
	case event.Result:
		r.out.put(toStdout, appendVisibleText(nil, endLine(e.Text)))
	case event.Summary:
		r.summary(e)
	}
}

func (r *Renderer) note(n event.Note) {
	if n.Level == event.Debug && !r.o.Debug || n.Level == event.Info && r.mode == Quiet {
		return
	}
	var b []byte
	if n.Level == event.Warn {
		b = r.clock()
	}
	b = appendMessage(b, r.paint(), string(n.Level), n.Text)
	if n.Hint != "" {
		b = appendMessage(b, r.paint(), "hint", n.Hint)
	}
	r.control(b)
}

// warning returns the lines of a warning.
func (r *Renderer) warning(text string) []byte {
	return appendMessage(r.clock(), r.paint(), string(event.Warn), text)
}

// clock returns the time of day with which a line begins; nil if lines have none.
func (r *Renderer) clock() []byte {
	if !r.o.Clock {
		return nil
	}
	return r.o.Now().AppendFormat(nil, time.TimeOnly+" ")
}

func (r *Renderer) stall(s event.Stall) {
	level := event.Warn
	if s.Ended != nil {
		level = event.Info
	}
	r.note(event.Note{Level: level, Text: s.Text, Hint: s.Hint})
}

// control queues a message for standard error. A run of any size has few messages; the
// limit is for a flood of retries while the terminal has been stopped for hours.
func (r *Renderer) control(b []byte) {
	if r.err.controlQueued+len(b) > controlBytes {
		r.err.dropped += len(b)
		return
	}
	r.err.controlQueued += len(b)
	r.err.put(toStderr, b)
}

func (r *Renderer) workerDone(e event.WorkerDone) {
	r.ended = append(r.ended, e)
	if e.Code == 0 || e.Reason != "" {
		return
	}
	r.failed++
	// Only the first failure is reported at once. With 2048 workers the others are left
	// to the summary, which folds them.
	if r.failed == 1 && r.mode != Quiet {
		id := tpu.WorkerID{Slice: e.Slice, Worker: e.Worker}
		r.flushFold(time.Time{}) // its last lines come before the warning
		r.control(r.warning(id.String() + ": " + ending(e)))
	}
}

// attemptEnd reports why an attempt ended if another one follows. The summary reports the
// end of the last one.
func (r *Renderer) attemptEnd(e event.AttemptEnd) {
	if e.Again {
		r.flushFold(time.Time{})
		r.control(r.warning(attemptText(e)))
	}
}

func (r *Renderer) summary(s event.Summary) {
	r.flushFold(time.Time{})
	if r.mode == Quiet && s.OK {
		return
	}
	columns := 0
	if r.mode == TTY {
		columns = r.o.Width()
	}
	r.err.put(toStderr, appendSummary(nil, r.paint(), s, r.ended, columns))
	lines := appendVerdict(nil, r.paint(), s)
	r.err.put(toStderr, lines)
	r.verdict = verdict{said: verdictText(s), lines: lines}
}

// writeFailed records that writing to d failed with err. It is called at most once for
// each destination.
func (r *Renderer) writeFailed(d dest, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !IsClosedPipe(err) && !errors.Is(err, io.ErrClosedPipe) && r.fault == nil {
		r.fault = fmt.Errorf("write %s: %w", d, err)
	}
	if d == toStdout {
		r.control(r.warning(fmt.Sprintf("write standard output: %v; nothing more is shown there, the run and its log files go on", err)))
	}
}

func foldIDs(ids []tpu.WorkerID) string {
	slices.SortFunc(ids, tpu.CompareWorkers)
	return tpu.Fold(slices.Compact(ids))
}
