package kubeapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/sim/kubeapi"
	"multihost/internal/sim/kubeapi/store"
	"multihost/internal/testkit"
)

// start starts a cluster, and returns it with a client.
func start(t *testing.T) (*kubeapi.Server, *rest.Config, dynamic.Interface) {
	t.Helper()
	s, err := kubeapi.New(kubeapi.Config{Dir: t.TempDir()})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	cfg := &rest.Config{Host: s.URL(), BearerToken: "t", TLSClientConfig: rest.TLSClientConfig{CAData: s.CA()}}
	c, err := dynamic.NewForConfig(cfg)
	testkit.Must(t, err)
	return s, cfg, c
}

// shell is a pod that runs a script on a node that is not looked at.
func shell(name, script string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: "n", RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "main", Image: "python", Command: []string{"bash", "-c", script}}},
		},
	}
}

func await(t *testing.T, c dynamic.Interface, name string, holds func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	testkit.Eventually(t, "pod "+name, func() bool {
		o, err := pods(c).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		pod = &corev1.Pod{}
		testkit.Must(t, store.Decode(o, pod))
		return holds(pod)
	})
	return pod
}

func pods(c dynamic.Interface) dynamic.ResourceInterface {
	return c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace("default")
}

func create(t *testing.T, c dynamic.Interface, pod *corev1.Pod) {
	t.Helper()
	pod.APIVersion, pod.Kind = "v1", "Pod"
	o, err := store.Encode(pod)
	testkit.Must(t, err)
	_, err = pods(c).Create(t.Context(), o, metav1.CreateOptions{})
	testkit.Must(t, err)
}

func phase(want corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Status.Phase == want }
}

func run(ctx context.Context, cfg *rest.Config, pod string, stdin io.Reader, stdout, stderr io.Writer, argv ...string) error {
	q := url.Values{"command": argv, "stdout": {"true"}, "stdin": {strconv.FormatBool(stdin != nil)}, "stderr": {strconv.FormatBool(stderr != nil)}}
	e, err := remotecommand.NewWebSocketExecutor(cfg, "GET", cfg.Host+"/api/v1/namespaces/default/pods/"+pod+"/exec?"+q.Encode())
	if err != nil {
		return err
	}
	return e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: stderr})
}

func TestExec(t *testing.T) {
	_, cfg, c := start(t)
	create(t, c, shell("p", "trap 'exit 0' TERM; sleep 1000 & wait"))
	await(t, c, "p", phase(corev1.PodRunning))

	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var out, errOut bytes.Buffer
	err := run(t.Context(), cfg, "p", bytes.NewReader(big), &out, &errOut, "bash", "-c", "cat; echo no >&2; exit 7")
	var code exec.CodeExitError
	if !errors.As(err, &code) || code.Code != 7 {
		t.Errorf("error is %v, want exit code 7", err)
	}
	if !bytes.Equal(out.Bytes(), big) || errOut.String() != "no\n" {
		t.Errorf("got %d bytes and %q", out.Len(), errOut.String())
	}
	err = run(t.Context(), cfg, "p", nil, &out, &errOut, "no-such-program")
	if err == nil || !strings.Contains(err.Error(), `exec: "no-such-program": executable file not found in $PATH`) {
		t.Errorf("error of a program that is missing: %v", err)
	}

	// What an exec leaves behind lives as long as the pod.
	testkit.Must(t, run(t.Context(), cfg, "p", nil, &out, nil, "bash", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >$TMPDIR/pid"))
	testkit.Must(t, run(t.Context(), cfg, "p", nil, &out, nil, "bash", "-c", "kill -0 $(cat $TMPDIR/pid)"))

	began := time.Now()
	testkit.Must(t, pods(c).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	testkit.Eventually(t, "the end of the pod", func() bool {
		_, err := pods(c).Get(t.Context(), "p", metav1.GetOptions{})
		return err != nil
	})
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("a pod that ends on SIGTERM took %v", d)
	}
}

var jobSets = schema.GroupVersionResource{Group: "jobset.x-k8s.io", Version: "v1alpha2", Resource: "jobsets"}

// addSlices adds pools of v5e slices: w-np-0 and following, with VMs each.
func addSlices(t *testing.T, s *kubeapi.Server, n, vms int) {
	t.Helper()
	for i := range n {
		pool := fmt.Sprintf("w-np-%d", i)
		var nodes []kubeapi.Node
		for j := range vms {
			nodes = append(nodes, kubeapi.Node{Name: fmt.Sprintf("gke-%s-%d", pool, j), Chips: 4, Labels: map[string]string{
				"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "4x4",
			}})
		}
		testkit.Must(t, s.SetPool(pool, nodes))
	}
}

// workload is a JobSet in XPK's form.
func workload(name string, slices, vms, restarts int, script, more string) string {
	return fmt.Sprintf(`{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"metadata": {"name": %q, "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"} %s},
		"spec": {"failurePolicy": {"maxRestarts": %d, "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]},
		"replicatedJobs": [{"name": "slice-job", "replicas": %d, "template": {"spec": {"parallelism": %d, "completions": %d, "backoffLimit": 0,
		"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"containerName": "jax-tpu", "operator": "NotIn", "values": [42, 137, 143]}}]},
		"template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
		"nodeSelector": {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "4x4"},
		"tolerations": [{"operator": "Exists", "key": "google.com/tpu"}],
		"containers": [{"name": "jax-tpu", "image": "python", "command": ["bash", "-c", %q], "resources": {"limits": {"google.com/tpu": 4}}}]}}}}}]}}`,
		name, more, restarts, slices, vms, vms, script)
}

func apply(t *testing.T, c dynamic.Interface, text string) {
	t.Helper()
	o, err := store.Parse([]byte(text))
	testkit.Must(t, err)
	_, err = c.Resource(jobSets).Namespace("default").Apply(t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "test"})
	testkit.Must(t, err)
}

// end waits until a JobSet has ended, and returns it.
func end(t *testing.T, c dynamic.Interface, name string) *jobset.JobSet {
	t.Helper()
	var js jobset.JobSet
	testkit.Eventually(t, "the end of "+name, func() bool {
		o, err := c.Resource(jobSets).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
		testkit.Must(t, err)
		js = jobset.JobSet{}
		testkit.Must(t, store.Decode(o, &js))
		return js.Status.TerminalState != ""
	})
	return &js
}

func listPods(t *testing.T, c dynamic.Interface, name string) (all []corev1.Pod) {
	t.Helper()
	l, err := pods(c).List(t.Context(), metav1.ListOptions{LabelSelector: jobset.JobSetNameKey + "=" + name})
	testkit.Must(t, err)
	for i := range l.Items {
		var p corev1.Pod
		testkit.Must(t, store.Decode(&l.Items[i], &p))
		all = append(all, p)
	}
	return all
}

func TestJobSetCompletes(t *testing.T) {
	s, _, c := start(t)
	addSlices(t, s, 2, 4)
	apply(t, c, workload("w", 2, 4, 0, `echo "$TPU_WORKER_ID of $TPU_WORKER_HOSTNAMES in $MEGASCALE_SLICE_ID of $MEGASCALE_NUM_SLICES at $MEGASCALE_COORDINATOR_ADDRESS $JOB_COMPLETION_INDEX $TPU_ACCELERATOR_TYPE"`, ""))
	js := end(t, c, "w")
	if cond := js.Status.Conditions; len(cond) != 1 || cond[0].Type != "Completed" || cond[0].Reason != "AllJobsCompleted" {
		t.Errorf("conditions are %v", cond)
	}
	pools := map[string]map[string]bool{}
	for _, p := range listPods(t, c, "w") {
		slice := p.Labels[jobset.JobIndexKey]
		if pools[slice] == nil {
			pools[slice] = map[string]bool{}
		}
		pools[slice][p.Spec.NodeName[:len("gke-w-np-0")]] = true
		if !strings.HasPrefix(p.Name, p.Spec.Hostname+"-") || p.Spec.Subdomain != "w" {
			t.Errorf("pod %s has the host name %s.%s", p.Name, p.Spec.Hostname, p.Spec.Subdomain)
		}
		b, err := s.Log("default", p.Name)
		testkit.Must(t, err)
		id := p.Annotations["batch.kubernetes.io/job-completion-index"]
		want := fmt.Sprintf("%[1]s of w-slice-job-%[2]s-0.w,w-slice-job-%[2]s-1.w,w-slice-job-%[2]s-2.w,w-slice-job-%[2]s-3.w in %[2]s of 2 at w-slice-job-0-0.w %[1]s v5litepod-16\n", id, slice)
		if b != want {
			t.Errorf("pod %s wrote %q, want %q", p.Name, b, want)
		}
	}
	if len(pools) != 2 || len(pools["0"]) != 1 || len(pools["1"]) != 1 {
		t.Errorf("slices are in pools %v, want each in one of its own", pools)
	}
}

func TestJobSetFails(t *testing.T) {
	for _, tt := range []struct {
		name, script, reason, message string
		restarts                      int
	}{
		{"policy", `if [ $TPU_WORKER_ID = 2 ]; then sleep 1; exit 1; fi; trap "exit 143" TERM; sleep 1000 & wait`, "FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action (first failed job: w-slice-job-0)", 0},
		{"restarts", `[ $TPU_WORKER_ID = 1 ] && exit 42; trap "exit 143" TERM; sleep 1000 & wait`, "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts (first failed job: w-slice-job-0)", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _, c := start(t)
			addSlices(t, s, 1, 4)
			apply(t, c, workload("w", 1, 4, tt.restarts, tt.script, ""))
			js := end(t, c, "w")
			cond := js.Status.Conditions[len(js.Status.Conditions)-1]
			if cond.Type != "Failed" || cond.Reason != tt.reason || cond.Message != tt.message || int(js.Status.Restarts) != tt.restarts {
				t.Errorf("after %d restarts condition %+v", js.Status.Restarts, cond)
			}
			testkit.Eventually(t, "that only the pod that failed is left", func() bool {
				all := listPods(t, c, "w")
				return len(all) == 1 && all[0].Status.Phase == corev1.PodFailed
			})
		})
	}
}
