package kubelet

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"multihost/internal/sim/kubeapi/gkenode"
)

const (
	// The controller of nodes counts a node as lost 40 s after its last heartbeat.
	beatEvery = 10 * time.Second
	beatAgain = time.Second // after a heartbeat that has failed

	leaseSeconds = 40

	// atOnce limits how many nodes are written to the API at once.
	atOnce = 16
)

// addNodes makes nodes in the API.
func (k *Kubelet) addNodes(ctx context.Context, pool string, nodes []Node) error {
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, n := range nodes {
		k.mu.Lock()
		k.nodes[n.Name] = pool // before a pod can be bound to the node
		k.mu.Unlock()
		all.Go(func() error {
			if err := k.addNode(ctx, pool, n); err != nil {
				return fmt.Errorf("add node %q: %w", n.Name, err)
			}
			return nil
		})
	}
	return all.Wait()
}

func (k *Kubelet) addNode(ctx context.Context, pool string, n Node) error {
	host, port := splitAddr(k.ln.Addr())
	node := n.Object(pool, time.Now())
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}, {Type: corev1.NodeHostName, Address: n.Name}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	o, err := encode(node)
	if err != nil {
		return err
	}
	in := k.client.Resource(nodesGVR)
	if _, err := in.Create(ctx, o, metav1.CreateOptions{FieldManager: manager}); apierrors.IsAlreadyExists(err) {
		// An earlier kubelet has left a node of this name.
		if err := in.Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		_, err = in.Create(ctx, o, metav1.CreateOptions{FieldManager: manager})
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return k.renew(ctx, n.Name)
}

// renew renews the lease of a node.
func (k *Kubelet) renew(ctx context.Context, node string) error {
	now := metav1.NowMicro()
	seconds := int32(leaseSeconds)
	o, err := encode(&coordination.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordination.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	})
	if err != nil {
		return err
	}
	_, err = k.client.Resource(leasesGVR).Namespace(corev1.NamespaceNodeLease).Apply(ctx, node, o, metav1.ApplyOptions{FieldManager: manager, Force: true})
	return err
}

// RemoveNode removes a node, as if its machine were gone. The processes of its pods end at
// once. The API gets no status of these pods.
func (k *Kubelet) RemoveNode(ctx context.Context, name string) error {
	k.mu.Lock()
	delete(k.nodes, name)
	k.mu.Unlock()
	k.pods.Lose(name)
	if err := k.client.Resource(nodesGVR).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("remove node %q: %w", name, err)
	}
	return nil
}

// beat sends heartbeats of all nodes until the kubelet closes.
func (k *Kubelet) beat() {
	wait := beatEvery
	for pause(k.ctx, wait) {
		wait = beatEvery
		if err := k.beatOnce(); err != nil {
			if k.ctx.Err() == nil {
				k.cfg.Log.Printf("heartbeat: %v", err)
			}
			wait = beatAgain
		}
	}
}

// beatOnce renews the leases of all nodes. If the controller counts a node as lost, beatOnce
// marks the node as ready again.
func (k *Kubelet) beatOnce() error {
	all, err := k.client.Resource(nodesGVR).List(k.ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	var each errgroup.Group
	each.SetLimit(atOnce)
	for i := range all.Items {
		o := &all.Items[i]
		if !k.has(o.GetName()) {
			continue
		}
		each.Go(func() error {
			if err := k.renew(k.ctx, o.GetName()); err != nil {
				return err
			}
			return k.ready(o)
		})
	}
	return each.Wait()
}

// ready tells the API that a node is ready, unless the API already says so.
func (k *Kubelet) ready(o *unstructured.Unstructured) error {
	var node corev1.Node
	if err := decode(o, &node); err != nil {
		return err
	}
	for i, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady || c.Status == corev1.ConditionTrue {
			continue
		}
		node.Status.Conditions[i] = gkenode.Ready(time.Now())
		next, err := encode(&node)
		if err != nil {
			return err
		}
		next.SetGroupVersionKind(o.GroupVersionKind())
		if _, err := k.client.Resource(nodesGVR).UpdateStatus(k.ctx, next, metav1.UpdateOptions{FieldManager: manager}); err != nil {
			return err
		}
	}
	return nil
}

func encode(v any) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v)
	return &unstructured.Unstructured{Object: m}, err
}

func decode(o *unstructured.Unstructured, v any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, v)
}
