package held

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// describe returns a JobSet and its pods as a resource.
func describe(js *jobset.JobSet, pods []corev1.Pod, what provision.Commands) provision.Resource {
	count, workers := shape(js)
	res := provision.Resource{
		ID: js.Name, Commands: what, Type: js.Annotations[annotationType], NodeCount: count,
		Nodes: sliceNames(js.Name, count), Labels: js.Labels, CreateTime: js.CreationTimestamp.Time, Until: endOf(js), Own: leaseOf(js),
	}
	all := byPlace(pods)
	ready := 0
	for i, name := range res.Nodes {
		s := sliceOf(js, name, all[i], workers)
		s.Index = i
		if len(all[i]) == 0 && len(pods) == 0 && js.Status.Restarts == 0 {
			continue // no pods were made yet
		}
		if s.Condition == tpu.Usable {
			ready++
		}
		res.Slices = append(res.Slices, s)
	}
	res.Life, res.State = lifeOf(js, ready, len(res.Slices))
	at, some := ended(js, pods)
	if some && res.Life != provision.Deleting && res.Life != provision.Failed {
		res.Life, res.State, res.Over = provision.Suspending, "Ending", true
		if res.By = "their lease, because nobody used them (--lease)"; !res.Until.IsZero() && !at.Before(res.Until) {
			res.By = "the end of their time (--ttl)"
		}
		if conditionText(js, jobset.JobSetCompleted) != "" {
			res.Life, res.State, res.Free, res.Slices = provision.Suspended, "Ended", true, nil
		}
		return res
	}
	if res.Life == provision.Failed {
		res.Failure = conditionText(js, jobset.JobSetFailed)
	} else if ready < count {
		res.Failure = obstacle(pods)
	}
	return res
}

// endOf returns when the time to live of the pods is over; zero: never.
func endOf(js *jobset.JobSet) time.Time {
	end, _ := time.Parse(time.RFC3339, js.Annotations[annotationEnd]) // jobSet has written this form
	return end
}

// leaseOf returns Settings.Lease of a JobSet.
func leaseOf(js *jobset.JobSet) time.Duration {
	for _, r := range js.Spec.ReplicatedJobs {
		for _, c := range r.Template.Spec.Template.Spec.Containers {
			if c.Name == Container && len(c.Command) > 0 {
				seconds, _ := strconv.ParseInt(c.Command[len(c.Command)-1], 10, 32) // older pods have no lease
				return time.Duration(seconds) * time.Second
			}
		}
	}
	return 0
}

// ended reports whether pods have ended by themselves. at is when the last of them ended.
func ended(js *jobset.JobSet, pods []corev1.Pod) (at time.Time, some bool) {
	for _, c := range js.Status.Conditions {
		if c.Type == string(jobset.JobSetCompleted) && c.Status == metav1.ConditionTrue {
			at, some = c.LastTransitionTime.Time, true
		}
	}
	for _, p := range pods {
		if p.Status.Phase != corev1.PodSucceeded || p.DeletionTimestamp != nil {
			continue
		}
		some = true
		for _, c := range p.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil && t.FinishedAt.After(at) {
				at = t.FinishedAt.Time
			}
		}
	}
	return at, some
}

// shape returns how many slices a JobSet has, and how many workers each of them.
func shape(js *jobset.JobSet) (slices, workers int) {
	for _, r := range js.Spec.ReplicatedJobs {
		if r.Name == jobName && r.Template.Spec.Completions != nil {
			return int(r.Replicas), int(*r.Template.Spec.Completions)
		}
	}
	return 0, 0
}

// lifeOf returns the Life of a JobSet, and its state in words.
func lifeOf(js *jobset.JobSet, ready, seen int) (provision.Life, string) {
	count, _ := shape(js)
	switch {
	case js.DeletionTimestamp != nil:
		return provision.Deleting, "Deleting"
	case failed(js):
		return provision.Failed, "Failed"
	case js.Spec.Suspend != nil && *js.Spec.Suspend:
		return provision.Waiting, "Suspended"
	case ready == count:
		return provision.Active, "Running"
	case js.Status.Restarts > 0:
		return provision.Recovering, "Restarting"
	case seen == 0:
		return provision.Requested, "Starting"
	}
	return provision.Provisioning, "Starting"
}

// failed reports whether the JobSet has failed for good.
func failed(js *jobset.JobSet) bool {
	return js.Status.TerminalState == string(jobset.JobSetFailed) || conditionText(js, jobset.JobSetFailed) != ""
}

// conditionText returns the text of a condition of a JobSet, or "" if the condition does not
// hold.
func conditionText(js *jobset.JobSet, kind jobset.JobSetConditionType) string {
	for _, c := range js.Status.Conditions {
		if c.Type == string(kind) && c.Status == metav1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// byPlace returns the pods that may run, and those that have ended by themselves, by slice
// and worker. If several pods have the same place, the newest one counts.
func byPlace(pods []corev1.Pod) map[int]map[int]*corev1.Pod {
	all := map[int]map[int]*corev1.Pod{}
	for i := range pods {
		p := &pods[i]
		slice, err := strconv.Atoi(p.Labels[jobset.JobIndexKey])
		if err != nil || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed {
			continue
		}
		index := p.Annotations[batchv1.JobCompletionIndexAnnotation]
		if index == "" {
			index = p.Labels[batchv1.JobCompletionIndexAnnotation]
		}
		worker, err := strconv.Atoi(index)
		if err != nil {
			continue
		}
		if all[slice] == nil {
			all[slice] = map[int]*corev1.Pod{}
		}
		if old := all[slice][worker]; old == nil || old.CreationTimestamp.Before(&p.CreationTimestamp) {
			all[slice][worker] = p
		}
	}
	return all
}

// sliceOf describes a slice, which may have no pods at the moment. Its time of creation is that
// of its newest pod, because JobSet may have replaced the pods.
func sliceOf(js *jobset.JobSet, name string, pods map[int]*corev1.Pod, workers int) tpu.Slice {
	s := tpu.Slice{Name: name, Created: js.CreationTimestamp.Time, Type: js.Annotations[annotationType], QueuedResource: js.Name, Labels: js.Labels, Condition: tpu.Making, Until: endOf(js), EndFlag: "--ttl"}
	running, over := 0, 0
	id := sha256.New()
	for i := range workers {
		p := pods[i]
		if p == nil {
			continue
		}
		fmt.Fprintln(id, p.UID)
		if at := p.CreationTimestamp.Time; s.Billed.IsZero() || at.Before(s.Billed) {
			s.Billed = at
		}
		if at := p.CreationTimestamp.Time; at.After(s.Created) {
			s.Created = at
		}
		s.Workers = append(s.Workers, tpu.Worker{Name: p.Name, Internal: p.Status.PodIP})
		if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			running++
		}
		if p.Status.Phase == corev1.PodSucceeded {
			over++
		}
	}
	// JobSet replaces no pods while it is being deleted, nor after its last restart.
	s.Remade = js.DeletionTimestamp == nil && !failed(js)
	s.UID = string(js.UID) + "/" + hex.EncodeToString(id.Sum(nil))[:12]
	switch {
	case js.DeletionTimestamp != nil:
		s.Condition, s.State = tpu.Leaving, "Deleting"
	case running == workers:
		s.Condition, s.State = tpu.Usable, "Running"
	case over > 0: // commands in the other pods continue
		s.Condition, s.State = tpu.Ill, fmt.Sprintf("Ending, %d of %s run", running, event.Count(workers, "pod"))
	default:
		s.State = fmt.Sprintf("Pending, %d of %s run", running, event.Count(workers, "pod"))
		s.Workers = nil
	}
	return s
}

// obstacle returns why a pod does not run, in the words of Kubernetes. It returns "" if
// Kubernetes gives no reason.
func obstacle(pods []corev1.Pod) string {
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
				return fmt.Sprintf("pod %s: %s", p.Name, c.Message)
			}
		}
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "ContainerCreating" {
				return strings.TrimSuffix(fmt.Sprintf("pod %s: %s: %s", p.Name, w.Reason, w.Message), ": ")
			}
		}
	}
	return ""
}
