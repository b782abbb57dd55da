package job

import (
	"errors"
	"fmt"
	"testing"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/provision"
	"multihost/internal/stage"
)

// The cloud reports late that it took a slice away. Until then the workers show killed
// commands and broken connections.
func TestWhatEndedAnAttempt(t *testing.T) {
	var (
		failed = signs{why: "s0w1: exit code 3"}
		killed = signs{why: "s0w1: signal KILL", killed: true}
		silent = signs{why: "s0w1: connection lost", lost: true}

		well   = provision.Decision{Step: provision.StepUse}
		ill    = provision.Decision{Step: provision.StepWait, Loss: provision.Infrastructure, Why: "slice t-0 is ill"}
		gone   = provision.Decision{Step: provision.StepRecreate, Loss: provision.Preempted, Why: "slice t-0 is PREEMPTED"}
		mended = provision.Decision{Step: provision.StepWait, Loss: provision.Maintenance, Why: "slice t-0 is REPAIRING"}
		taken  = provision.Decision{Step: provision.StepGiveUp, Loss: provision.Removed, Why: "somebody deleted it"}
		none   = provision.Decision{Step: provision.StepRecreate, Loss: provision.Infrastructure, Why: "its VMs are gone"}
		over   = provision.Decision{Step: provision.StepRecreate, Loss: provision.Expired, Why: "its time is over"}
	)
	outage := errors.New("HTTP 503")
	for _, row := range []struct {
		story string
		signs
		said provision.Decision
		err  error
		want string
	}{
		{"the command failed", failed, well, nil, "application: s0w1: exit code 3"},
		{"the command failed, and the API is away", failed, provision.Decision{}, outage, "application: s0w1: exit code 3, not final"},
		{"the command was killed", killed, well, nil, "application: s0w1: signal KILL, not final"},
		{"a worker is silent", silent, well, nil, "infrastructure: s0w1: connection lost, not final"},
		{"a worker is silent, and the API is away", silent, provision.Decision{}, outage, "infrastructure: s0w1: connection lost, not final"},

		{"the slice was preempted", killed, gone, nil, "preempted: slice t-0 is PREEMPTED"},
		{"the slice was preempted, without a sign on it", failed, gone, nil, "preempted: slice t-0 is PREEMPTED"},
		{"the slice is repaired", silent, mended, nil, "maintenance: slice t-0 is REPAIRING"},
		{"the slice is gone, and nobody knows why", silent, none, nil, "infrastructure: its VMs are gone"},
		{"its time is over", silent, over, nil, "expired: its time is over"},
		{"a user deleted it", silent, taken, nil, "stopped by a user: somebody deleted it"},

		{"a slice is ill", failed, ill, nil, "infrastructure: slice t-0 is ill"},
		{"a slice is ill, and the command was killed", killed, ill, nil, "infrastructure: slice t-0 is ill, not final"},
		{"a slice is ill and silent", silent, ill, nil, "infrastructure: slice t-0 is ill: s0w1: connection lost, not final"},
	} {
		cause, why, final := row.blame(row.said, row.err)
		got := fmt.Sprintf("%s: %s", cause, why)
		if !final {
			got += ", not final"
		}
		if got != row.want {
			t.Errorf("%s:\n got  %s\n want %s", row.story, got, row.want)
		}
	}
}

func TestHowARunEnds(t *testing.T) {
	lost := &stage.Failure{Cause: stage.Preempted, Why: "slice t-0 is PREEMPTED"}
	failed := &stage.Failure{Cause: stage.Application, Why: "s0w1: exit code 3"}
	interrupted := &stage.Interrupted{}
	stopped := &stage.Failure{Cause: stage.UserStop, Why: "SIGINT", Err: interrupted}
	over := &stage.Failure{Cause: stage.Expired, Why: "the time is over", Err: stage.ErrExpired}
	broken := errors.New("connection lost")
	raised := &stage.Failure{Cause: stage.Stall, Why: "no step for 5m"}
	code := func(n int) stage.Outcome { return stage.Outcome{Code: n, Started: true} }
	sum := func(code int) *event.Summary {
		return &event.Summary{Run: "p", Text: "run p failed: s0w1 was first", ExitCode: code}
	}
	const spent = "3 restarts are spent"

	for _, row := range []struct {
		story string
		last
		code int
		err  error // errors.Is
		says string
		text string
		exit int
	}{
		{story: "success", last: last{out: code(0), sum: &event.Summary{Text: "run p succeeded"}}, text: "run p succeeded"},
		{story: "left running", last: last{out: stage.Outcome{Detached: true, Started: true}}},
		{story: "the command failed", last: last{out: code(3), failure: failed, sum: sum(3), refusal: spent}, code: 3, text: "run p failed: s0w1 was first", exit: 3},
		{story: "the command failed again", last: last{out: code(3), failure: failed, sum: sum(3), refusal: spent, tried: 2}, code: 3, text: "run p failed: s0w1 was first; 3 restarts are spent", exit: 3},
		{story: "a slice was taken away", last: last{out: code(137), failure: lost, sum: sum(137)}, code: follow.LostCode, text: "run p failed: s0w1 was first; preempted: slice t-0 is PREEMPTED", exit: follow.LostCode},
		{story: "a slice was taken away, as the summary says", last: last{out: code(137), failure: lost, sum: sum(137), gone: true, refusal: spent}, code: follow.LostCode, text: "run p failed: preempted: slice t-0 is PREEMPTED; 3 restarts are spent", exit: follow.LostCode},
		{story: "a slice was taken away before the start", last: last{err: broken, failure: lost, refusal: spent}, err: broken, says: "preempted: slice t-0 is PREEMPTED; 3 restarts are spent"},
		{story: "a slice was taken away before the start, and nothing was refused", last: last{err: broken, failure: lost}, err: broken, says: "connection lost"},
		{story: "a cause that was raised keeps its words", last: last{err: raised, failure: lost, refusal: spent}, err: raised, says: "stall: no step for 5m"},
		{story: "an error in the middle of a loss keeps its status", last: last{out: code(1), err: broken, failure: lost, sum: sum(74)}, code: 1, err: broken, text: "run p failed: s0w1 was first; preempted: slice t-0 is PREEMPTED", exit: 74},
		{story: "the slices were to go, as the clock says", last: last{out: code(follow.LostCode), failure: over, sum: sum(255), gone: true, status: func(error) int { return 75 }}, code: follow.LostCode, err: stage.ErrExpired, text: "run p ended: the time is over", exit: 75},
		{story: "Ctrl-C while the cause was sought", last: last{out: code(1), failure: stopped, sum: sum(1)}, code: 1, err: interrupted, text: "run p failed: s0w1 was first", exit: 1},
	} {
		out, _, err := row.conclude()
		if out.Code != row.code || !errors.Is(err, row.err) || row.says != "" && err.Error() != row.says {
			t.Errorf("%s: code %d, %v; want %d, %v %s", row.story, out.Code, err, row.code, row.err, row.says)
		}
		if s := row.sum; s != nil && (s.Text != row.text || s.ExitCode != row.exit) {
			t.Errorf("%s: the summary says %d, %q; want %d, %q", row.story, s.ExitCode, s.Text, row.exit, row.text)
		}
	}
}
