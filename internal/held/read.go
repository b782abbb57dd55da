package held

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

func describe(js *jobset.JobSet, pods []corev1.Pod, what provision.Commands) provision.Resource {
	count, workers := shape(js)
	res := provision.Resource{
		ID: js.Name, Commands: what, Type: js.Annotations[annotationType], NodeCount: count,
		Nodes: sliceNames(js.Name, count), Labels: js.Labels, CreateTime: js.CreationTimestamp.Time,
	}
	all := byPlace(pods)
	ready := 0
	for i, name := range res.Nodes {
		s := sliceOf(js, name, all[i], workers)
		s.Index = i
		if s.State == "" {
			continue
		}
		if s.Condition == tpu.Usable {
			ready++
		}
		res.Slices = append(res.Slices, s)
	}
	res.Life, res.State = lifeOf(js, ready, len(res.Slices))
	if res.Life == provision.Failed {
		res.Failure = conditionText(js, jobset.JobSetFailed)
	} else if ready < count {
		res.Failure = obstacle(pods)
	}
	return res
}

// shape returns how many slices a JobSet has, and how many workers each of them has.
func shape(js *jobset.JobSet) (slices, workers int) {
	for _, r := range js.Spec.ReplicatedJobs {
		if r.Name == jobName && r.Template.Spec.Completions != nil {
			return int(r.Replicas), int(*r.Template.Spec.Completions)
		}
	}
	return 0, 0
}

// lifeOf translates the state of a JobSet.
func lifeOf(js *jobset.JobSet, ready, seen int) (provision.Life, string) {
	count, _ := shape(js)
	switch {
	case js.DeletionTimestamp != nil:
		return provision.Deleting, "Deleting"
	case js.Status.TerminalState == string(jobset.JobSetFailed), conditionText(js, jobset.JobSetFailed) != "":
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

// conditionText returns a JobSet's text for a condition, or "" if the condition is false.
func conditionText(js *jobset.JobSet, kind jobset.JobSetConditionType) string {
	for _, c := range js.Status.Conditions {
		if c.Type == string(kind) && c.Status == metav1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// byPlace returns the pods that may run, by slice and worker. Of several pods with the same
// place, it returns the newest.
func byPlace(pods []corev1.Pod) map[int]map[int]*corev1.Pod {
	all := map[int]map[int]*corev1.Pod{}
	for i := range pods {
		p := &pods[i]
		slice, err := strconv.Atoi(p.Labels[jobset.JobIndexKey])
		if err != nil || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
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

// sliceOf describes a slice. Without pods, its State is "".
func sliceOf(js *jobset.JobSet, name string, pods map[int]*corev1.Pod, workers int) tpu.Slice {
	s := tpu.Slice{Name: name, Created: js.CreationTimestamp.Time, Type: js.Annotations[annotationType], QueuedResource: js.Name, Labels: js.Labels, Condition: tpu.Making}
	running := 0
	id := sha256.New()
	for i := range workers {
		p := pods[i]
		if p == nil {
			continue
		}
		fmt.Fprintln(id, p.UID)
		s.Workers = append(s.Workers, tpu.Worker{Name: p.Name, Internal: p.Status.PodIP})
		if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			running++
		}
	}
	if len(s.Workers) == 0 {
		return tpu.Slice{Name: name}
	}
	s.UID = string(js.UID) + "/" + hex.EncodeToString(id.Sum(nil))[:12]
	switch {
	case js.DeletionTimestamp != nil:
		s.Condition, s.State = tpu.Leaving, "Deleting"
	case running == workers:
		s.Condition, s.State = tpu.Usable, "Running"
	default:
		s.State = fmt.Sprintf("Pending, %d of %s run", running, event.Count(workers, "pod"))
		s.Workers = nil
	}
	return s
}

// obstacle returns Kubernetes' reason why one of the pods does not run, or "" if it gives
// none.
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
