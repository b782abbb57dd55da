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
	earlier := record.PastAttempt{Attempt: 1, Workload: "old", Pods: map[string]string{"s0w0": "x"}}
	past := []record.PastAttempt{
		{Attempt: 1, Workload: "w", Pods: map[string]string{"s0w0": "a", "s0w1": "b"}},
		{Attempt: 2, Workload: "w", Restart: 1, Pods: map[string]string{"s0w0": "c"}},
	}
	for _, tt := range []struct {
		what    string
		past    []record.PastAttempt
		worker  int
		pod     string
		restart int
		taken   []int
		want    int
	}{
		{"the first one", nil, 0, "a", 0, nil, 1},
		{"a machine that comes late", nil, 0, "z", 2, nil, 3},
		{"after a workload of the same name", []record.PastAttempt{earlier}, 1, "a", 0, nil, 2},
		{"known from another command", past, 1, "b", 0, nil, 1},
		{"the command before ended before this worker wrote", past, 1, "d", 1, nil, 2},
		{"the same, but that attempt is one of the cluster's others", past, 1, "d", 1, []int{2}, 3},
		{"the cluster has restarted it", past, 0, "d", 2, nil, 3},
		{"Kueue has taken its quota and given it back", past, 0, "d", 1, nil, 3},
		{"attempts that nobody followed", past, 0, "d", 4, nil, 5},
	} {
		p := workload.Pod{Worker: tpu.WorkerID{Worker: tt.worker}, UID: tt.pod, Restart: tt.restart}
		if got := numberOf(tt.past, "w", p, tt.taken); got != tt.want {
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
		{workloads.Outcome{State: workload.Leaving, Stopped: "multihost stop, by ann@desk"}, nil, 143, "run r was stopped: multihost stop, by ann@desk"},
		{workloads.Outcome{State: workload.Leaving}, nil, 143, "run r was stopped: somebody has deleted its workload"},
		{workloads.Outcome{State: workload.Leaving}, errors.New("interrupted (SIGINT)"), 143, "run r was stopped: interrupted (SIGINT)"},
		// The run ended before the stop reached it.
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

func TestUnreadWorkers(t *testing.T) {
	t.Parallel()
	ids := []tpu.WorkerID{{Worker: 0}, {Worker: 1}}
	for _, tt := range []struct {
		state workload.State
		reads []tpu.WorkerID
		want  string
	}{
		{workload.Succeeded, ids, ""}, {workload.Failed, ids[1:], "s0w0"}, {workload.Succeeded, nil, "s0w[0-1]"}, {workload.Leaving, nil, ""},
	} {
		if got := tpu.FoldShort(unread(ids, tt.reads, workloads.Outcome{State: tt.state})); got != tt.want {
			t.Errorf("%s, read %v: %q, want %q", tt.state, tt.reads, got, tt.want)
		}
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
