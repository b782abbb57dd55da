package kubeapi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"multihost/internal/sim/kubeapi"
	"multihost/internal/sim/kubeapi/store"
	"multihost/internal/sim/netns"
	"multihost/internal/testkit"
	"multihost/internal/testkit/kubecontract"
)

// start starts a cluster, and returns it with the configuration of a client.
func start(t *testing.T) (*kubeapi.Server, *rest.Config) {
	t.Helper()
	return startWith(t, kubeapi.Config{Dir: t.TempDir()})
}

func startWith(t *testing.T, config kubeapi.Config) (*kubeapi.Server, *rest.Config) {
	t.Helper()
	s, err := kubeapi.New(config)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	return s, &rest.Config{Host: s.URL(), BearerToken: "t", TLSClientConfig: rest.TLSClientConfig{CAData: s.CA()}, QPS: -1}
}

// addSlices adds n pools of v5e slices with 4 VMs each: w-np-0, w-np-1 and so on.
func addSlices(t *testing.T, s *kubeapi.Server, n int) {
	t.Helper()
	for i := range n {
		pool := fmt.Sprintf("w-np-%d", i)
		var nodes []kubeapi.Node
		for j := range 4 {
			nodes = append(nodes, kubeapi.Node{Name: fmt.Sprintf("gke-%s-%d", pool, j), Chips: 4, Labels: kubecontract.SliceLabels})
		}
		testkit.Must(t, s.SetPool(pool, nodes))
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	s, cfg := start(t)
	addSlices(t, s, 2)
	kubecontract.Run(t, kubecontract.Cluster{
		NoNames: "pods of this backend share the names of this machine",
		Config:  cfg, SetAway: s.SetAway, Hold: s.Hold,
		Kill: func(namespace, pod string) error { return s.Kill(namespace, pod, false) },
	})
}

// TestNamespaces runs rows about pods on workers with namespaces of their own.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	if err := netns.Ready(); err != nil {
		testkit.Lacks(t, "no workers of namespaces: %v", err)
	}
	backend, err := netns.New(netns.Config{Root: t.TempDir()})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, backend.Close()) })
	s, cfg := startWith(t, kubeapi.Config{Dir: t.TempDir(), Backend: backend})
	addSlices(t, s, 2)
	kubecontract.Run(t, kubecontract.Cluster{Config: cfg}, "exec", "terminal", "pod-ends", "names")
}

// TestExpiredWatch: a watch ends with 410 if the server has forgotten the version at which
// the watch begins.
func TestExpiredWatch(t *testing.T) {
	testkit.NoLeaks(t)
	s, cfg := start(t)
	c, err := dynamic.NewForConfig(cfg)
	testkit.Must(t, err)
	s.Objects().Compact()
	w, err := c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	testkit.Must(t, err)
	defer w.Stop()
	e := <-w.ResultChan()
	if err := apierrors.FromObject(e.Object); !apierrors.IsResourceExpired(err) || !strings.HasPrefix(err.Error(), "too old resource version: 1 (") {
		t.Errorf("event %s: %v", e.Type, err)
	}
}

// TestFaults: requests fail, a token is refused, an exec is cut, and a node disappears with
// its pods.
func TestFaults(t *testing.T) {
	t.Parallel()
	s, cfg := start(t)
	addSlices(t, s, 1)
	c, err := dynamic.NewForConfig(cfg)
	testkit.Must(t, err)
	pods := c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace("default")
	s.FailRequests(500, 1)
	if _, err := pods.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a request that must fail succeeds")
	}
	stranger := rest.CopyConfig(cfg)
	stranger.BearerToken = ""
	anonymous, err := dynamic.NewForConfig(stranger)
	testkit.Must(t, err)
	_, err = anonymous.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("error without token: %v", err)
	}

	o, err := store.Parse([]byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"restartPolicy": "Never",
		"tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": "python", "command": ["sleep", "1000"]}]}}`))
	testkit.Must(t, err)
	_, err = pods.Create(t.Context(), o, metav1.CreateOptions{})
	testkit.Must(t, err)
	phase := func() (phase, node string) {
		o, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			return "", ""
		}
		phase, _, _ = unstructured.NestedString(o.Object, "status", "phase")
		node, _, _ = unstructured.NestedString(o.Object, "spec", "nodeName")
		return phase, node
	}
	testkit.Eventually(t, "the pod to run", func() bool { p, _ := phase(); return p == "Running" })

	e, err := remotecommand.NewWebSocketExecutor(cfg, "GET", cfg.Host+"/api/v1/namespaces/default/pods/p/exec?stdout=true&command=bash&command=-c&command=echo+on%3Bsleep+1000")
	testkit.Must(t, err)
	var out testkit.Buffer
	ended := make(chan error)
	go func() { ended <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out}) }()
	testkit.Eventually(t, "output", func() bool { return out.String() == "on\n" })
	s.CutExecs()
	if err := <-ended; err == nil {
		t.Error("an exec that was cut ended without error")
	}

	_, node := phase()
	testkit.Must(t, s.RemoveNode(node))
	testkit.Eventually(t, "the end of the pod", func() bool { p, _ := phase(); return p == "" })
}

// TestTerminationMessage: a program that only the image has writes a termination message.
func TestTerminationMessage(t *testing.T) {
	testkit.NoLeaks(t)
	program := filepath.Join(t.TempDir(), "program")
	testkit.WriteProgram(t, program, "#!/bin/bash\nprintf 'arguments: %s' \"$*\" >$MULTIHOST_ROOT_DEV/dev/termination-log\n")
	s, _ := startWith(t, kubeapi.Config{Dir: t.TempDir(), Programs: map[string]string{"agent": program}})
	all := s.Objects()
	o, err := store.Parse([]byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n", "restartPolicy": "Never",
		"containers": [{"name": "main", "image": "python", "command": ["/image/agent", "a", "b"]}]}}`))
	testkit.Must(t, err)
	_, err = all.Create(store.Pods, "default", o, store.Write{})
	testkit.Must(t, err)
	testkit.Eventually(t, "the message", func() bool {
		o, err := all.Get(store.Pods, "default", "p")
		testkit.Must(t, err)
		var p corev1.Pod
		testkit.Must(t, store.Decode(o, &p))
		st := p.Status.ContainerStatuses
		return len(st) == 1 && st[0].State.Terminated != nil && st[0].State.Terminated.Message == "arguments: a b"
	})
}

// TestKubectl does what users do with kubectl, if it is installed.
func TestKubectl(t *testing.T) {
	t.Parallel()
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl: ", err) // CI need not have kubectl
	}
	s, _ := start(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	testkit.Must(t, s.WriteKubeconfig(config, "t"))
	run := func(stdin string, argv ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), kubectl, argv...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+config, "HOME="+dir)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("kubectl %q: %v: %s", argv, err, out)
		}
		return string(out)
	}
	pod := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n", "restartPolicy": "Never",
		"containers": [{"name": "main", "image": "python", "command": ["bash", "-c", "echo hello; trap 'exit 0' TERM; sleep 1000 & wait"]}]}}`
	for _, tt := range []struct {
		stdin, argv, want string
	}{
		{pod, "create -f -", "pod/p created"},
		{"", "wait --for=condition=Ready pod/p --timeout=60s", "condition met"},
		{"", "get pods -o name", "pod/p"},
		{"", "logs p", "hello"},
		{"in", "exec -i p -- cat", "in"},
		{`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}}`, "apply --server-side -f -", "configmap/c serverside-applied"},
		{"", "get jobsets,cq,lq -A", "No resources found"},
		{"", "label configmap c a=b", "configmap/c labeled"},
		{"", "delete pod p", `pod "p" deleted`},
	} {
		if out := run(tt.stdin, strings.Fields(tt.argv)...); !strings.Contains(out, tt.want) {
			t.Errorf("kubectl %s: %q, want %q", tt.argv, out, tt.want)
		}
	}
}
