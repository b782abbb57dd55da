package workloads_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"multihost/internal/agent/pod"
	"multihost/internal/agent/program"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/kube"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/testkit"
	"multihost/internal/testkit/builtagent"
	"multihost/internal/tpu"
	"multihost/internal/workload"
	"multihost/internal/workloads"
)

// cluster starts a simulated cluster.
func cluster(t *testing.T) (*workloads.Cluster, *kubeapi.Server, *testkit.Recorder) {
	t.Helper()
	dir := testkit.SharedDir(t)
	s, err := kubeapi.New(kubeapi.Config{Dir: dir, Programs: map[string]string{"multihost-agent": agentFile(t)}})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	said := &testkit.Recorder{}
	client, err := kube.New(kube.Config{Server: s.URL(), CA: s.CA(), Token: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"}), Sink: said, MaxRetry: time.Second})
	testkit.Must(t, err)
	t.Cleanup(client.Close)
	return &workloads.Cluster{Client: client, Name: "c", Flags: "--cluster=c", Sink: said}, s, said
}

func request(name string) workloads.Request {
	ty, err := tpu.ParseType("v5litepod-8")
	if err != nil {
		panic(err)
	}
	return workloads.Request{ID: "id-" + name, Spec: workload.Spec{
		Name: name, Slices: 2, Type: ty, Command: "echo hello", Image: "example.com/p/train:v1",
		Queue: workload.DefaultQueue, Priority: workload.DefaultPriority, TTL: workload.DefaultTTL, Grace: 1,
		Labels: map[string]string{"multihost-user": "ann"},
	}}
}

// start makes the pod of a worker, as the controllers of JobSet and Job do.
func start(t *testing.T, c *workloads.Cluster, js *jobset.JobSet, w tpu.WorkerID, restart int) *corev1.Pod {
	t.Helper()
	template := js.Spec.ReplicatedJobs[0].Template.Spec.Template.DeepCopy()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("%s-slice-job-%d-%d-x%d", js.Name, w.Slice, w.Worker, restart), Labels: template.Labels,
		Annotations: map[string]string{"batch.kubernetes.io/job-completion-index": fmt.Sprint(w.Worker)},
	}, Spec: template.Spec}
	for key, value := range map[string]string{
		jobset.JobSetNameKey: js.Name, jobset.JobIndexKey: fmt.Sprint(w.Slice), "jobset.sigs.k8s.io/restart-attempt": fmt.Sprint(restart), "batch.kubernetes.io/job-completion-index": fmt.Sprint(w.Worker),
	} {
		p.Labels[key] = value
	}
	p.Spec.NodeName = "n"
	made, err := kube.Pods.In(c.Client, "").Create(t.Context(), p, kube.WriteOptions{})
	testkit.Must(t, err)
	return made
}

// agentFile returns the path of the built agent, under its name in images.
func agentFile(t *testing.T) string {
	t.Helper()
	folder, err := builtagent.Folder("../..")
	testkit.Must(t, err)
	built, err := program.In(os.DirFS(folder)).For(runtime.GOARCH)
	testkit.Must(t, err)
	text, err := built.Unpack()
	testkit.Must(t, err)
	path := filepath.Join(testkit.SharedDir(t), workload.AgentFile)
	testkit.WriteProgram(t, path, string(text))
	return path
}

func awaitPod(t *testing.T, c *workloads.Cluster, name string, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	testkit.Eventually(t, fmt.Sprintf("pod %s to be %s", name, phase), func() bool {
		var err error
		p, err = kube.Pods.In(c.Client, "").Get(t.Context(), name)
		testkit.Must(t, err)
		return p.Status.Phase == phase
	})
	return p
}

func queueing(t *testing.T, c *workloads.Cluster) {
	t.Helper()
	_, err := kube.LocalQueues.In(c.Client, "").Create(t.Context(), &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Name: workload.DefaultQueue}, Spec: kueue.LocalQueueSpec{ClusterQueue: "cluster-queue"}}, kube.WriteOptions{})
	testkit.Must(t, err)
	_, err = kube.PriorityClasses.In(c.Client, "").Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "medium"}, Value: 500}, kube.WriteOptions{})
	testkit.Must(t, err)
}

func TestAWorkloadIsMadeListedAndDeleted(t *testing.T) {
	t.Parallel()
	c, _, said := cluster(t)
	queueing(t, c)
	if rows, err := c.List(t.Context()); err != nil || len(rows) != 0 {
		t.Errorf("%+v, %v", rows, err)
	}
	r := request("w")
	asked := 0
	r.Image = func(context.Context) (string, error) { asked++; return "example.com/p/train@sha256:0123", nil }
	dry := r
	dry.DryRun = true
	if _, err := c.Create(t.Context(), dry); err != nil || asked != 0 {
		t.Fatalf("image made %d times, %v", asked, err)
	}
	js, err := c.Create(t.Context(), r)
	if err != nil || asked != 1 {
		t.Fatalf("image made %d times, %v", asked, err)
	}
	spec := js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	if spec.Containers[0].Image != "example.com/p/train@sha256:0123" || spec.PriorityClassName != "medium" || js.Labels[workload.LabelQueue] != workload.DefaultQueue {
		t.Errorf("%+v", js)
	}
	// The answer to the first try may be lost. A request looks for its own workload only after
	// the checks. Therefore another request with this name must be refused before an image is
	// made.
	var exists *workloads.ExistsError
	if _, err := c.Create(t.Context(), r); !errors.As(err, &exists) || asked != 1 || fault.Of(err) != fault.Usage {
		t.Errorf("image made %d times, %v", asked, err)
	}
	rows, err := c.List(t.Context())
	if err != nil || len(rows) != 1 || rows[0].Name != "w" || rows[0].User != "ann" || rows[0].Slices != 2 || rows[0].Workers != 4 || rows[0].Nodes != "tpu-v5-lite-podslice 2x4" || rows[0].Priority != "medium" {
		t.Errorf("%+v, %v", rows, err)
	}
	table := strings.Split(workloads.Table(rows, rows[0].Created.Add(time.Hour)), "\n")
	if got, want := strings.Fields(table[1]), fmt.Sprintf("[w %s 2 4 tpu-v5-lite-podslice 2x4 medium 0 0 1h00m ann]", rows[0].State); fmt.Sprint(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := c.Delete(t.Context(), "w", "none"); fault.Of(err) != fault.Unavailable || err.Error() != `there is no workload "none" in namespace "default"` {
		t.Errorf("%v", err)
	}
	if err := c.Delete(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	if rows, err := c.List(t.Context()); err != nil || len(rows) != 0 || !said.Said(event.Info, "waiting until the pods of workload w have ended") || !said.Said(event.Info, "deleted workload w") {
		t.Errorf("%+v, %v", rows, err)
	}
}

// Create checks the queue and the priority before it makes an image. The server would check them
// only when it makes pods.
func TestWhatAClusterLacksIsFoundFirst(t *testing.T) {
	t.Parallel()
	c, _, said := cluster(t)
	r := request("w")
	r.Image = func(context.Context) (string, error) { t.Error("an image is made"); return "", nil }
	_, err := c.Create(t.Context(), r)
	if want := `namespace "default" has no queue "multislice-queue"`; err == nil || err.Error() != want || fault.Of(err) != fault.Configuration {
		t.Errorf("%v", err)
	}
	queueing(t, c)
	r.Spec.Queue = "fast"
	_, err = c.Create(t.Context(), r)
	if hints := fault.Hints(err); len(hints) != 1 || hints[0] != "choose one of the namespace: --queue=multislice-queue" {
		t.Errorf("%v, %q", err, hints)
	}
	r.Spec.Queue, r.Spec.Priority, r.NamedPriority = workload.DefaultQueue, "huge", true
	_, err = c.Create(t.Context(), r)
	if hints := fault.Hints(err); len(hints) != 1 || hints[0] != "choose one that it has, or leave out --priority: medium" {
		t.Errorf("%v, %q", err, hints)
	}
	r.NamedPriority, r.Image = false, nil
	js, err := c.Create(t.Context(), r)
	if err != nil || js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.PriorityClassName != "" || !said.Said(event.Info, "the cluster has no priority huge") {
		t.Errorf("%+v, %v", js, err)
	}
}

// If the answer to a first try was lost, the same request finds the workload that it made.
func TestARepeatedRequestFindsItsOwnWorkload(t *testing.T) {
	t.Parallel()
	c, _, _ := cluster(t)
	queueing(t, c)
	r := request("w")
	r.Image = func(ctx context.Context) (string, error) {
		first := request("w")
		js, err := c.Create(ctx, first)
		testkit.Must(t, err)
		return js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image, nil
	}
	if js, err := c.Create(t.Context(), r); err != nil || js.Name != "w" {
		t.Errorf("%+v, %v", js, err)
	}
	other := request("v")
	other.Image = func(ctx context.Context) (string, error) {
		foreign := request("v")
		foreign.ID = "another"
		_, err := c.Create(ctx, foreign)
		testkit.Must(t, err)
		return "i", nil
	}
	var exists *workloads.ExistsError
	if _, err := c.Create(t.Context(), other); !errors.As(err, &exists) {
		t.Errorf("%v", err)
	}
}

// Logs gets the exact bytes over exec, even if the connection breaks. The pod ends as soon as
// Logs has them.
func TestLogsAreFollowedToTheLastByte(t *testing.T) {
	t.Parallel()
	c, server, _ := cluster(t)
	queueing(t, c)
	r := request("w")
	r.Spec.Command = `printf 'a\377'; for i in {1..200}; do echo "line $i" >&2; done; while [[ ! -e $MULTIHOST_ROOT_TMP/go ]]; do sleep 0.01; done; printf end; exit 7`
	js, err := c.Create(t.Context(), r)
	testkit.Must(t, err)
	p := start(t, c, js, tpu.WorkerID{Slice: 1}, 0)
	var got testkit.Buffer
	done := make(chan error, 1)
	go func() {
		done <- c.Logs(t.Context(), "w", workloads.LogOptions{Worker: tpu.WorkerID{Slice: 1}, Follow: true}, &got)
	}()
	testkit.Eventually(t, "the lines", func() bool { return strings.Contains(got.String(), "line 200\n") })
	server.CutExecs()
	code, err := c.Exec(t.Context(), p, []string{"bash", "-c", "touch $MULTIHOST_ROOT_TMP/go"})
	if err != nil || code != 0 {
		t.Fatal(code, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p = awaitPod(t, c, p.Name, corev1.PodFailed)
	end, ok := pod.ParseEnd(p.Status.ContainerStatuses[0].State.Terminated.Message)
	if text := got.String(); !ok || end.Code != 7 || end.Length != int64(len(text)) || !strings.HasPrefix(text, "a\xff") || !strings.HasSuffix(text, "line 200\nend") || strings.Count(text, "line 77\n") != 1 {
		t.Errorf("%+v, %q", end, text)
	}
	// The log that the node keeps must be the same.
	var kept bytes.Buffer
	if err := c.Logs(t.Context(), "w", workloads.LogOptions{Worker: tpu.WorkerID{Slice: 1}}, &kept); err != nil || kept.String() != got.String() {
		t.Errorf("%q, %v", kept.String(), err)
	}
	s, err := c.Status(t.Context(), "w")
	if err != nil || len(s.Attempts) != 1 || s.Attempts[0].Failure != "s1w0 was first: exit code 7" || len(s.Attempts[0].Pods) != 1 || *s.Attempts[0].Pods[0].Code != 7 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestNoPodYet(t *testing.T) {
	t.Parallel()
	c, _, said := cluster(t)
	queueing(t, c)
	js, err := c.Create(t.Context(), request("w"))
	testkit.Must(t, err)
	err = c.Logs(t.Context(), "w", workloads.LogOptions{}, &bytes.Buffer{})
	if want := `workload "w" has no pod for s0w0`; err == nil || err.Error() != want || fault.Of(err) != fault.Unavailable {
		t.Errorf("%v", err)
	}
	var got testkit.Buffer
	done := make(chan error, 1)
	go func() { done <- c.Logs(t.Context(), "w", workloads.LogOptions{Follow: true}, &got) }()
	testkit.Eventually(t, "the wait", func() bool { return said.Said(event.Info, "waiting for s0w0") })
	start(t, c, js, tpu.WorkerID{}, 0)
	if err := <-done; err != nil || got.String() != "hello\n" {
		t.Errorf("%q, %v", got.String(), err)
	}
}

// Logs does not wait for a pod that will never exist.
func TestLogsWaitForNoPodThatCannotCome(t *testing.T) {
	t.Parallel()
	c, _, said := cluster(t)
	queueing(t, c)
	_, err := c.Create(t.Context(), request("w"))
	testkit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	follow := func(w tpu.WorkerID) error {
		return c.Logs(ctx, "w", workloads.LogOptions{Worker: w, Follow: true}, &bytes.Buffer{})
	}
	for _, w := range []tpu.WorkerID{{Slice: 2}, {Worker: 2}} {
		if err, want := follow(w), fmt.Sprintf("workload \"w\" has no pod for %s", w); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	done := make(chan error, 1)
	go func() { done <- follow(tpu.WorkerID{Slice: 1}) }()
	testkit.Eventually(t, "the wait", func() bool { return said.Said(event.Info, "waiting for s1w0") })
	testkit.Must(t, c.Delete(t.Context(), "w"))
	if err := <-done; err == nil || err.Error() != `workload "w" has no pod for s1w0` || fault.Of(err) != fault.Unavailable {
		t.Errorf("%v", err)
	}
}

// A user who may not read Jobs still gets the status of a failed workload.
func TestJobsThatNobodyMayRead(t *testing.T) {
	t.Parallel()
	c, s, _ := cluster(t)
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Name: "w"}}
	s.FailRequests(http.StatusForbidden, 1)
	if p, err := c.FailedFirst(t.Context(), js); p != nil || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
	s.FailRequests(http.StatusUnprocessableEntity, 1)
	if p, err := c.FailedFirst(t.Context(), js); err == nil {
		t.Errorf("%+v, and no error", p)
	}
}

func TestStatusSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	c, _, _ := cluster(t)
	queueing(t, c)
	c.Pools = func(context.Context) ([]workload.Pool, error) { return nil, errors.New("denied") }
	_, err := c.Create(t.Context(), request("w"))
	testkit.Must(t, err)
	var st workloads.Status
	testkit.Eventually(t, "what Kueue says", func() bool {
		st, err = c.Status(t.Context(), "w")
		testkit.Must(t, err)
		return st.Wait != nil && !st.Wait.Normal
	})
	if want := "workload w: queued\nit waits: ClusterQueue cluster-queue does not exist\ntype: multihost cluster show c\n"; st.State != workload.Queued || st.Ahead == nil || *st.Ahead != 0 || st.String() != want {
		t.Errorf("%+v\n%s", st, st)
	}
	if _, err := c.Status(t.Context(), "none"); fault.Of(err) != fault.Unavailable {
		t.Errorf("%v", err)
	}
}
