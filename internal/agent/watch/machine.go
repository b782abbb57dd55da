package watch

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"multihost/internal/agent"
)

// A Sight is the result of one look at this worker.
type Sight struct {
	Up  time.Duration // time since the boot, which setting the clock does not change
	Now time.Time

	Leased  bool   // a lease file exists
	Renewed bool   // the lease file has changed since the last look
	Lease   string // text of the lease file, if Renewed

	Busy  bool   // the worker's lock is held, so a command of some run is active here
	Begun bool   // the index has an attempt of our run
	Code  string // exit code of our command; "": it has not ended
}

// An Action is something that the Machine wants done. The caller does the actions in order.
type Action interface{ action() }

// Four actions have results. Shared takes the result of Share, Heard the result of Ask,
// Again the result of Pause, and Deleted the result of Delete. These methods may return
// more actions.
type (
	Note   struct{ Text string }        // log the text
	Save   struct{}                     // keep the terms on the disk
	Share  struct{ State string }       // tell the other workers the state
	Stop   struct{}                     // ask the command to end
	Ask    struct{ Node string }        // read the reports of the workers of a slice
	Pause  struct{ Most time.Duration } // wait for a random time below Most, then look
	Delete struct{}                     // request the deletion
	End    struct{ Foreign bool }       // the watch is over; Foreign: the resource belongs to another run
)

func (Note) action()   {}
func (Save) action()   {}
func (Share) action()  {}
func (Stop) action()   {}
func (Ask) action()    {}
func (Pause) action()  {}
func (Delete) action() {}
func (End) action()    {}

// A Report is the state that one worker has shared.
type Report struct {
	State string
	At    time.Time
}

// States that workers share.
const (
	running   = "running"   // a command of some run is active
	succeeded = "succeeded" // the command of our run has ended with 0
	failed    = "failed"    // the command of our run has ended otherwise
	awaited   = "awaited"   // a runner has come and has not started the command yet
	none      = "none"      // no runner has come, or the worker was rebooted
	kept      = "kept"      // the watch has no limit
)

const (
	shareEvery = 10 * time.Minute // the watch repeats an unchanged state
	deadAfter  = 30 * time.Minute // after this time without a report, the command of a worker counts as ended
	lastWait   = 30               // seconds after the grace time
	longPause  = 10 * time.Minute // pause after many failures
	manyTries  = 20
	callRate   = 5                // most calls per second of all workers of a job together, while a command runs; with very many workers, mostSpread allows more
	mostSpread = 30 * time.Minute // longest time between two rounds in which a worker reads the reports of the others
	mostPause  = 600              // limit of the random pause, in seconds; it is so long that usually only one worker reads all reports and deletes
)

// A Machine decides what a watch does. It reads no clock and has no effects. Look begins
// each round. The other methods take the results of the actions. A Machine is not safe for
// concurrent use.
type Machine struct {
	Terms Terms
	born  time.Time // time of the first boot

	since, renewed, idle time.Duration // all since the boot. since: start of this watch; renewed: last renewal; idle: when a command was last active
	again                time.Duration // no try before this time
	told                 string
	toldAt               time.Duration
	stopped              bool
	tries                int
	waited               bool // the random pause before a deletion is over

	seen  Sight
	state string
	why   string
	aged  bool     // the deletion is because of the time to live
	asked []string // slices whose reports are still to be read
}

// NewMachine returns the machine of a watch that begins now. The parameter up has the time
// since the worker's boot, and born the time of its first boot.
func NewMachine(t Terms, born time.Time, up time.Duration) *Machine {
	return &Machine{Terms: t, born: born, since: up, renewed: up, idle: up} // the startup script has just run
}

// Look takes the result of a look at this worker.
func (m *Machine) Look(s Sight) []Action {
	actions := m.take(s)
	t := &m.Terms
	over := t.Lease == 0 && t.TTL == 0 && (t.Adopt == 0 || t.Adopted)
	if over {
		m.state = kept
	}
	if t.Total >= 2 && (m.state != m.told || s.Up-m.toldAt >= shareEvery) {
		return append(actions, Share{m.state})
	}
	return append(actions, m.judge()...)
}

// Shared takes the result of Share.
func (m *Machine) Shared(err error) []Action {
	if err == nil {
		m.told, m.toldAt = m.state, m.seen.Up
	}
	return m.judge()
}

func (m *Machine) judge() []Action {
	if m.state == kept {
		// The lease file stays, so that a later watch knows that a runner has come.
		return []Action{Note{"dismissed"}, End{}}
	}
	if m.seen.Up < m.again {
		return nil
	}
	m.waited = false
	actions, due := m.due()
	if due {
		actions = append(actions, Pause{seconds(min(m.Terms.Total, mostPause))})
	}
	return actions
}

// take reads the lease if it has changed since the last look, and finds out the state.
func (m *Machine) take(s Sight) (actions []Action) {
	m.seen = s
	t := &m.Terms
	if s.Renewed {
		t.Read(s.Lease)
		m.renewed, t.Adopted = s.Up, true
		actions = append(actions, Save{})
	}
	switch {
	case s.Busy:
		m.state, m.idle = running, s.Up
	case s.Begun && s.Code == "0":
		m.state = succeeded
	case s.Begun:
		m.state = failed
	case s.Leased && s.Up-m.renewed < t.limit():
		m.state = awaited
	default:
		m.state = none
	}
	t.Adopted = t.Adopted || s.Busy || s.Begun
	return actions
}

// due reports whether this worker thinks that the resource is to be deleted now. It sets
// why to the reason.
func (m *Machine) due() (actions []Action, _ bool) {
	t, quiet := &m.Terms, m.seen.Up-m.renewed
	if m.aged = m.expired(0); m.aged {
		m.why = fmt.Sprintf("the time to live of %d s (--ttl) is over", t.TTL)
		gone := quiet > seconds(t.Fresh)
		switch {
		case m.state == running:
			// An active runner stops the command and deletes the slices itself.
			if (gone || m.expired(t.Grace)) && !m.stopped {
				m.stopped = true
				actions = []Action{Note{"stopping the command: " + m.why}, Stop{}}
			}
			return actions, m.lastMoment()
		case !t.Adopted: // no runner has come, so the watch waits for none
			return nil, true
		}
		return nil, gone || m.expired(t.Grace+60)
	}
	if !t.Adopted {
		m.why = fmt.Sprintf("no runner has come within %d s of the boot", t.Adopt)
		return nil, t.Adopt > 0 && m.seen.Up-m.since >= seconds(t.Adopt)
	}
	if t.Lease == 0 || m.state == running {
		return nil, false
	}
	limit := t.limit()
	if t.Keep == "on-failure" && m.state != succeeded {
		if t.KeepFor == 0 {
			return nil, false
		}
		limit = max(limit, seconds(t.KeepFor))
	}
	m.why = fmt.Sprintf("nobody has renewed the lease for %d s, and the command has ended", int64(quiet/time.Second))
	return nil, quiet >= limit && m.seen.Up-m.idle >= limit
}

// expired reports whether the time to live ended at least this many seconds ago.
func (m *Machine) expired(after int64) bool {
	return m.Terms.TTL > 0 && !m.seen.Now.Before(m.overFor(after))
}

// overFor returns the end of the time to live plus this many seconds.
func (m *Machine) overFor(after int64) time.Time {
	t := &m.Terms
	return t.begin(m.born).Add(seconds(t.TTL + after))
}

// lastMoment reports whether the time to live, the grace time and lastWait are over. By
// then, commands have had time to end by themselves.
func (m *Machine) lastMoment() bool { return m.expired(m.Terms.Grace + lastWait) }

// ask begins to find out whether the command has ended on every other worker. If the time
// to live has ended, ask waits until lastMoment at most.
func (m *Machine) ask() []Action {
	t := &m.Terms
	switch {
	case t.Total < 2, m.aged && m.lastMoment():
		return m.delete()
	case m.told == "" && t.Adopted && m.aged:
		return nil
	case m.told == "" && t.Adopted:
		m.putOff(longPause)
		return []Action{Note{"not deleted: the workers cannot tell each other whether the command runs, for guest attributes are not taken"}}
	}
	m.asked = t.Nodes
	return m.next()
}

func (m *Machine) next() []Action {
	if len(m.asked) == 0 {
		m.waited = true
		return []Action{Pause{}} // last look at this worker
	}
	return []Action{Ask{m.asked[0]}}
}

func (m *Machine) delete() []Action {
	return []Action{Note{fmt.Sprintf("deleting %s: %s", m.Terms.resource(), m.why)}, Delete{}}
}

// Heard takes the reports of a slice's workers, or the error of the read. The parameter
// workers says how many of them can run a command; -1 means the number in the terms. A
// slice that does not exist (HTTP status 404) has no command. A worker without a report may
// have one.
func (m *Machine) Heard(reports []Report, workers int, err error, now time.Time) []Action {
	t, node := &m.Terms, m.asked[0]
	m.asked = m.asked[1:]
	if agent.StatusOf(err) == 404 {
		return m.next()
	}
	if err != nil {
		return m.unknown(fmt.Sprintf("slice %s: %v", node, err))
	}
	for _, r := range reports {
		if m.stays(r, now) {
			m.putOff(m.spread())
			return nil
		}
	}
	if workers < 0 {
		workers = int(t.Total) / max(1, len(t.Nodes))
	}
	// If no runner has come here, no command has started, so missing reports do not matter.
	if len(reports) < workers && t.Adopted {
		return m.unknown(fmt.Sprintf("slice %s: %d of %d workers have told", node, len(reports), workers))
	}
	return m.next()
}

// stays reports whether a worker's report forbids the deletion.
func (m *Machine) stays(r Report, now time.Time) bool {
	t := &m.Terms
	if r.State == kept && !m.aged { // at any age: that worker's watch has ended
		return true
	}
	if now.Sub(r.At) > deadAfter {
		return false
	}
	switch r.State {
	case running:
		return true
	case awaited:
		return !m.aged
	case failed, none:
		return !m.aged && t.Adopted && t.Keep == "on-failure" && (t.KeepFor == 0 || m.seen.Up-m.idle < seconds(t.KeepFor))
	}
	return false
}

// unknown is for a worker that cannot find out whether a command is active elsewhere. It
// postpones the next try, unless the time to live has passed.
func (m *Machine) unknown(about string) []Action {
	if !m.aged {
		m.later()
	}
	return []Action{Note{"not deleted: whether the command runs is not known of " + about}}
}

// Again takes the result of the look after a Pause.
func (m *Machine) Again(s Sight) []Action {
	actions := m.take(s)
	more, due := m.due()
	actions = append(actions, more...)
	switch {
	case !due:
		return actions
	case m.waited:
		return append(actions, m.delete()...)
	}
	return append(actions, m.ask()...)
}

// Deleted takes the result of the request to delete.
func (m *Machine) Deleted(err error) []Action {
	if errors.Is(err, agent.ErrForeign) {
		return []Action{Note{err.Error()}, End{Foreign: true}}
	}
	m.later()
	if err != nil {
		return []Action{Note{strings.ReplaceAll(err.Error(), "\n", "; ")}}
	}
	return nil
}

// later sets the time of the next try. There is always a next try: even after days,
// somebody may grant a missing permission, or the service may recover.
func (m *Machine) later() {
	m.tries++
	pause := longPause
	if m.tries < manyTries {
		pause = 3 * seconds(m.Terms.Look)
	}
	m.putOff(max(pause, m.spread()))
}

// putOff sets the next try to the end of the pause, but not later than lastMoment: from then
// on, the slices must be deleted even if a command is active.
func (m *Machine) putOff(pause time.Duration) {
	t := &m.Terms
	if left := m.overFor(t.Grace + lastWait).Sub(m.seen.Now); t.TTL > 0 && left > 0 {
		pause = min(pause, left)
	}
	m.again = m.seen.Up + pause
}

// spread returns the shortest time between two rounds in which a worker reads the reports
// of the others. All workers may read them, and they use the quota of the user's project.
func (m *Machine) spread() time.Duration {
	total := min(m.Terms.Total, 10000)
	calls := int64(len(m.Terms.Nodes))
	if m.Terms.Peers.List != "" {
		calls = total
	}
	return min(seconds(total)*time.Duration(calls)/callRate, mostSpread)
}
