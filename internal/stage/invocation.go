package stage

import (
	"context"
	"errors"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
)

// An Invocation is the running multihost command, with its output, its clock and its Status for
// the Ctrl-C prompt. The methods for the Status are safe for concurrent use.
type Invocation struct {
	Sink  event.Sink
	Clock gcp.Clock

	// CtrlC is what Ctrl-C does, for the message about it. "" means the effect of an
	// Interrupted without an Answer.
	CtrlC Answer

	// Leave is closed when the user wants to leave at once. The command then waits for
	// nothing more, and reports what may still run or exist.
	Leave <-chan struct{}

	// Confirm asks the user whether to request slices. The user has seen line, which describes
	// the request. An error means no. If Confirm is nil, nobody is asked.
	Confirm func(ctx context.Context, line string) error

	status struct {
		sync.Mutex // guards the fields below
		now        Status
		changed    chan struct{} // closed at the next change; nil: nobody waits for it
	}
}

// A Status is a snapshot of the run's status for the Ctrl-C prompt.
type Status struct {
	Run      string
	Running  string    // the workers on which the command runs, folded; "": it does not run
	Ended    bool      // the command has ended; another attempt may begin
	Kept     time.Time // end of the time for which failed slices are kept; zero: they are not kept
	Ours     bool      // this command has started the run, and would stop it
	Resource string    // what is deleted when this command ends, in words; "": nothing
	Delete   string    // what the user types to delete it
	Tier     string    // tier of the slices that this command requests; "": it requests none
	Billed   string    // what costs money for the run, in words; "": nothing yet
	Lease    string    // what the run's workers will do about the slices without a runner, in words; "": nothing
	Earlier  bool      // an earlier runner has made the resource, and the command may run on it already
	Waiting  string    // what happens to the resource, in words, if the runner goes before the command has started and no other runner takes over
}

// Started reports whether the command runs, or failed slices are kept, so that the user has
// something to decide.
func (s Status) Started() bool { return s.Running != "" || !s.Kept.IsZero() }

// Second returns what a second interrupt means while the prompt for the first is open. A
// running command continues. A queued resource on which nothing runs is deleted.
func (s Status) Second() Answer {
	if s.Started() || s.Earlier {
		return Detach
	}
	return Stop
}

// StatusOf returns the current status of the run.
func (v *Invocation) StatusOf() Status {
	v.status.Lock()
	defer v.status.Unlock()
	return v.status.now
}

// SetStatus changes the status of the run. change must not call v.
func (v *Invocation) SetStatus(change func(*Status)) {
	v.status.Lock()
	defer v.status.Unlock()
	before := v.status.now
	change(&v.status.now)
	if v.status.now != before && v.status.changed != nil {
		close(v.status.changed)
		v.status.changed = nil
	}
}

// WatchStatus returns the current status, and a channel that is closed when it changes.
func (v *Invocation) WatchStatus() (now Status, changed <-chan struct{}) {
	v.status.Lock()
	defer v.status.Unlock()
	if v.status.changed == nil {
		v.status.changed = make(chan struct{})
	}
	return v.status.now, v.status.changed
}

// WhatCtrlCDoes says what an interrupt will do to an active run.
func (v *Invocation) WhatCtrlCDoes(ours bool) string {
	switch {
	case v.CtrlC == Ask:
		return "Ctrl-C asks whether to stop it or to leave it running"
	case (&Interrupted{Answer: v.CtrlC}).Detaches(ours):
		return "Ctrl-C leaves it running"
	}
	return "Ctrl-C stops it on every worker"
}

// Detached returns a context for work that must continue after ctx has ended, such as
// stopping the workers and deleting slices. It ends after limit, or when the user wants to
// leave at once. The caller must call the CancelFunc.
func (v *Invocation) Detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	base, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	base, cancel := context.WithTimeout(base, limit)
	over := alongside(func(over <-chan struct{}) {
		select {
		case <-v.Leave:
			leave(secondSignal{})
		case <-over:
		}
	})
	return base, func() {
		over()
		cancel()
		leave(nil)
	}
}

// alongside runs f in a goroutine. end closes the channel over and waits until f has returned.
func alongside(f func(over <-chan struct{})) (end func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f(over)
	}()
	return func() {
		close(over)
		<-done
	}
}

// secondSignal is the cause if a context of Detached ends because the user wants to leave
// at once.
type secondSignal struct{}

func (secondSignal) Error() string { return "a second signal ended this command" }

// Is makes errors.Is match context.Canceled.
func (secondSignal) Is(target error) bool { return target == context.Canceled }

// Persist is for work of the caller that continues after a first signal and ends at a second
// one. When ctx ends, Persist says what is being done (doing) and what a second signal will
// leave (left). hint has the command to type after a second signal. The caller must call over
// when the work has ended.
func (v *Invocation) Persist(ctx context.Context, doing, left, hint string) (over func()) {
	say := func() {
		why := ""
		if in := new(Interrupted); errors.As(context.Cause(ctx), &in) {
			why = in.Error() + ": "
		}
		event.Notef(v.Sink, event.Warn, hint, "%s%s, and this goes on until it is done; another signal, such as Ctrl-C, ends this command at once: %s", why, doing, left)
	}
	if ctx.Err() != nil {
		say()
		return func() {}
	}
	return alongside(func(over <-chan struct{}) {
		select {
		case <-over:
		case <-ctx.Done():
			say()
		}
	})
}

// Age returns the time since created, or 0 if created is zero.
func (v *Invocation) Age(created time.Time) time.Duration {
	if created.IsZero() {
		return 0
	}
	return v.Clock.Now().Sub(created)
}

// remindEvery is how often Remind says what the command waits for.
const remindEvery = time.Minute

// Remind calls f. While f runs, Remind says every minute what the command waits for.
func (v *Invocation) Remind(what string, f func()) {
	begin := v.Clock.Now()
	defer alongside(func(over <-chan struct{}) {
		for {
			select {
			case <-over:
				return
			case <-v.Clock.After(remindEvery):
				event.Notef(v.Sink, event.Info, "", "still waiting, for %s: %s", AsTyped(v.Clock.Now().Sub(begin).Round(time.Second)), what)
			}
		}
	})()
	f()
}
