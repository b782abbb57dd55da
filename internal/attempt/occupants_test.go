package attempt

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"multihost/internal/launch"
	"multihost/internal/workers"
)

// on returns an attempt of run r, of this login, on all workers.
func on(attempt int, phase launch.Phase) occupant {
	info := launch.Info{Ref: launch.Ref{Run: "r", Attempt: attempt}, Owner: "ann@laptop", Mine: true, Phase: phase}
	alive := info.Alive()
	return occupant{FoundRun: workers.FoundRun{Info: info}, unseen: alive}
}

func (o occupant) with(change func(*occupant)) occupant {
	change(&o)
	return o
}

func TestWhoIsTakenOverAndWhoIsStopped(t *testing.T) {
	var (
		job    = claimant{run: "r", owner: "bob@vm", adopts: true, yields: true}
		run    = claimant{run: "r", owner: "bob@vm", yields: true}
		second = claimant{run: "r", owner: "bob@vm", adopts: true, yields: true, tried: 1, last: 4} // bob's own attempt 4 has ended
	)
	replacing := func(c claimant) claimant { c.replace = true; return c }
	cutOff := func(c claimant) claimant { c.cutOff = true; return c }
	made := func(c claimant) claimant { c.elsewhere = true; return c } // other slices than in its last attempt
	tired := func(c claimant) claimant { c.yields = false; return c }

	differs := func(o *occupant) { o.differs = errors.New("you asked for another command") }
	partly := func(o *occupant) { o.unseen = false }
	unseenEnd := func(o *occupant) { o.unseen = true }
	foreign := func(o *occupant) { o.Info.Mine, o.unseen = false, false }
	other := func(o *occupant) { o.Info.Ref.Run, o.unseen = "other", false }
	stopped := func(o *occupant) { o.Broken = 1 }
	both := func(a, b func(*occupant)) func(*occupant) { return func(o *occupant) { a(o); b(o) } }

	for _, row := range []struct {
		story string
		claimant
		there []occupant
		want  string // "attempt N", and "take over N", "stop RUN/N: reason" or the error
	}{
		{"nobody was ever there", job, nil, "attempt 1"},
		{"an earlier attempt has ended", job, []occupant{on(3, launch.Exited)}, "attempt 4"},
		{"another run has ended there", run, []occupant{on(7, launch.Exited).with(other)}, "attempt 1"},

		{"a job goes on with a living attempt", job, []occupant{on(2, launch.Running)}, "attempt 3, take over 2"},
		{"a run does not", run, []occupant{on(2, launch.Running)}, `run "r" of ann@laptop lives`},
		{"an end that nobody saw is seen to", job, []occupant{on(2, launch.Exited).with(unseenEnd)}, "attempt 3, take over 2"},
		{"the newest is met first", job, []occupant{on(5, launch.Running), on(2, launch.Exited)}, "attempt 6, take over 5"},
		{"another command was asked for", job, []occupant{on(2, launch.Running).with(differs)}, "you asked for another command"},
		{"another command was asked for, with --replace", replacing(job), []occupant{on(2, launch.Running).with(differs)}, "attempt 3, stop r/2: replaced by r of bob@vm"},
		{"the same command, with --replace", replacing(job), []occupant{on(2, launch.Running)}, "attempt 3, take over 2"},
		{"an end of another command that nobody saw, with --replace", replacing(job), []occupant{on(2, launch.Exited).with(both(unseenEnd, differs))}, "attempt 3"},

		{"a living attempt that lost a worker cannot go on", job, []occupant{on(2, launch.Running).with(partly)}, "attempt 3, stop r/2: a new attempt begins"},
		{"of another login, it is not stopped", job, []occupant{on(2, launch.Running).with(foreign)}, `run "r" of ann@laptop lives`},
		{"of another login, not even with --replace", replacing(job), []occupant{on(2, launch.Running).with(foreign)}, `run "r" of ann@laptop runs as login`},
		{"another run lives there", job, []occupant{on(2, launch.Running).with(other)}, `run "other" of ann@laptop lives`},
		{"another run lives there, with --replace", replacing(run), []occupant{on(2, launch.Running).with(other)}, "attempt 1, stop other/2: replaced by r of bob@vm"},
		{"two of them, with --replace", replacing(run), []occupant{on(2, launch.Running).with(other), on(1, launch.Running).with(partly)}, "attempt 2, stop other/2: replaced by r of bob@vm, stop r/1: replaced by r of bob@vm"},

		{"another runner is just starting it", job, []occupant{on(2, launch.Starting).with(partly)}, "another runner starts it at this moment"},
		{"it has been starting for too long", tired(job), []occupant{on(2, launch.Starting).with(partly)}, "attempt 3, stop r/2: a new attempt begins"},
		{"a run waits for nobody", run, []occupant{on(2, launch.Starting).with(partly)}, `run "r" of ann@laptop lives`},

		{"what is left of the claimant's own attempt goes", second, []occupant{on(4, launch.Running).with(partly)}, "attempt 5, stop r/4: a new attempt begins"},
		{"its own attempt is not taken over although it is whole", second, []occupant{on(4, launch.Running)}, "attempt 5, stop r/4: a new attempt begins"},
		{"unless it was only out of sight", cutOff(second), []occupant{on(4, launch.Running)}, "attempt 5, take over 4"},
		{"and nobody has stopped a part of it", cutOff(second), []occupant{on(4, launch.Running).with(stopped)}, "attempt 5, stop r/4: a new attempt begins"},
		{"another runner began a newer one", second, []occupant{on(5, launch.Running)}, "attempt 6, take over 5"},
		{"another runner begins a newer one", second, []occupant{on(5, launch.Running).with(partly)}, "another runner starts it at this moment"},
		{"its own attempt ran on other slices: this one is another runner's", made(second), []occupant{on(4, launch.Running)}, "attempt 5, take over 4"},
		{"and was only out of sight", made(cutOff(second)), []occupant{on(4, launch.Running)}, "attempt 5, take over 4"},
		{"and another runner is just starting on these", made(second), []occupant{on(4, launch.Running).with(partly)}, "another runner starts it at this moment"},
		{"another run came between two attempts", second, []occupant{on(9, launch.Running).with(other)}, `run "other" of ann@laptop lives`},
		{"--replace was for the first attempt only", replacing(second), []occupant{on(5, launch.Running).with(differs)}, "you asked for another command"},
	} {
		s, err := row.settle(1, row.there)
		got := fmt.Sprintf("attempt %d", s.attempt)
		if s.living != nil {
			got += fmt.Sprintf(", take over %d", s.living.Info.Ref.Attempt)
		}
		for _, e := range s.evict {
			got += fmt.Sprintf(", stop %s/%d: %s", e.Info.Ref.Run, e.Info.Ref.Attempt, e.reason)
		}
		if err != nil {
			got = err.Error()
		}
		if got != row.want && (err == nil || !strings.Contains(got, row.want)) {
			t.Errorf("%s:\n got  %s\n want %s", row.story, got, row.want)
		}
	}
}
