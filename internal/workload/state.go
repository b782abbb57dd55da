package workload

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// A State says how far a workload has come.
type State string

// The states of a workload.
const (
	Queued    State = "queued"   // it waits for its queue
	Starting  State = "starting" // its pods get nodes and start
	Running   State = "running"  // the pods of all slices run
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Leaving   State = "being deleted"
)

// StateOf returns the state of a workload. own is Kueue's object for it, or nil.
func StateOf(js *jobset.JobSet, own *kueue.Workload) State {
	var ready, want int32
	for _, job := range js.Spec.ReplicatedJobs {
		want += job.Replicas
	}
	for _, job := range js.Status.ReplicatedJobsStatus {
		ready += job.Ready + job.Succeeded
	}
	switch {
	case js.DeletionTimestamp != nil:
		return Leaving
	case meta.IsStatusConditionTrue(js.Status.Conditions, string(jobset.JobSetCompleted)):
		return Succeeded
	case meta.IsStatusConditionTrue(js.Status.Conditions, string(jobset.JobSetFailed)):
		return Failed
	case own != nil && !meta.IsStatusConditionTrue(own.Status.Conditions, kueue.WorkloadAdmitted), js.Spec.Suspend != nil && *js.Spec.Suspend:
		return Queued
	case ready < want:
		return Starting
	}
	return Running
}

// EndOf returns when a workload ended, or zero if it has not.
func EndOf(js *jobset.JobSet) (at time.Time) {
	for _, c := range js.Status.Conditions {
		if ended(js, c.Type) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// EndMessage returns what the cluster says about the end of a workload, or "" if it has not
// ended.
func EndMessage(js *jobset.JobSet) (text string) {
	for _, c := range js.Status.Conditions {
		if ended(js, c.Type) {
			text = sentence(c.Message)
		}
	}
	return text
}

// ended reports whether js has a true condition of this kind, and the kind means the end of a
// JobSet.
func ended(js *jobset.JobSet, kind string) bool {
	return (kind == string(jobset.JobSetCompleted) || kind == string(jobset.JobSetFailed)) && meta.IsStatusConditionTrue(js.Status.Conditions, kind)
}

// Shape returns the number of slices of a JobSet, the workers of a slice, and the nodes
// that they need: "tpu-v5-lite-podslice 4x4", or "".
func Shape(js *jobset.JobSet) (slices, workers int, nodes string) {
	for _, job := range js.Spec.ReplicatedJobs {
		slices += int(job.Replicas)
		if n := job.Template.Spec.Parallelism; n != nil {
			workers = max(workers, int(*n))
		} else {
			workers = max(workers, 1)
		}
		selector := job.Template.Spec.Template.Spec.NodeSelector
		if a := selector[labelAccelerator]; a != "" {
			nodes = a + " " + selector[labelTopology]
		}
	}
	return slices, workers, nodes
}
