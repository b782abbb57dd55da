package kubecontract

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"multihost/internal/testkit"
)

func jobSetCompletes(t *T) {
	t.jobSet("w", 2, `echo "$TPU_WORKER_ID of $TPU_WORKER_HOSTNAMES in $MEGASCALE_SLICE_ID of $MEGASCALE_NUM_SLICES at $MEGASCALE_COORDINATOR_ADDRESS $JOB_COMPLETION_INDEX $TPU_ACCELERATOR_TYPE"`, "", "", "")
	js := t.ended("w")
	if cond := js.Status.Conditions; len(cond) != 1 || cond[0].Type != "Completed" || cond[0].Reason != "AllJobsCompleted" || cond[0].Message != "jobset completed successfully" {
		t.Errorf("conditions are %v", cond)
	}
	pools := map[string][]string{}
	for _, p := range t.pods("w") {
		slice, id := p.Labels[jobset.JobIndexKey], p.Annotations["batch.kubernetes.io/job-completion-index"]
		node, err := t.client.Resource(gvr("", "v1", "nodes")).Get(t.Context(), p.Spec.NodeName, metav1.GetOptions{})
		testkit.Must(t, err)
		pools[slice] = append(pools[slice], node.GetLabels()[PoolLabel])
		if host := fmt.Sprintf("w-slice-job-%s-%s", slice, id); p.Spec.Hostname != host || p.Spec.Subdomain != "w" || !strings.HasPrefix(p.Name, host+"-") || p.Labels["jobset.sigs.k8s.io/restart-attempt"] != "0" {
			t.Errorf("pod %s has the host name %s.%s and the labels %v", p.Name, p.Spec.Hostname, p.Spec.Subdomain, p.Labels)
		}
		want := fmt.Sprintf("%[1]s of w-slice-job-%[2]s-0.w,w-slice-job-%[2]s-1.w,w-slice-job-%[2]s-2.w,w-slice-job-%[2]s-3.w in %[2]s of 2 at w-slice-job-0-0.w %[1]s v5litepod-16\n", id, slice)
		if got := t.logText(p.Name, ""); got != want {
			t.Errorf("pod %s wrote %q, want %q", p.Name, got, want)
		}
	}
	for slice, of := range pools {
		slices.Sort(of)
		if len(of) != 4 || len(slices.Compact(of)) != 1 {
			t.Errorf("slice %s is in pools %v", slice, of)
		}
	}
	if len(pools) != 2 || pools["0"][0] == pools["1"][0] {
		t.Errorf("slices are in pools %v, want each in one of its own", pools)
	}
	if _, err := t.in(gvr("", "v1", "services")).Get(t.Context(), "w", metav1.GetOptions{}); err != nil {
		t.Errorf("the service of the pods' names: %v", err)
	}
}

// names checks that each pod finds other pods by their names, as a training program does.
func names(t *T) {
	if t.NoNames != "" { // pods do not know each other by name here
		t.Log(t.NoNames)
		return
	}
	t.jobSet("w", 2, `sleep 2; until getent hosts "$MEGASCALE_COORDINATOR_ADDRESS" "${TPU_WORKER_HOSTNAMES##*,}"; do sleep 0.1; done; sleep 1`, "", "", "")
	if js := t.ended("w"); js.Status.TerminalState != "Completed" {
		t.Errorf("status is %+v", js.Status)
	}
}

// failure checks the condition of a failed JobSet.
func (t *T) failure(js *jobset.JobSet, restarts int32, reason, message string) {
	t.Helper()
	cond := js.Status.Conditions[len(js.Status.Conditions)-1]
	if cond.Type != "Failed" || cond.Reason != reason || cond.Message != message || js.Status.Restarts != restarts {
		t.Errorf("after %d restarts: %s, %s: %s", js.Status.Restarts, cond.Type, cond.Reason, cond.Message)
	}
	t.eventually("that only the pod that failed is left", func() bool {
		all := t.pods("w")
		return len(all) == 1 && all[0].Status.Phase == corev1.PodFailed
	})
}

func jobSetFails(t *T) {
	t.jobSet("w", 1, `if [ $TPU_WORKER_ID = 2 ]; then sleep 1; exit 1; fi; `+idle, "", `, "failurePolicy": {"maxRestarts": 3, "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]}`, "")
	t.failure(t.ended("w"), 0, "FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action (first failed job: w-slice-job-0)")
}

func jobSetRestarts(t *T) {
	t.jobSet("w", 2, `[ "$MEGASCALE_SLICE_ID $TPU_WORKER_ID" = "1 1" ] && sleep 0.5 && exit 42; `+idle, "", `, "failurePolicy": {"maxRestarts": 2}`, "")
	t.failure(t.ended("w"), 2, "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts (first failed job: w-slice-job-1)")
}

func jobSetSuspends(t *T) {
	t.jobSet("w", 1, idle, "", `, "suspend": true`, "")
	condition := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		t.eventually("condition Suspended "+string(status), func() bool {
			return slices.ContainsFunc(t.getJobSet("w").Status.Conditions, func(c metav1.Condition) bool {
				return c.Type == "Suspended" && c.Status == status && c.Reason == reason
			})
		})
	}
	set := func(suspend string) {
		t.Helper()
		_, err := t.in(jobSetsGVR).Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec": {"suspend": `+suspend+`}}`), metav1.PatchOptions{})
		testkit.Must(t, err)
	}
	condition(metav1.ConditionTrue, "SuspendedJobs")
	if n := len(t.pods("w")); n != 0 {
		t.Errorf("a suspended JobSet has %d pods", n)
	}
	set("false")
	t.running("w", 4)
	condition(metav1.ConditionFalse, "ResumeJobs")
	set("true")
	t.eventually("the end of all pods", func() bool { return len(t.pods("w")) == 0 })
	if js := t.getJobSet("w"); js.Status.TerminalState != "" || js.Status.Restarts != 0 {
		t.Errorf("status after suspension: %+v", js.Status)
	}
}

func stuckTerminating(t *T) {
	if t.Hold == nil {
		t.Skip("pods cannot be kept in Terminating")
	}
	t.Hold("w-slice-job-0-1-*")
	defer t.Hold("")
	t.jobSet("w", 1, `[ -e $HOME/../again ] || [ $TPU_WORKER_ID != 2 ] || { sleep 0.5; exit 42; }; `+idle, "", `, "failurePolicy": {"maxRestarts": 1}`, "")
	t.eventually("a pod that stays in Terminating alone", func() bool {
		all := t.pods("w")
		return len(all) == 1 && all[0].DeletionTimestamp != nil && t.getJobSet("w").Status.Restarts == 1
	})
	t.Hold("")
	t.eventually("the next attempt", func() bool {
		return slices.ContainsFunc(t.pods("w"), func(p *corev1.Pod) bool { return p.Labels["jobset.sigs.k8s.io/restart-attempt"] == "1" })
	})
}

// makeQueue makes a queue with a quota of two slices, and two priorities. It returns the
// name of the flavor, and a function that submits a workload that needs both slices.
func (t *T) makeQueue() (flavor string, submit func(name, priority, script string)) {
	t.Helper()
	cluster := func(r, text string) {
		t.Helper()
		o := t.object(text)
		all := t.client.Resource(gvr(o.GroupVersionKind().Group, o.GroupVersionKind().Version, r))
		_, err := all.Create(t.Context(), o, metav1.CreateOptions{})
		testkit.Must(t, err)
		t.Cleanup(func() { _ = all.Delete(t.Context(), o.GetName(), metav1.DeleteOptions{}) })
	}
	for name, value := range map[string]int{"low": 250, "high": 750} {
		cluster("priorityclasses", fmt.Sprintf(`{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "%s-%s"}, "value": %d}`, t.ns, name, value))
	}
	flavor = t.ns + "-2xv5litepod-16"
	cluster("resourceflavors", fmt.Sprintf(`{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": %q}, "spec": {"nodeLabels": {
		"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "4x4"}}}`, flavor))
	cluster("clusterqueues", fmt.Sprintf(`{"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": %q}, "spec": {"namespaceSelector": {},
		"preemption": {"reclaimWithinCohort": "Never", "withinClusterQueue": "LowerPriority"}, "resourceGroups": [{"coveredResources": ["google.com/tpu"],
		"flavors": [{"name": %q, "resources": [{"name": "google.com/tpu", "nominalQuota": 32}]}]}]}}`, t.ns, flavor))
	t.createf(gvr("kueue.x-k8s.io", "v1beta2", "localqueues"), `{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "multislice-queue"}, "spec": {"clusterQueue": %q}}`, t.ns)

	return flavor, func(name, priority, script string) {
		t.Helper()
		t.jobSet(name, 2, script, `, "labels": {"kueue.x-k8s.io/queue-name": "multislice-queue"}`, "", fmt.Sprintf(`, "priorityClassName": "%s-%s"`, t.ns, priority))
	}
}

// queue runs two workloads that each need all slices. The more important one takes the
// slices. The other one waits and later continues.
func queue(t *T) {
	flavor, submit := t.makeQueue()
	submit("first", "low", idle)
	t.running("first", 8)
	t.workload("first", kueue.WorkloadQuotaReserved, metav1.ConditionTrue, "QuotaReserved", "Quota reserved in ClusterQueue "+t.ns)
	t.workload("first", kueue.WorkloadAdmitted, metav1.ConditionTrue, "Admitted", "The workload is admitted")

	submit("second", "high", idle)
	t.running("second", 8)
	t.workload("first", kueue.WorkloadEvicted, metav1.ConditionTrue, "Preempted", "Preempted to accommodate a workload (UID: ")
	t.workload("first", kueue.WorkloadPreempted, metav1.ConditionTrue, "InClusterQueue", "due to prioritization in the ClusterQueue")
	t.workload("first", kueue.WorkloadQuotaReserved, metav1.ConditionFalse, "Pending",
		"couldn't assign flavors to pod set slice-job: insufficient unused quota for google.com/tpu in flavor "+flavor+", 32 more needed")

	how := metav1.DeletePropagationForeground
	testkit.Must(t, t.in(jobSetsGVR).Delete(t.Context(), "second", metav1.DeleteOptions{PropagationPolicy: &how}))
	t.running("first", 8)
	if js := t.getJobSet("first"); js.Status.Restarts != 0 {
		t.Errorf("preemption counts as %d restarts", js.Status.Restarts)
	}
}

// turns runs two workloads of the same priority that each need all slices. The second one
// waits until the first one has ended, and does not disturb it.
func turns(t *T) {
	flavor, submit := t.makeQueue()
	submit("first", "low", "until [ -e $HOME/end ]; do sleep 0.1; done")
	t.running("first", 8)
	submit("second", "low", "true")
	t.workload("second", kueue.WorkloadQuotaReserved, metav1.ConditionFalse, "Pending",
		"couldn't assign flavors to pod set slice-job: insufficient unused quota for google.com/tpu in flavor "+flavor+", 32 more needed")
	if js := t.getJobSet("second"); js.Spec.Suspend == nil || !*js.Spec.Suspend || len(t.pods("second")) != 0 {
		t.Errorf("a workload that waits has %d pods, suspend: %v", len(t.pods("second")), js.Spec.Suspend)
	}
	for _, p := range t.pods("first") {
		if p.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s of the first workload is %s", p.Name, p.Status.Phase)
		}
		var out bytes.Buffer
		err := t.exec(p.Name, remotecommand.StreamOptions{Stdout: &out}, "bash", "-c", "touch $HOME/end")
		var code exec.CodeExitError
		if err != nil && !(errors.As(err, &code) && code.Code == 137) { // 137: the pod has ended before this command
			t.Error(err)
		}
	}
	for _, name := range []string{"first", "second"} {
		if js := t.ended(name); js.Status.TerminalState != "Completed" || js.Status.Restarts != 0 {
			t.Errorf("status of %s is %+v", name, js.Status)
		}
		t.workload(name, kueue.WorkloadFinished, metav1.ConditionTrue, "Succeeded", "jobset completed successfully")
	}
}

// workload waits for a condition of the workload of a JobSet.
func (t *T) workload(name, kind string, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	t.eventually(fmt.Sprintf("%s of %s: %s %q", kind, name, reason, message), func() bool {
		l, err := t.in(workloadsGVR).List(t.Context(), metav1.ListOptions{})
		testkit.Must(t, err)
		for i := range l.Items {
			w := decode[kueue.Workload](t, &l.Items[i])
			if !strings.HasPrefix(w.Name, "jobset-"+name+"-") {
				continue
			}
			return slices.ContainsFunc(w.Status.Conditions, func(c metav1.Condition) bool {
				return c.Type == kind && c.Status == status && c.Reason == reason && strings.Contains(c.Message, message)
			})
		}
		return false
	})
}
