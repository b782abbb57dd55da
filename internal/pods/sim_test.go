//go:build unix

package pods_test

import (
	"testing"
	"time"

	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/kube"
	"multihost/internal/pods"
	"multihost/internal/remote"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/testkit"
	"multihost/internal/testkit/contract"
	"multihost/internal/tpu"
)

func TestContract(t *testing.T) {
	testkit.NoLeaks(t)
	cluster, err := kubeapi.New(kubeapi.Config{Dir: t.TempDir()})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, cluster.Close()) })
	c, err := kube.New(kube.Config{Server: cluster.URL(), CA: cluster.CA(), Token: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"}), Sink: event.Discard})
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	_, err = kube.Pods.In(c, "").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podName}, Spec: corev1.PodSpec{
		NodeName: "n", RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "main", Image: "python:3.12", Command: []string{"bash", "-c", "trap exit TERM; sleep infinity & wait"}}},
	}}, kube.WriteOptions{})
	testkit.Must(t, err)
	d := &pods.Dialer{Cluster: pods.Of(c), Namespace: "default", Container: "main", User: "root", KeepAlive: time.Minute, Clock: gcp.SystemClock}
	connect := func(t *testing.T, readOnly bool) remote.Conn {
		dialed, err := d.Dial(t.Context(), remote.Request{Slices: []tpu.Slice{{Name: "train-0", Workers: []tpu.Worker{{Name: podName}}}},
			Workers: []tpu.WorkerID{{}}, RetryFor: time.Minute, ReadOnly: readOnly, Sink: event.Discard})
		testkit.Must(t, err)
		t.Cleanup(dialed.Close)
		testkit.Must(t, dialed.Errs[0])
		return dialed.Conns[0]
	}
	contract.Check(t, contract.Target{
		Connect:         connect,
		ConnectCuttable: func(t *testing.T) (remote.Conn, func()) { return connect(t, false), func() { cluster.CutExecs() } },
		NoSignals:       true,
	})
}
