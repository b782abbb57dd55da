package workloads_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"multihost/internal/event"
	"multihost/internal/kube"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/testkit"
	"multihost/internal/workload"
	"multihost/internal/workloads"
)

// outputs keep what Follow copies, by "attempt worker".
type outputs struct {
	mu  sync.Mutex
	all map[string]*testkit.Buffer
}

func (o *outputs) open(attempt int, p workload.Pod, _ string) (io.WriteCloser, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := fmt.Sprintf("%d %s", attempt, p.Worker)
	if o.all[name] != nil {
		return nil, fmt.Errorf("%s is opened twice", name)
	}
	o.all[name] = &testkit.Buffer{}
	return nopCloser{o.all[name]}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (o *outputs) texts() map[string]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string]string{}
	for name, b := range o.all {
		all[name] = b.String()
	}
	return all
}

// submit makes a workload of two slices of two workers, on existing node pools.
func submit(t *testing.T, c *workloads.Cluster, s *kubeapi.Server, change func(*workload.Spec)) *jobset.JobSet {
	t.Helper()
	for i := range 2 {
		var nodes []kubeapi.Node
		for j := range 2 {
			nodes = append(nodes, kubeapi.Node{Name: fmt.Sprintf("n%d%d", i, j), Chips: 4, Labels: map[string]string{
				"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "2x4",
			}})
		}
		testkit.Must(t, s.SetPool(fmt.Sprintf("c-np-%d", i), nodes))
	}
	r := request("w")
	r.Spec.Queue, r.Spec.Priority, r.Spec.Grace = "", "", 20
	change(&r.Spec)
	js, err := c.Create(t.Context(), r)
	testkit.Must(t, err)
	return js
}

func TestFollowToSuccess(t *testing.T) {
	t.Parallel()
	c, s, _ := cluster(t)
	submit(t, c, s, func(spec *workload.Spec) {
		spec.Command = `echo "process $MULTIHOST_PROCESS_ID of $MULTIHOST_NUM_PROCESSES in attempt $MULTIHOST_ATTEMPT"; head -c 300000 /dev/zero | tr '\0' x; printf end`
	})
	o := &outputs{all: map[string]*testkit.Buffer{}}
	got, err := c.Follow(t.Context(), "w", workloads.FollowOptions{Output: o.open, Look: 50 * time.Millisecond})
	if err != nil || got.Code() != 0 || got.State != workload.Succeeded || len(got.Incomplete) != 0 || len(got.Attempts) != 1 || got.String() != "succeeded" {
		t.Errorf("%+v, %v", got, err)
	}
	texts := o.texts()
	for i, name := range []string{"1 s0w0", "1 s0w1", "1 s1w0", "1 s1w1"} {
		if want := fmt.Sprintf("process %d of 4 in attempt 1\n%send", i, strings.Repeat("x", 300000)); texts[name] != want {
			t.Errorf("%s: %d bytes, want %d", name, len(texts[name]), len(want))
		}
	}
}

// Output may still come after the workload has ended. Follow must not report then that the
// command runs.
func TestNobodyIsToldThatAnEndedCommandRuns(t *testing.T) {
	t.Parallel()
	c, s, said := cluster(t)
	js := submit(t, c, s, func(spec *workload.Spec) { spec.Command = "true" })
	js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetCompleted), Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	c.Explain(t.Context(), js, "a reason")
	if said.Said(event.Info, "the command runs on all workers") {
		t.Error("the command is said to run")
	}
}

// One worker fails, and the cluster deletes the pods of the others. Their last bytes still
// arrive, because their agents wait for the follower.
func TestFollowToAFailure(t *testing.T) {
	t.Parallel()
	c, s, _ := cluster(t)
	submit(t, c, s, func(spec *workload.Spec) {
		spec.Command = `echo up; if [[ $MULTIHOST_PROCESS_ID == 2 ]]; then while [[ ! -e $MULTIHOST_ROOT_TMP/go ]]; do sleep 0.02; done; echo failing; exit 3; fi; trap 'echo last words; exit 1' TERM; while :; do sleep 0.02 2>/dev/null; done 2>/dev/null`
	})
	o := &outputs{all: map[string]*testkit.Buffer{}}
	workers := []string{"1 s0w0", "1 s0w1", "1 s1w0", "1 s1w1"}
	done := make(chan error, 1)
	var got workloads.Outcome
	go func() {
		var err error
		got, err = c.Follow(t.Context(), "w", workloads.FollowOptions{Output: o.open})
		done <- err
	}()
	for _, name := range workers {
		testkit.Eventually(t, "output of "+name, func() bool { return o.texts()[name] == "up\n" })
	}
	pods, _, err := kube.Pods.In(c.Client, "").List(t.Context(), kube.ListOptions{Labels: "jobset.sigs.k8s.io/job-index=1,batch.kubernetes.io/job-completion-index=0"})
	testkit.Must(t, err)
	if code, err := c.Exec(t.Context(), &pods[0], []string{"bash", "-c", "touch $MULTIHOST_ROOT_TMP/go"}); err != nil || code != 0 {
		t.Fatal(code, err)
	}
	err = <-done
	if err != nil || got.State != workload.Failed || got.Code() != 3 || len(got.Incomplete) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if !strings.HasPrefix(got.String(), "failed: s1w0 was first: exit code 3") {
		t.Errorf("%s", got)
	}
	texts := o.texts()
	for _, name := range workers {
		want := "up\nlast words\n"
		if name == "1 s1w0" {
			want = "up\nfailing\n"
		}
		if texts[name] != want {
			t.Errorf("%s: %q, want %q", name, texts[name], want)
		}
	}
}

func TestFollowThroughARestart(t *testing.T) {
	t.Parallel()
	c, s, said := cluster(t)
	submit(t, c, s, func(spec *workload.Spec) {
		spec.MaxRestarts = 1
		spec.Command = `echo "attempt $MULTIHOST_ATTEMPT"; if [[ $MULTIHOST_ATTEMPT == 1 && $MULTIHOST_PROCESS_ID == 1 ]]; then exit 42; fi; [[ $MULTIHOST_ATTEMPT == 2 ]] || sleep 1000`
	})
	o := &outputs{all: map[string]*testkit.Buffer{}}
	got, err := c.Follow(t.Context(), "w", workloads.FollowOptions{Output: o.open})
	if err != nil || got.Code() != 0 || len(got.Attempts) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if f, ok := got.Attempts[0].FirstFailure(); !ok || !strings.HasPrefix(f.String(), "s0w1 was first: exit code 42") {
		t.Errorf("%v", f)
	}
	for name, text := range o.texts() {
		if want := "attempt " + name[:1] + "\n"; text != want {
			t.Errorf("%s: %q, want %q", name, text, want)
		}
	}
	for _, name := range []string{"1 s0w1", "2 s0w0", "2 s0w1", "2 s1w0", "2 s1w1"} {
		if !slices.Contains(slices.Collect(maps.Keys(o.all)), name) {
			t.Errorf("there is no output of %s", name)
		}
	}
	if !said.Said(event.Warn, "the cluster restarts the workload (restart 1 of 1): s0w1 was first: exit code 42") {
		t.Errorf("%v", said.Notes())
	}
}

func TestFollowAWorkloadThatIsDeleted(t *testing.T) {
	t.Parallel()
	c, s, said := cluster(t)
	js := submit(t, c, s, func(spec *workload.Spec) { spec.Command, spec.Slices = "echo up; exec sleep 1000", 3 })
	o := &outputs{all: map[string]*testkit.Buffer{}}
	done := make(chan error, 1)
	var got workloads.Outcome
	go func() {
		var err error
		got, err = c.Follow(t.Context(), "w", workloads.FollowOptions{Output: o.open, Look: 20 * time.Millisecond})
		done <- err
	}()
	testkit.Eventually(t, "output", func() bool { return o.texts()["1 s0w0"] == "up\n" })
	testkit.Eventually(t, "the reason of the wait", func() bool { return said.Said(event.Warn, "waiting: no node is free for s2w0") })
	testkit.Must(t, c.Delete(t.Context(), js.Name))
	if err := <-done; err != nil || got.State != workload.Leaving || got.Code() == 0 || got.String() != "somebody has deleted the workload" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Follow reports who has stopped the workload. Stop does not delete a newer workload of the same
// name.
func TestStopSaysWho(t *testing.T) {
	t.Parallel()
	c, s, _ := cluster(t)
	submit(t, c, s, func(spec *workload.Spec) { spec.Command = "echo up; exec sleep 1000" })
	w, err := c.Find(t.Context(), "w")
	testkit.Must(t, err)
	other := *w
	other.UID = "another"
	testkit.Must(t, workloads.Stop(t.Context(), c, &other, "nobody"))
	o := &outputs{all: map[string]*testkit.Buffer{}}
	done := make(chan error, 1)
	var got workloads.Outcome
	go func() {
		var err error
		got, err = c.Follow(t.Context(), "w", workloads.FollowOptions{Output: o.open})
		done <- err
	}()
	testkit.Eventually(t, "output", func() bool { return o.texts()["1 s0w0"] == "up\n" })
	testkit.Must(t, workloads.Stop(t.Context(), c, w, "multihost stop, by ann@desk"))
	if err := <-done; err != nil || got.State != workload.Leaving || got.Stopped != "multihost stop, by ann@desk" || got.String() != "stopped: multihost stop, by ann@desk" {
		t.Errorf("%+v, %v", got, err)
	}
}

// If Follow is canceled, the workload runs on.
func TestAFollowerThatGoes(t *testing.T) {
	t.Parallel()
	c, s, _ := cluster(t)
	submit(t, c, s, func(spec *workload.Spec) { spec.Command = "echo up; exec sleep 1000" })
	ctx, cancel := context.WithCancelCause(t.Context())
	o := &outputs{all: map[string]*testkit.Buffer{}}
	done := make(chan error, 1)
	go func() {
		_, err := c.Follow(ctx, "w", workloads.FollowOptions{Output: o.open})
		done <- err
	}()
	testkit.Eventually(t, "output", func() bool { return o.texts()["1 s1w1"] == "up\n" })
	gone := errors.New("detached")
	cancel(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	if st, err := c.Status(t.Context(), "w"); err != nil || st.State == workload.Failed {
		t.Errorf("%+v, %v", st, err)
	}
}

// The cluster's API goes away and comes back, and connections to pods break. Each byte arrives
// exactly once.
func TestFollowThroughAnOutage(t *testing.T) {
	t.Parallel()
	c, s, said := cluster(t)
	submit(t, c, s, func(spec *workload.Spec) {
		spec.Command = `i=0; while [[ ! -e $MULTIHOST_ROOT_TMP/go ]]; do echo "line $((i++))"; sleep 0.01; done; echo end`
	})
	o := &outputs{all: map[string]*testkit.Buffer{}}
	done := make(chan error, 1)
	var got workloads.Outcome
	go func() {
		var err error
		got, err = c.Follow(t.Context(), "w", workloads.FollowOptions{Output: o.open})
		done <- err
	}()
	workers := []string{"1 s0w0", "1 s0w1", "1 s1w0", "1 s1w1"}
	all := func(line string) func() bool {
		return func() bool {
			texts := o.texts()
			return !slices.ContainsFunc(workers, func(w string) bool { return !strings.Contains(texts[w], line) })
		}
	}
	testkit.Eventually(t, "the first lines", all("line 5\n"))
	testkit.Must(t, s.SetAway(true))
	s.CutExecs()
	testkit.Eventually(t, "the outage", func() bool { return said.Said(event.Warn, "the cluster does not answer") })
	testkit.Must(t, s.SetAway(false))
	testkit.Eventually(t, "the end of the outage", func() bool { return said.Said(event.Info, "the cluster answers") })
	pods, _, err := kube.Pods.In(c.Client, "").List(t.Context(), kube.ListOptions{})
	testkit.Must(t, err)
	for i := range pods {
		if code, err := c.Exec(t.Context(), &pods[i], []string{"bash", "-c", "touch $MULTIHOST_ROOT_TMP/go"}); err != nil || code != 0 {
			t.Fatal(code, err)
		}
	}
	if err := <-done; err != nil || got.Code() != 0 || len(got.Incomplete) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	for name, text := range o.texts() {
		lines := strings.Split(text, "\n")
		for i, line := range lines[:len(lines)-2] {
			if line != fmt.Sprintf("line %d", i) {
				t.Errorf("%s: line %d is %q", name, i, line)
				break
			}
		}
		if !strings.HasSuffix(text, "\nend\n") {
			t.Errorf("%s does not end", name)
		}
	}
}

// Kueue takes the quota of a workload for a more important one, and gives it back. That is
// another attempt, but no restart.
func TestFollowThroughAPreemption(t *testing.T) {
	t.Parallel()
	c, s, said := cluster(t)
	queueing(t, c)
	_, err := kube.PriorityClasses.In(c.Client, "").Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 750}, kube.WriteOptions{})
	testkit.Must(t, err)
	_, err = kube.ResourceFlavors.In(c.Client, "").Create(t.Context(), &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "2xv5litepod-8"}, Spec: kueue.ResourceFlavorSpec{
		NodeLabels: map[string]string{"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "2x4"},
	}}, kube.WriteOptions{})
	testkit.Must(t, err)
	_, err = kube.ClusterQueues.In(c.Client, "").Create(t.Context(), &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "cluster-queue"}, Spec: kueue.ClusterQueueSpec{
		NamespaceSelector: &metav1.LabelSelector{}, Preemption: &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerPriority, ReclaimWithinCohort: kueue.PreemptionPolicyNever},
		ResourceGroups: []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{"google.com/tpu"}, Flavors: []kueue.FlavorQuotas{{
			Name: "2xv5litepod-8", Resources: []kueue.ResourceQuota{{Name: "google.com/tpu", NominalQuota: resource.MustParse("16")}},
		}}}},
	}}, kube.WriteOptions{})
	testkit.Must(t, err)
	submit(t, c, s, func(spec *workload.Spec) {
		spec.Queue, spec.Priority = workload.DefaultQueue, "medium"
		spec.Command = `echo up; trap "echo saved; exit 0" TERM; while [[ ! -e $MULTIHOST_ROOT_TMP/go ]]; do sleep 0.02 2>/dev/null; done 2>/dev/null`
	})
	o := &outputs{all: map[string]*testkit.Buffer{}}
	done := make(chan error, 1)
	var got workloads.Outcome
	go func() {
		var err error
		got, err = c.Follow(t.Context(), "w", workloads.FollowOptions{Output: o.open, Look: 50 * time.Millisecond})
		done <- err
	}()
	up := func(attempt int) func() bool {
		return func() bool {
			texts := o.texts()
			return !slices.ContainsFunc([]string{"s0w0", "s0w1", "s1w0", "s1w1"}, func(w string) bool {
				return !strings.HasPrefix(texts[fmt.Sprint(attempt, " ", w)], "up\n")
			})
		}
	}
	testkit.Eventually(t, "the first attempt", up(1))
	other := request("big")
	other.Spec.Priority, other.Spec.Command = "high", "exec sleep 1000"
	_, err = c.Create(t.Context(), other)
	testkit.Must(t, err)
	testkit.Eventually(t, "why it waits", func() bool {
		return said.Said(event.Warn, "waiting: it was preempted by big (priority high), and waits again: 16 more of google.com/tpu must become free in 2xv5litepod-8, which big (priority high) with 16 holds")
	})
	testkit.Must(t, c.Delete(t.Context(), "big"))
	testkit.Eventually(t, "the second attempt", up(2))
	pods, _, err := kube.Pods.In(c.Client, "").List(t.Context(), kube.ListOptions{Labels: workload.LabelWorkload + "=w"})
	testkit.Must(t, err)
	for i := range pods {
		if code, err := c.Exec(t.Context(), &pods[i], []string{"bash", "-c", "touch $MULTIHOST_ROOT_TMP/go"}); err != nil || code != 0 {
			t.Fatal(code, err)
		}
	}
	if err := <-done; err != nil || got.Code() != 0 || len(got.Attempts) != 2 || got.Attempts[1].Restart != 0 || len(got.Incomplete) != 0 {
		t.Errorf("%+v, %v, %d attempts, not whole: %v", got, err, len(got.Attempts), got.Incomplete)
	}
	if text := o.texts()["1 s0w1"]; text != "up\nsaved\n" {
		t.Errorf("the first attempt of s0w1 wrote %q", text)
	}
}
