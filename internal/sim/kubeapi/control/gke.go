package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/sim/kubeapi/store"
)

// admitPod does what admission does to a new pod: it sets the pod's priority and applies
// JobSet's rules of exclusive placement.
func (c *Controllers) admitPod(p *corev1.Pod) error {
	if name := p.Spec.PriorityClassName; name != "" && p.Spec.Priority == nil {
		value, ok := c.priority(name)
		if !ok {
			return apierrors.NewForbidden(store.Pods.Resource(), p.Name, fmt.Errorf("no PriorityClass with name %v was found", name))
		}
		p.Spec.Priority = &value
	}
	if p.Spec.Priority == nil {
		zero := int32(0)
		p.Spec.Priority = &zero
	}
	if p.Annotations[jobset.JobSetNameKey] == "" {
		return nil
	}
	priority := strconv.Itoa(int(*p.Spec.Priority))
	p.Labels = with(p.Labels, map[string]string{"jobset.sigs.k8s.io/priority": priority})
	if key := p.Annotations[jobset.ExclusiveKey]; key != "" && indexOf(p) == 0 {
		p.Spec.Affinity = exclusive(key, p.Labels[jobset.JobKey], priority)
	}
	return nil
}

// exclusive returns the affinity of a leader: a topology domain may have only one Job of a
// priority.
func exclusive(topology, job, priority string) *corev1.Affinity {
	var a corev1.Affinity
	text := fmt.Sprintf(`{
		"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": %[1]q, "namespaceSelector": {}, "labelSelector": {"matchExpressions": [
			{"key": %[2]q, "operator": "In", "values": [%[3]q]}]}}]},
		"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": %[1]q, "namespaceSelector": {}, "labelSelector": {"matchExpressions": [
			{"key": %[2]q, "operator": "Exists"}, {"key": %[2]q, "operator": "NotIn", "values": [%[3]q]},
			{"key": "jobset.sigs.k8s.io/priority", "operator": "In", "values": [%[4]q]}]}}]}}`, topology, jobset.JobKey, job, priority)
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil // cannot happen: all values are quoted
	}
	return &a
}

// priority returns the value of a priority class.
func (c *Controllers) priority(name string) (value int32, ok bool) {
	o, err := c.store.Get(store.PriorityClasses, "", name)
	if err != nil {
		return priorityOf(name, nil)
	}
	return priorityOf(name, o)
}

// priorityOf returns the value of a class. o is the object of the class, or nil if there is
// none.
func priorityOf(name string, o *store.Object) (value int32, ok bool) {
	switch {
	case name == "system-cluster-critical":
		return 2000000000, true
	case name == "system-node-critical":
		return 2000001000, true
	case o == nil:
		return 0, false
	}
	n, _, _ := unstructured.NestedInt64(o.Object, "value")
	return int32(n), true
}

// Admit does what admission does to objects of users. Pods get the priority of their class.
// Kueue suspends objects that name a queue.
func Admit(k *store.Kind, o *store.Object, get func(k *store.Kind, namespace, name string) *store.Object) error {
	switch k {
	case store.JobSets:
		if o.GetLabels()[queueLabel] != "" {
			return unstructured.SetNestedField(o.Object, true, "spec", "suspend")
		}
	case store.Pods:
		name, _, _ := unstructured.NestedString(o.Object, "spec", "priorityClassName")
		value := int32(0)
		if name != "" {
			var ok bool
			if value, ok = priorityOf(name, get(store.PriorityClasses, "", name)); !ok {
				return apierrors.NewForbidden(store.Pods.Resource(), o.GetName(), fmt.Errorf("no PriorityClass with name %v was found", name))
			}
		}
		if _, ok, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "priority"); !ok {
			return unstructured.SetNestedField(o.Object, int64(value), "spec", "priority")
		}
	}
	return nil
}

// with returns a copy of m with more entries.
func with(m, more map[string]string) map[string]string {
	all := make(map[string]string, len(m)+len(more))
	maps.Copy(all, m)
	maps.Copy(all, more)
	return all
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// equal reports whether two structs are the same in JSON.
func equal(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}
