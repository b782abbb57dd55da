package control

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/sim/kubeapi/store"
)

// PoolLabel is the label of a node with the name of its pool.
const PoolLabel = "cloud.google.com/gke-nodepool"

// A Node describes a node to add.
type Node struct {
	Name   string
	Labels map[string]string
	Chips  int // number of TPU chips; a node with chips has GKE's taint
}

// AddNode adds a node to a cluster.
func (c *Controllers) AddNode(pool string, n Node) error {
	labels := map[string]string{"kubernetes.io/hostname": n.Name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", PoolLabel: pool}
	for name, value := range n.Labels {
		labels[name] = value
	}
	now := metav1.NewTime(c.now())
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("112"), corev1.ResourceMemory: resource.MustParse("192Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels}}
	node.Spec.ProviderID = "gce://sim/" + n.Name
	if n.Chips > 0 {
		amounts["google.com/tpu"] = *resource.NewQuantity(int64(n.Chips), resource.DecimalSI)
		node.Spec.Taints = []corev1.Taint{{Key: "google.com/tpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}
	}
	node.Status = corev1.NodeStatus{
		Capacity: amounts, Allocatable: amounts,
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
		NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.35.4-gke.sim", OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "containerd://2.1.0"},
	}
	if err := c.create(store.Nodes, node); err != nil {
		return fmt.Errorf("add node %q: %w", n.Name, err)
	}
	return nil
}

// Nodes returns the names of the nodes of a pool.
func (c *Controllers) Nodes(pool string) []string {
	var names []string
	objects, _ := c.store.List(store.Nodes, "")
	for _, o := range objects {
		if o.GetLabels()[PoolLabel] == pool {
			names = append(names, o.GetName())
		}
	}
	return names
}
