// Package kubecontract tests what a GKE cluster does. Its table of tests needs only a client. The
// simulator's cluster and the real engine pass the same rows.
//
// A row makes a namespace of its own, and deletes it. Rows run one after another, because
// they share two slices of four nodes.
package kubecontract

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/testkit"
)

// A Cluster is the cluster of the tests. It has two pools, w-np-0 and w-np-1, with four nodes
// each: gke-w-np-0-0 and so on. A node has 4 chips, the labels SliceLabels of a v5litepod-16, and
// GKE's taint. Pods run as processes and can use bash. If the cluster cannot do something, that
// function is nil, and rows that need it are skipped.
type Cluster struct {
	Config *rest.Config

	// SetAway(true) takes the API away, so that connections end. SetAway(false) brings it
	// back.
	SetAway func(away bool) error

	// Hold keeps deleted pods whose name matches a pattern (path.Match) in Terminating. An
	// empty pattern ends this.
	Hold func(pattern string)

	// Kill kills process 1 of a pod.
	Kill func(namespace, pod string) error

	NoNames string // why pods do not know each other by name; "": they do
}

// Labels of a slice's nodes, and the label with the pool's name.
var (
	SliceLabels = map[string]string{"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "4x4"}
	PoolLabel   = "cloud.google.com/gke-nodepool"
)

// Run runs the rows of the table. If any rows are named, it runs only these.
func Run(t *testing.T, c Cluster, only ...string) {
	client, err := dynamic.NewForConfig(c.Config)
	testkit.Must(t, err)
	for _, row := range rows {
		if len(only) > 0 && !slices.Contains(only, row.name) {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			x := &T{T: t, Cluster: c, client: client}
			x.namespace()
			row.run(x)
		})
	}
}

var rows = []struct {
	name string
	run  func(*T)
}{
	{"errors", errorsOf},
	{"patches", patches},
	{"apply", applies},
	{"lists", lists},
	{"watch", watches},
	{"deletion", deletions},
	{"exec", execs},
	{"terminal", terminals},
	{"logs", logs},
	{"logs-over-outage", logsOverOutage},
	{"pod-ends", podEnds},
	{"jobset-completes", jobSetCompletes},
	{"names", names},
	{"jobset-fails", jobSetFails},
	{"jobset-restarts", jobSetRestarts},
	{"jobset-suspends", jobSetSuspends},
	{"pod-killed", podKilled},
	{"unschedulable", unschedulable},
	{"stuck-terminating", stuckTerminating},
	{"queue", queue},
	{"turns", turns},
}

// A T is one run of a row.
type T struct {
	*testing.T
	Cluster
	client dynamic.Interface
	ns     string
}

func gvr(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}

var (
	podsGVR       = gvr("", "v1", "pods")
	configMapsGVR = gvr("", "v1", "configmaps")
	jobSetsGVR    = gvr("jobset.x-k8s.io", "v1alpha2", "jobsets")
	workloadsGVR  = gvr("kueue.x-k8s.io", "v1beta2", "workloads")
)

// eventually waits until a condition holds. It asks less often than testkit.Eventually,
// because each question is a request.
func (t *T) eventually(what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// in returns the client of a resource in the row's namespace.
func (t *T) in(r schema.GroupVersionResource) dynamic.ResourceInterface {
	return t.client.Resource(r).Namespace(t.ns)
}

// namespace makes the namespace of the row, and deletes it at the end.
func (t *T) namespace() {
	t.Helper()
	all := t.client.Resource(gvr("", "v1", "namespaces"))
	o, err := all.Create(t.Context(), t.object(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "row-"}}`), metav1.CreateOptions{})
	testkit.Must(t, err)
	t.ns = o.GetName()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		testkit.Must(t, all.Delete(ctx, t.ns, metav1.DeleteOptions{}))
		t.eventually("the end of namespace "+t.ns, func() bool {
			_, err := all.Get(ctx, t.ns, metav1.GetOptions{})
			return err != nil
		})
	})
}

// object parses JSON.
func (t *T) object(text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	testkit.Must(t, o.UnmarshalJSON([]byte(text)))
	return o
}

// create creates an object in the row's namespace.
func (t *T) create(r schema.GroupVersionResource, text string) *unstructured.Unstructured {
	t.Helper()
	o, err := t.in(r).Create(t.Context(), t.object(text), metav1.CreateOptions{})
	testkit.Must(t, err)
	return o
}

// createf creates an object from a formatted text.
func (t *T) createf(r schema.GroupVersionResource, format string, args ...any) {
	t.Helper()
	t.create(r, fmt.Sprintf(format, args...))
}

// decode decodes an object into a struct.
func decode[V any](t *T, o *unstructured.Unstructured) *V {
	t.Helper()
	b, err := o.MarshalJSON()
	testkit.Must(t, err)
	v := new(V)
	testkit.Must(t, json.Unmarshal(b, v))
	return v
}

func (t *T) pod(name string) *corev1.Pod {
	t.Helper()
	o, err := t.in(podsGVR).Get(t.Context(), name, metav1.GetOptions{})
	testkit.Must(t, err)
	return decode[corev1.Pod](t, o)
}

// pods returns the pods of a JobSet.
func (t *T) pods(name string) (all []*corev1.Pod) {
	t.Helper()
	l, err := t.in(podsGVR).List(t.Context(), metav1.ListOptions{LabelSelector: jobset.JobSetNameKey + "=" + name})
	testkit.Must(t, err)
	for i := range l.Items {
		all = append(all, decode[corev1.Pod](t, &l.Items[i]))
	}
	return all
}

// shell makes a pod that runs a script, and waits until the pod has a phase.
func (t *T) shell(name, script string, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	t.createf(podsGVR, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
		"tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": "python", "command": ["bash", "-c", %q]}]}}`, name, script)
	t.await(name, phase)
	return t.pod(name)
}

func (t *T) await(name string, phase corev1.PodPhase) {
	t.Helper()
	t.eventually(fmt.Sprintf("pod %s to be %s", name, phase), func() bool { return t.pod(name).Status.Phase == phase })
}

// exec runs a program in a pod.
func (t *T) exec(pod string, o remotecommand.StreamOptions, argv ...string) error {
	q := url.Values{"command": argv, "stdin": {strconv.FormatBool(o.Stdin != nil)}, "stdout": {"true"}, "stderr": {strconv.FormatBool(o.Stderr != nil)}, "tty": {strconv.FormatBool(o.Tty)}}
	e, err := remotecommand.NewWebSocketExecutor(t.Config, "GET", fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/exec?%s", t.Config.Host, t.ns, pod, q.Encode()))
	if err != nil {
		return err
	}
	return e.StreamWithContext(t.Context(), o)
}

// log opens the log of a pod.
func (t *T) log(ctx context.Context, pod string, options string) (io.ReadCloser, error) {
	h, err := rest.HTTPClientFor(t.Config)
	if err != nil {
		return nil, err
	}
	c, err := rest.RESTClientForConfigAndClient(raw(t.Config), h)
	if err != nil {
		return nil, err
	}
	r := c.Get().AbsPath("/api/v1/namespaces", t.ns, "pods", pod, "log")
	values, err := url.ParseQuery(options)
	if err != nil {
		return nil, err
	}
	for name, v := range values {
		r = r.Param(name, v[0])
	}
	return r.Stream(ctx)
}

// logText returns the log of a pod so far.
func (t *T) logText(pod, options string) string {
	t.Helper()
	r, err := t.log(t.Context(), pod, options)
	testkit.Must(t, err)
	defer r.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(r)
	testkit.Must(t, err)
	return b.String()
}

// jobSet applies a JobSet in XPK's form. The parameter more is JSON for its metadata, and
// spec JSON for its specification. Both begin with a comma.
func (t *T) jobSet(name string, slices int, script, more, spec, pod string) {
	t.Helper()
	o := t.object(fmt.Sprintf(`{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"metadata": {"name": %q, "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"} %s},
		"spec": {"replicatedJobs": [{"name": "slice-job", "replicas": %d, "template": {"spec": {"parallelism": 4, "completions": 4, "backoffLimit": 0,
		"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"containerName": "jax-tpu", "operator": "NotIn", "values": [42, 137, 143]}}]},
		"template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5 %s,
		"nodeSelector": {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "4x4"},
		"tolerations": [{"operator": "Exists", "key": "google.com/tpu"}],
		"containers": [{"name": "jax-tpu", "image": "python", "command": ["bash", "-c", %q], "resources": {"limits": {"google.com/tpu": 4}}}]}}}}}] %s}}`,
		name, more, slices, pod, script, spec))
	_, err := t.in(jobSetsGVR).Apply(t.Context(), name, o, metav1.ApplyOptions{FieldManager: "contract"})
	testkit.Must(t, err)
}

// ended waits until a JobSet has ended, and returns it.
func (t *T) ended(name string) *jobset.JobSet {
	t.Helper()
	var js *jobset.JobSet
	t.eventually("the end of JobSet "+name, func() bool {
		js = t.getJobSet(name)
		return js.Status.TerminalState != ""
	})
	return js
}

func (t *T) getJobSet(name string) *jobset.JobSet {
	t.Helper()
	o, err := t.in(jobSetsGVR).Get(t.Context(), name, metav1.GetOptions{})
	testkit.Must(t, err)
	return decode[jobset.JobSet](t, o)
}

// running waits until n pods of a JobSet are running.
func (t *T) running(name string, n int) {
	t.Helper()
	t.eventually(fmt.Sprintf("%d running pods of %s", n, name), func() bool {
		have := 0
		for _, p := range t.pods(name) {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				have++
			}
		}
		return have == n
	})
}

// has checks that an error has a status code and a text.
func (t *T) has(what string, err error, code int32, text string) {
	t.Helper()
	st, ok := err.(interface{ Status() metav1.Status })
	if !ok || st.Status().Code != code || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: error is %v, want %d %q", what, err, code, text)
	}
}

// idle is a script that waits until somebody ends it.
const idle = `trap "exit 143" TERM; sleep 1000 & wait`
