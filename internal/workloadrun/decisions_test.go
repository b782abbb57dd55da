package workloadrun

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workload"
	"multihost/internal/workloads"
)

func TestNumbersOfAttempts(t *testing.T) {
	t.Parallel()
	past := []record.PastAttempt{{Attempt: 1, Slices: []string{"a", "b"}}, {Attempt: 2, Slices: []string{"c"}}}
	for _, tt := range []struct {
		what    string
		past    []record.PastAttempt
		pod     string
		restart int
		want    int
	}{
		{"the first one", nil, "a", 0, 1},
		{"a machine that comes late", nil, "z", 2, 3},
		{"known from another command", past, "b", 0, 1},
		{"the cluster has restarted it", past, "d", 2, 3},
		{"Kueue has taken its quota and given it back", past, "d", 1, 3},
		{"attempts that nobody followed", past, "d", 4, 5},
	} {
		if got := numberOf(tt.past, tt.pod, tt.restart); got != tt.want {
			t.Errorf("%s: attempt %d, want %d", tt.what, got, tt.want)
		}
	}
}

func TestHowARunEnds(t *testing.T) {
	t.Parallel()
	failure := &workload.Failure{Pod: workload.Pod{Worker: tpu.WorkerID{Slice: 1, Worker: 2}, Exit: workload.Exit{Known: true, Code: 7}}}
	for _, tt := range []struct {
		out  workloads.Outcome
		why  error
		code int
		text string
	}{
		{workloads.Outcome{State: workload.Succeeded}, nil, 0, "run r succeeded on all 4 workers"},
		{workloads.Outcome{State: workload.Failed, Failure: failure}, nil, 7, "run r failed: s1w2 was first: exit code 7"},
		{workloads.Outcome{State: workload.Failed, Message: "jobset failed"}, nil, 1, "run r failed: jobset failed"},
		{workloads.Outcome{State: workload.Leaving}, nil, 143, "run r was stopped: somebody has deleted its workload"},
		{workloads.Outcome{State: workload.Leaving}, errors.New("interrupted (SIGINT)"), 143, "run r was stopped: interrupted (SIGINT)"},
		// It ended while the stop was on its way.
		{workloads.Outcome{State: workload.Succeeded}, errors.New("interrupted (SIGINT)"), 0, "run r succeeded on all 4 workers"},
	} {
		if got := judge("r", 4, tt.out, tt.why); got != (verdict{tt.code, tt.text}) {
			t.Errorf("%+v, %v: %+v, want %d, %s", tt.out, tt.why, got, tt.code, tt.text)
		}
	}
}

func TestWhatASignalDoes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		signal os.Signal
		answer stage.Answer
		ours   bool
		leaves bool
	}{
		{syscall.SIGINT, "", true, false},
		{syscall.SIGTERM, "", true, false},
		{syscall.SIGHUP, "", true, true},
		{syscall.SIGINT, "", false, true},
		{syscall.SIGINT, stage.Detach, true, true},
		{syscall.SIGINT, stage.Stop, false, false},
	} {
		if got := leaves(&stage.Interrupted{Signal: tt.signal, Answer: tt.answer}, tt.ours); got != tt.leaves {
			t.Errorf("%+v: leaves the run alone: %t", tt, got)
		}
	}
}

func TestWhyAnAttemptEnded(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	pod := func(worker, code int, cause workload.Cause) workload.Pod {
		return workload.Pod{Worker: tpu.WorkerID{Worker: worker}, Started: at, Ended: at.Add(time.Duration(10+worker) * time.Second),
			Exit: workload.Exit{Known: cause != workload.Lost, Code: code, Cause: cause, Time: at.Add(time.Duration(10+worker) * time.Second)}}
	}
	for cause, want := range map[workload.Cause]stage.Cause{
		workload.NoCause: stage.Application, workload.OutOfMemory: stage.Application, workload.Disrupted: stage.Preempted, workload.Evicted: stage.Infrastructure, workload.Lost: stage.Infrastructure,
	} {
		e := endOf(workload.Attempt{Pods: []workload.Pod{pod(0, 3, cause), pod(1, 0, workload.NoCause)}})
		if e.OK || e.Cause != string(want) || e.Elapsed != 11*time.Second {
			t.Errorf("%q: %+v, want %s", cause, e, want)
		}
	}
	if e := endOf(workload.Attempt{Pods: []workload.Pod{pod(0, 0, workload.NoCause)}}); !e.OK || e.Cause != "" {
		t.Errorf("a success: %+v", e)
	}
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", 1, "c\n"}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 1, "c"}, {"a\n", 5, "a\n"}, {"", 1, ""}, {"a\n", 0, ""}, {"a\n\n", 1, "\n"},
	} {
		if got := string(lastLines([]byte(tt.text), tt.n)); got != tt.want {
			t.Errorf("%d of %q: %q, want %q", tt.n, tt.text, got, tt.want)
		}
	}
}
