//go:build linux

package held

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	r := provision.Request{ID: "train", NodeCount: 2, Type: typeOf(t, "v5litepod-16"), Own: Settings{Queue: "q", Priority: "high", TTL: time.Hour, Lease: 90 * time.Minute}}
	r.Mark("train", "ann")
	js, err := jobSet(r, time.Unix(1000, 0))
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
		{"settings", js.Annotations[annotationMade], "2 slices of v5litepod-16, image python:3.12, --ttl=1h00m, --lease=1h30m"},
		{"end", endOf(js).Unix(), int64(4600)},
		{"arguments of the program", strings.Join(pod.Containers[0].Command[4:], " "), "4600 5400"},
		{"lease", leaseOf(js), 90 * time.Minute},
		{"deleted after its end", *js.Spec.TTLSecondsAfterFinished, int32(tellEnd)},
		{"comments in the program", strings.Contains(pod.Containers[0].Command[2], "\n#"), false},
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
		_, err := jobSet(provision.Request{ID: tt.id, NodeCount: 2, Type: typeOf(t, tt.kind)}, time.Time{})
		if err == nil || !strings.Contains(err.Error(), tt.want) || fault.Of(err) != fault.Usage {
			t.Errorf("%s, %s: %v (%s), want %q", tt.id, tt.kind, err, fault.Of(err), tt.want)
		}
	}
	if _, err := jobSet(provision.Request{ID: strings.Repeat("x", 53), NodeCount: 2, Type: typeOf(t, "v5litepod-16")}, time.Time{}); err != nil {
		t.Errorf("the longest name: %v", err)
	}
}

// worker returns the pod of a worker.
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
	js, err := jobSet(provision.Request{ID: "t", NodeCount: 1, Type: typeOf(t, "v5litepod-8")}, time.Time{})
	testkit.Must(t, err)
	js.UID = "u"
	w0, w1 := worker("0", "0", "a", nil), worker("0", "1", "b", nil)
	pending := worker("0", "1", "b", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}}
	})
	ended := worker("0", "1", "b", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	done := worker("0", "1", "b", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Unix(4600, 0)}}}}}
	})
	complete := func(js *jobset.JobSet) {
		js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetCompleted), Status: metav1.ConditionTrue, Message: "jobset completed successfully"}}
	}
	leaving := worker("0", "1", "b", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	for _, tt := range []struct {
		name    string
		change  func(*jobset.JobSet)
		pods    []corev1.Pod
		life    provision.Life
		state   string
		slice   tpu.Condition
		failure string
		by      string
	}{
		{name: "just made", life: provision.Requested, state: "Starting"},
		{name: "waits in a queue", change: func(js *jobset.JobSet) { js.Spec.Suspend = new(true) }, life: provision.Waiting, state: "Suspended"},
		{name: "some pods", pods: []corev1.Pod{w0, pending}, life: provision.Provisioning, state: "Starting", slice: tpu.Making, failure: "pod b: 0/3 nodes are available"},
		{name: "between two pods", change: func(js *jobset.JobSet) { js.Status.Restarts = 1 }, life: provision.Recovering, state: "Restarting", slice: tpu.Making},
		{name: "all pods run", pods: []corev1.Pod{w1, w0}, life: provision.Active, state: "Running", slice: tpu.Usable},
		{name: "a pod has ended", pods: []corev1.Pod{w0, ended}, life: provision.Provisioning, state: "Starting", slice: tpu.Making},
		{name: "a pod is being deleted", pods: []corev1.Pod{w0, leaving}, life: provision.Provisioning, state: "Starting", slice: tpu.Making},
		{name: "made again", change: func(js *jobset.JobSet) { js.Status.Restarts = 1 }, pods: []corev1.Pod{w0}, life: provision.Recovering, state: "Restarting", slice: tpu.Making},
		{name: "a pod was not used", pods: []corev1.Pod{w0, done}, life: provision.Suspending, state: "Ending", slice: tpu.Ill, by: "--lease"},
		{name: "the time is over", pods: []corev1.Pod{w0, done}, life: provision.Suspending, state: "Ending", slice: tpu.Ill, by: "--ttl",
			change: func(js *jobset.JobSet) { js.Annotations[annotationEnd] = "1970-01-01T01:16:40Z" }},
		{name: "all pods have ended", change: complete, pods: []corev1.Pod{done}, life: provision.Suspended, state: "Ended", by: "--lease"},
		{name: "failed", change: func(js *jobset.JobSet) {
			js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetFailed), Status: metav1.ConditionTrue, Message: "jobset failed due to reaching max number of restarts"}}
		}, life: provision.Failed, state: "Failed", failure: "jobset failed due to reaching max number of restarts"},
		{name: "failed in the end", change: func(js *jobset.JobSet) {
			js.Status.Restarts, js.Status.TerminalState = mostRestart, string(jobset.JobSetFailed)
		}, pods: []corev1.Pod{ended}, life: provision.Failed, state: "Failed", slice: tpu.Making},
		{name: "being deleted", change: func(js *jobset.JobSet) { js.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, pods: []corev1.Pod{w0, w1}, life: provision.Deleting, state: "Deleting", slice: tpu.Leaving},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := js.DeepCopy()
			if tt.change != nil {
				tt.change(now)
			}
			res := describe(now, tt.pods, provision.Commands{})
			if res.Life != tt.life || res.State != tt.state || res.Failure != tt.failure || !strings.Contains(res.By, tt.by) || (res.By == "") != (tt.by == "") {
				t.Errorf("got %s, %q, %q, by %q", res.Life, res.State, res.Failure, res.By)
			}
			if tt.slice == "" {
				if len(res.Slices) != 0 {
					t.Errorf("slices %+v", res.Slices)
				}
				return
			}
			s := res.Slices[0]
			if again := tt.life != provision.Deleting && tt.life != provision.Failed; s.Remade != again {
				t.Errorf("made again %t, want %t", s.Remade, again)
			}
			if s.Condition != tt.slice || s.Name != "t-0" || (s.Condition == tpu.Usable) != (len(s.Workers) == 2 && s.Workers[0].Name == "a") && tt.slice != tpu.Leaving && tt.slice != tpu.Ill {
				t.Errorf("got slice %+v", s)
			}
		})
	}
}

// When one of its pods is replaced, a slice gets another UID.
func TestANewPodMakesAnotherSlice(t *testing.T) {
	js, err := jobSet(provision.Request{ID: "t", NodeCount: 1, Type: typeOf(t, "v5litepod-8")}, time.Time{})
	testkit.Must(t, err)
	w0, w1 := worker("0", "0", "a", nil), worker("0", "1", "b", nil)
	before := describe(js, []corev1.Pod{w0, w1}, provision.Commands{}).Slices[0].UID
	w1.Status.Phase = corev1.PodSucceeded // the other pod continues to run
	if after := describe(js, []corev1.Pod{w0, w1}, provision.Commands{}).Slices[0].UID; after != before {
		t.Errorf("the UID becomes %q when a pod has ended", after)
	}
	w1.UID = "uid-1"
	if after := describe(js, []corev1.Pod{w0, w1}, provision.Commands{}).Slices[0].UID; after == before || before == "" {
		t.Errorf("the UID stays %q", after)
	}
}

// The age of a slice is that of its pods, not of its JobSet. Otherwise gc could take a new
// slice for an unused old one.
func TestASliceIsAsYoungAsItsPods(t *testing.T) {
	js, err := jobSet(provision.Request{ID: "t", NodeCount: 1, Type: typeOf(t, "v5litepod-8")}, time.Time{})
	testkit.Must(t, err)
	js.CreationTimestamp = metav1.Unix(1000, 0)
	at := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(seconds, 0) }
	}
	s := describe(js, []corev1.Pod{worker("0", "0", "a", at(9000)), worker("0", "1", "b", at(8000))}, provision.Commands{}).Slices[0]
	if s.Created.Unix() != 9000 || s.Billed.Unix() != 8000 {
		t.Errorf("made at %d, billed since %d", s.Created.Unix(), s.Billed.Unix())
	}
	js.Status.Restarts = 1
	if s := describe(js, nil, provision.Commands{}).Slices[0]; s.Created.Unix() != 1000 || !s.Billed.IsZero() {
		t.Errorf("between two pods: made at %v, billed since %v", s.Created, s.Billed)
	}
}

// A holderRun is a running holder.sh. root replaces the root directory of the pod.
type holderRun struct {
	*exec.Cmd
	root string
}

func startHolder(t *testing.T, until, lease int64) holderRun {
	t.Helper()
	h := holderRun{exec.Command("bash", "-c", holder(), "holder", strconv.FormatInt(until, 10), strconv.FormatInt(lease, 10)), t.TempDir()}
	testkit.Must(t, os.MkdirAll(filepath.Join(h.root, "tmp", ".multihost"), 0o700))
	h.Env, h.SysProcAttr = append(os.Environ(), "MULTIHOST_ROOT_TMP="+h.root), &syscall.SysProcAttr{Setpgid: true}
	testkit.Must(t, h.Start())
	t.Cleanup(func() { _ = syscall.Kill(-h.Process.Pid, syscall.SIGKILL) }) // a pod would end its children
	return h
}

// waits returns when the program sleeps. By then it has set its signal handler.
func (h holderRun) waits(t *testing.T) {
	t.Helper()
	file := fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", h.Process.Pid)
	testkit.Eventually(t, "the program to wait", func() bool {
		children, err := os.ReadFile(file)
		var sleeper int
		n, _ := fmt.Sscan(string(children), &sleeper)
		return err == nil && n == 1
	})
}

// command starts a command that holds the lock of the pod, as the commands of runs do.
func (h holderRun) command(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	index := filepath.Join(h.root, "tmp", ".multihost")
	cmd := exec.Command("bash", "-c", `exec 9>"$0/lock"; flock 9; read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ start _ <"/proc/$$/stat"
echo "started=$$ $start 1" >"$0/0-r-1.run.new"; mv "$0/0-r-1.run.new" "$0/0-r-1.run"; `+script, index)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	testkit.Must(t, cmd.Start())
	testkit.Eventually(t, "the command", func() bool {
		_, err := os.Stat(filepath.Join(index, "0-r-1.run"))
		return err == nil
	})
	return cmd
}

func (h holderRun) ends(t *testing.T, want int) {
	t.Helper()
	_ = h.Wait() // ProcessState has the exit code
	if code := h.ProcessState.ExitCode(); code != want {
		t.Errorf("it ended with %v, want %d", h.ProcessState, want)
	}
}

// A pod that gets SIGTERM ends with an error, because Kubernetes would not replace a pod that
// ended with 0.
func TestHolderEndsOnSIGTERM(t *testing.T) {
	t.Parallel()
	h := startHolder(t, 0, 0)
	h.waits(t)
	testkit.Must(t, h.Process.Signal(syscall.SIGTERM))
	h.ends(t, 143)
}

// Before it ends, the pod gives the command time to end. It waits no longer than the command
// takes.
func TestHolderEndsCommandsFirst(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		after int64 // seconds from now until the end; 0: SIGTERM ends it
		want  int
	}{{0, 143}, {2, 0}} {
		until := tt.after
		if until > 0 {
			until += time.Now().Unix()
		}
		h := startHolder(t, until, 0)
		h.waits(t)
		cmd := h.command(t, `trap 'echo saved >"$0/saved"; exit' TERM; while :; do sleep 0.05; done`)
		if tt.after == 0 {
			testkit.Must(t, h.Process.Signal(syscall.SIGTERM))
		}
		h.ends(t, tt.want)
		_ = cmd.Wait()
		if text, err := os.ReadFile(filepath.Join(h.root, "tmp", ".multihost", "saved")); err != nil || string(text) != "saved\n" {
			t.Errorf("after %d s: the command has left %q, %v", tt.after, text, err)
		}
	}
}

func TestHolderEndsAtItsTime(t *testing.T) {
	t.Parallel()
	startHolder(t, 1, 3600).ends(t, 0)
}

// A pod that nobody uses ends. A running command and Renew count as use.
func TestHolderEndsWithoutUse(t *testing.T) {
	t.Parallel()
	h := startHolder(t, 0, 1)
	cmd := h.command(t, "exec sleep 2")
	begin := time.Now()
	h.ends(t, 0)
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("it ended after %v, beside a command that took 2 s", took)
	}
	_ = cmd.Wait()

	h = startHolder(t, 0, 1)
	over := time.Now().Add(2500 * time.Millisecond)
	for time.Now().Before(over) {
		renew := exec.Command("bash", "-c", Renew)
		renew.Env = h.Env
		testkit.Must(t, renew.Run())
		<-time.After(100 * time.Millisecond)
	}
	if err := h.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("it has ended although it was used: %v", err)
	}
	h.ends(t, 0)
}
