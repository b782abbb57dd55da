package kubelet

import (
	"bytes"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestExpand(t *testing.T) {
	env := []string{"A=1", "B=x $(A)", "A=2"}
	for text, want := range map[string]string{
		"$(A)": "2", "a$(A)b$(B)": "a2bx $(A)", "$(NONE)": "$(NONE)", "$$(A)": "$(A)", "$A ${A} $": "$A ${A} $", "$(A": "$(A", "": "",
	} {
		if got := expand(text, env); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestPhase(t *testing.T) {
	exited := func(code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
	}
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	for _, tt := range []struct {
		name       string
		restart    corev1.RestartPolicy
		init, main []corev1.ContainerStatus
		ending     bool
		want       corev1.PodPhase
	}{
		{"waiting", "Never", nil, []corev1.ContainerStatus{waiting}, false, corev1.PodPending},
		{"in its init container", "Never", []corev1.ContainerStatus{running}, []corev1.ContainerStatus{waiting}, false, corev1.PodPending},
		{"init container failed", "Never", []corev1.ContainerStatus{exited(1)}, []corev1.ContainerStatus{waiting}, false, corev1.PodFailed},
		{"one of two runs", "Never", nil, []corev1.ContainerStatus{exited(1), running}, false, corev1.PodRunning},
		{"one of two failed", "Never", nil, []corev1.ContainerStatus{exited(1), exited(0)}, false, corev1.PodFailed},
		{"succeeded", "Never", nil, []corev1.ContainerStatus{exited(0)}, false, corev1.PodSucceeded},
		{"will run again", "Always", nil, []corev1.ContainerStatus{exited(0)}, false, corev1.PodRunning},
		{"was deleted", "Always", nil, []corev1.ContainerStatus{exited(143)}, true, corev1.PodFailed},
		{"will not run again", "OnFailure", nil, []corev1.ContainerStatus{exited(0)}, false, corev1.PodSucceeded},
	} {
		p := &corev1.Pod{}
		p.Spec.RestartPolicy = tt.restart
		p.Status.InitContainerStatuses, p.Status.ContainerStatuses = tt.init, tt.main
		if got := phaseOf(p, tt.ending); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestRecords(t *testing.T) {
	rs := records([]byte("2026-01-02T03:04:05.1Z stdout F one\n2026-01-02T03:04:06Z stderr P tw\n2026-01-02T03:04:06Z stderr F o\nnot a record\n2026-01-02T03:04:07Z stdout P three\n"))
	for _, tt := range []struct {
		options LogOptions
		want    string
	}{
		{LogOptions{Tail: -1, Limit: -1}, "one\ntwo\nthree"},
		{LogOptions{Tail: 2, Limit: -1}, "two\nthree"},
		{LogOptions{Tail: -1, Limit: 6}, "one\ntw"},
		{LogOptions{Tail: -1, Limit: -1, Stream: "stderr", Timestamps: true}, "2026-01-02T03:04:06.000000000Z two\n"},
		{LogOptions{Tail: -1, Limit: -1, Since: rs[1].at}, "two\nthree"},
	} {
		var b bytes.Buffer
		w := &logWriter{w: &b, opts: tt.options, left: tt.options.Limit, begin: true}
		for _, r := range lastLines(selected(rs, tt.options), tt.options.Tail) {
			if more, err := w.write(r); err != nil || !more {
				break
			}
		}
		if b.String() != tt.want {
			t.Errorf("%+v: %q, want %q", tt.options, b.String(), tt.want)
		}
	}
}

// removals is an API that counts the removed pods.
type removals struct{ pods []string }

func (*removals) Update(*corev1.Pod, func(*corev1.Pod)) {}
func (r *removals) Remove(p *corev1.Pod)                { r.pods = append(r.pods, p.Name) }

// TestUnknownPods: a kubelet starts no pod that is deleted or has ended. It removes only
// those that wait for the kubelet.
func TestUnknownPods(t *testing.T) {
	api := &removals{}
	k := New(Config{API: api, Now: time.Now})
	now := metav1.Now()
	for name, change := range map[string]func(*corev1.Pod){
		"waits":     func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, new(int64(30)) },
		"finalizer": func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, new(int64(0)) },
		"over":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"unbound":   func(p *corev1.Pod) { p.Spec.NodeName = "" },
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "n"}}
		change(pod)
		k.See(pod, func(to *corev1.Pod) error { *to = *pod; return nil }, false)
		if k.Pod("", name) != nil {
			t.Errorf("pod %s runs", name)
		}
	}
	if err := k.Close(); err != nil || !slices.Equal(api.pods, []string{"waits"}) {
		t.Errorf("removed %v, %v", api.pods, err)
	}
}
