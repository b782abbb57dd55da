//go:build linux

package held

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/fault"
	"multihost/internal/provision"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

func typeOf(t *testing.T, name string) tpu.Type {
	t.Helper()
	ty, err := tpu.ParseType(name)
	testkit.Must(t, err)
	return ty
}

func TestJobSet(t *testing.T) {
	r := provision.Request{ID: "train", NodeCount: 2, Type: typeOf(t, "v5litepod-16"), Own: Settings{Queue: "q", Priority: "high"}}
	r.Mark("train", "ann")
	js, err := jobSet(r)
	testkit.Must(t, err)
	job := js.Spec.ReplicatedJobs[0]
	pod := job.Template.Spec.Template.Spec
	limit := pod.Containers[0].Resources.Limits["google.com/tpu"]
	for _, tt := range []struct {
		what      string
		got, want any
	}{
		{"slices", job.Replicas, int32(2)},
		{"pods of a slice", *job.Template.Spec.Completions, int32(4)},
		{"pods at once", *job.Template.Spec.Parallelism, int32(4)},
		{"chips", limit.String(), "4"},
		{"accelerator", pod.NodeSelector["cloud.google.com/gke-tpu-accelerator"], "tpu-v5-lite-podslice"},
		{"topology", pod.NodeSelector["cloud.google.com/gke-tpu-topology"], "4x4"},
		{"one slice a pool", js.Annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"], "cloud.google.com/gke-nodepool"},
		{"queue", js.Labels["kueue.x-k8s.io/queue-name"], "q"},
		{"priority", pod.PriorityClassName, "high"},
		{"owner", js.Labels[provision.LabelUser], "ann"},
		{"image", pod.Containers[0].Image, Image},
		{"network of the node", pod.HostNetwork, true},
		{"restarts", js.Spec.FailurePolicy.MaxRestarts, int32(mostRestart)},
		{"comments in the program", strings.Contains(pod.Containers[0].Command[2], "#"), false},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %v, want %v", tt.what, tt.got, tt.want)
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	for _, tt := range []struct{ id, kind, want string }{
		{"train", "v2-8", "no node pools"},
		{"Train", "v5litepod-16", "lower-case letters"},
		{"train-", "v5litepod-16", "lower-case letters"},
		{strings.Repeat("x", 54), "v5litepod-16", "it is 1 letters too long: the host names"},
	} {
		_, err := jobSet(provision.Request{ID: tt.id, NodeCount: 2, Type: typeOf(t, tt.kind)})
		if err == nil || !strings.Contains(err.Error(), tt.want) || fault.Of(err) != fault.Usage {
			t.Errorf("%s, %s: %v (%s), want %q", tt.id, tt.kind, err, fault.Of(err), tt.want)
		}
	}
	if _, err := jobSet(provision.Request{ID: strings.Repeat("x", 53), NodeCount: 2, Type: typeOf(t, "v5litepod-16")}); err != nil {
		t.Errorf("the longest name: %v", err)
	}
}

// worker is the pod of a worker.
func worker(slice, index, name string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-0", Labels: map[string]string{
		jobset.JobIndexKey: slice, "batch.kubernetes.io/job-completion-index": index}}}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}
	if change != nil {
		change(&p)
	}
	return p
}

func TestLives(t *testing.T) {
	js, err := jobSet(provision.Request{ID: "t", NodeCount: 1, Type: typeOf(t, "v5litepod-8")})
	testkit.Must(t, err)
	js.UID = "u"
	w0, w1 := worker("0", "0", "a", nil), worker("0", "1", "b", nil)
	pending := worker("0", "1", "b", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}}
	})
	ended := worker("0", "1", "b", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	leaving := worker("0", "1", "b", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	for _, tt := range []struct {
		name    string
		change  func(*jobset.JobSet)
		pods    []corev1.Pod
		life    provision.Life
		state   string
		slice   tpu.Condition
		failure string
	}{
		{name: "just made", life: provision.Requested, state: "Starting"},
		{name: "waits in a queue", change: func(js *jobset.JobSet) { js.Spec.Suspend = new(true) }, life: provision.Waiting, state: "Suspended"},
		{name: "some pods", pods: []corev1.Pod{w0, pending}, life: provision.Provisioning, state: "Starting", slice: tpu.Making, failure: "pod b: 0/3 nodes are available"},
		{name: "all pods run", pods: []corev1.Pod{w1, w0}, life: provision.Active, state: "Running", slice: tpu.Usable},
		{name: "a pod has ended", pods: []corev1.Pod{w0, ended}, life: provision.Provisioning, state: "Starting", slice: tpu.Making},
		{name: "a pod is being deleted", pods: []corev1.Pod{w0, leaving}, life: provision.Provisioning, state: "Starting", slice: tpu.Making},
		{name: "made again", change: func(js *jobset.JobSet) { js.Status.Restarts = 1 }, pods: []corev1.Pod{w0}, life: provision.Recovering, state: "Restarting", slice: tpu.Making},
		{name: "failed", change: func(js *jobset.JobSet) {
			js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetFailed), Status: metav1.ConditionTrue, Message: "jobset failed due to reaching max number of restarts"}}
		}, life: provision.Failed, state: "Failed", failure: "jobset failed due to reaching max number of restarts"},
		{name: "being deleted", change: func(js *jobset.JobSet) { js.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, pods: []corev1.Pod{w0, w1}, life: provision.Deleting, state: "Deleting", slice: tpu.Leaving},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := js.DeepCopy()
			if tt.change != nil {
				tt.change(now)
			}
			res := describe(now, tt.pods, provision.Commands{})
			if res.Life != tt.life || res.State != tt.state || res.Failure != tt.failure {
				t.Errorf("got %s, %q, %q", res.Life, res.State, res.Failure)
			}
			if tt.slice == "" {
				if len(res.Slices) != 0 {
					t.Errorf("slices %+v", res.Slices)
				}
				return
			}
			s := res.Slices[0]
			if s.Condition != tt.slice || s.Name != "t-0" || (s.Condition == tpu.Usable) != (len(s.Workers) == 2 && s.Workers[0].Name == "a") && tt.slice != tpu.Leaving {
				t.Errorf("got slice %+v", s)
			}
		})
	}
}

// The UID of a slice changes with any of its pods.
func TestANewPodMakesAnotherSlice(t *testing.T) {
	js, err := jobSet(provision.Request{ID: "t", NodeCount: 1, Type: typeOf(t, "v5litepod-8")})
	testkit.Must(t, err)
	w0, w1 := worker("0", "0", "a", nil), worker("0", "1", "b", nil)
	before := describe(js, []corev1.Pod{w0, w1}, provision.Commands{}).Slices[0].UID
	w1.UID = "uid-1"
	if after := describe(js, []corev1.Pod{w0, w1}, provision.Commands{}).Slices[0].UID; after == before || before == "" {
		t.Errorf("the UID stays %q", after)
	}
}

// The pods' program ends at once on SIGTERM.
func TestHolder(t *testing.T) {
	cmd := exec.Command("bash", "-c", holder())
	testkit.Must(t, cmd.Start())
	file := fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", cmd.Process.Pid)
	var sleeper int
	testkit.Eventually(t, "the program to wait", func() bool { // by then it has set its trap
		children, err := os.ReadFile(file)
		n, _ := fmt.Sscan(string(children), &sleeper)
		return err == nil && n == 1
	})
	testkit.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()                             // the state says all
	_ = syscall.Kill(sleeper, syscall.SIGKILL) // in a pod it ends with process 1
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
}
