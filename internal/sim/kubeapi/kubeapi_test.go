package kubeapi_test

import (
	"bytes"
	"context"
	"errors"
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
