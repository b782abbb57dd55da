package control

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"multihost/internal/sim/kubeapi/store"
)

// queueLabel is the label with the name of an object's queue.
const queueLabel = "kueue.x-k8s.io/queue-name"

// A use is an amount of a resource in a flavor.
type use struct {
	flavor   kueue.ResourceFlavorReference
	resource corev1.ResourceName
}

// queues is Kueue for JobSets.
type queues struct {
	*Controllers
	workloads []*kueue.Workload // the workloads after the pass
	was       []*kueue.Workload
	sets      []*jobset.JobSet
}

// look lets Kueue look at everything: workloads for JobSets, evictions in progress, and
// workloads to admit.
func (c queues) look() {
	c.sets = list[jobset.JobSet](c.Controllers, store.JobSets)
	c.was = list[kueue.Workload](c.Controllers, store.Workloads)
	for _, w := range c.was {
		c.workloads = append(c.workloads, w.DeepCopy())
	}
	for _, js := range c.sets {
		if js.Labels[queueLabel] != "" && js.DeletionTimestamp == nil {
			c.jobSetOf(js)
		}
	}
	locals := list[kueue.LocalQueue](c.Controllers, store.LocalQueues)
	clusters := list[kueue.ClusterQueue](c.Controllers, store.ClusterQueues)
	for _, q := range clusters {
		c.admit(q, locals)
	}
	for _, w := range c.workloads {
		c.explainMissing(w, locals, clusters)
	}
	for i, w := range c.workloads {
		if !equal(c.was[i].Status, w.Status) {
			c.save(store.Workloads, w, true)
		}
	}
	c.report(locals, clusters)
}

// jobSetOf makes the workload of a JobSet, and starts or suspends the JobSet as the
// workload says.
func (c queues) jobSetOf(js *jobset.JobSet) {
	i := slices.IndexFunc(c.workloads, func(w *kueue.Workload) bool { return ownedBy(w, js.UID) })
	if i < 0 {
		if !jobSetOver(js) {
			c.createWorkload(js)
		}
		return
	}
	w := c.workloads[i]
	suspend := js.Spec.Suspend != nil && *js.Spec.Suspend
	switch {
	case finished(w):
	case jobSetOver(js):
		c.finish(w, js)
	case isTrue(w.Status.Conditions, kueue.WorkloadEvicted) && w.Status.Admission != nil:
		if !suspend {
			c.setSuspend(js, true, nil)
		} else if !c.hasPods(js) {
			c.requeue(w)
		}
	case isTrue(w.Status.Conditions, kueue.WorkloadAdmitted) && suspend:
		c.setSuspend(js, false, w.Status.Admission)
	case w.Status.Admission == nil && !suspend:
		c.setSuspend(js, true, nil)
	}
}

func finished(w *kueue.Workload) bool { return isTrue(w.Status.Conditions, kueue.WorkloadFinished) }

func (c queues) finish(w *kueue.Workload, js *jobset.JobSet) {
	for _, cond := range js.Status.Conditions {
		if cond.Status != metav1.ConditionTrue {
			continue
		}
		switch cond.Type {
		case string(jobset.JobSetCompleted):
			condition(&w.Status.Conditions, c.now(), kueue.WorkloadFinished, true, kueue.WorkloadFinishedReasonSucceeded, cond.Message)
		case string(jobset.JobSetFailed):
			condition(&w.Status.Conditions, c.now(), kueue.WorkloadFinished, true, kueue.WorkloadFinishedReasonFailed, cond.Message)
		}
	}
}

// hasPods reports whether a JobSet still has a pod that has not ended.
func (c queues) hasPods(js *jobset.JobSet) bool {
	return slices.ContainsFunc(list[corev1.Pod](c.Controllers, store.Pods), func(p *corev1.Pod) bool {
		return p.Labels[jobset.JobSetUIDKey] == string(js.UID) && !ended(p)
	})
}

func (c queues) createWorkload(js *jobset.JobSet) {
	hash := sha1.Sum([]byte(strings.Join([]string{"JobSet", store.JobSets.Group, js.Name, string(js.UID)}, "\n")))
	w := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{
		Name: "jobset-" + js.Name + "-" + hex.EncodeToString(hash[:])[:5], Namespace: js.Namespace, OwnerReferences: owner(store.JobSets, js),
		Labels: map[string]string{"kueue.x-k8s.io/job-uid": string(js.UID)},
	}}
	w.Spec.QueueName = kueue.LocalQueueName(js.Labels[queueLabel])
	priority := int32(0)
	for _, r := range js.Spec.ReplicatedJobs {
		spec := r.Template.Spec
		pods := int32(1)
		if spec.Parallelism != nil {
			pods = *spec.Parallelism
		}
		if spec.Completions != nil {
			pods = min(pods, *spec.Completions)
		}
		set := kueue.PodSet{Name: kueue.PodSetReference(r.Name), Count: r.Replicas * pods, Template: *spec.Template.DeepCopy()}
		for i := range set.Template.Spec.Containers {
			withRequests(&set.Template.Spec.Containers[i])
		}
		w.Spec.PodSets = append(w.Spec.PodSets, set)
		if name := spec.Template.Spec.PriorityClassName; name != "" && w.Spec.PriorityClassRef == nil {
			if value, ok := c.priority(name); ok {
				priority = value
				w.Spec.PriorityClassRef = kueue.NewPodPriorityClassRef(name)
			}
		}
	}
	w.Spec.Priority = &priority
	if err := c.create(store.Workloads, w); err == nil {
		c.event(store.JobSets, js, corev1.EventTypeNormal, "CreatedWorkload", fmt.Sprintf("Created Workload: %s/%s", w.Namespace, w.Name), "jobset.x-k8s.io/jobset-kueue-controller")
	}
}

// withRequests sets the requests of a container to its limits.
func withRequests(ct *corev1.Container) {
	for name, q := range ct.Resources.Limits {
		if _, ok := ct.Resources.Requests[name]; !ok {
			if ct.Resources.Requests == nil {
				ct.Resources.Requests = corev1.ResourceList{}
			}
			ct.Resources.Requests[name] = q
		}
	}
}

// setSuspend suspends a JobSet, or starts it on nodes of the flavors that a gives it.
func (c queues) setSuspend(was *jobset.JobSet, suspend bool, a *kueue.Admission) {
	js := was.DeepCopy()
	js.Spec.Suspend = &suspend
	flavors := list[kueue.ResourceFlavor](c.Controllers, store.ResourceFlavors)
	for i := range js.Spec.ReplicatedJobs {
		spec := &js.Spec.ReplicatedJobs[i].Template.Spec.Template.Spec
		for _, f := range assigned(a, js.Spec.ReplicatedJobs[i].Name) {
			if flavor := named(flavors, "", string(f)); flavor != nil {
				spec.NodeSelector = with(spec.NodeSelector, flavor.Spec.NodeLabels)
				spec.Tolerations = append(spec.Tolerations, flavor.Spec.Tolerations...)
			}
		}
	}
	c.save(store.JobSets, js, false)
	if suspend {
		c.event(store.JobSets, js, corev1.EventTypeNormal, "Stopped", "Preempted", "jobset.x-k8s.io/jobset-kueue-controller")
	} else {
		c.event(store.JobSets, js, corev1.EventTypeNormal, "Started", fmt.Sprintf("Admitted by clusterQueue %s", a.ClusterQueue), "jobset.x-k8s.io/jobset-kueue-controller")
	}
}

func assigned(a *kueue.Admission, podSet string) (flavors []kueue.ResourceFlavorReference) {
	if a == nil {
		return nil
	}
	for _, s := range a.PodSetAssignments {
		if string(s.Name) != podSet {
			continue
		}
		for _, f := range s.Flavors {
			if !slices.Contains(flavors, f) {
				flavors = append(flavors, f)
			}
		}
	}
	return flavors
}

// requeue takes the quota from an evicted workload, which then waits again.
func (c queues) requeue(w *kueue.Workload) {
	now := c.now()
	i := slices.IndexFunc(w.Status.Conditions, func(o metav1.Condition) bool { return o.Type == kueue.WorkloadEvicted })
	evicted := w.Status.Conditions[i]
	w.Status.Admission = nil
	condition(&w.Status.Conditions, now, kueue.WorkloadQuotaReserved, false, "Pending", evicted.Message)
	condition(&w.Status.Conditions, now, kueue.WorkloadAdmitted, false, "NoReservation", "The workload has no reservation")
	condition(&w.Status.Conditions, now, kueue.WorkloadRequeued, true, evicted.Reason, evicted.Message)
}

// evict begins to remove a workload from its nodes.
func (c queues) evict(w *kueue.Workload, reason, message string) {
	condition(&w.Status.Conditions, c.now(), kueue.WorkloadEvicted, true, reason, message)
	c.event(store.Workloads, w, corev1.EventTypeNormal, "EvictedDueTo"+reason, message, "kueue-workload-controller")
}

// queued returns when a workload began to wait.
func queued(w *kueue.Workload) metav1.Time {
	for _, cond := range w.Status.Conditions {
		if cond.Type == kueue.WorkloadRequeued && cond.Status == metav1.ConditionTrue {
			return cond.LastTransitionTime
		}
	}
	return w.CreationTimestamp
}

func priorityOfWorkload(w *kueue.Workload) int32 {
	if w.Spec.Priority == nil {
		return 0
	}
	return *w.Spec.Priority
}

// admit gives quota of a cluster queue to waiting workloads, the most important first.
func (c queues) admit(q *kueue.ClusterQueue, locals []*kueue.LocalQueue) {
	if stopped(q.Spec.StopPolicy) {
		return
	}
	var holding, waiting []*kueue.Workload
	for _, w := range c.workloads {
		if finished(w) || w.DeletionTimestamp != nil {
			continue
		}
		if a := w.Status.Admission; a != nil {
			if string(a.ClusterQueue) == q.Name {
				holding = append(holding, w)
			}
			continue
		}
		local := named(locals, w.Namespace, string(w.Spec.QueueName))
		if local != nil && string(local.Spec.ClusterQueue) == q.Name && !stopped(local.Spec.StopPolicy) && (w.Spec.Active == nil || *w.Spec.Active) {
			waiting = append(waiting, w)
		}
	}
	slices.SortStableFunc(waiting, func(a, b *kueue.Workload) int {
		return cmp.Or(cmp.Compare(priorityOfWorkload(b), priorityOfWorkload(a)), queued(a).Compare(queued(b).Time))
	})
	for _, w := range waiting {
		assignment, missing := c.fit(q, w, usage(holding))
		if missing == "" {
			c.reserve(q, w, assignment)
			holding = append(holding, w)
			continue
		}
		if targets := c.targets(q, w, holding); len(targets) > 0 {
			missing += fmt.Sprintf(". Pending the preemption of %d workload(s)", len(targets))
			c.preempt(q, w, targets)
		}
		condition(&w.Status.Conditions, c.now(), kueue.WorkloadQuotaReserved, false, "Pending", missing)
		if q.Spec.QueueingStrategy == kueue.StrictFIFO {
			return
		}
	}
}

func stopped(p *kueue.StopPolicy) bool { return p != nil && *p != kueue.None }

// usage returns the quota that workloads hold.
func usage(holding []*kueue.Workload) map[use]resource.Quantity {
	sum := make(map[use]resource.Quantity)
	for _, w := range holding {
		for _, s := range w.Status.Admission.PodSetAssignments {
			for name, flavor := range s.Flavors {
				total := sum[use{flavor, name}]
				total.Add(s.ResourceUsage[name])
				sum[use{flavor, name}] = total
			}
		}
	}
	return sum
}

// fit finds flavors for the pods of a workload. If quota is missing, it returns which, in
// the words of Kueue.
func (c queues) fit(q *kueue.ClusterQueue, w *kueue.Workload, used map[use]resource.Quantity) (sets []kueue.PodSetAssignment, missing string) {
	var lacks []string
	for _, s := range w.Spec.PodSets {
		total := corev1.ResourceList{}
		for name, one := range requests(&corev1.Pod{Spec: s.Template.Spec}) {
			n := one.DeepCopy()
			n.Mul(int64(s.Count))
			total[name] = n
		}
		a := kueue.PodSetAssignment{Name: s.Name, Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{}, ResourceUsage: total, Count: &s.Count}
		if why := c.fitSet(q, s.Template.Spec.NodeSelector, &a, used); why != "" {
			lacks = append(lacks, fmt.Sprintf("couldn't assign flavors to pod set %s: %s", s.Name, why))
			continue
		}
		for name, flavor := range a.Flavors {
			n := used[use{flavor, name}]
			n.Add(total[name])
			used[use{flavor, name}] = n
		}
		sets = append(sets, a)
	}
	return sets, strings.Join(lacks, "; ")
}

// fitSet finds a flavor for each resource of a pod set.
func (c queues) fitSet(q *kueue.ClusterQueue, selector map[string]string, a *kueue.PodSetAssignment, used map[use]resource.Quantity) string {
	for name, wanted := range a.ResourceUsage {
		i := slices.IndexFunc(q.Spec.ResourceGroups, func(g kueue.ResourceGroup) bool { return slices.Contains(g.CoveredResources, name) })
		if i < 0 {
			return fmt.Sprintf("resource %s unavailable in ClusterQueue", name)
		}
		var reasons []string
		for _, f := range q.Spec.ResourceGroups[i].Flavors {
			why := c.fitFlavor(f, name, wanted, selector, used[use{f.Name, name}])
			if why == "" {
				a.Flavors[name] = f.Name
				break
			}
			reasons = append(reasons, why)
		}
		if a.Flavors[name] == "" {
			return strings.Join(reasons, ", ")
		}
	}
	return ""
}

// fitFlavor returns why a flavor has too little of a resource, or "" if it has enough.
func (c queues) fitFlavor(f kueue.FlavorQuotas, name corev1.ResourceName, wanted resource.Quantity, selector map[string]string, used resource.Quantity) string {
	o := named(list[kueue.ResourceFlavor](c.Controllers, store.ResourceFlavors), "", string(f.Name))
	if o == nil {
		return fmt.Sprintf("flavor %s not found", f.Name)
	}
	for key, value := range o.Spec.NodeLabels {
		if v, ok := selector[key]; ok && v != value {
			return fmt.Sprintf("flavor %s doesn't match node affinity", f.Name)
		}
	}
	i := slices.IndexFunc(f.Resources, func(r kueue.ResourceQuota) bool { return r.Name == name })
	if i < 0 {
		return fmt.Sprintf("flavor %s has no quota for %s", f.Name, name)
	}
	free := f.Resources[i].NominalQuota.DeepCopy()
	if wanted.Cmp(free) > 0 {
		return fmt.Sprintf("insufficient quota for %s in flavor %s, previously considered podsets requests (0) + current podset request (%s) > maximum capacity (%s)", name, f.Name, wanted.String(), free.String())
	}
	free.Sub(used)
	if wanted.Cmp(free) > 0 {
		more := wanted.DeepCopy()
		more.Sub(free)
		return fmt.Sprintf("insufficient unused quota for %s in flavor %s, %s more needed", name, f.Name, more.String())
	}
	return ""
}

// reserve admits a workload.
func (c queues) reserve(q *kueue.ClusterQueue, w *kueue.Workload, sets []kueue.PodSetAssignment) {
	now := c.now()
	w.Status.Admission = &kueue.Admission{ClusterQueue: kueue.ClusterQueueReference(q.Name), PodSetAssignments: sets}
	condition(&w.Status.Conditions, now, kueue.WorkloadQuotaReserved, true, "QuotaReserved", "Quota reserved in ClusterQueue "+q.Name)
	condition(&w.Status.Conditions, now, kueue.WorkloadAdmitted, true, "Admitted", "The workload is admitted")
	for _, kind := range []string{kueue.WorkloadEvicted, kueue.WorkloadPreempted} {
		for _, cond := range w.Status.Conditions {
			if cond.Type == kind && cond.Status == metav1.ConditionTrue {
				condition(&w.Status.Conditions, now, kind, false, "QuotaReserved", "Previously: "+cond.Message)
			}
		}
	}
	waited := now.Sub(queued(w).Time).Seconds()
	c.event(store.Workloads, w, corev1.EventTypeNormal, "QuotaReserved", fmt.Sprintf("Quota reserved in ClusterQueue %s, wait time since queued was %.0fs", q.Name, waited), "kueue-admission")
	c.event(store.Workloads, w, corev1.EventTypeNormal, "Admitted", fmt.Sprintf("Admitted by ClusterQueue %s, wait time since reservation was 0s", q.Name), "kueue-admission")
}

// targets returns the workloads that must go so that w fits: the least important first, and
// among equals the newest. It returns nil if that does not help or is not allowed.
func (c queues) targets(q *kueue.ClusterQueue, w *kueue.Workload, holding []*kueue.Workload) []*kueue.Workload {
	if q.Spec.Preemption == nil || q.Spec.Preemption.WithinClusterQueue == kueue.PreemptionPolicyNever || q.Spec.Preemption.WithinClusterQueue == "" {
		return nil
	}
	var lower, rest []*kueue.Workload
	for _, h := range holding {
		if priorityOfWorkload(h) < priorityOfWorkload(w) {
			lower = append(lower, h)
		} else {
			rest = append(rest, h)
		}
	}
	slices.SortStableFunc(lower, func(a, b *kueue.Workload) int {
		return cmp.Or(cmp.Compare(priorityOfWorkload(a), priorityOfWorkload(b)), queued(b).Compare(queued(a).Time))
	})
	for n := 1; n <= len(lower); n++ {
		if _, missing := c.fit(q, w, usage(slices.Concat(rest, lower[n:]))); missing == "" {
			return lower[:n]
		}
	}
	return nil
}

// preempt evicts workloads for a more important one.
func (c queues) preempt(q *kueue.ClusterQueue, w *kueue.Workload, targets []*kueue.Workload) {
	for _, target := range targets {
		if isTrue(target.Status.Conditions, kueue.WorkloadEvicted) {
			continue
		}
		message := fmt.Sprintf("Preempted to accommodate a workload (UID: %s, JobUID: %s) due to prioritization in the ClusterQueue; preemptor path: /%s; preemptee path: /%s",
			w.UID, w.Labels["kueue.x-k8s.io/job-uid"], q.Name, q.Name)
		c.evict(target, kueue.WorkloadEvictedByPreemption, message)
		condition(&target.Status.Conditions, c.now(), kueue.WorkloadPreempted, true, kueue.InClusterQueueReason, message)
		c.event(store.Workloads, target, corev1.EventTypeNormal, "Preempted", message, "kueue-admission")
	}
}

// explainMissing says why a workload waits whose queue is missing or stopped. It evicts a
// deactivated workload.
func (c queues) explainMissing(w *kueue.Workload, locals []*kueue.LocalQueue, clusters []*kueue.ClusterQueue) {
	if finished(w) {
		return
	}
	if w.Spec.Active != nil && !*w.Spec.Active {
		if w.Status.Admission != nil {
			c.evict(w, kueue.WorkloadDeactivated, "The workload is deactivated")
		}
		return
	}
	if w.Status.Admission != nil {
		return
	}
	why := ""
	local := named(locals, w.Namespace, string(w.Spec.QueueName))
	switch {
	case local == nil:
		why = fmt.Sprintf("LocalQueue %s doesn't exist", w.Spec.QueueName)
	case stopped(local.Spec.StopPolicy):
		why = fmt.Sprintf("LocalQueue %s is stopped", w.Spec.QueueName)
	case named(clusters, "", string(local.Spec.ClusterQueue)) == nil:
		why = fmt.Sprintf("ClusterQueue %s doesn't exist", local.Spec.ClusterQueue)
	case stopped(named(clusters, "", string(local.Spec.ClusterQueue)).Spec.StopPolicy):
		why = fmt.Sprintf("ClusterQueue %s is stopped", local.Spec.ClusterQueue)
	default:
		return
	}
	condition(&w.Status.Conditions, c.now(), kueue.WorkloadQuotaReserved, false, "Inadmissible", why)
}

// report writes the status of the queues.
func (c queues) report(locals []*kueue.LocalQueue, clusters []*kueue.ClusterQueue) {
	for _, was := range clusters {
		q := was.DeepCopy()
		condition(&q.Status.Conditions, c.now(), kueue.ClusterQueueActive, !stopped(q.Spec.StopPolicy), "Ready", "Can admit new workloads")
		var holding []*kueue.Workload
		pending := int32(0)
		for _, w := range c.workloads {
			local := named(locals, w.Namespace, string(w.Spec.QueueName))
			switch {
			case finished(w):
			case w.Status.Admission != nil && string(w.Status.Admission.ClusterQueue) == q.Name:
				holding = append(holding, w)
			case w.Status.Admission == nil && local != nil && string(local.Spec.ClusterQueue) == q.Name:
				pending++
			}
		}
		n := int32(len(holding))
		q.Status.PendingWorkloads, q.Status.ReservingWorkloads, q.Status.AdmittedWorkloads = pending, n, n
		used := usage(holding)
		q.Status.FlavorsUsage = nil
		for _, g := range q.Spec.ResourceGroups {
			for _, f := range g.Flavors {
				u := kueue.FlavorUsage{Name: f.Name}
				for _, r := range f.Resources {
					u.Resources = append(u.Resources, kueue.ResourceUsage{Name: r.Name, Total: used[use{f.Name, r.Name}]})
				}
				q.Status.FlavorsUsage = append(q.Status.FlavorsUsage, u)
			}
		}
		q.Status.FlavorsReservation = q.Status.FlavorsUsage
		if !equal(was.Status, q.Status) {
			c.save(store.ClusterQueues, q, true)
		}
	}
	for _, was := range locals {
		c.reportLocal(was, named(clusters, "", string(was.Spec.ClusterQueue)) != nil)
	}
}

func (c queues) reportLocal(was *kueue.LocalQueue, served bool) {
	q := was.DeepCopy()
	reason, message := "Ready", "Can submit new workloads to localQueue"
	if !served {
		reason, message = "ClusterQueueDoesNotExist", "Can't submit new workloads to clusterQueue"
	}
	condition(&q.Status.Conditions, c.now(), kueue.LocalQueueActive, served, reason, message)
	q.Status.PendingWorkloads, q.Status.ReservingWorkloads, q.Status.AdmittedWorkloads = 0, 0, 0
	for _, w := range c.workloads {
		switch {
		case finished(w) || w.Namespace != q.Namespace || string(w.Spec.QueueName) != q.Name:
		case w.Status.Admission != nil:
			q.Status.ReservingWorkloads++
			q.Status.AdmittedWorkloads++
		default:
			q.Status.PendingWorkloads++
		}
	}
	if !equal(was.Status, q.Status) {
		c.save(store.LocalQueues, q, true)
	}
}
