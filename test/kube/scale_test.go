package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/testkit"
	"multihost/test/kube/kubelet"
)

var (
	jobSets = schema.GroupVersionResource{Group: "jobset.x-k8s.io", Version: "v1alpha2", Resource: "jobsets"}
	pods    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

// large has the labels of the nodes of a v5litepod-256.
var large = map[string]string{"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "16x16"}

// jobSetOf returns a JobSet of slices whose nodes have labels.
func jobSetOf(t *testing.T, name string, slices, workers int, labels map[string]string, script string) *unstructured.Unstructured {
	t.Helper()
	selector, err := json.Marshal(labels)
	testkit.Must(t, err)
	o := &unstructured.Unstructured{}
	testkit.Must(t, o.UnmarshalJSON(fmt.Appendf(nil, `{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"metadata": {"name": %q, "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}},
		"spec": {"replicatedJobs": [{"name": "slice", "replicas": %d, "template": {"spec": {"parallelism": %[3]d, "completions": %[3]d, "backoffLimit": 0,
		"template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "nodeSelector": %s,
		"tolerations": [{"operator": "Exists", "key": "google.com/tpu"}],
		"containers": [{"name": "main", "image": "python", "command": ["bash", "-c", %q], "resources": {"limits": {"google.com/tpu": 4}}}]}}}}}]}}`,
		name, slices, workers, selector, script)))
	return o
}

// TestManyPods runs 256 pods at once and deletes them.
func TestManyPods(t *testing.T) {
	e := cluster(t)
	client, err := dynamic.NewForConfig(e.Config())
	testkit.Must(t, err)
	began := time.Now()
	lap := func(what string) {
		t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
		began = time.Now()
	}
	for _, p := range kubelet.Slices("big", 4, 64, 4, large) {
		testkit.Must(t, e.Kubelet.SetPool(t.Context(), p.Name, p.Nodes))
		t.Cleanup(func() { testkit.Must(t, e.Kubelet.SetPool(context.WithoutCancel(t.Context()), p.Name, nil)) })
	}
	lap("256 nodes")
	sets := client.Resource(jobSets).Namespace("default")
	_, err = sets.Create(t.Context(), jobSetOf(t, "big", 4, 64, large, `trap "exit 143" TERM; echo up; sleep 1000 & wait`), metav1.CreateOptions{})
	testkit.Must(t, err)
	nodes := map[string]bool{}
	await(t, "256 pods to run", func() bool {
		l, err := client.Resource(pods).Namespace("default").List(t.Context(), metav1.ListOptions{LabelSelector: jobset.JobSetNameKey + "=big", FieldSelector: "status.phase=" + string(corev1.PodRunning)})
		testkit.Must(t, err)
		clear(nodes)
		for _, p := range l.Items {
			node, _, _ := unstructured.NestedString(p.Object, "spec", "nodeName") // another form counts as no node
			nodes[node] = true
		}
		return len(l.Items) == 256
	})
	lap("256 pods run")
	if len(nodes) != 256 {
		t.Errorf("256 pods are on %d nodes", len(nodes))
	}
	for part, bytes := range e.Memory() {
		t.Logf("%s has %d MB of memory", part, bytes>>20)
	}
	how := metav1.DeletePropagationForeground
	testkit.Must(t, sets.Delete(t.Context(), "big", metav1.DeleteOptions{PropagationPolicy: &how}))
	await(t, "the end of the JobSet", func() bool {
		_, err := sets.Get(t.Context(), "big", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	lap("256 pods gone")
}

// await waits until a condition holds. Each check is a request to the API.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if !testkit.Await(10*time.Minute, holds) {
		t.Fatalf("waited in vain for %s", what)
	}
}
