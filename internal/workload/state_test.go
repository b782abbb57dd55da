package workload_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/workload"
)

func TestTheStateOfAWorkload(t *testing.T) {
	t.Parallel()
	admitted := holding("w", "medium", 500, 32)
	slicesAre := func(ready, succeeded int32) func(*jobset.JobSet) {
		return func(js *jobset.JobSet) {
			js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: workload.JobName, Ready: ready, Succeeded: succeeded}}
		}
	}
	ended := func(kind string) func(*jobset.JobSet) {
		return func(js *jobset.JobSet) {
			js.Status.Conditions = []metav1.Condition{condition("Suspended", "False", "ResumeJobs", "jobset is resumed"), condition(kind, "True", "R", "jobset failed due to one or more job failures.")}
		}
	}
	for want, changes := range map[workload.State][]func(*jobset.JobSet){
		workload.Queued:    {func(js *jobset.JobSet) { js.Spec.Suspend = new(true) }},
		workload.Starting:  {slicesAre(0, 0), slicesAre(1, 0), func(*jobset.JobSet) {}},
		workload.Running:   {slicesAre(2, 0), slicesAre(1, 1)},
		workload.Succeeded: {ended("Completed")},
		workload.Failed:    {ended("Failed")},
		workload.Leaving:   {func(js *jobset.JobSet) { js.DeletionTimestamp = new(stamp(1)) }},
	} {
		for i, change := range changes {
			js := made(t, spec(t, "v5litepod-16", nil))
			change(js)
			if got := workload.StateOf(js, &admitted); got != want {
				t.Errorf("%s %d: %s", want, i, got)
			}
			over := want == workload.Succeeded || want == workload.Failed
			if when, text := workload.EndOf(js), workload.EndMessage(js); over != when.Equal(at(20)) || over != (text == "jobset failed due to one or more job failures") {
				t.Errorf("%s: ended %s, %q", want, when, text)
			}
		}
	}
	if got := workload.StateOf(made(t, spec(t, "v5litepod-16", nil)), queued("w", "medium", 500)); got != workload.Queued {
		t.Errorf("without quota it is %s", got)
	}
	slices, workers, nodes := workload.Shape(made(t, spec(t, "v5litepod-16", nil)))
	if slices != 2 || workers != 4 || nodes != "tpu-v5-lite-podslice 4x4" {
		t.Errorf("%d slices of %d workers on %s", slices, workers, nodes)
	}
}
