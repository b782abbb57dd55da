package gke

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsThatUseTPUs(t *testing.T) {
	t.Parallel()
	pod := func(name, node, chips string, phase corev1.PodPhase) corev1.Pod {
		c := corev1.Container{Name: "main"}
		if chips != "" {
			c.Resources.Limits = corev1.ResourceList{resourceTPU: resource.MustParse(chips)}
		}
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "aside"}, c}}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	nodes := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n0", Labels: map[string]string{labelPool: "c-np-0"}}}}
	got := tpuPods([]corev1.Pod{
		pod("runs", "n0", "4", corev1.PodRunning), pod("waits", "", "4", corev1.PodPending), pod("done", "n0", "4", corev1.PodSucceeded), pod("failed", "n0", "4", corev1.PodFailed),
		pod("cpu", "n0", "", corev1.PodRunning), pod("none", "n0", "0", corev1.PodRunning),
	}, nodes)
	if want := []Pod{{"team", "runs", "c-np-0"}, {"team", "waits", ""}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
