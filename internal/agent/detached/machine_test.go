//go:build unix

package detached

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"multihost/internal/detach"
)

// A play lets a machine decide while seconds pass. Its function on answers the machine's
// looks and actions. By default the bucket is empty.
type play struct {
	m   *machine
	now int
	on  func(a action, s *sight, now int)
	b   strings.Builder
}

func at(seconds int) time.Time { return time.Unix(int64(seconds), 0) }

func (p *play) say(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

// until plays until done returns true. The parameter late limits the play, in seconds.
func (p *play) until(late int, done func(a action) bool) string {
	s := &sight{}
	s.forget()
	for p.now <= late {
		s.now = at(p.now)
		a := p.m.next(s)
		if done(a) {
			return p.b.String()
		}
		switch a.do {
		case wait:
			p.now += int(a.during.Seconds())
			s = &sight{}
			s.forget()
			continue
		case look:
			s.looked[a.at] = true
		case say:
			p.m.said, p.m.detail, p.m.reported = a.text, a.more, s.now
		case takeTurn:
			delete(s.looked, ofAttempt)
		}
		if p.on != nil {
			p.on(a, s, p.now)
		}
		if a.do == look && a.at == ofEnds && s.ends.all {
			delete(s.looked, ofAttempt)
		}
		if a.do != look {
			s.did[a.do] = true
		}
	}
	p.say("it stays")
	return p.b.String()
}

// ordinary is a job of one slice with two workers and usual time limits.
func ordinary() Job {
	return Job{Run: "r", Resource: "r", Slices: 1, Workers: 2, Period: time.Minute, Look: 20 * time.Second, Patience: 10 * time.Minute, LogTimeout: 30 * time.Minute,
		Stale: 30 * time.Minute, Keep: "never", Grace: 30 * time.Second, FailFast: true}
}

var errGone = errors.New("gone")

// If a read of the bucket succeeded a moment ago, the bucket does not count as lost. Kept
// slices stay until the end of their time to live.
func TestRestDeletesOnlyWhenItIsTime(t *testing.T) {
	t.Parallel()
	all := func(failures int) func(a action, s *sight, now int) {
		return func(_ action, s *sight, _ int) { s.ends, s.excused = ends{true, failures}, notExcused }
	}
	for name, c := range map[string]struct {
		change func(m *machine)
		on     func(a action, s *sight, now int)
		want   string
	}{
		"one 503 after an hour": {nil, func(_ action, s *sight, now int) {
			if s.endsErr = nil; now == 5000 {
				s.endsErr = errGone
			}
		}, "it stays\n"},
		"the bucket is gone": {nil, func(_ action, s *sight, _ int) { s.endsErr = errGone },
			"deleted at 2800: the bucket could not be read for 1800 s: gone\n"},
		"the bucket is back before its turn": {nil, func(a action, s *sight, _ int) {
			if a.at == ofEnds && !s.did[takeTurn] {
				s.endsErr = errGone
			} else if a.at == ofEnds {
				s.endsErr = nil
			}
		}, "it stays\n"},
		"the bucket is back before its turn, for logs too": {nil, func(a action, s *sight, _ int) {
			if a.at == ofEnds {
				s.ends.all = !s.did[takeTurn]
			}
			if a.at == ofUnsent {
				s.unsentErr = errGone
			}
		}, "it stays\n"},
		"the bucket is gone with --keep-on-failure=1h": {func(m *machine) { m.job.Keep, m.job.KeepFor = "on-failure", time.Hour }, func(_ action, s *sight, _ int) { s.endsErr = errGone },
			"deleted at 6400: the bucket could not be read for 5400 s: gone\n"},
		"the bucket is gone with --keep-on-failure": {func(m *machine) { m.job.Keep = "on-failure" }, func(_ action, s *sight, _ int) { s.endsErr = errGone }, "it stays\n"},
		"the bucket is gone with --keep":            {func(m *machine) { m.job.Keep = "always" }, func(_ action, s *sight, _ int) { s.endsErr = errGone }, "it stays\n"},
		"all have ended":                            {nil, all(0), "deleted at 1000: every worker has ended\n"},
		"--keep":                                    {func(m *machine) { m.job.Keep = "always" }, all(0), "left at 1000: --keep\n"},
		"--keep and --ttl":                          {func(m *machine) { m.job.Keep, m.job.TTL = "always", 9000*time.Second }, all(0), "deleted at 9100: the time to live of 9000 s (--ttl) is over\n"},
		"a worker was rebooted meanwhile": {nil, func(a action, s *sight, now int) {
			if a.at == ofEnds {
				s.ends.all = true
			}
			if a.at == ofAttempt && s.ends.all {
				s.wanted = 2
			}
		}, "attempt 2 is wanted\n"},
		"a worker is rebooted before its turn": {nil, func(a action, s *sight, now int) {
			s.ends.all = true
			if s.did[takeTurn] {
				s.wanted = 2
			}
		}, "attempt 2 is wanted\n"},
		"control/attempt cannot be read before its turn": {nil, func(a action, s *sight, now int) {
			if s.ends.all = true; s.did[takeTurn] && now < 1100 {
				s.wantedErr = errGone
			}
		}, "deleted at 1100: every worker has ended\n"},
		"the run failed":                 {func(m *machine) { m.job.Keep = "on-failure" }, all(1), "left at 1000: the run failed (--keep-on-failure)\n"},
		"the run failed, kept for 1h":    {func(m *machine) { m.job.Keep, m.job.KeepFor = "on-failure", time.Hour }, all(1), "deleted at 4600: every worker has ended\n"},
		"the run succeeded, kept for 1h": {func(m *machine) { m.job.Keep, m.job.KeepFor = "on-failure", time.Hour }, all(0), "deleted at 1000: every worker has ended\n"},
		"kept since before a reboot": {func(m *machine) { m.job.Keep, m.job.KeepFor = "on-failure", time.Hour }, func(a action, s *sight, _ int) {
			if s.ends, s.excused = (ends{true, 1}), notExcused; a.do == keepSince {
				s.keptFrom = at(500)
			}
		}, "deleted at 4100: every worker has ended\n"},
		"excused": {func(m *machine) { m.job.Keep = "on-failure" }, func(_ action, s *sight, _ int) { s.ends, s.excused = ends{true, 1}, isExcused }, "deleted at 1000: every worker has ended\n"},
		"excused, which cannot be read for a while": {func(m *machine) { m.job.Keep, m.job.KeepFor = "on-failure", time.Hour }, func(_ action, s *sight, now int) {
			if s.ends = (ends{true, 1}); now >= 1100 {
				s.excused = isExcused
			}
		}, "deleted at 1100: every worker has ended\n"},
		"a log is not whole": {nil, func(_ action, s *sight, now int) {
			if s.ends.all = true; now < 2800 {
				s.unsent = "the log of s0w1 is not whole in the bucket"
			}
		}, "deleted at 2800: every worker has ended\n"},
		"its end was not stored": {func(m *machine) { m.endTold = false }, nil, "tells the end at 1000\ndeleted at 3020: every worker has ended\n"},
		"it is another run's":    {nil, func(_ action, s *sight, _ int) { s.ends.all = true }, "deleted at 1000: every worker has ended\n"},
	} {
		p := &play{m: &machine{job: ordinary(), born: at(0), fetched: true, at: resting, attempt: 1, endTold: true, readFrom: at(1000), said: "ended"}, now: 1000}
		if c.change != nil {
			c.change(p.m)
		}
		p.on = func(a action, s *sight, now int) {
			if a.do == keepSince {
				s.keptFrom = at(now)
			}
			if a.do == tellEnd {
				if p.b.Len() == 0 {
					p.say("tells the end at %d", now)
				}
				p.m.endTold = now > 3000
			}
			s.ends.all = s.ends.all || p.m.endTold && now > 3000 && c.on == nil
			if c.on != nil {
				c.on(a, s, now)
			}
		}
		got := p.until(20000, func(a action) bool {
			switch {
			case p.m.at == beginning:
				p.say("attempt %d is wanted", p.m.attempt)
			case a.do == remove:
				p.say("deleted at %d: %s", p.now, p.m.why)
			case a.do == leave:
				p.say("left at %d: %s", p.now, p.m.detail)
			default:
				return false
			}
			return true
		})
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A worker repeats its request to delete, in the end every ten minutes, unless the slices
// belong to another run.
func TestDeletionIsRepeated(t *testing.T) {
	t.Parallel()
	p := &play{m: &machine{job: ordinary(), at: deleting, why: "over"}}
	var tries []int
	p.on = func(a action, s *sight, now int) {
		if a.do == remove {
			tries = append(tries, now)
			s.err = errGone
		}
	}
	p.until(6000, func(action) bool { return false })
	if len(tries) != 65 || tries[1] != 60 || tries[59] != 59*60 || tries[61]-tries[60] != 600 || p.m.detail != "over; gone" {
		t.Errorf("tried at %v, says %q", tries, p.m.detail)
	}
}

// A failed look is no end of the command. The worker repeats a stop until it works or the
// time of --ttl has passed.
func TestAttendOutlivesAFailedLook(t *testing.T) {
	t.Parallel()
	p := &play{m: &machine{job: ordinary(), born: at(0), at: attending, attempt: 1}, now: 1000}
	p.on = func(a action, s *sight, now int) {
		if a.do != look || a.at != ofCommand {
			return
		}
		s.life = running
		if now >= 1100 && now < 1400 {
			s.life, s.lifeErr = unknown, errGone
		}
		if now >= 1700 {
			s.life = exited
		}
	}
	over := func(a action) bool { return a.do == finish }
	p.until(9000, over)
	if p.now != 1700 || p.m.missing != "" {
		t.Errorf("ended at %d, %q", p.now, p.m.missing)
	}

	p = &play{m: &machine{job: ordinary(), born: at(0), at: attending, attempt: 1}, now: 1960}
	p.m.job.TTL, p.m.job.Grace = 2000*time.Second, time.Second
	p.on = func(a action, s *sight, now int) {
		s.life = running
		switch a.do {
		case stopCommand:
			p.say("stop at %d: %s", now, a.text)
		case tellStop:
			p.say("the others find at %d: %s", now, p.m.stopText)
			p.m.stopText = ""
		}
	}
	got := p.until(9000, over) + fmt.Sprintf("ended at %d: %s", p.now, p.m.missing)
	const reason = "the time to live of 2000 s (--ttl) is over"
	if want := "stop at 2000: " + reason + "\nthe others find at 2000: " + reason + "\nstop at 2060: " + reason + "\nended at 2080: the command survives SIGKILL; it was stopped for: " + reason; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	p = &play{m: &machine{job: ordinary(), born: at(0), at: attending, attempt: 1}, now: 1000}
	p.on = func(_ action, s *sight, _ int) { s.life = unknown }
	p.until(9000, over)
	if p.now != 1600 || p.m.missing != "nothing was learned of the command for 600 s: its record is gone" {
		t.Errorf("ended at %d, %q", p.now, p.m.missing)
	}
}

func TestWhenAStopIsOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(m *machine, s *sight)
		want   string
	}{
		"nothing":                       {func(*machine, *sight) {}, ""},
		"a stop in the bucket":          {func(_ *machine, s *sight) { s.stop = "enough" }, "enough"},
		"another one failed":            {func(_ *machine, s *sight) { s.failed = failFastReason }, failFastReason},
		"another one failed, no matter": {func(m *machine, s *sight) { s.failed, m.job.FailFast = failFastReason, false }, ""},
		"a newer attempt":               {func(_ *machine, s *sight) { s.wanted = 2 }, "attempt 2 has begun"},
		"a newer one, perhaps":          {func(_ *machine, s *sight) { s.wanted, s.wantedErr = 2, errGone }, ""},
		"its own attempt":               {func(_ *machine, s *sight) { s.wanted = 1 }, ""},
		"--timeout":                     {func(m *machine, s *sight) { m.job.Timeout, s.started = time.Minute, at(940) }, "timeout of 60 s (--timeout)"},
		"--timeout is not over":         {func(m *machine, s *sight) { m.job.Timeout, s.started = time.Minute, at(941) }, ""},
		"not started yet":               {func(m *machine, _ *sight) { m.job.Timeout = time.Minute }, ""},
		"--ttl":                         {func(m *machine, _ *sight) { m.job.TTL, m.born = time.Minute, at(940) }, "the time to live of 60 s (--ttl) is over"},
	} {
		m, s := &machine{job: ordinary(), at: attending, attempt: 1, sent: at(1000)}, &sight{now: at(1000), life: running}
		s.did = map[verb]bool{}
		s.looked = map[subject]bool{ofCommand: true, ofStop: true, ofFailed: true, ofAttempt: true}
		c.change(m, s)
		if a := m.next(s); a.text != c.want || (a.do == stopCommand) != (c.want != "") {
			t.Errorf("%s: got %+v", name, a)
		}
	}
}

// Clocks differ. The first worker whose time to live has passed tells the others, until
// their own clocks must show it too. It does so even after its own command has ended. No
// further attempt begins.
func TestOthersAreToldOfTheTimeToLiveUntilTheyCanKnow(t *testing.T) {
	t.Parallel()
	const reason = "the time to live of 100 s (--ttl) is over"
	p := &play{m: &machine{job: ordinary(), born: at(0), at: attending, attempt: 1}, now: 90}
	p.m.job.TTL, p.m.job.Grace = 100*time.Second, time.Second
	p.on = func(a action, s *sight, now int) {
		if s.life = running; now >= 120 {
			s.life = exited
		}
		switch {
		case a.do == stopCommand:
			p.say("stop at %d: %s", now, a.text)
		case (a.do == tellStop || a.do == tellEnd) && now > 140:
			p.say("told at %d: %s", now, p.m.stopText)
			p.m.stopText, p.m.endTold = "", true
		}
	}
	got := p.until(9000, func(a action) bool { return a.do == remove }) + fmt.Sprintf("deleted at %d: %s", p.now, p.m.why)
	if want := "stop at 110: " + reason + "\ntold at 150: " + reason + "\ndeleted at 170: " + reason; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	p = &play{m: &machine{job: ordinary(), born: at(0), at: beginning, fetched: true, attempt: 2}, now: 110}
	p.m.job.TTL = 100 * time.Second
	p.until(9000, func(a action) bool {
		if a.do == giveUp && (a.code != stoppedCode || a.text != reason || p.m.stopText != reason) || a.do == prepare {
			t.Errorf("got %+v, others are told %q", a, p.m.stopText)
		}
		return a.do == giveUp
	})
}

// If the end came first, another worker, which sees only ended attempts, would delete the
// slices.
func TestNextAttemptIsAnnouncedBeforeTheEndOfTheLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disk   onDisk
		stop   string
		wanted int
		err    error
		want   string
	}{
		"told":              {want: "announced 2\nended 1\nbegins 2\n"},
		"others are ahead":  {wanted: 4, want: "announced 4\nended 1\nbegins 4\n"},
		"cannot be told":    {err: errGone, want: "announced 2\nended 1, attempt 2 did not begin, since the others could not be told: gone\nrests\n"},
		"asked to stop":     {stop: "enough", want: "ended 1, not again: enough\nrests\n"},
		"at its time limit": {disk: onDisk{stopping: "timeout of 60 s (--timeout)"}, want: "ended 1, not again: timeout of 60 s (--timeout)\nrests\n"},
		"making way":        {disk: onDisk{stopping: "attempt 2 has begun"}, wanted: 2, want: "announced 2\nended 1\nbegins 2\n"},
		"three times":       {disk: onDisk{quick: true}, want: "announced 2\nended 1\ngave up 2 with 75\n"},
	} {
		c.disk.newest = 1
		p := &play{m: &machine{job: ordinary(), at: finding, fetched: true, disk: c.disk}, now: 1000}
		p.on = func(a action, s *sight, _ int) {
			s.life, s.stop = lost, c.stop
			switch {
			case a.do == look && a.at == ofAttempt:
				s.wanted = c.wanted
			case a.do == announce:
				p.say("announced %d", a.n)
				if s.err = c.err; c.err == nil {
					s.wanted = a.n
				}
			case a.do == finish:
				text := fmt.Sprintf("ended %d", p.m.attempt)
				if p.m.ending.notBegun != "" {
					text += ", " + p.m.ending.notBegun
				}
				if p.m.ending.notAgain != "" {
					text += ", not again: " + p.m.ending.notAgain
				}
				p.say("%s", text)
				s.err, p.m.endTold = nil, true
			}
		}
		got := p.until(9000, func(a action) bool {
			switch {
			case a.do == giveUp:
				p.say("gave up %d with %d", p.m.attempt, a.code)
			case p.m.at == beginning:
				p.say("begins %d", p.m.attempt)
			case p.m.at == resting:
				p.say("rests")
			default:
				return false
			}
			return true
		})
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// After a boot, the files on the disk decide. The worker attends an attempt that still
// runs. If the other workers do not know an end, it tells them. If they know the end, it
// rests.
func TestABootGoesOnWithWhatTheDiskTells(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disk  onDisk
		is    life
		looks bool // fail
		want  string
	}{
		"it runs":                     {disk: onDisk{newest: 2, told: 1}, is: running, want: "attending 2"},
		"it is not known":             {disk: onDisk{newest: 1}, is: unknown, looks: true, want: "attending 1"},
		"it never started":            {disk: onDisk{newest: 1}, is: aborted, want: "beginning 1"},
		"its record is gone":          {disk: onDisk{newest: 1}, is: unknown, want: "beginning 1"},
		"it has ended":                {disk: onDisk{newest: 1}, is: exited, want: "ended 1"},
		"its end is known":            {disk: onDisk{newest: 1, told: 1, toldCode: "3", toldReason: "why"}, is: lost, want: "resting 1, attempt 1, exit code 3 (why)"},
		"its end is known, no code":   {disk: onDisk{newest: 1, told: 1}, is: lost, want: "resting 1, attempt 1, exit code unknown"},
		"given up before it had any":  {disk: onDisk{told: 1, toldCode: "76"}, is: lost, want: "resting 1, attempt 1, exit code 76"},
		"nothing is on the disk":      {want: "beginning 1"},
		"another has begun since, it": {disk: onDisk{newest: 2, told: 1, toldCode: "76"}, is: running, want: "attending 2"},
	} {
		p := &play{m: &machine{job: ordinary(), at: finding, fetched: true, attempt: 1, disk: c.disk}, now: 1000}
		p.on = func(a action, s *sight, _ int) {
			if s.life = c.is; c.looks {
				s.lifeErr = errGone
			}
			s.first = first{attempt: 1}
		}
		p.until(9000, func(a action) bool { return p.m.at != finding })
		got := fmt.Sprintf("%s %d", p.m.at, p.m.attempt)
		if p.m.detail != "" {
			got += ", " + p.m.detail
		}
		if got != c.want || p.m.at == resting && !p.m.endTold {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A worker that cannot fetch the job gives up only the next attempt. It tries again for a
// newer attempt.
func TestAJobThatCannotBeFetched(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		told   int
		wanted func(now int) int
		want   string
	}{
		"the first attempt": {want: "gave up 1 with 77: no kit\n", wanted: func(int) int { return 0 }},
		"a later one":       {want: "gave up 3 with 77: no kit\n", wanted: func(int) int { return 3 }},
		"its end is known":  {want: "fetched at 5000\n", told: 1, wanted: func(now int) int { return 1 + now/5000 }},
	} {
		p := &play{m: &machine{job: ordinary(), at: fetching, attempt: 1, disk: onDisk{told: c.told, toldCode: "1"}}, now: 1000}
		fetches := 0
		p.on = func(a action, s *sight, now int) {
			s.wanted = c.wanted(now)
			if a.do == fetch {
				if fetches++; fetches == 2 {
					p.say("fetched at %d", now)
				}
				s.err = errors.New("no kit")
			}
		}
		got := p.until(9000, func(a action) bool {
			if a.do == giveUp {
				p.say("gave up %d with %d: %s", p.m.attempt, a.code, a.text)
			}
			return a.do == giveUp || fetches == 2
		})
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// If a worker comes back with an empty disk, as after a repair, all workers begin the next
// attempt together. The worker's log in the bucket stays, and an ended attempt stays ended.
func TestAWorkerThatHasLostItsDiskDoesNotBeginAgainAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first    first
		firstErr error
		stop     string
		err      error
		want     string
	}{
		"it is new":                {first: first{attempt: 1}, want: "beginning 1"},
		"new, in a later attempt":  {first: first{attempt: 3}, want: "beginning 3"},
		"it had begun":             {first: first{1, true, false}, want: "announced 2, lost 1, beginning 2"},
		"and others are ahead":     {first: first{3, true, false}, want: "announced 4, lost 3, beginning 4"},
		"it had ended":             {first: first{1, true, true}, want: "keeps 1, resting 1"},
		"it is to stop":            {first: first{1, true, false}, stop: "enough", want: "beginning 1"},
		"others cannot be told":    {first: first{1, true, false}, err: errGone, want: "announced 2, gives up 1 with 70"},
		"the bucket does not tell": {first: first{attempt: 1}, firstErr: errGone, want: "gives up 1 with 77"},
	} {
		p := &play{m: &machine{job: ordinary(), at: finding, fetched: true, attempt: 1}, now: 1000}
		var did []string
		p.on = func(a action, s *sight, _ int) {
			s.first, s.firstErr, s.stop = c.first, c.firstErr, c.stop
			switch a.do {
			case announce:
				did = append(did, fmt.Sprintf("announced %d", a.n))
				if s.err = c.err; c.err == nil {
					s.wanted = a.n
				}
			case loseDisk:
				did = append(did, fmt.Sprintf("lost %d", a.n))
			case keepEnd:
				did = append(did, fmt.Sprintf("keeps %d", a.n))
			}
		}
		p.until(9000, func(a action) bool {
			if a.do == giveUp {
				did = append(did, fmt.Sprintf("gives up %d with %d", p.m.attempt, a.code))
			} else if p.m.at != finding {
				did = append(did, fmt.Sprintf("%s %d", p.m.at, p.m.attempt))
			}
			return p.m.at != finding
		})
		if got := strings.Join(did, ", "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// While the machine shuts down, it counts as the cause of the command's end, and the worker
// tells nobody.
func TestAnEndInAMachineThatEndsIsHeldBack(t *testing.T) {
	t.Parallel()
	for _, from := range []phase{attending, givingUp} {
		m := &machine{job: ordinary(), at: from, attempt: 1}
		s := &sight{now: at(1000), life: exited, goingDown: true, did: map[verb]bool{}, looked: map[subject]bool{ofCommand: true}}
		if a := m.next(s); a.do != wait {
			t.Errorf("%s: got %+v", from, a)
		}
		s.goingDown = false
		if a := m.next(s); a.do != finish && a.do != giveUp {
			t.Errorf("%s: got %+v", from, a)
		}
	}
}

// Workers of slices with Apart wait for each other. The wait ends after a time, or when the
// attempt can no longer begin.
func TestGather(t *testing.T) {
	t.Parallel()
	come := func(after int) func(a action, s *sight, now int) {
		return func(a action, s *sight, now int) {
			if s.absent = "s1w0 has not come"; now >= after {
				s.absent = ""
			}
			if a.do == arm {
				s.life = running
			}
		}
	}
	for name, c := range map[string]struct {
		on   func(a action, s *sight, now int)
		want string
	}{
		"all are there":      {come(0), "attending at 1000, attempt 1: attempt 1"},
		"one comes later":    {come(2000), "attending at 2000, attempt 1: attempt 1"},
		"one comes too late": {come(9000), "giving up at 2800, attempt 1: 75 waited 1800 s for all workers (--slices-deadline): s1w0 has not come"},
		"the bucket is away": {func(a action, s *sight, _ int) {
			if a.do == sit {
				s.err = errGone
			}
		}, "giving up at 2800, attempt 1: 75 waited 1800 s for all workers (--slices-deadline): gone"},
		"the seats cannot be read": {func(a action, s *sight, _ int) { s.absentErr = errGone }, "giving up at 2800, attempt 1: 75 waited 1800 s for all workers (--slices-deadline): gone"},
		"a stop comes": {func(a action, s *sight, now int) {
			if s.absent = "x"; now > 1100 {
				s.stop = "enough"
			}
		}, "giving up at 1120, attempt 1: 143 enough"},
		"another has failed": {func(a action, s *sight, now int) {
			if s.absent = "x"; now > 1100 {
				s.failed = "fail-fast"
			}
		}, "giving up at 1120, attempt 1: 143 fail-fast"},
		"the last one comes after another has given up": {func(a action, s *sight, now int) {
			come(0)(a, s, now)
			s.failed = "fail-fast"
		}, "giving up at 1000, attempt 1: 143 fail-fast"},
		"another was rebooted": {func(a action, s *sight, now int) {
			if come(1200)(a, s, now); now > 1100 {
				s.wanted = 2
			}
		}, "attending at 1200, attempt 2: attempt 2"},
		"its time is over": {func(a action, s *sight, now int) { s.absent = "x" }, "giving up at 2000, attempt 1: 143 the time to live of 1000 s (--ttl) is over"},
	} {
		p := &play{m: &machine{job: ordinary(), at: beginning, fetched: true, attempt: 1, born: at(1000)}, now: 1000}
		p.m.job.Apart, p.m.job.Gather = true, 30*time.Minute
		if name == "its time is over" {
			p.m.job.TTL = 1000 * time.Second
		}
		p.on = c.on
		p.until(9000, func(a action) bool { return (p.m.at == attending || p.m.at == givingUp) && a.do != say })
		text := p.m.detail
		if p.m.at == givingUp {
			text = fmt.Sprintf("%d %s", p.m.code, p.m.why)
		}
		if got := fmt.Sprintf("%s at %d, attempt %d: %s", p.m.at, p.now, p.m.attempt, text); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// The worker stops the command before the provider deletes the slices, or earlier if the
// time to live ends earlier.
func TestBound(t *testing.T) {
	t.Parallel()
	const taken = "the slices are deleted %d s after they were made (--max-run-duration)"
	for _, c := range []struct {
		ttl, run int
		at       int
		why      string
	}{
		{0, 0, 0, ""},
		{3600, 0, 3600, "the time to live of 3600 s (--ttl) is over"},
		{0, 14400, 1000 + 14400 - 210, fmt.Sprintf(taken, 14400)},
		{0, 600, 1000 + 540, fmt.Sprintf(taken, 600)},
		{3600, 14400, 3600, "the time to live of 3600 s (--ttl) is over"},
		{14400, 3600, 1000 + 3600 - 210, fmt.Sprintf(taken, 3600)},
	} {
		m := machine{job: ordinary(), born: at(0), made: at(1000)}
		m.job.TTL, m.job.MaxRun = time.Duration(c.ttl)*time.Second, time.Duration(c.run)*time.Second
		end, why := m.bound()
		if c.at == 0 != end.IsZero() || c.at > 0 && !end.Equal(at(c.at)) || why != c.why {
			t.Errorf("%+v: got %d, %q", c, end.Unix(), why)
		}
		if recognized := (detach.State{Stopping: why}).Taken(); recognized != strings.Contains(why, "slices are deleted") {
			t.Errorf("%+v: whoever types the job again takes %q for the end of the slices: %v", c, why, recognized)
		}
		if c.at > 0 && (overdue(m.limit(), at(c.at+89)) || !overdue(m.limit(), at(c.at+90))) {
			t.Errorf("%+v: overdue at another time", c)
		}
	}
}

// The worker obeys a stop until the last moment before the command starts. If something
// else keeps the command from starting, that is the reason of the end.
func TestBegin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		on   func(a action, s *sight)
		want string
	}{
		"it starts": {func(a action, s *sight) {
			if a.do == arm {
				s.life = running
			}
		}, "attending: attempt 1"},
		"a stop comes first": {func(_ action, s *sight) { s.stop = "enough" }, "giving up: 143 enough"},
		"a stop comes meanwhile": {func(a action, s *sight) {
			if a.do == prepare {
				s.stop = "enough"
				delete(s.looked, ofStop)
			}
		}, "giving up: 143 enough"},
		"no TPU": {func(a action, s *sight) {
			if a.do == prepare {
				s.code, s.err = 69, errGone
			}
		}, "giving up: 69 gone"},
		"it does not start": {func(a action, s *sight) {
			if a.do == arm {
				s.err = errGone
			}
		}, "giving up: 70 the command could not be started: gone"},
		"it runs already": {func(a action, s *sight) {
			if a.at == ofCommand {
				s.life = running
			}
		}, "attending: attempt 1"},
		"it starts already": {func(a action, s *sight) { s.life = starting }, "attending: "},
		"it ended already":  {func(a action, s *sight) { s.life = exited }, "ended: "},
		"that is not known": {func(a action, s *sight) { s.lifeErr = errGone }, "attending: "},
	} {
		p := &play{m: &machine{job: ordinary(), at: beginning, fetched: true, attempt: 1}, now: 1000}
		p.on = func(a action, s *sight, _ int) { c.on(a, s) }
		p.until(9000, func(a action) bool { return p.m.at != beginning && a.do != say })
		text := p.m.detail
		if p.m.at == givingUp {
			text = fmt.Sprintf("%d %s", p.m.code, p.m.why)
		}
		if got := fmt.Sprintf("%s: %s", p.m.at, text); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
