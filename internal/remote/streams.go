package remote

import (
	"io"
	"sync"
	"time"

	"multihost/internal/fault"
)

// ErrShut is the error of a Gate or an Intake after Shut.
var ErrShut = fault.New(fault.Internal, "session is over")

// A Gate is a writer that can be shut for good. A Session writes the output of its command
// through Gates, so that nothing is written after Wait. Its methods are safe for concurrent
// use.
type Gate struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
}

// NewGates returns the Gates for Stdout and Stderr of a command. If both are the same writer,
// it returns one Gate twice.
func NewGates(cmd Cmd) (out, errs *Gate) {
	out = newGate(cmd.Stdout)
	if sameWriter(cmd.Stdout, cmd.Stderr) {
		return out, out
	}
	return out, newGate(cmd.Stderr)
}

func newGate(w io.Writer) *Gate {
	if w == nil {
		w = io.Discard
	}
	return &Gate{w: w}
}

// Write fails with ErrShut after Shut. It holds a lock while it writes, so that nothing is
// being written when Shut returns.
func (g *Gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, ErrShut
	}
	return g.w.Write(p)
}

// Shut ends the writing. It waits for a Write in progress.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// sameWriter reports whether two writers are equal. It returns false for types that cannot
// be compared.
func sameWriter(a, b io.Writer) (same bool) {
	defer func() {
		if recover() != nil {
			same = false
		}
	}()
	return a == b
}

// An Intake is a reader that can be shut for good. A Session reads the input of its command
// through an Intake. One goroutine reads. Others may call Shut meanwhile.
type Intake struct {
	r    io.Reader
	idle chan struct{} // closed when nobody reads any more
	over chan struct{} // closed by Shut
	once sync.Once
}

// NewIntake returns an Intake that reads from r. Its reader calls Done at the end.
func NewIntake(r io.Reader) *Intake {
	return &Intake{r: r, idle: make(chan struct{}), over: make(chan struct{})}
}

// Read fails with ErrShut after Shut.
func (in *Intake) Read(p []byte) (int, error) {
	select {
	case <-in.over:
		return 0, ErrShut
	default:
		return in.r.Read(p)
	}
}

// Done says that nobody reads any more. Call it once.
func (in *Intake) Done() { close(in.idle) }

// inputGrace is how long Shut waits for a Read in progress. Files and memory need no such
// time. A reader may wait for a person, and must not delay the end of a command that did
// not want its input.
const inputGrace = time.Second

// Shut ends the reading. It waits at most a second for a Read in progress.
func (in *Intake) Shut() {
	in.once.Do(func() { close(in.over) })
	select {
	case <-in.idle:
		return
	default:
	}
	timer := time.NewTimer(inputGrace)
	defer timer.Stop()
	select {
	case <-in.idle:
	case <-timer.C:
	}
}
