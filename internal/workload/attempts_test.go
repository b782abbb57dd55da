package workload_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"multihost/internal/agent/pod"
	"multihost/internal/tpu"
	"multihost/internal/workload"
)

// at returns a time, in seconds after a fixed time.
func at(seconds float64) time.Time {
	return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

func stamp(seconds float64) metav1.Time { return metav1.NewTime(at(seconds)) }

// object returns the pod of a worker, which has been running since second 10.
func object(slice, worker, restart int, change ...func(*corev1.Pod)) *corev1.Pod {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("w-slice-job-%d-%d-abcde", slice, worker), Namespace: "default", UID: types.UID(fmt.Sprintf("u%d%d%d", slice, worker, restart)),
			CreationTimestamp: stamp(float64(100 * restart)),
			Labels: map[string]string{
				"jobset.sigs.k8s.io/job-index": fmt.Sprint(slice), "batch.kubernetes.io/job-completion-index": fmt.Sprint(worker), "jobset.sigs.k8s.io/restart-attempt": fmt.Sprint(restart),
			},
		},
		Spec: corev1.PodSpec{NodeName: fmt.Sprintf("n%d%d", slice, worker)},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "jax-tpu", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: stamp(float64(100*restart + 10))}},
		}}},
	}
	for _, c := range change {
		c(o)
	}
	return o
}

// exits makes a change for object. It ends the containers with a code.
func exits(code int32, seconds float64, reason, message string) func(*corev1.Pod) {
	return func(o *corev1.Pod) {
		o.Status.Phase = corev1.PodFailed
		if code == 0 {
			o.Status.Phase = corev1.PodSucceeded
		}
		for i := range o.Status.ContainerStatuses {
			o.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: code, Reason: reason, Message: message, StartedAt: o.Status.ContainerStatuses[i].State.Running.StartedAt, FinishedAt: metav1.NewTime(at(seconds).Truncate(time.Second)),
			}}
		}
	}
}

func deleted(seconds float64) func(*corev1.Pod) {
	return func(o *corev1.Pod) {
		o.DeletionTimestamp, o.DeletionGracePeriodSeconds = new(stamp(seconds+30)), new(int64(30))
	}
}

func disrupted(reason, message string) func(*corev1.Pod) {
	return func(o *corev1.Pod) {
		o.Status.Conditions = append(o.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message})
	}
}

func read(t *testing.T, objects ...*corev1.Pod) (pods []workload.Pod) {
	t.Helper()
	for _, o := range objects {
		p, ok := workload.PodOf(o)
		if !ok {
			t.Fatalf("%s is no worker", o.Name)
		}
		pods = append(pods, p)
	}
	return pods
}

func TestWhoFailedFirst(t *testing.T) {
	t.Parallel()
	told := func(e pod.End) string { return e.Message() }
	for name, tt := range map[string]struct {
		pods []*corev1.Pod
		want string
	}{
		"nobody failed": {[]*corev1.Pod{object(0, 0, 0, exits(0, 50, "Completed", "")), object(0, 1, 0)}, ""},
		"the earliest":  {[]*corev1.Pod{object(0, 0, 0, exits(1, 52, "Error", "")), object(0, 1, 0, exits(3, 51, "Error", "")), object(0, 2, 0)}, "s0w1 was first: exit code 3; s0w0 stopped because of it"},
		"in one second, the one that was not being deleted": {
			[]*corev1.Pod{object(0, 0, 0, deleted(51), exits(143, 51.4, "Error", "")), object(1, 2, 0, exits(1, 51.9, "Error", ""))},
			"s1w2 was first: exit code 1; s0w0 stopped because of it",
		},
		"in one second, the agents' times decide": {
			[]*corev1.Pod{
				object(0, 0, 0, exits(1, 51, "Error", told(pod.End{Code: 1, Time: at(51.7)}))),
				object(0, 1, 0, exits(139, 51, "Error", told(pod.End{Code: 139, Signal: "SIGSEGV", Time: at(51.2)}))),
				object(0, 2, 0, exits(0, 51, "Completed", told(pod.End{Time: at(51.1)}))),
			},
			"s0w1 was first: killed by SIGSEGV; s0w0 stopped because of it",
		},
		"in one second, not the one whose agent was told to stop": {
			[]*corev1.Pod{
				object(0, 0, 0, exits(1, 51, "Error", told(pod.End{Code: 1, Told: "SIGTERM", Time: at(51.1)}))),
				object(0, 1, 0, exits(2, 51, "Error", told(pod.End{Code: 2, Time: at(51.2)}))),
			},
			"s0w1 was first: exit code 2; s0w0 stopped because of it",
		},
		"out of memory": {[]*corev1.Pod{object(0, 3, 0, exits(137, 51, "OOMKilled", ""))}, "s0w3 was first: the kernel killed it because memory was short (OOMKilled), exit code 137"},
		"a node was taken away": {
			[]*corev1.Pod{
				object(0, 0, 0, deleted(40), disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), exits(143, 45, "Error", "")),
				object(0, 1, 0, exits(1, 47, "Error", "")),
			},
			"s0w0 was first: the cluster took the pod away: DeletionByTaintManager: Taint manager: deleting due to NoExecute taint, exit code 143; s0w1 stopped because of it",
		},
		"evicted without statuses": {
			[]*corev1.Pod{object(0, 0, 0, func(o *corev1.Pod) {
				o.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: ephemeral-storage. "}
			})},
			"s0w0 was first: the node evicted the pod: The node was low on resource: ephemeral-storage, exit code 137",
		},
		"a command that cannot run": {
			[]*corev1.Pod{object(0, 0, 0, exits(127, 11, "Error", told(pod.End{Code: 127, Failure: `start "bash": no such file`, Time: at(11)})))},
			`s0w0 was first: exit code 127: start "bash": no such file`,
		},
		"the container was killed after the command's end": {
			[]*corev1.Pod{object(0, 0, 0, exits(137, 51, "Error", told(pod.End{Code: 0, Time: at(20)})))},
			"s0w0 was first: exit code 137",
		},
		"one of two containers": {
			[]*corev1.Pod{object(0, 0, 0, func(o *corev1.Pod) {
				exits(0, 51, "Completed", "")(o)
				o.Status.ContainerStatuses = append(o.Status.ContainerStatuses, *o.Status.ContainerStatuses[0].DeepCopy())
				o.Status.ContainerStatuses[1].State.Terminated.ExitCode = 5
			})},
			"s0w0 was first: exit code 5",
		},
		"deleted by hand": {[]*corev1.Pod{object(0, 1, 0, deleted(40), exits(143, 41, "Error", ""))}, "s0w1 was stopped first: exit code 143"},
	} {
		got := ""
		if f, ok := workload.Attempts(read(t, tt.pods...))[0].FirstFailure(); ok {
			got = f.String()
		}
		if got != tt.want {
			t.Errorf("%s: %s\nwant %s", name, got, tt.want)
		}
	}
}

// A pod that vanished without an exit code counts only if no other pod reports a failure.
func TestAPodThatIsGone(t *testing.T) {
	t.Parallel()
	pods := read(t, object(0, 0, 0), object(0, 1, 0))
	pods[0] = pods[0].Vanished(at(30))
	f, ok := workload.Attempts(pods)[0].FirstFailure()
	if want := "s0w0 was first: its pod is gone, and nothing tells how it ended"; !ok || f.String() != want {
		t.Errorf("%v, want %s", f, want)
	}
	pods[1] = read(t, object(0, 1, 0, exits(9, 35, "Error", "")))[0].Vanished(at(36))
	f, _ = workload.Attempts(pods)[0].FirstFailure()
	if want := "s0w1 was first: exit code 9; s0w0 stopped because of it"; f.String() != want {
		t.Errorf("%v, want %s", f, want)
	}
}

func TestAttemptsAreKeptApart(t *testing.T) {
	t.Parallel()
	again := func(uid string, seconds float64) func(*corev1.Pod) {
		return func(o *corev1.Pod) { o.UID, o.CreationTimestamp = types.UID(uid), stamp(seconds) }
	}
	pods := read(t,
		object(0, 1, 1), object(0, 0, 1), // after a restart
		object(0, 0, 0, exits(42, 50, "Error", "")), object(0, 1, 0, exits(143, 51, "Error", "")),
		object(0, 0, 1, again("n0", 300)), object(0, 1, 1, again("n1", 301)), // after Kueue took the quota and gave it back
		object(0, 1, 1, again("n2", 400)), // one pod was replaced
	)
	pods[0], pods[1] = pods[0].Vanished(at(200)), pods[1].Vanished(at(201))
	pods[5] = pods[5].Vanished(at(399))
	var got []string
	for _, a := range workload.Attempts(pods) {
		var uids []string
		for _, p := range a.Pods {
			uids = append(uids, p.UID)
		}
		got = append(got, fmt.Sprintf("%d after %d restarts: %s, replaced %s", a.Number, a.Restart, strings.Join(uids, " "), tpu.Fold(a.Replaced())))
	}
	want := []string{"1 after 0 restarts: u000 u010, replaced ", "2 after 1 restarts: u001 u011, replaced ", "3 after 1 restarts: n0 n1 n2, replaced s0w1"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestWhatAPodTells(t *testing.T) {
	t.Parallel()
	p := read(t, object(1, 2, 3, deleted(330)))[0]
	if want := (tpu.WorkerID{Slice: 1, Worker: 2}); p.Worker != want || p.Restart != 3 || p.Node != "n12" || !p.Started.Equal(at(310)) || !p.Deleting.Equal(at(330)) || !p.Ended.IsZero() || p.Failed() || p.Succeeded() {
		t.Errorf("%+v", p)
	}
	p = read(t, object(0, 0, 0, exits(0, 50, "Completed", "")))[0]
	if !p.Succeeded() || p.Failed() || !p.Ended.Equal(at(50)) {
		t.Errorf("%+v", p)
	}
	if _, ok := workload.PodOf(&corev1.Pod{}); ok {
		t.Error("a pod without labels is a worker")
	}
}

func TestWhatAFailedJobTells(t *testing.T) {
	t.Parallel()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "w2-slice-job-0", Labels: map[string]string{"jobset.sigs.k8s.io/job-index": "0", "jobset.sigs.k8s.io/restart-attempt": "1"}},
		Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{
			Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, Reason: "PodFailurePolicy", LastTransitionTime: stamp(60),
			Message: "Container jax-tpu for pod default/w2-slice-job-0-2-52pzt failed with exit code 1 matching FailJob rule at index 0",
		}}},
	}
	p, ok := workload.JobFailure(job)
	if !ok || p.Worker != (tpu.WorkerID{Worker: 2}) || p.Restart != 1 || p.Exit.String() != "exit code 1" {
		t.Errorf("%+v, %v", p, ok)
	}
	job.Status.Conditions[0].Message = "Job has reached the specified backoff limit"
	if p, ok := workload.JobFailure(job); ok {
		t.Errorf("%+v", p)
	}
}
