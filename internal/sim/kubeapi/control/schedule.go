package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"multihost/internal/sim/kubeapi/store"
)

// schedule gives nodes to pods, or says why a pod gets none.
func (c *Controllers) schedule() {
	nodes := list[corev1.Node](c, store.Nodes)
	pods := slices.Clone(list[corev1.Pod](c, store.Pods))
	used := make(map[string]corev1.ResourceList) // by node
	for _, p := range pods {
		if p.Spec.NodeName != "" && !podOver(p) {
			used[p.Spec.NodeName] = plus(used[p.Spec.NodeName], requests(p))
		}
	}
	for i, p := range pods {
		if p.Spec.NodeName != "" || p.DeletionTimestamp != nil || podOver(p) || len(p.Spec.SchedulingGates) > 0 {
			continue
		}
		reasons := make(map[string]int)
		var node *corev1.Node
		for _, n := range nodes {
			why := misfit(p, n, nodes, pods)
			if why == "" {
				why = full(p, n, used[n.Name])
			}
			if why == "" {
				node = n
				break
			}
			reasons[why]++
		}
		next := p.DeepCopy()
		if node == nil {
			c.unschedulable(next, len(nodes), reasons)
			continue
		}
		next.Spec.NodeName = node.Name
		used[node.Name] = plus(used[node.Name], requests(p))
		c.save(store.Pods, next, false)
		now, err := c.store.Get(store.Pods, p.Namespace, p.Name)
		if err != nil || store.Decode(now, next) != nil {
			continue
		}
		podCondition(next, c.now(), corev1.PodScheduled, true, "", "")
		c.save(store.Pods, next, true)
		pods[i] = next
		c.event(store.Pods, p, corev1.EventTypeNormal, "Scheduled", fmt.Sprintf("Successfully assigned %s/%s to %s", p.Namespace, p.Name, node.Name), "default-scheduler")
	}
}

func (c *Controllers) unschedulable(p *corev1.Pod, nodes int, reasons map[string]int) {
	message := unschedulableMessage(nodes, reasons)
	if !podCondition(p, c.now(), corev1.PodScheduled, false, corev1.PodReasonUnschedulable, message) {
		return
	}
	c.save(store.Pods, p, true)
	c.event(store.Pods, p, corev1.EventTypeWarning, "FailedScheduling", message, "default-scheduler")
}

// unschedulableMessage says why a pod got none of some nodes, in the form of the scheduler.
func unschedulableMessage(nodes int, reasons map[string]int) string {
	if nodes == 0 {
		return "no nodes available to schedule pods"
	}
	var parts []string
	short := 0
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		parts = append(parts, fmt.Sprintf("%d %s", reasons[why], why))
		if strings.HasPrefix(why, "Insufficient") {
			short += reasons[why]
		}
	}
	var after []string
	if short > 0 {
		after = append(after, fmt.Sprintf("%d No preemption victims found for incoming pod", short))
	}
	if nodes > short {
		after = append(after, fmt.Sprintf("%d Preemption is not helpful for scheduling", nodes-short))
	}
	return fmt.Sprintf("0/%d nodes are available: %s. no new claims to deallocate, preemption: 0/%d nodes are available: %s.",
		nodes, strings.Join(parts, ", "), nodes, strings.Join(after, ", "))
}

// misfit returns why a pod cannot run on a node, in the words of the scheduler, or "" if it
// can.
func misfit(p *corev1.Pod, n *corev1.Node, nodes []*corev1.Node, pods []*corev1.Pod) string {
	if n.Spec.Unschedulable {
		return "node(s) were unschedulable"
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool { return tolerates(o, t) }) {
			return fmt.Sprintf("node(s) had untolerated taint(s) {%s: %s}", t.Key, t.Value)
		}
	}
	if !labels.SelectorFromSet(p.Spec.NodeSelector).Matches(labels.Set(n.Labels)) {
		return "node(s) didn't match Pod's node affinity/selector"
	}
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil && !nearAll(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, p, n, nodes, pods) {
			return "node(s) didn't match pod affinity rules"
		}
		if a.PodAntiAffinity != nil && nearAny(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, n, nodes, pods) {
			return "node(s) didn't match pod anti-affinity rules"
		}
	}
	return ""
}

// full returns the first resource of which a node has too little for a pod, or "".
func full(p *corev1.Pod, n *corev1.Node, used corev1.ResourceList) string {
	for name, wanted := range requests(p) {
		free := n.Status.Allocatable[name].DeepCopy()
		free.Sub(used[name])
		if free.Cmp(wanted) < 0 {
			return "Insufficient " + string(name)
		}
	}
	return ""
}

// plus returns the sum of two lists.
func plus(a, b corev1.ResourceList) corev1.ResourceList {
	sum := a.DeepCopy()
	if sum == nil {
		sum = corev1.ResourceList{}
	}
	for name, q := range b {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
	return sum
}

func tolerates(o corev1.Toleration, t corev1.Taint) bool {
	return (o.Effect == "" || o.Effect == t.Effect) && (o.Key == t.Key || o.Key == "" && o.Operator == corev1.TolerationOpExists) &&
		(o.Operator == corev1.TolerationOpExists || o.Value == t.Value)
}

// requests returns the devices and CPUs that the containers of a pod request, without
// memory.
func requests(p *corev1.Pod) corev1.ResourceList {
	var sum corev1.ResourceList
	for _, c := range p.Spec.Containers {
		sum = plus(sum, c.Resources.Requests)
	}
	delete(sum, corev1.ResourceMemory)
	delete(sum, corev1.ResourceEphemeralStorage)
	return sum
}

// near reports whether a pod that the term t selects runs in the topology domain of a node.
func near(t corev1.PodAffinityTerm, n *corev1.Node, nodes []*corev1.Node, pods []*corev1.Pod) (here, anywhere bool) {
	sel, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return false, false
	}
	for _, o := range pods {
		if o.Spec.NodeName == "" || podOver(o) || !sel.Matches(labels.Set(o.Labels)) {
			continue
		}
		anywhere = true
		if at := named(nodes, "", o.Spec.NodeName); at != nil && at.Labels[t.TopologyKey] == n.Labels[t.TopologyKey] {
			return true, true
		}
	}
	return false, anywhere
}

// nearAll reports whether a node satisfies all terms. A term that selects only the pod
// itself is satisfied.
func nearAll(terms []corev1.PodAffinityTerm, p *corev1.Pod, n *corev1.Node, nodes []*corev1.Node, pods []*corev1.Pod) bool {
	for _, t := range terms {
		if n.Labels[t.TopologyKey] == "" {
			return false
		}
		here, anywhere := near(t, n, nodes, pods)
		sel, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
		if !here && (anywhere || err != nil || !sel.Matches(labels.Set(p.Labels))) {
			return false
		}
	}
	return true
}

func nearAny(terms []corev1.PodAffinityTerm, n *corev1.Node, nodes []*corev1.Node, pods []*corev1.Pod) bool {
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool {
		here, _ := near(t, n, nodes, pods)
		return here
	})
}

// podOver reports whether a pod has ended.
func podOver(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// podCondition sets a condition of a pod. It reports whether anything has changed.
func podCondition(p *corev1.Pod, now time.Time, kind corev1.PodConditionType, status bool, reason, message string) bool {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now)}
	if status {
		c.Status = corev1.ConditionTrue
	}
	for i, old := range p.Status.Conditions {
		if old.Type != kind {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		p.Status.Conditions[i] = c
		return old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
	return true
}
