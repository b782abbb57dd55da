package attempt

import (
	"multihost/internal/launch"
	"multihost/internal/stage"
	"multihost/internal/workers"
)

// An occupant is a run that a runner finds on the workers when it wants to start an attempt
// there.
type occupant struct {
	workers.FoundRun
	// unseen: all workers that answer have it, and nobody has seen its end. It is running,
	// or it ended while no runner was there.
	unseen  bool
	differs error // why its command is not the requested one; nil: it is
}

// A claimant is a runner that comes to workers with runs on them.
type claimant struct {
	run, owner string
	adopts     bool // it may take over an attempt of its run from another runner
	replace    bool // the user typed --replace
	tried      int  // attempts that it began
	last       int  // number of the newest of them
	cutOff     bool // it lost the workers of its last attempt while the command was running
	yields     bool // it may still wait for another runner of the same run
	// elsewhere: its last attempt ran on none of these slices. Any attempt here belongs to
	// another runner, even with the same number.
	elsewhere bool
}

// A settlement says what a claimant does about the occupants.
type settlement struct {
	attempt int               // smallest possible number of the next attempt
	living  *workers.FoundRun // attempt to take over
	evict   []eviction        // runs to stop first
}

// settle decides about the occupants: which one is taken over, which ones are stopped, and
// which number the next attempt gets. It returns an error if another run is active on the
// workers and the user does not want to replace it. Remains of the claimant's own run cause
// no error. The error is stage.ErrStarting if another runner of the run is faster. If the
// error is about the attempt to take over, the settlement names that attempt.
func (c claimant) settle(attempt int, occupants []occupant) (settlement, error) {
	s := settlement{attempt: attempt}
	for _, o := range occupants {
		if c.owns(o) {
			s.attempt = max(s.attempt, o.Info.Ref.Attempt+1)
		}
		switch {
		case c.continues(o) && (o.differs == nil || !c.replace || c.tried > 0):
			s.living = &o.FoundRun
			return s, o.differs
		case !o.Info.Alive():
		case c.isSlower(o):
			return s, &stage.Error{Stage: stage.Busy, Err: stage.ErrStarting}
		default:
			evicted, err := c.evict(o)
			if err != nil {
				return s, err
			}
			s.evict = append(s.evict, evicted)
		}
	}
	return s, nil
}

func (c claimant) owns(o occupant) bool { return o.Info.Ref.Run == c.run }

// newer reports whether this claimant did not begin the attempt.
func (c claimant) newer(o occupant) bool {
	return c.tried == 0 || o.Info.Ref.Attempt > c.last || c.elsewhere
}

// continues reports whether the claimant continues with an attempt. That is an attempt of
// another runner, or its own last one if that is again visible on all workers.
func (c claimant) continues(o occupant) bool {
	regained := c.cutOff && o.Info.Ref.Attempt == c.last && o.Broken == 0 && !c.elsewhere
	return c.owns(o) && o.unseen && (c.adopts && c.newer(o) || regained)
}

// isSlower reports whether another runner of the run is starting its command.
func (c claimant) isSlower(o occupant) bool {
	return c.adopts && c.yields && c.owns(o) && o.Info.Mine && c.newer(o) && (c.tried > 0 || o.Info.Phase == launch.Starting)
}

// evict decides about an active run that is in the way.
func (c claimant) evict(o occupant) (eviction, error) {
	reason := "replaced by " + c.run + " of " + c.owner
	switch {
	case c.owns(o) && c.replace && c.tried == 0:
	case c.owns(o) && o.Info.Mine && (c.tried > 0 || c.adopts):
		// The attempt lost some of its workers, so it cannot continue on the others.
		reason = "a new attempt begins"
	case !c.replace:
		return eviction{}, busy(o.FoundRun, "")
	}
	return eviction{o.FoundRun, reason}, o.Stoppable()
}
