package kube_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/dynamic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"multihost/internal/gke/controllers"
	"multihost/internal/provision"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/test/kube/engine"
)

// makeQueue makes the queue that `multihost cluster create` makes for two slices.
func makeQueue(t *testing.T, e *engine.Engine) {
	t.Helper()
	kind, err := tpu.ParseType("v5litepod-16")
	testkit.Must(t, err)
	nodes, err := tpu.NodesOf(kind)
	testkit.Must(t, err)
	client, err := dynamic.NewForConfig(e.Config())
	testkit.Must(t, err)
	for _, o := range (controllers.Slices{Cluster: "w", Type: kind, Nodes: nodes, Count: 2, Tier: provision.OnDemand}).Objects("v1beta2") {
		_, err := resource(client, &o).Apply(t.Context(), o.GetName(), &o, metav1.ApplyOptions{FieldManager: "test"})
		testkit.Must(t, err)
	}
}

func resource(client dynamic.Interface, o *unstructured.Unstructured) dynamic.ResourceInterface {
	v := o.GroupVersionKind().GroupVersion()
	plural := map[string]string{"PriorityClass": "priorityclasses"}[o.GetKind()]
	if plural == "" {
		plural = strings.ToLower(o.GetKind()) + "s"
	}
	all := client.Resource(schema.GroupVersionResource{Group: v.Group, Version: v.Version, Resource: plural})
	if o.GetNamespace() != "" {
		return all.Namespace(o.GetNamespace())
	}
	return all
}

// TestWorkloads runs workloads without a runner: one succeeds, one fails, and two users
// share a queue.
func TestWorkloads(t *testing.T) {
	e := cluster(t)
	makeQueue(t, e)
	ann, bob := newUser(t, e, "ann"), newUser(t, e, "bob")
	create := func(name, command string, more ...string) []string {
		return append([]string{"workload", "create", name, "--context=test", "--tpu-type=v5litepod-16", "--num-slices=2", "--docker-image=python:3.12", "--image-repository=none", "--preflight=off", "--command=" + command}, more...)
	}
	out, text := ann.types(0, create("good", `echo "process $MULTIHOST_PROCESS_ID"`, "--stream=all")...)
	ann.sees(out, "process 7")
	ann.sees(text, "workload good: succeeded")
	out, _ = ann.types(0, "workload", "logs", "good", "--context=test", "--worker=s1w1")
	ann.sees(out, "^process 5$")
	_, text = ann.types(3, create("bad", `[ $MULTIHOST_PROCESS_ID != 6 ] || exit 3; sleep 1000`)...)
	ann.sees(text, "workload bad: failed: .*exit code 3")

	ann.types(0, create("long", "sleep 1000", "--detach")...)
	bob.types(0, create("next", "echo done", "--detach")...)
	await(t, "the wait of the second workload to be explained", func() bool {
		out, _ := bob.types(0, "workload", "status", "next", "--context=test")
		return strings.Contains(out, "which long (priority medium) with 32 holds")
	})
	ann.types(0, "workload", "delete", "long", "--context=test")
	await(t, "the second workload to succeed", func() bool {
		out, _ := bob.types(0, "workload", "list", "--context=test")
		return strings.Contains(out, "next") && strings.Count(out, "succeeded") == 2
	})
	for _, name := range []string{"good", "bad", "next"} {
		ann.types(0, "workload", "delete", name, "--context=test")
	}
}
