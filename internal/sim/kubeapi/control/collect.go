package control

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"multihost/internal/sim/kubeapi/store"
)

// An item is an object with its kind.
type item struct {
	kind *store.Kind
	*store.Object
}

// A collector deletes objects without owners. It also reports objects that are ready at
// once in this cluster.
type collector struct{ *Controllers }

// collect deletes the dependents of objects that are gone or being deleted.
func (c collector) collect() {
	byUID := make(map[types.UID]item)
	dependents := make(map[types.UID][]item)
	var all []item
	for _, k := range c.store.Kinds() {
		objects, _ := c.store.List(k, "")
		for _, o := range objects {
			it := item{k, o}
			all = append(all, it)
			byUID[o.GetUID()] = it
			for _, ref := range o.GetOwnerReferences() {
				dependents[ref.UID] = append(dependents[ref.UID], it)
			}
		}
	}
	for _, it := range all {
		refs := it.GetOwnerReferences()
		alive := slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { _, ok := byUID[r.UID]; return ok })
		if len(refs) > 0 && !alive && it.GetDeletionTimestamp() == nil {
			c.remove(it.kind, it, metav1.DeletePropagationBackground)
		}
		if it.GetDeletionTimestamp() == nil {
			continue
		}
		switch {
		case slices.Contains(it.GetFinalizers(), metav1.FinalizerDeleteDependents):
			c.foreground(it, dependents[it.GetUID()])
		case slices.Contains(it.GetFinalizers(), metav1.FinalizerOrphanDependents):
			for _, d := range dependents[it.GetUID()] {
				c.disown(d, it.GetUID())
			}
			c.unfinalize(it, metav1.FinalizerOrphanDependents)
		}
		if it.kind == store.Namespaces {
			c.emptyNamespace(it, all)
		}
	}
	c.lostPods()
}

// foreground deletes the dependents of an object, and the object when they are gone.
func (c collector) foreground(it item, dependents []item) {
	for _, d := range dependents {
		if d.GetDeletionTimestamp() == nil {
			c.remove(d.kind, d, metav1.DeletePropagationForeground)
		}
	}
	if len(dependents) == 0 {
		c.unfinalize(it, metav1.FinalizerDeleteDependents)
	}
}

func (c *Controllers) unfinalize(it item, finalizer string) {
	_, err := c.store.Change(it.kind, it.GetNamespace(), it.GetName(), store.Write{}, func(o *store.Object) error {
		o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == finalizer }))
		return nil
	})
	_ = err // the only possible error: the object is gone
}

func (c collector) disown(it item, uid types.UID) {
	_, err := c.store.Change(it.kind, it.GetNamespace(), it.GetName(), store.Write{}, func(o *store.Object) error {
		o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == uid }))
		return nil
	})
	_ = err // the only possible error: the object is gone
}

// emptyNamespace deletes everything in a namespace, then the namespace.
func (c collector) emptyNamespace(ns item, all []item) {
	empty := true
	for _, it := range all {
		if it.kind.Namespaced && it.GetNamespace() == ns.GetName() {
			empty = false
			if it.GetDeletionTimestamp() == nil {
				c.remove(it.kind, it, metav1.DeletePropagationBackground)
			}
		}
	}
	if empty {
		c.store.Forget(store.Namespaces, "", ns.GetName())
	}
}

// lostPods fails and deletes the pods of nodes that are gone, as PodGC does.
func (c collector) lostPods() {
	nodes := list[corev1.Node](c.Controllers, store.Nodes)
	if len(nodes) == 0 {
		return
	}
	for _, p := range list[corev1.Pod](c.Controllers, store.Pods) {
		if p.Spec.NodeName == "" || named(nodes, "", p.Spec.NodeName) != nil || !c.store.WasNode(p.Spec.NodeName) {
			continue
		}
		if !podOver(p) {
			lost := p.DeepCopy()
			lost.Status.Phase = corev1.PodFailed
			podCondition(lost, c.now(), corev1.DisruptionTarget, true, "DeletionByPodGC", "PodGC: node no longer exists")
			c.save(store.Pods, lost, true)
		}
		zero := int64(0)
		_, _, err := c.store.Remove(store.Pods, p.Namespace, p.Name, store.Removal{UID: string(p.UID), Grace: &zero})
		_ = err // the only possible error: the pod is gone
	}
}

// ready reports definitions of resources and deployments, which are ready at once in this
// cluster.
func (c collector) ready() {
	crds, _ := c.store.List(store.CRDs, "")
	for _, o := range crds {
		if conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions"); len(conditions) == 0 {
			c.establish(o)
		}
	}
	deployments, _ := c.store.List(store.Deployments, "")
	for _, o := range deployments {
		if seen, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); seen != o.GetGeneration() {
			c.roll(o)
		}
	}
}

func (c collector) establish(o *store.Object) {
	names, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "names")
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
	var stored []any
	for _, v := range versions {
		if m, ok := v.(map[string]any); ok && m["storage"] == true {
			stored = append(stored, m["name"])
		}
	}
	c.setStatus(store.CRDs, o, map[string]any{
		"acceptedNames": names, "storedVersions": stored,
		"conditions": []any{
			c.plain("NamesAccepted", "NoConflicts", "no conflicts found"),
			c.plain("Established", "InitialNamesAccepted", "the initial names have been accepted"),
		},
	})
}

func (c collector) roll(o *store.Object) {
	replicas, ok, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	if !ok {
		replicas = 1
	}
	c.setStatus(store.Deployments, o, map[string]any{
		"observedGeneration": o.GetGeneration(), "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
		"conditions": []any{
			c.plain("Available", "MinimumReplicasAvailable", "Deployment has minimum availability."),
			c.plain("Progressing", "NewReplicaSetAvailable", "ReplicaSet has successfully progressed."),
		},
	})
}

func (c collector) plain(kind, reason, message string) map[string]any {
	return map[string]any{"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": metav1.NewTime(c.now()).UTC().Format("2006-01-02T15:04:05Z")}
}

func (c *Controllers) setStatus(k *store.Kind, o *store.Object, status any) {
	_, err := c.store.Change(k, o.GetNamespace(), o.GetName(), store.Write{Status: true}, func(o *store.Object) error {
		o.Object["status"] = runtime.DeepCopyJSONValue(status)
		return nil
	})
	_ = err // the only possible error: the object is gone
}
