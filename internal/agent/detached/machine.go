//go:build unix

package detached

import (
	"errors"
	"fmt"
	"time"

	"multihost/internal/agent"
)

// A life is the state of an attempt's command on this worker. The supervisor's operation
// status uses these words.
type life string

const (
	unknown  life = "unknown"
	starting life = "starting"
	running  life = "running"
	exited   life = "exited"
	lost     life = "lost"
	aborted  life = "aborted"
)

// A phase is a stage of a worker's part in the job.
type phase string

const (
	fetching  phase = "fetching"  // the worker gets what the job needs
	finding   phase = "finding"   // after a boot, the worker finds out which attempt it has
	beginning phase = "beginning" // the command will start
	attending phase = "attending" // the command runs
	ended     phase = "ended"     // the command has ended; the other workers are to know how
	givingUp  phase = "giving up" // the attempt ends without starting its command
	resting   phase = "resting"   // the other workers know how the attempt has ended here
	deleting  phase = "deleting"
	over      phase = "over" // nothing is left to do
)

// A subject is a fact outside the machine that a decision may need. The machine looks at a
// subject only when it needs the fact, because each look is a call of the bucket or an
// operation.
type subject string

const (
	ofCommand subject = "the command"
	ofAttempt subject = "control/attempt"
	ofFirst   subject = "the attempt to begin with"
	ofStop    subject = "control/stop"
	ofFailed  subject = "control/failed"
	ofEnds    subject = "ended"
	ofUnsent  subject = "control/unsent"
	ofExcuses subject = "the ends of the failures"
	ofSeats   subject = "the workers that have come"
)

// A verb is the kind of an action.
type verb string

const (
	look        verb = "look"           // look at the subject
	wait        verb = "wait"           // wait, and forget the results of all looks
	takeTurn    verb = "take a turn"    // wait for this worker's turn, and forget control/attempt
	sendLog     verb = "send the log"   // send the log that exists so far
	say         verb = "say"            // report the phase text, with the detail more
	stopCommand verb = "stop"           // stop the command, for the reason text
	tellStop    verb = "tell the stop"  // tell the other workers of the stop
	tellEnd     verb = "tell the end"   // tell the other workers of the end, if they do not know all of it
	sendRest    verb = "send the rest"  // send the rest of a log that the bucket had refused
	announce    verb = "announce"       // announce attempt n to the other workers
	loseDisk    verb = "tell of a disk" // tell the other workers that attempt n was lost with the disk
	fetch       verb = "fetch"          // get what the job needs, and fill in disk
	sit         verb = "sit down"       // tell the other workers that this one is ready for the attempt
	prepare     verb = "prepare"        // prepare the worker for the command
	arm         verb = "arm"            // start the command
	finish      verb = "finish"         // store the log, then how the attempt ended
	giveUp      verb = "give up"        // give up the attempt, with an exit code
	keepEnd     verb = "keep the end"   // note on the disk that the other workers know the end
	keepSince   verb = "keep since"     // note on the disk since when the slices are kept
	remove      verb = "delete"         // delete the slices
	leave       verb = "leave"          // nothing is left to do
)

// An action is what the worker does next. The next sight has its result.
type action struct {
	do     verb
	at     subject
	n      int // attempt
	code   int
	text   string
	more   string
	during time.Duration
}

// A sight is what the worker knows at one moment. Results of looks and actions stay in it
// until the worker waits.
type sight struct {
	now       time.Time
	goingDown bool // the machine has just got an order to shut down
	looked    map[subject]bool
	did       map[verb]bool

	life    life      // state of the command
	lifeErr error     // why life is not known
	started time.Time // when the command was started; zero: not known
	// how the machine ended the command, or "" if it did not.
	rebooted string

	absent    string // workers that are not ready for the attempt; "": all are ready
	absentErr error  // why absent is not known

	wanted    int   // the newest attempt that any worker began; 0: none
	wantedErr error // why wanted is not known
	first     first
	firstErr  error
	stop      string // "": none
	failed    string // reason to stop because of fail-fast; "": none
	ends      ends
	endsErr   error
	unsent    string // the worker whose log in the bucket is not whole; "": none
	unsentErr error
	excused   verdict
	keptFrom  time.Time // since when the slices are kept after this attempt

	err  error // of the last action that can fail
	code int   // exit code after a failed prepare
}

// A first is the attempt that a worker without a record would begin, as the bucket describes
// it.
type first struct {
	attempt int
	begun   bool // this worker began the attempt before, and lost its disk
	ended   bool // this worker also ended the attempt
}

// ends sums up the ends of an attempt in the bucket.
type ends struct {
	all      bool // every worker has ended or is dead
	failures int  // workers that did not end well
}

// A verdict says whether all failures of an attempt are a training's tail.
type verdict string

const (
	notJudged  verdict = "" // something could not be read
	isExcused  verdict = "excused"
	notExcused verdict = "failed"
)

// onDisk is the state of the run on this worker's disk after a boot.
type onDisk struct {
	newest     int // newest attempt with a record; 0: none
	told       int // newest attempt whose end the other workers know; 0: none
	toldCode   string
	toldReason string
	stopping   string // reason of a stop that a reboot interrupted; "": none
	quick      bool   // each of the last attempts ended with a reboot soon after its start
}

// A machine decides what a worker does: when it begins an attempt, when it obeys a stop,
// what follows an end, and when it deletes the slices. It is a pure state machine: next
// reads only the machine's fields and the sight, and changes nothing else.
type machine struct {
	job       Job
	born      time.Time // start of the time to live
	made      time.Time // first boot
	at        phase
	attempt   int
	following int // attempt that begins next; 0: not known
	fetched   bool

	disk onDisk

	// before the command runs
	sitFrom  time.Time // since when the worker waits for the others
	seated   bool      // the other workers know that this one is ready
	gathered bool      // all workers are ready

	// while the command runs
	sent      time.Time // time of the last upload of the log
	blindFrom time.Time // since when the state of the command is not known; zero: it is known
	stopping  string    // why the command is being stopped
	stopFrom  time.Time
	stopAsked time.Time

	// at the end
	ending   ending
	missing  string // why there is no record of an end
	code     int
	why      string
	endCode  string
	endTold  bool   // the bucket has the end
	unsent   string // why the log in the bucket is not whole
	failure  string // why the attempt failed here; "": nothing to tell the other workers
	stopText string // why all workers must stop; "": nothing to tell the other workers

	// after the end
	readFrom     time.Time // when the bucket was last read
	keptFrom     time.Time // since when the slices are kept; zero: they are not kept yet
	judged       verdict
	reported     time.Time
	said         string // phase that was reported last
	detail       string
	missingLogin string // login that does not exist
	tries        int    // number of requests to delete
}

// failFastReason is the reason of a stop after another worker has failed. It names no
// worker: which one failed first is known only after all have ended and their clocks are
// compared.
const failFastReason = "fail-fast: a worker failed"

// next returns the next action. The caller carries it out, and calls next again with the
// result, until next returns leave.
func (m *machine) next(s *sight) action {
	switch m.at {
	case fetching:
		return m.fetch(s)
	case finding:
		return m.find(s)
	case beginning:
		return m.begin(s)
	case attending:
		return m.attend(s)
	case ended:
		return m.end(s)
	case givingUp:
		return m.abandon(s)
	case resting:
		return m.rest(s)
	case deleting:
		return m.tearDown(s)
	}
	return action{do: leave}
}

func (m *machine) pause() action { return action{do: wait, during: m.job.Look} }

// become changes the phase and returns the next action.
func (m *machine) become(p phase, s *sight) action {
	m.at = p
	if p == resting {
		m.readFrom, m.judged, m.keptFrom = s.now, notJudged, time.Time{}
		s.forget()
	}
	return m.next(s)
}

// start makes the machine begin an attempt.
func (m *machine) start(attempt int, s *sight) action {
	m.attempt, m.following = attempt, 0
	m.sent, m.blindFrom, m.stopping, m.missing, m.ending = time.Time{}, time.Time{}, "", "", ending{}
	m.endTold, m.endCode, m.unsent = false, "", ""
	m.sitFrom, m.seated, m.gathered = time.Time{}, false, false
	s.forget()
	if !m.fetched {
		return m.become(fetching, s)
	}
	return m.become(beginning, s)
}

func (s *sight) forget() { s.did, s.looked = map[verb]bool{}, map[subject]bool{} }

func (m *machine) abandonFor(code int, why string, s *sight) action {
	m.code, m.why = code, why
	return m.become(givingUp, s)
}

// fetch decides what happens until the worker has all that the job needs. If the worker
// cannot get it, it gives up the next attempt, and tries again for a newer attempt.
func (m *machine) fetch(s *sight) action {
	if !s.did[fetch] {
		return action{do: fetch}
	}
	if s.err == nil {
		m.fetched = true
		s.forget()
		return m.become(finding, s)
	}
	if !s.looked[ofAttempt] {
		return action{do: look, at: ofAttempt}
	}
	m.attempt = max(s.wanted, 1)
	if m.disk.told >= m.attempt {
		return m.restAfter(m.disk.told, m.disk.toldCode, m.disk.toldReason, s)
	}
	return m.abandonFor(77, s.err.Error(), s)
}

// find decides, after a boot, which attempt this worker has, and what to do with it. If a
// reboot ended the newest attempt, the worker first announces the next attempt, then
// reports the end, and begins the next attempt. In the other order, another worker might
// see that all workers have ended, and delete the slices. If the attempt had ended before
// the reboot, no new attempt begins.
func (m *machine) find(s *sight) action {
	d := m.disk
	switch {
	case d.told > 0 && d.told >= d.newest:
		return m.restAfter(d.told, d.toldCode, d.toldReason, s)
	case d.newest == 0:
		return m.findFirst(s)
	}
	m.attempt = d.newest
	if !s.looked[ofAttempt] {
		return action{do: look, at: ofAttempt}
	}
	if !s.looked[ofCommand] {
		return action{do: look, at: ofCommand}
	}
	is := s.life
	if s.lifeErr != nil {
		is = running // the phase attending looks again, and reports the error
	}
	if s.rebooted != "" && (is == exited || is == lost) {
		is, m.ending.rebooted = lost, s.rebooted
	}
	switch is {
	case unknown, aborted:
		return m.start(m.attempt, s)
	case starting, running:
		return m.become(attending, s)
	case exited:
		return m.become(ended, s)
	}
	return m.findLost(s)
}

// findLost decides what follows an attempt that a reboot has ended.
func (m *machine) findLost(s *sight) action {
	if !s.looked[ofStop] {
		return action{do: look, at: ofStop}
	}
	// If the reboot interrupted a stop, the run stops, unless the stop made way for a newer
	// attempt.
	if m.ending.notAgain = s.stop; s.stop == "" && s.wanted <= m.attempt {
		m.ending.notAgain = m.disk.stopping
	}
	if m.ending.notAgain != "" {
		return m.become(ended, s)
	}
	if !s.did[announce] {
		return action{do: announce, n: max(m.attempt+1, s.wanted)}
	}
	if s.err != nil {
		m.ending.notBegun = fmt.Sprintf("attempt %d did not begin, since the others could not be told: %v", max(m.attempt+1, s.wanted), s.err)
	} else {
		m.following = s.wanted
	}
	return m.become(ended, s)
}

// findFirst decides with which attempt a worker without a record begins. If a run has lost
// its first slices, a new slice must not begin again with attempt 1. A worker that has lost
// its disk, for example in a repair, does not repeat the attempt alone: all workers begin
// the next attempt together.
func (m *machine) findFirst(s *sight) action {
	if !s.looked[ofFirst] {
		return action{do: look, at: ofFirst}
	}
	if s.firstErr != nil {
		m.attempt = max(m.attempt, 1)
		return m.abandonFor(77, fmt.Sprintf("which attempt is to begin cannot be read: %v", s.firstErr), s)
	}
	m.attempt = s.first.attempt
	if s.first.ended {
		if !s.did[keepEnd] {
			return action{do: keepEnd, n: m.attempt}
		}
		m.endTold = true
		return m.become(resting, s)
	}
	if !s.first.begun {
		return m.start(m.attempt, s)
	}
	if !s.looked[ofStop] {
		return action{do: look, at: ofStop}
	}
	if s.stop != "" {
		return m.start(m.attempt, s)
	}
	if !s.did[announce] {
		return action{do: announce, n: m.attempt + 1}
	}
	if s.err != nil && !s.did[loseDisk] {
		return m.abandonFor(70, fmt.Sprintf("the worker has come back without its disk, and attempt %d did not begin, since the others could not be told: %v", m.attempt+1, s.err), s)
	}
	if !s.did[loseDisk] {
		m.following = s.wanted
		return action{do: loseDisk, n: m.attempt}
	}
	return m.start(m.following, s)
}

// restAfter lets the worker rest after an attempt whose end the other workers know. The
// attempt may have been given up without a record.
func (m *machine) restAfter(attempt int, code, reason string, s *sight) action {
	m.attempt, m.endTold, m.endCode = attempt, true, code
	if m.endCode == "" {
		m.endCode = "unknown"
	}
	if !s.did[say] {
		return action{do: say, text: "ended", more: m.endText(reason)}
	}
	return m.become(resting, s)
}

func (m *machine) endText(reason string) string {
	text := fmt.Sprintf("attempt %d, exit code %s", m.attempt, m.endCode)
	if reason != "" {
		text += " (" + reason + ")"
	}
	return text
}

// begin decides what happens before the command runs. If the run is to stop, the attempt
// does not begin.
func (m *machine) begin(s *sight) action {
	switch {
	case s.did[arm]:
		return m.armed(s)
	case s.did[prepare] && s.err != nil:
		return m.abandonFor(s.code, s.err.Error(), s)
	}
	if text, over := m.expired(s.now); over {
		m.stopText = text
		return m.abandonFor(stoppedCode, text, s)
	}
	if !s.looked[ofStop] {
		return action{do: look, at: ofStop}
	}
	if s.stop != "" {
		return m.abandonFor(stoppedCode, s.stop, s)
	}
	if !m.gathered && m.job.gathers() {
		return m.gather(s)
	}
	if !s.did[prepare] {
		return action{do: prepare} // control/stop is then of an older attempt
	}
	return action{do: arm}
}

// gathers reports whether the workers wait for each other before an attempt.
func (j Job) gathers() bool { return j.Apart && j.Slices*j.Workers > 1 }

// codeAlone is the exit code of an attempt for which not all workers were ready.
const codeAlone = 75

// gather decides what happens until all workers are ready for the attempt. A job with Apart
// makes and restarts each slice separately, perhaps hours after the others. A command would
// not wait that long for the others. The worker also learns here the address of worker 0.
func (m *machine) gather(s *sight) action {
	if m.sitFrom.IsZero() {
		m.sitFrom = s.now
	}
	if !m.seated && !s.did[sit] {
		return action{do: sit}
	}
	m.seated = m.seated || s.err == nil
	why := ""
	switch {
	case !m.seated:
		why = s.err.Error()
	case !s.looked[ofSeats]:
		return action{do: look, at: ofSeats}
	case s.absentErr != nil:
		why = s.absentErr.Error()
	default:
		why = s.absent
	}
	if limit := m.job.Gather; why != "" && limit > 0 && s.now.Sub(m.sitFrom) >= limit {
		return m.abandonFor(codeAlone, fmt.Sprintf("waited %d s for all workers (--slices-deadline): %s", int(m.job.Gather.Seconds()), why), s)
	}
	for _, at := range []subject{ofFailed, ofAttempt} { // look even if all are ready: a worker that has given up the attempt still counts as ready
		if !s.looked[at] {
			return action{do: look, at: at}
		}
	}
	switch text := fmt.Sprintf("attempt %d, waiting: %s", m.attempt, why); {
	case s.failed != "":
		return m.abandonFor(stoppedCode, s.failed, s)
	case s.wantedErr == nil && s.wanted > m.attempt:
		return m.start(s.wanted, s)
	case why == "":
		m.gathered = true
		s.forget()
		return m.next(s)
	case (m.said != "boot" || m.detail != text) && !s.did[say]:
		return action{do: say, text: "boot", more: text}
	}
	return m.idle(s)
}

// armed decides what follows a start of the command, whether it succeeded or not.
func (m *machine) armed(s *sight) action {
	switch {
	case s.err != nil:
		return m.abandonFor(70, "the command could not be started: "+s.err.Error(), s)
	case s.life == running:
		m.at = attending
		text := fmt.Sprintf("attempt %d", m.attempt)
		if m.missingLogin != "" {
			text += fmt.Sprintf("; login %s was not there after two minutes, the command runs as root", m.missingLogin)
		}
		return action{do: say, text: "running", more: text}
	case !s.looked[ofCommand]: // this worker has begun this attempt before
		return action{do: look, at: ofCommand}
	case s.lifeErr != nil, s.life == starting: // the phase attending looks again, and reports the error
		return m.become(attending, s)
	}
	return m.become(ended, s)
}

// attend decides what happens while the command runs. If the worker cannot see the state of
// the command, the command counts as running until the patience is over.
func (m *machine) attend(s *sight) action {
	if !s.looked[ofCommand] {
		return action{do: look, at: ofCommand}
	}
	switch {
	case s.lifeErr == nil && (s.life == exited || s.life == lost || s.life == aborted):
		if s.goingDown { // the machine has ended the command
			return m.pause()
		}
		return m.become(ended, s)
	case s.lifeErr == nil && (s.life == starting || s.life == running):
		m.blindFrom = time.Time{}
	default:
		if m.blindFrom.IsZero() {
			m.blindFrom = s.now
		}
		if s.now.Sub(m.blindFrom) >= m.job.Patience {
			why := "its record is gone"
			if s.lifeErr != nil {
				why = s.lifeErr.Error()
			}
			m.missing = fmt.Sprintf("nothing was learned of the command for %d s: %s", int(m.job.Patience.Seconds()), why)
			return m.become(ended, s)
		}
	}
	if s.did[sendLog] || s.now.Sub(m.sent) >= m.job.Period {
		if !s.did[sendLog] {
			m.sent = s.now
			return action{do: sendLog}
		}
		if !s.did[say] {
			return action{do: say, text: "running", more: fmt.Sprintf("attempt %d", m.attempt)}
		}
	}
	if m.stopping != "" {
		return m.awaitStop(s)
	}
	return m.mayStop(s)
}

// mayStop decides whether to stop the command.
func (m *machine) mayStop(s *sight) action {
	if text, over := m.expired(s.now); over {
		// Clocks differ, so this worker tells the other workers to end now too. Otherwise
		// the slices might be deleted while a command runs.
		m.stopText = text
		return m.stopIt(text, s)
	}
	if m.job.Timeout > 0 && !s.started.IsZero() && s.now.Sub(s.started) >= m.job.Timeout {
		return m.stopIt(fmt.Sprintf("timeout of %d s (--timeout)", int(m.job.Timeout.Seconds())), s)
	}
	if !s.looked[ofStop] {
		return action{do: look, at: ofStop}
	}
	if s.stop != "" {
		return m.stopIt(s.stop, s)
	}
	if m.job.FailFast {
		if !s.looked[ofFailed] {
			return action{do: look, at: ofFailed}
		}
		if s.failed != "" {
			return m.stopIt(s.failed, s)
		}
	}
	if !s.looked[ofAttempt] {
		return action{do: look, at: ofAttempt}
	}
	if s.wantedErr == nil && s.wanted > m.attempt {
		return m.stopIt(fmt.Sprintf("attempt %d has begun", s.wanted), s)
	}
	return m.pause()
}

func (m *machine) stopIt(reason string, s *sight) action {
	m.stopping, m.stopFrom, m.stopAsked = reason, s.now, s.now
	return action{do: stopCommand, text: reason}
}

// If the command still runs stopAgain after a stop, the worker repeats the stop.
const stopAgain = time.Minute

// awaitStop decides what happens while the command is being stopped.
func (m *machine) awaitStop(s *sight) action {
	switch {
	case s.now.Sub(m.stopFrom) >= m.job.Grace.Truncate(time.Second)+m.job.Patience, overdue(m.limit(), s.now):
		m.missing = "the command survives SIGKILL; it was stopped for: " + m.stopping
		return m.become(ended, s)
	case s.now.Sub(m.stopAsked) >= stopAgain && !s.did[stopCommand]:
		m.stopAsked = s.now
		return action{do: stopCommand, text: m.stopping}
	case m.stopText != "" && !s.did[tellStop]:
		return action{do: tellStop}
	}
	return m.pause()
}

// bound returns when the command must end because the slices end, and why. The time is zero
// if there is no limit.
func (m *machine) bound() (at time.Time, why string) {
	if m.job.TTL > 0 {
		at, why = m.born.Add(m.job.TTL), fmt.Sprintf("the time to live of %d s (--ttl) is over", int(m.job.TTL.Seconds()))
	}
	if run := m.job.MaxRun; run > 0 {
		if end := m.made.Add(run - min(m.job.Grace+takenAhead, run/10)); at.IsZero() || end.Before(at) {
			at, why = end, fmt.Sprintf("the slices are deleted %d s after they were made %s", int(run.Seconds()), maxRunFlag)
		}
	}
	return at, why
}

// maxRunFlag ends the reason of a stop before the provider deletes the slices. Package
// detach recognizes such a stop by the whole reason.
const maxRunFlag = "(--max-run-duration)"

// The worker stops the command before the provider deletes the slices. The time between the
// two is takenAhead plus the grace time, for the logs. The provider begins to count before
// the first boot.
const takenAhead = 3 * time.Minute

// expired reports whether the bound has passed, and returns the reason of the stop.
func (m *machine) expired(now time.Time) (string, bool) {
	if at, why := m.bound(); !at.IsZero() && !now.Before(at) {
		return why, true
	}
	return "", false
}

// overdue reports whether limit has passed. Zero is no limit.
func overdue(limit, now time.Time) bool {
	return !limit.IsZero() && !now.Before(limit)
}

// limit returns when the patience ends: the bound, plus the time to stop the command. It
// returns zero if there is no bound.
func (m *machine) limit() time.Time {
	at, _ := m.bound()
	if at.IsZero() {
		return time.Time{}
	}
	return at.Add(m.job.Grace.Truncate(time.Second) + time.Minute)
}

// end decides what follows the end of the command.
func (m *machine) end(s *sight) action {
	if !s.did[finish] {
		return action{do: finish}
	}
	if s.err != nil { // there is no record of the end
		why := m.missing
		if why == "" {
			why = s.err.Error()
		}
		return m.abandonFor(70, why, s)
	}
	if m.following == 0 {
		return m.become(resting, s)
	}
	next := m.following
	if m.disk.quick && next == m.attempt+1 {
		m.attempt, m.following, m.endTold = next, 0, false
		return m.abandonFor(75, "the worker was rebooted three times within a minute of the start of the command", s)
	}
	return m.start(next, s)
}

// abandon decides when to give up an attempt. While the machine shuts down, the attempt is
// not given up, because the machine is then the cause of its end.
func (m *machine) abandon(s *sight) action {
	if !s.did[giveUp] {
		if s.goingDown {
			return m.pause()
		}
		return action{do: giveUp, code: m.code, text: m.why}
	}
	return m.become(resting, s)
}

// rest decides what happens after the attempt has ended here. The worker waits for the
// other workers, or begins a newer attempt with them. In the end it deletes the slices.
func (m *machine) rest(s *sight) action {
	if m.unsent != "" && !s.did[sendRest] {
		return action{do: sendRest}
	}
	if (!m.endTold || m.failure != "" || m.stopText != "") && !s.did[tellEnd] {
		return action{do: tellEnd}
	}
	if !s.looked[ofAttempt] {
		return action{do: look, at: ofAttempt}
	}
	// A newer attempt begins even if the run is to stop: begin then gives the attempt up.
	// So the slices stay until all workers of that attempt have ended.
	if s.wantedErr == nil && s.wanted > m.attempt {
		return m.start(s.wanted, s)
	}
	if overdue(m.limit(), s.now) {
		text, _ := m.expired(s.now)
		return m.deleteFor(text, s)
	}
	if !s.looked[ofEnds] {
		return action{do: look, at: ofEnds} // read control/attempt again: a rebooted worker announces the next attempt before it stores the end of the last one
	}
	if s.endsErr != nil || s.wantedErr != nil || !s.ends.all {
		return m.restBlind(s)
	}
	return m.allEnded(s)
}

// allEnded decides what happens when every worker has ended: the slices are deleted or kept.
func (m *machine) allEnded(s *sight) action {
	if !s.looked[ofUnsent] {
		return action{do: look, at: ofUnsent}
	}
	if s.unsentErr != nil {
		return m.restBlind(s)
	}
	m.readFrom = s.now
	why, first := m.kept(s)
	switch {
	case first.do != "":
		return first
	case why == "":
		return m.deleteFor("every worker has ended", s)
	case m.said != "kept":
		return action{do: say, text: "kept", more: why}
	case m.job.TTL == 0 && m.unsent == "" && (m.job.Keep == "always" || m.job.KeepFor == 0 && m.judged != notJudged):
		return m.become(over, s) // nothing but the time to live could end it now
	}
	return m.idle(s)
}

// restBlind decides what happens while a worker has not ended, or while the ends cannot be
// read.
func (m *machine) restBlind(s *sight) action {
	var err error
	for _, e := range []error{s.endsErr, s.wantedErr, s.unsentErr} {
		if err == nil {
			err = e
		}
	}
	limit := m.job.Stale
	if m.job.Keep == "on-failure" {
		limit += m.job.KeepFor
	}
	blind := s.now.Sub(m.readFrom)
	switch {
	case err == nil:
		m.readFrom = s.now
	case blind >= limit && (m.job.Keep == "never" || m.job.Keep == "on-failure" && m.job.KeepFor != 0):
		if !s.did[takeTurn] { // after its turn has come, the worker reads the bucket once more
			delete(s.looked, ofEnds)
			delete(s.looked, ofUnsent)
			s.unsentErr = nil
		}
		return m.deleteFor(fmt.Sprintf("the bucket could not be read for %d s: %v", int(blind.Seconds()), err), s)
	}
	return m.idle(s)
}

// idle waits. It repeats the report from time to time, so that the worker does not count as
// dead.
func (m *machine) idle(s *sight) action {
	if s.now.Sub(m.reported) >= m.job.Period && !s.did[say] {
		return action{do: say, text: m.said, more: m.detail}
	}
	return m.pause()
}

// kept returns why the slices stay although every worker has ended. If that is not known
// yet, kept returns the action that finds it out.
func (m *machine) kept(s *sight) (why string, first action) {
	if m.job.Keep == "always" {
		return "--keep", action{}
	}
	if s.unsent != "" {
		return s.unsent, action{}
	}
	if m.job.Keep != "on-failure" || s.ends.failures == 0 {
		return "", action{}
	}
	if m.judged == notJudged {
		if !s.looked[ofExcuses] {
			return "", action{do: look, at: ofExcuses}
		}
		m.judged = s.excused // only once for each attempt
	}
	if m.judged == isExcused {
		return "", action{}
	}
	if m.keptFrom.IsZero() {
		if !s.did[keepSince] {
			return "", action{do: keepSince, n: m.attempt}
		}
		m.keptFrom = s.keptFrom
	}
	if m.job.KeepFor != 0 && s.now.Sub(m.keptFrom) >= m.job.KeepFor {
		return "", action{}
	}
	return "the run failed (--keep-on-failure)", action{}
}

// deleteFor lets the worker delete the slices when its turn has come. Every worker may
// delete. They take turns, so one request is usually enough.
func (m *machine) deleteFor(why string, s *sight) action {
	if !s.did[takeTurn] {
		return action{do: takeTurn}
	}
	m.why, m.tries = why, 0
	m.at = deleting
	return action{do: say, text: "deleting", more: why}
}

// Pauses between two requests to delete: short at first, then longer.
const (
	deleteLooks = 3
	deleteTries = 60
	deleteLate  = 10 * time.Minute
)

// tearDown repeats the request to delete until the worker itself is gone. If the slices
// belong to another run, it ends. It has no time limit: even days later, the permission may
// come, or the service may recover.
func (m *machine) tearDown(s *sight) action {
	if !s.did[remove] {
		delete(s.did, say)
		return action{do: remove}
	}
	if errors.Is(s.err, agent.ErrForeign) {
		if m.said != "left" {
			return action{do: say, text: "left", more: fmt.Sprintf("the slices of %s: %v", m.job.Resource, s.err)}
		}
		return m.become(over, s)
	}
	if !s.did[say] {
		text := m.why
		if s.err != nil {
			text += "; " + s.err.Error()
		}
		return action{do: say, text: "deleting", more: text}
	}
	during := deleteLooks * m.job.Look
	if m.tries >= deleteTries {
		during = deleteLate
	}
	m.tries++
	return action{do: wait, during: during}
}
