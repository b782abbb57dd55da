// Package gkenode makes what GKE gives to a cluster with TPU slices: nodes with labels,
// chips and a taint, and variables for containers with chips.
package gkenode

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TPU is the name of the resource of TPU chips.
const TPU = corev1.ResourceName("google.com/tpu")

// GPU is the name of the resource of GPUs.
const GPU = corev1.ResourceName("nvidia.com/gpu")

// PoolLabel is the label of a node with the name of its pool.
const PoolLabel = "cloud.google.com/gke-nodepool"

// A Node describes a node.
type Node struct {
	Name   string
	Labels map[string]string
	Chips  int // number of TPU chips; nodes with chips have GKE's taint
	GPUs   int // number of GPUs; nodes with GPUs have GKE's taint, too
}

// Object returns the object of a node that is ready at the time at.
func (n Node) Object(pool string, at time.Time) *corev1.Node {
	labels := map[string]string{"kubernetes.io/hostname": n.Name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", PoolLabel: pool}
	maps.Copy(labels, n.Labels)
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("112"), corev1.ResourceMemory: resource.MustParse("192Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels}}
	node.Spec.ProviderID = "gce://sim/" + n.Name
	for name, count := range map[corev1.ResourceName]int{TPU: n.Chips, GPU: n.GPUs} {
		if count > 0 {
			amounts[name] = *resource.NewQuantity(int64(count), resource.DecimalSI)
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: string(name), Value: "present", Effect: corev1.TaintEffectNoSchedule})
		}
	}
	node.Status = corev1.NodeStatus{
		Capacity: amounts, Allocatable: amounts,
		Conditions: []corev1.NodeCondition{Ready(at)},
		NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.35.4-gke.sim", OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "containerd://2.1.0"},
	}
	return node
}

// Ready returns the condition of a node that became ready at a time.
func Ready(at time.Time) corev1.NodeCondition {
	t := metav1.NewTime(at)
	return corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status", LastHeartbeatTime: t, LastTransitionTime: t,
	}
}
