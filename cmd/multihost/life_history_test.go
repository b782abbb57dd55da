package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A lifeFact is one thing that happened in a story, as the workers, the cloud or a command
// saw it.
type lifeFact struct {
	at   time.Duration // since the story began
	kind factKind
	who  string // the command that did it, or byCloud, byLease or byPerson

	verb    string // for factTyped: job, run, attach, stop or gc. With --detach, job is noted as detach and run as leave
	run     string
	worker  string // the VM: slice, worker and the id of its slice
	attempt int
	code    int // exit status of a command of multihost, or of the command on a worker
	text    string
	workers int // for factMade: how many workers a run has

	// For factReturned:
	codes   []int    // the exit status of the last attempt on each worker; unended: the command still runs
	partial []string // workers whose log is not whole on the machine although multihost could read it; for factDeleted: not whole on any machine
	billed  bool     // the queued resource of the run exists and has slices
	exists  bool     // the queued resource of the run exists
	lives   bool     // a command of multihost for this run is alive
	said    string   // all that the command of multihost has printed; for factDeleted: up to that time
}

// A factKind says what happened.
type factKind string

const (
	factTyped    factKind = "typed"
	factChosen   factKind = "chosen"   // a person chose to end a running command
	factSignal   factKind = "signal"   // a signal came
	factKilled   factKind = "killed"   // the machine of a command was switched off
	factReturned factKind = "returned" // a command of multihost has ended
	factStarted  factKind = "started"  // the command has started on a worker
	factEnded    factKind = "ended"    // the command has ended on a worker by itself
	factStopped  factKind = "stopped"  // an actor (in the field who) has ended the command on a worker
	factGone     factKind = "gone"     // an actor (in the field who) has taken a worker away together with its command
	factLoss     factKind = "loss"     // from now on, a fault may cost the run an attempt
	factExpired  factKind = "expired"  // the time of --ttl has passed
	factMade     factKind = "made"     // the queued resource was made
	factDeleted  factKind = "deleted"  // an actor (in the field who) has deleted the queued resource
	factSilent   factKind = "silent"   // a waiting command of multihost has printed nothing for too long
	factHangs    factKind = "hangs"    // a command of multihost does not end
	factLeft     factKind = "left"     // something is billed, and nothing will delete it
	factForeign  factKind = "foreign"  // something was deleted that the run did not make
)

// Actors other than commands of multihost.
const (
	byCloud  = "the cloud"
	byLease  = "the lease"
	byPerson = "a person"
)

const unended = -1

func (f lifeFact) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%10s  %-8s", f.at.Round(100*time.Millisecond), f.kind)
	for _, part := range []string{f.who, f.verb, f.run, f.worker, f.text} {
		if part != "" {
			b.WriteString("  " + part)
		}
	}
	if f.attempt > 0 {
		fmt.Fprintf(&b, "  attempt %d", f.attempt)
	}
	switch f.kind {
	case factReturned:
		fmt.Fprintf(&b, "  status %d, codes %v, partial %v, billed %v, lives %v", f.code, f.codes, f.partial, f.billed, f.lives)
	case factEnded:
		fmt.Fprintf(&b, "  code %d", f.code)
	}
	return b.String()
}

// A lifeHistory is the list of facts of a story, in order.
type lifeHistory []lifeFact

// A lifeRule is one of the promises. broken returns "" if a history keeps the promise.
type lifeRule struct {
	name   string
	broken func(h lifeHistory) string
}

// lifeRules returns the rules, in the words of docs/reliability.md.
func lifeRules() []lifeRule {
	return []lifeRule{
		{"a command that lives is ended only by a choice, a budget or --ttl", lifeHistory.endsWithoutReason},
		{"at most one attempt lives, and none is started twice", lifeHistory.startsTwice},
		{"what exists without a runner goes, and nothing else does", lifeHistory.staysOrGoesWrongly},
		{"no byte of a log is missing without a word", lifeHistory.losesLogs},
		{"the last lines are true", lifeHistory.lies},
		{"every wait ends, or says what it waits for", lifeHistory.waitsInSilence},
		{"0 only when every worker of the last attempt ended with 0", lifeHistory.succeedsWrongly},
	}
}

// broken returns the first rule that the history breaks, and how. It returns "" if the
// history keeps all rules.
func (h lifeHistory) broken() string {
	for _, r := range lifeRules() {
		if why := r.broken(h); why != "" {
			return r.name + ": " + why
		}
	}
	return ""
}

// living returns the attempts that still run at the end of the history, by worker and run.
func (h lifeHistory) living() map[[2]string]int {
	lives := map[[2]string]int{}
	for _, f := range h {
		switch f.kind {
		case factStarted:
			lives[[2]string{f.worker, f.run}] = f.attempt
		case factEnded, factStopped:
			delete(lives, [2]string{f.worker, f.run})
		case factGone:
			for key := range lives {
				if key[0] == f.worker {
					delete(lives, key)
				}
			}
		}
	}
	return lives
}

// endsWithoutReason looks for an attempt that the lease or a command of multihost has ended
// without a reason.
func (h lifeHistory) endsWithoutReason() string {
	for i, f := range h {
		if f.kind != factStopped && f.kind != factGone || f.who == byCloud || f.who == byPerson {
			continue
		}
		for key, attempt := range h[:i].living() {
			hit := key[0] == f.worker && (f.kind == factGone || key[1] == f.run)
			if hit && !h[:i].mayEnd(f.who, key[1], attempt) {
				return fmt.Sprintf("at %s %s ended the command on %s", f.at, f.who, f.worker)
			}
		}
	}
	return ""
}

// mayEnd reports whether an actor (the parameter who) has a reason to end a running attempt.
// A failure, stop, loss or expired --ttl of an earlier attempt is no reason.
func (h lifeHistory) mayEnd(who, run string, attempt int) bool {
	began := slices.IndexFunc(h, func(f lifeFact) bool { return f.kind == factStarted && f.run == run && f.attempt == attempt })
	for i, f := range h {
		ofIt := f.run == run && f.attempt == attempt
		switch {
		case f.kind == factExpired && !slices.ContainsFunc(h[i:], func(f lifeFact) bool { return f.kind == factMade }),
			f.kind == factLoss && i > began,
			f.kind == factEnded && f.code != 0 && ofIt, // fail-fast
			f.kind == factChosen && (f.who == who || who == ""),
			f.kind == factTyped && (f.who == who || who == "") && f.verb == "stop",
			f.kind == factStopped && ofIt: // somebody else has stopped a part of the attempt, so the rest must stop, too
			return true
		}
	}
	return false
}

// startsTwice looks for two attempts of a run that are alive at once, for an attempt that
// starts twice, and for a job that starts its command again after success.
func (h lifeHistory) startsTwice() string {
	type start struct {
		worker, run string
		attempt     int
	}
	started := map[start]bool{}
	for i, f := range h {
		if f.kind != factStarted {
			continue
		}
		for key, attempt := range h[:i].living() {
			if key[1] == f.run && attempt != f.attempt {
				return fmt.Sprintf("at %s attempt %d starts on %s while attempt %d lives on %s", f.at, f.attempt, f.worker, attempt, key[0])
			}
		}
		s := start{f.worker, f.run, f.attempt}
		if started[s] {
			return fmt.Sprintf("at %s attempt %d starts on %s again", f.at, f.attempt, f.worker)
		}
		started[s] = true
		if h[:i].succeeded(f) {
			return fmt.Sprintf("at %s attempt %d starts on %s although attempt %d has succeeded there", f.at, f.attempt, f.worker, f.attempt-1)
		}
	}
	return ""
}

// succeeded reports whether the attempt before the start f also ran on f.worker, and has
// ended with 0 on every worker.
func (h lifeHistory) succeeded(f lifeFact) bool {
	begun, ended, here := 0, 0, false
	for _, e := range h {
		if e.kind == factReturned && e.run == f.run && ended == h.workers() && len(e.codes) == ended && e.verb != "stop" {
			return false // the user knows of the success, so a command typed now means another run
		}
		if e.run != f.run || e.attempt != f.attempt-1 {
			continue
		}
		switch {
		case e.kind == factStarted:
			begun++
			here = here || e.worker == f.worker
		case e.kind == factEnded && e.code == 0:
			ended++
		}
	}
	return here && begun == h.workers() && ended == begun
}

// lifeSlices is how many slices a run of a story has.
const lifeSlices = 2

// workers returns how many workers a run of the story has.
func (h lifeHistory) workers() int {
	for _, f := range h {
		if f.kind == factMade && f.workers > 0 {
			return f.workers
		}
	}
	return lifeSlices
}

func (h lifeHistory) staysOrGoesWrongly() string {
	for _, f := range h {
		if f.kind == factLeft || f.kind == factForeign {
			return fmt.Sprintf("at %s: %s", f.at, f.text)
		}
	}
	return ""
}

// incomplete has parts of messages. A command of multihost prints one of them if a log is not
// whole on its machine, or if the run continues without the command.
var incomplete = []string{"not whole here", "goes on", "may still run", "may still be running", "is lost", "left before", "left running", "stays", "gone", "stopped", "could not be asked"}

func (h lifeHistory) losesLogs() string {
	for _, f := range h {
		if f.kind == factDeleted && len(f.partial) > 0 && f.who != byLease && !strings.Contains(f.said, "not whole here") {
			return fmt.Sprintf("at %s %s deletes the queued resource without the whole log of %s", f.at, f.who, strings.Join(f.partial, ", "))
		}
		left := f.lives && (f.verb == "detach" || f.verb == "leave")
		if f.kind != factReturned || len(f.partial) == 0 || f.verb == "stop" || f.verb == "gc" || left {
			continue
		}
		if f.code == 0 {
			return fmt.Sprintf("at %s %s ends with 0 without the whole log of %s", f.at, f.who, strings.Join(f.partial, ", "))
		}
		if !slices.ContainsFunc(incomplete, func(s string) bool { return strings.Contains(f.said, s) }) {
			return fmt.Sprintf("at %s %s ends without a word about the log of %s", f.at, f.who, strings.Join(f.partial, ", "))
		}
	}
	return ""
}

func (h lifeHistory) lies() string {
	for i, f := range h {
		if f.kind != factReturned {
			continue
		}
		switch {
		case f.exists && strings.Contains(f.said, "nothing of this job is billed") && !h[:i].justMade(f):
			return fmt.Sprintf("at %s %s says that nothing is billed, but the queued resource exists", f.at, f.who)
		case f.billed && (f.verb == "job" || f.verb == "detach") && !strings.Contains(f.said, "stays") && !strings.Contains(f.said, "may still exist") && !strings.Contains(f.said, "if it exists it is billed") && !strings.Contains(f.said, "has made it again; it is in") && !strings.Contains(f.said, "has a runner on this machine already") && !strings.Contains(f.said, "is not known") && !h[:i].couldNotAsk(f):
			return fmt.Sprintf("at %s %s ends without a word about what is billed", f.at, f.who)
		case f.lives && strings.Contains(f.said, "no process of it is left on all"):
			return fmt.Sprintf("at %s %s says that no process is left, but the command lives", f.at, f.who)
		}
	}
	return ""
}

// justMade reports whether another command has just made the queued resource. An older
// answer of the API, without the resource, may then still be on its way.
func (h lifeHistory) justMade(f lifeFact) bool {
	return slices.ContainsFunc(h, func(e lifeFact) bool {
		return e.kind == factMade && e.who != f.who && f.at-e.at <= 15*time.Second
	})
}

// couldNotAsk reports whether a job ended before it could read the queued resource. Such a
// job cannot know about the resource, and has made none.
func (h lifeHistory) couldNotAsk(f lifeFact) bool {
	made := slices.ContainsFunc(h, func(e lifeFact) bool { return e.kind == factMade && e.who == f.who })
	return !made && !strings.Contains(f.said, "phase request done")
}

func (h lifeHistory) waitsInSilence() string {
	for _, f := range h {
		if f.kind == factHangs || f.kind == factSilent {
			return fmt.Sprintf("at %s %s: %s", f.at, f.who, f.text)
		}
	}
	return ""
}

func (h lifeHistory) succeedsWrongly() string {
	for i, f := range h {
		if f.kind != factReturned || f.code != 0 {
			continue
		}
		switch f.verb {
		case "job", "run", "attach":
			if len(f.codes) == 0 || slices.ContainsFunc(f.codes, func(c int) bool { return c != 0 }) {
				return fmt.Sprintf("at %s %s ends with 0, the workers with %v", f.at, f.who, f.codes)
			}
		case "detach", "leave": // the running command continues
			if len(f.codes) == 0 || slices.ContainsFunc(f.codes, func(c int) bool { return c != 0 && c != unended }) {
				return fmt.Sprintf("at %s %s ends with 0, the workers with %v", f.at, f.who, f.codes)
			}
		case "stop":
			if f.lives && !h[:i].typedSince(f.who) {
				return fmt.Sprintf("at %s %s ends with 0, but the command lives", f.at, f.who)
			}
		}
	}
	return ""
}

// typedSince reports whether somebody has typed the job again after the command with the name
// who. The new command may restart a run that the older one has stopped.
func (h lifeHistory) typedSince(who string) bool {
	at := slices.IndexFunc(h, func(f lifeFact) bool { return f.kind == factTyped && f.who == who })
	return slices.ContainsFunc(h[max(0, at):], func(f lifeFact) bool { return f.kind == factTyped && (f.verb == "job" || f.verb == "detach") })
}
