package main

import (
	"strings"
	"testing"
	"time"
)

func TestLifeRules(t *testing.T) {
	at := func(minutes int, f lifeFact) lifeFact {
		f.at = time.Duration(minutes) * time.Minute
		if f.run == "" {
			f.run = "m"
		}
		return f
	}
	typed := func(who string) lifeFact {
		verb, _, _ := strings.Cut(who, " ")
		return at(0, lifeFact{kind: factTyped, who: who, verb: verb})
	}
	began := func(minutes int, who string, attempt int, slices string) lifeHistory {
		var h lifeHistory
		for _, worker := range []string{"m-0/", "m-1/"} {
			h = append(h, at(minutes, lifeFact{kind: factStarted, who: who, worker: worker + slices, attempt: attempt}))
		}
		return h
	}
	ended := func(minutes int, worker string, attempt, code int) lifeFact {
		return at(minutes, lifeFact{kind: factEnded, worker: worker, attempt: attempt, code: code})
	}
	stopped := func(minutes int, who, worker string) lifeFact {
		return at(minutes, lifeFact{kind: factStopped, who: who, worker: worker, attempt: 1})
	}
	gone := func(minutes int, who, worker string) lifeFact {
		return at(minutes, lifeFact{kind: factGone, who: who, worker: worker})
	}
	returned := func(minutes int, who string, f lifeFact) lifeFact {
		f.kind, f.who = factReturned, who
		f.verb, _, _ = strings.Cut(who, " ")
		return at(minutes, f)
	}
	const job1, job2 = "job 1 of laptop", "job 2 of laptop"
	of := func(facts ...any) (h lifeHistory) {
		for _, f := range facts {
			switch f := f.(type) {
			case lifeFact:
				h = append(h, f)
			case lifeHistory:
				h = append(h, f...)
			}
		}
		return h
	}
	for _, tt := range []struct {
		story string
		h     lifeHistory
		want  string // a part of the verdict; "": no rule is broken
	}{
		{"a job that succeeds", of(typed(job1), began(1, job1, 1, "a"), ended(9, "m-0/a", 1, 0), ended(9, "m-1/a", 1, 0), gone(10, job1, "m-0/a"), gone(10, job1, "m-1/a"),
			returned(11, job1, lifeFact{codes: []int{0, 0}, said: "nothing of this job is billed"})), ""},

		{"a take-over that reboots while the command lives", of(typed(job1), began(1, job1, 1, "a"), typed(job2), gone(9, job2, "m-0/a")), "ended the command on m-0/a"},
		{"the same after a loss", of(typed(job1), began(1, job1, 1, "a"), typed(job2), at(8, lifeFact{kind: factLoss}), gone(9, job2, "m-0/a")), ""},
		{"a loss of an earlier attempt", of(typed(job1), at(0, lifeFact{kind: factLoss}), began(1, job1, 2, "a"), typed(job2), gone(9, job2, "m-0/a")), "ended the command on m-0/a"},
		{"a failure of an earlier attempt", of(typed(job1), began(1, job1, 1, "a"), ended(8, "m-0/a", 1, 3), ended(8, "m-1/a", 1, 3), began(9, job1, 2, "a"),
			at(10, lifeFact{kind: factStopped, who: job1, worker: "m-0/a", attempt: 2})), "ended the command on m-0/a"},
		{"the time to live of earlier slices", of(typed(job1), at(0, lifeFact{kind: factExpired}), at(1, lifeFact{kind: factMade}), began(1, job1, 2, "a"), gone(9, byLease, "m-0/a")), "ended the command on m-0/a"},
		{"a deletion of what another machine trains on", of(typed(job1), began(1, "job 1 of desk", 1, "a"), gone(9, job1, "m-0/a")), "ended the command on m-0/a"},
		{"a stop that nobody has chosen", of(typed(job1), began(1, job1, 1, "a"), stopped(9, job1, "m-0/a")), "ended the command on m-0/a"},
		{"a choice of somebody else", of(typed(job1), typed(job2), began(1, job1, 1, "a"), at(8, lifeFact{kind: factChosen, who: job2}), stopped(9, job1, "m-0/a")), "ended the command on m-0/a"},
		{"a stop that was chosen", of(typed(job1), began(1, job1, 1, "a"), at(8, lifeFact{kind: factChosen, who: job1}), stopped(9, job1, "m-0/a")), ""},
		{"fail-fast", of(typed(job1), began(1, job1, 1, "a"), ended(8, "m-1/a", 1, 3), stopped(9, job1, "m-0/a")), ""},
		{"fail-fast after a success", of(typed(job1), began(1, job1, 1, "a"), ended(8, "m-1/a", 1, 0), stopped(9, job1, "m-0/a")), "ended the command on m-0/a"},
		{"--ttl", of(typed(job1), began(1, job1, 1, "a"), at(8, lifeFact{kind: factExpired}), gone(9, byLease, "m-0/a")), ""},
		{"a lease that expires while the command lives", of(typed(job1), began(1, job1, 1, "a"), gone(9, byLease, "m-0/a")), "the lease ended the command"},
		{"the cloud takes what it wants", of(typed(job1), began(1, job1, 1, "a"), gone(9, byCloud, "m-0/a")), ""},

		{"two attempts at once", of(typed(job1), began(1, job1, 1, "a"), typed(job2), began(2, job2, 2, "b")), "attempt 2 starts on m-0/b while attempt 1 lives"},
		{"a second start", of(typed(job1), began(1, job1, 1, "a"), ended(9, "m-0/a", 1, 1), ended(9, "m-1/a", 1, 1), began(10, job1, 1, "a")), "attempt 1 starts on m-0/a again"},
		{"a start after a success that nobody was told", of(typed(job1), began(1, job1, 1, "a"), ended(9, "m-0/a", 1, 0), ended(9, "m-1/a", 1, 0), typed(job2), began(10, job2, 2, "a")), "although attempt 1 has succeeded"},
		{"a start after a success that was told", of(typed(job1), began(1, job1, 1, "a"), ended(9, "m-0/a", 1, 0), ended(9, "m-1/a", 1, 0),
			returned(9, job1, lifeFact{codes: []int{0, 0}, billed: true, exists: true, said: "queued resource m stays (--keep)"}), typed(job2), began(10, job2, 2, "a")), ""},
		{"a start after a failure", of(typed(job1), began(1, job1, 1, "a"), ended(9, "m-0/a", 1, 1), ended(9, "m-1/a", 1, 0), began(10, job1, 2, "a")), ""},

		{"something is left", of(typed(job1), at(9, lifeFact{kind: factLeft, text: "it is billed"})), "it is billed"},
		{"something else is deleted", of(typed(job1), at(9, lifeFact{kind: factForeign, text: "x was deleted"})), "x was deleted"},

		{"0 with a log that is not whole", of(typed(job1), returned(9, job1, lifeFact{codes: []int{0, 0}, partial: []string{"m-0/a"}})), "without the whole log of m-0/a"},
		{"74 without a word", of(typed(job1), returned(9, job1, lifeFact{code: 74, codes: []int{0, 0}, partial: []string{"m-0/a"}, said: "the end"})), "without a word about the log of m-0/a"},
		{"74 with a word", of(typed(job1), returned(9, job1, lifeFact{code: 74, codes: []int{0, 0}, partial: []string{"m-0/a"}, said: "the log of s0w0 is not whole here"})), ""},

		{"a deletion with a part of a log", of(typed(job1), at(9, lifeFact{kind: factDeleted, who: job1, partial: []string{"m-0/a"}})), "deletes the queued resource without the whole log of m-0/a"},
		{"a deletion that says it", of(typed(job1), at(9, lifeFact{kind: factDeleted, who: job1, partial: []string{"m-0/a"}, said: "the log of s0w0 is not whole here"})), ""},
		{"a lease that has waited for somebody to read the log", of(typed(job1), at(9, lifeFact{kind: factDeleted, who: byLease, partial: []string{"m-0/a"}})), ""},

		{"a bill that is denied", of(typed(job1), returned(9, job1, lifeFact{code: 3, exists: true, said: "nothing of this job is billed"})), "says that nothing is billed"},
		{"a bill that began while the answer was under way", of(typed(job1), at(9, lifeFact{kind: factMade, who: "job 1 of desk"}), returned(9, job1, lifeFact{code: 69, exists: true, said: "nothing of this job is billed"})), ""},
		{"a bill of its own that is denied", of(typed(job1), at(9, lifeFact{kind: factMade, who: job1}), returned(9, job1, lifeFact{code: 69, exists: true, said: "nothing of this job is billed"})), "says that nothing is billed"},
		{"a bill of another command that is denied", of(typed(job1), at(8, lifeFact{kind: factMade, who: "job 1 of desk"}), returned(9, job1, lifeFact{code: 69, exists: true, said: "nothing of this job is billed"})), "says that nothing is billed"},
		{"a bill that is not told", of(typed(job1), returned(9, job1, lifeFact{code: 3, exists: true, billed: true, said: "phase request done"})), "without a word about what is billed"},
		{"a bill of another command that is told", of(typed(job1), returned(9, job1, lifeFact{code: 3, exists: true, billed: true, said: "its slices are deleted: another command has made it again; it is in state ACTIVE, and is billed"})), ""},
		{"a bill of its own that is not told", of(typed(job1), at(1, lifeFact{kind: factMade, who: job1}), returned(9, job1, lifeFact{code: 3, exists: true, billed: true})), "without a word about what is billed"},
		{"a bill of another command that could not be read", of(typed(job1), returned(9, job1, lifeFact{code: 69, exists: true, billed: true})), ""},
		{"a life that is denied", of(typed(job1), returned(9, job1, lifeFact{code: 130, lives: true, said: "no process of it is left on all 2 workers"})), "but the command lives"},

		{"a wait without end", of(typed(job1), at(300, lifeFact{kind: factHangs, who: job1, text: "it does not end"})), "it does not end"},
		{"a wait without a word", of(typed(job1), at(30, lifeFact{kind: factSilent, who: job1, text: "nothing said for 12m"})), "nothing said for 12m"},

		{"0 with a worker that failed", of(typed(job1), returned(9, job1, lifeFact{codes: []int{0, 3}})), "ends with 0, the workers with [0 3]"},
		{"0 while the command lives", of(typed(job1), returned(9, job1, lifeFact{codes: []int{0, unended}})), "ends with 0, the workers with [0 -1]"},
		{"0 without an attempt", of(typed(job1), returned(9, job1, lifeFact{})), "ends with 0, the workers with []"},
		{"a stop that stops nothing", of(typed(job1), began(0, job1, 1, "a"), typed("stop 1 of desk"), returned(9, "stop 1 of desk", lifeFact{lives: true})), "ends with 0, but the command lives"},
	} {
		got := tt.h.broken()
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.story, got, tt.want)
		}
	}
}
