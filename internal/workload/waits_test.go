package workload_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"multihost/internal/workload"
)

// queued returns Kueue's object for a workload, with a priority and conditions.
func queued(name, priority string, value int32, conditions ...metav1.Condition) *kueue.Workload {
	return &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Name: "jobset-" + name + "-1a2b3", UID: types.UID("uid-" + name), CreationTimestamp: stamp(0),
			OwnerReferences: []metav1.OwnerReference{{Kind: "JobSet", Name: name, Controller: new(true)}},
		},
		Spec:   kueue.WorkloadSpec{QueueName: "multislice-queue", Priority: &value, PriorityClassRef: kueue.NewPodPriorityClassRef(priority)},
		Status: kueue.WorkloadStatus{Conditions: conditions},
	}
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: stamp(20)}
}

// holding returns a workload that has quota for some chips.
func holding(name, priority string, value int32, chips int64) kueue.Workload {
	w := queued(name, priority, value, condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue cluster-queue"), condition("Admitted", "True", "Admitted", "The workload is admitted"))
	w.Status.Admission = &kueue.Admission{ClusterQueue: "cluster-queue", PodSetAssignments: []kueue.PodSetAssignment{{
		Name: "slice-job", Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"google.com/tpu": "2xv5litepod-16"},
		ResourceUsage: corev1.ResourceList{"google.com/tpu": *resource.NewQuantity(chips, resource.DecimalSI)},
	}}}
	return *w
}

// ended returns a workload that has ended.
func ended(w kueue.Workload) kueue.Workload {
	w.Status.Conditions = append(w.Status.Conditions, metav1.Condition{Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue, Reason: kueue.WorkloadFinishedReasonSucceeded})
	return w
}

func pending(o *corev1.Pod) {
	o.Spec.NodeName, o.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
}

func unschedulable(message string) func(*corev1.Pod) {
	return func(o *corev1.Pod) {
		pending(o)
		o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}}
	}
}

func waits(reason, message string) func(*corev1.Pod) {
	return func(o *corev1.Pod) {
		o.Status.Phase = corev1.PodPending
		o.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "jax-tpu", Image: "example.com/p/train:v1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

func happened(about *corev1.Pod, reason, message string) corev1.Event {
	return corev1.Event{InvolvedObject: corev1.ObjectReference{UID: about.UID}, Reason: reason, Message: message, LastTimestamp: stamp(30)}
}

const lacks = "couldn't assign flavors to pod set slice-job: insufficient unused quota for google.com/tpu in flavor 2xv5litepod-16, 32 more needed"

func TestWhyAWorkloadWaits(t *testing.T) {
	t.Parallel()
	reserved := func(status metav1.ConditionStatus, message string) metav1.Condition {
		return condition("QuotaReserved", status, "Pending", message)
	}
	running := holding("w", "medium", 500, 32)
	pools := []workload.Pool{
		{Name: "c-np-0", State: "RUNNING", Accelerator: "tpu-v5-lite-podslice", Topology: "4x4", Nodes: 4},
		{Name: "c-np-1", State: "RUNNING", Accelerator: "tpu-v5-lite-podslice", Topology: "4x4", Nodes: 4},
	}
	pool := func(change func(*workload.Pool)) []workload.Pool {
		p := pools[1]
		change(&p)
		return []workload.Pool{pools[0], p}
	}
	eight := func(change ...func(*corev1.Pod)) (all []corev1.Pod) {
		for s := range 2 {
			for w := range 4 {
				all = append(all, *object(s, w, 0, change...))
			}
		}
		return all
	}
	without := func(w kueue.Workload, change func(*kueue.Workload)) *kueue.Workload {
		change(&w)
		return &w
	}
	full := unschedulable("0/9 nodes are available: 1 node(s) had untolerated taint(s), 8 Insufficient google.com/tpu. no new claims to deallocate, preemption: 0/9 nodes are available: 9 Preemption is not helpful for scheduling.")
	for name, tt := range map[string]struct {
		scene   workload.Scene
		why     string
		command string
		normal  bool
	}{
		"it runs":                  {scene: workload.Scene{Workload: &running, Pods: eight()}},
		"not seen by Kueue yet":    {workload.Scene{Now: at(10)}, "Kueue has not put it into queue multislice-queue yet", "multihost cluster show c", true},
		"not seen by Kueue at all": {workload.Scene{Now: at(100)}, "Kueue has not put it into queue multislice-queue yet", "multihost cluster show c", false},
		"not looked at":            {workload.Scene{Workload: queued("w", "medium", 500)}, "Kueue has not looked at it yet", "multihost workload list --cluster=c", true},
		"quota that others hold": {
			workload.Scene{Workload: queued("w", "medium", 500, reserved("False", lacks)), Others: []kueue.Workload{holding("small", "low", 250, 16), ended(holding("over", "high", 750, 64)), holding("big", "very-high", 1000, 32)}},
			"32 more of google.com/tpu must become free in 2xv5litepod-16, which big (priority very-high) with 32, small (priority low) with 16 hold", "multihost workload list --cluster=c", false,
		},
		"quota, and a place in the queue": {
			workload.Scene{Workload: queued("w", "medium", 500, reserved("False", lacks)), Others: []kueue.Workload{
				holding("big", "medium", 500, 32), *queued("before", "high", 750), *queued("after", "low", 250),
				*without(*queued("older", "medium", 500), func(w *kueue.Workload) { w.CreationTimestamp = stamp(-5) }),
			}},
			"32 more of google.com/tpu must become free in 2xv5litepod-16, which big (priority medium) with 32 holds; 2 workloads come before it", "multihost workload list --cluster=c", false,
		},
		"more than the quota": {
			workload.Scene{Workload: queued("w", "medium", 500, reserved("False", "couldn't assign flavors to pod set slice-job: insufficient quota for google.com/tpu in flavor 2xv5litepod-16, previously considered podsets requests (0) + current podset request (64) > maximum capacity (32)"))},
			"it needs 64 of google.com/tpu, and the quota of 2xv5litepod-16 is 32: it can never start", "multihost cluster show c", false,
		},
		"another type": {
			workload.Scene{Workload: queued("w", "medium", 500, reserved("False", "couldn't assign flavors to pod set slice-job: flavor 2xv6e-16 doesn't match node affinity"))},
			"no quota of the cluster is for tpu-v5-lite-podslice with topology 4x4", "multihost cluster show c", false,
		},
		"no queue":        {workload.Scene{Workload: queued("w", "medium", 500, condition("QuotaReserved", "False", "Inadmissible", "LocalQueue multislice-queue doesn't exist"))}, "LocalQueue multislice-queue does not exist", "multihost cluster show c", false},
		"a stopped queue": {workload.Scene{Workload: queued("w", "medium", 500, condition("QuotaReserved", "False", "Inadmissible", "ClusterQueue cluster-queue is stopped"))}, "ClusterQueue cluster-queue is stopped", "multihost cluster show c", false},
		"unknown words":   {workload.Scene{Workload: queued("w", "medium", 500, reserved("False", "Workload namespace doesn't match\n ClusterQueue selector."))}, "Kueue says: Workload namespace doesn't match ClusterQueue selector", "multihost workload list --cluster=c", false},
		"preempted": {
			workload.Scene{
				Workload: queued("w", "medium", 500, reserved("False", lacks),
					condition("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: uid-big, JobUID: j1) due to prioritization in the ClusterQueue; preemptor path: /cluster-queue; preemptee path: /cluster-queue"),
					condition("Preempted", "True", "InClusterQueue", "Preempted to accommodate a workload (UID: uid-big, JobUID: j1) due to prioritization in the ClusterQueue")),
				Others: []kueue.Workload{holding("big", "very-high", 1000, 32)},
			},
			"it was preempted by big (priority very-high), and waits again: 32 more of google.com/tpu must become free in 2xv5litepod-16, which big (priority very-high) with 32 holds", "multihost workload list --cluster=c", false,
		},
		"preempted by one that has gone": {
			workload.Scene{Workload: queued("w", "medium", 500, condition("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: x, JobUID: UNKNOWN) due to prioritization in the ClusterQueue"))},
			"it was preempted by a workload that is gone, and waits again: Kueue has not looked at it yet", "multihost workload list --cluster=c", false,
		},
		"not ready in time": {
			workload.Scene{Now: at(40), Workload: without(*queued("w", "medium", 500, condition("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout default/jobset-w")), func(w *kueue.Workload) {
				w.Status.RequeueState = &kueue.RequeueState{RequeueAt: new(stamp(100))}
			})},
			"it lost its quota because its pods were not ready in time, and waits again: Kueue tries again in 1m0s", "multihost workload list --cluster=c", false,
		},
		"deactivated": {
			workload.Scene{Workload: without(*queued("w", "medium", 500, condition("Evicted", "True", "Deactivated", "The workload is deactivated due to exceeding the maximum number of re-queuing retries")), func(w *kueue.Workload) { w.Spec.Active = new(false) })},
			"Kueue has deactivated it: The workload is deactivated due to exceeding the maximum number of re-queuing retries", "multihost workload delete w --cluster=c", false,
		},
		"an admission check": {
			workload.Scene{Workload: without(*queued("w", "medium", 500, condition("QuotaReserved", "True", "QuotaReserved", "")), func(w *kueue.Workload) {
				w.Status.AdmissionChecks = []kueue.AdmissionCheckState{{Name: "dws-prov", State: kueue.CheckStatePending, Message: "Waiting for resources. Currently there are not enough resources available to fulfill the request."}}
			})},
			"it has its quota, and admission check dws-prov is pending: Waiting for resources. Currently there are not enough resources available to fulfill the request", "multihost cluster show c", true,
		},
		"a pod that does not end": {
			workload.Scene{Workload: &running, Now: at(400), Pods: append(eight(full), *object(0, 1, 0, deleted(40)))},
			"pod w-slice-job-0-1-abcde on node n01 has been ending for 5m30s: the other pods wait until it is gone", "kubectl delete pod w-slice-job-0-1-abcde --namespace=default --force --grace-period=0", false,
		},
		"no such image": {
			workload.Scene{Workload: &running, Pods: eight(waits("ErrImagePull", `rpc error: code = NotFound desc = failed to pull and unpack image "example.com/p/train:v1": failed to resolve reference "example.com/p/train:v1": example.com/p/train:v1: not found`))},
			"s[0-1]w[0-3] cannot get the image example.com/p/train:v1: the registry does not have it", "multihost workload delete w --cluster=c", false,
		},
		"an image that nodes may not read": {
			workload.Scene{Workload: &running, Pods: eight(waits("ImagePullBackOff", `Back-off pulling image "example.com/p/train:v1"`)), Events: []corev1.Event{
				happened(object(0, 0, 0), "Failed", `Failed to pull image "example.com/p/train:v1": failed to authorize: failed to fetch oauth token: unexpected status: 403 Forbidden`), happened(object(0, 0, 0), "Failed", "Error: ErrImagePull"),
			}},
			"s[0-1]w[0-3] cannot get the image example.com/p/train:v1: the nodes may not read it: their service account needs the role Artifact Registry Reader", "multihost workload delete w --cluster=c", false,
		},
		"a container that cannot start": {
			workload.Scene{Workload: &running, Pods: eight(waits("CreateContainerConfigError", `secret "token" not found`))},
			`s[0-1]w[0-3] cannot start the container: CreateContainerConfigError: secret "token" not found`, "multihost workload delete w --cluster=c", false,
		},
		"no node is free": {
			workload.Scene{Workload: &running, Pods: eight(full), Pools: pools},
			"no node is free for s[0-1]w[0-3]: 0/9 nodes are available: 1 node(s) had untolerated taint(s), 8 Insufficient google.com/tpu", "multihost cluster show c", false,
		},
		"no such pool": {
			workload.Scene{Workload: &running, Pods: eight(full), Pools: []workload.Pool{{Name: "default-pool", State: "RUNNING"}}},
			"no node pool of the cluster has tpu-v5-lite-podslice with topology 4x4, which s[0-1]w[0-3] needs", "multihost cluster show c", false,
		},
		"perhaps such a pool, of an unknown type": {
			workload.Scene{Workload: &running, Pods: eight(full), Pools: []workload.Pool{{Name: "new", State: "RUNNING", Unknown: true}}},
			"no node is free for s[0-1]w[0-3]: 0/9 nodes are available: 1 node(s) had untolerated taint(s), 8 Insufficient google.com/tpu", "multihost cluster show c", false,
		},
		"a stockout": {
			workload.Scene{Workload: &running, Pods: []corev1.Pod{*object(1, 0, 0, full)}, Pools: pool(func(p *workload.Pool) {
				p.State, p.Message = "ERROR", "Instance 'gke-c-np-1-0' creation failed: The zone does not have enough resources available to fulfill the request due to lack of capacity."
			})},
			"s1w0 has no node, and node pool c-np-1 is broken: Google Cloud has no capacity of this type in the zone", "multihost cluster show c", false,
		},
		"flex-start": {
			workload.Scene{Workload: &running, Pods: []corev1.Pod{*object(1, 0, 0, full)}, Pools: pool(func(p *workload.Pool) { p.FlexStart, p.Nodes = true, 0 })},
			"Google Cloud has no capacity for node pool c-np-1 yet (flex-start), which s1w0 needs", "multihost cluster show c", false,
		},
		"a pool that is being made": {
			workload.Scene{Workload: &running, Pods: []corev1.Pod{*object(1, 0, 0, full)}, Pools: pool(func(p *workload.Pool) { p.State = "PROVISIONING" })},
			"node pool c-np-1 is being made, and s1w0 needs it", "multihost cluster show c", true,
		},
		"the first pods only": {
			workload.Scene{Workload: &running, Pods: []corev1.Pod{*object(0, 0, 0), *object(1, 0, 0)}, Events: []corev1.Event{{
				Reason: "FailedCreate", Message: `Error creating: admission webhook "vpod.kb.io" denied the request: leader pod not yet scheduled, not creating follower pod w-slice-job-0-1-`, LastTimestamp: stamp(11),
			}}},
			"the cluster has made 2 of 8 pods", "multihost workload status w --cluster=c", true,
		},
		"pods that the cluster refuses": {
			workload.Scene{Workload: &running, Events: []corev1.Event{{Reason: "FailedCreate", Message: `Error creating: pods "w-slice-job-0-0-" is forbidden: error looking up service account default/xpk-sa: serviceaccount "xpk-sa" not found`}}},
			`the cluster makes no more pods after 0 of 8: Error creating: pods "w-slice-job-0-0-" is forbidden: error looking up service account default/xpk-sa: serviceaccount "xpk-sa" not found`, "multihost workload status w --cluster=c", false,
		},
		"fetching the image": {
			workload.Scene{Workload: &running, Pods: append(eight()[:7], *object(1, 3, 0, waits("ContainerCreating", ""))), Events: []corev1.Event{happened(object(1, 3, 0), "Pulling", `Pulling image "example.com/p/train:v1"`)}},
			"s1w3: node n13 is fetching the image", "multihost workload status w --cluster=c", true,
		},
		"a volume that is not there": {
			workload.Scene{Workload: &running, Pods: append(eight()[:7], *object(1, 3, 0, waits("ContainerCreating", ""))), Events: []corev1.Event{happened(object(1, 3, 0), "FailedMount", `MountVolume.SetUp failed for volume "token" : secret "token" not found`)}},
			`s1w3: node n13 cannot prepare the pod: MountVolume.SetUp failed for volume "token" : secret "token" not found`, "multihost workload status w --cluster=c", true,
		},
	} {
		scene := tt.scene
		scene.Cluster, scene.Flags = "c", "--cluster=c"
		if scene.Now.IsZero() {
			scene.Now = at(60)
		}
		scene.JobSet = made(t, spec(t, "v5litepod-16", nil))
		scene.JobSet.CreationTimestamp, scene.JobSet.Spec.Suspend = stamp(0), new(scene.Workload == nil)
		w, ok := workload.Waits(scene)
		if ok != (tt.why != "") || w != (workload.Wait{Why: tt.why, Command: tt.command, Normal: tt.normal}) {
			t.Errorf("%s: %+v\nwant %s; %s; normal %v", name, w, tt.why, tt.command, tt.normal)
		}
	}
}

func TestWithoutKueueNothingIsQueued(t *testing.T) {
	t.Parallel()
	js := made(t, spec(t, "v5litepod-1", func(s *workload.Spec) { s.Slices, s.Queue = 1, "" }))
	if w, ok := workload.Waits(workload.Scene{JobSet: js, Pods: []corev1.Pod{*object(0, 0, 0)}}); ok {
		t.Errorf("%+v", w)
	}
	busy := *object(0, 0, 0, unschedulable("0/9 nodes are available: 9 Insufficient google.com/tpu."))
	if w, _ := workload.Waits(workload.Scene{JobSet: js, Pods: []corev1.Pod{busy}, Flags: "--context=x"}); w.Command != "multihost workload list --context=x" {
		t.Errorf("of a cluster that GKE does not have: %+v", w)
	}
	js.Spec.Suspend = new(true)
	w, ok := workload.Waits(workload.Scene{JobSet: js})
	if want := "somebody has suspended it, and it belongs to no queue that would resume it"; !ok || w.Why != want {
		t.Errorf("%+v", w)
	}
	js.Status.TerminalState = "Failed"
	if w, ok := workload.Waits(workload.Scene{JobSet: js}); ok {
		t.Errorf("one that has ended waits: %+v", w)
	}
}

// Pods from before a restart do not count for the present attempt.
func TestPodsOfTheLastAttemptDoNotCount(t *testing.T) {
	t.Parallel()
	js := made(t, spec(t, "v5litepod-16", func(s *workload.Spec) { s.Slices, s.Queue = 1, "" }))
	js.Status.Restarts = 1
	var pods []corev1.Pod
	for w := range 4 {
		pods = append(pods, *object(0, w, 0, exits(42, 50, "Error", "")))
	}
	w, _ := workload.Waits(workload.Scene{JobSet: js, Pods: append(pods, *object(0, 0, 1)), Now: at(time.Minute.Seconds())})
	if want := "the cluster has made 1 of 4 pods"; w.Why != want {
		t.Errorf("%+v, want %s", w, want)
	}
}

func TestAheadInTheQueue(t *testing.T) {
	t.Parallel()
	finished := queued("done", "high", 750, condition("Finished", "True", "Succeeded", ""))
	inactive := queued("off", "high", 750)
	inactive.Spec.Active = new(false)
	me := queued("me", "medium", 500)
	others := []kueue.Workload{*finished, *inactive, *me, holding("big", "high", 750, 4), *queued("low", "low", 250), *queued("high", "high", 750)}
	if n := workload.Ahead(*me, others); n != 1 {
		t.Error(fmt.Sprint(n, " workloads come before it"))
	}
}
