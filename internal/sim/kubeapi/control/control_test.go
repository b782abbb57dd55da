package control

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

func TestIndexes(t *testing.T) {
	text := ""
	for _, step := range []struct {
		add  int
		want string
	}{{3, "3"}, {1, "1,3"}, {4, "1,3,4"}, {5, "1,3-5"}, {5, "1,3-5"}, {0, "0,1,3-5"}, {2, "0-5"}} {
		if text = addIndex(text, step.add); text != step.want {
			t.Errorf("with %d: %s, want %s", step.add, text, step.want)
		}
	}
	if !hasIndex("1,3-5", 4) || hasIndex("1,3-5", 2) {
		t.Error("1,3-5 has 4 and has not 2")
	}
}

func TestUnschedulableMessage(t *testing.T) {
	for _, tt := range []struct {
		nodes   int
		reasons map[string]int
		want    string
	}{
		{0, nil, "no nodes available to schedule pods"},
		{8, map[string]int{"Insufficient google.com/tpu": 4, "node(s) didn't match Pod's node affinity/selector": 4},
			"0/8 nodes are available: 4 Insufficient google.com/tpu, 4 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/8 nodes are available: 4 No preemption victims found for incoming pod, 4 Preemption is not helpful for scheduling."},
	} {
		if got := unschedulableMessage(tt.nodes, tt.reasons); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestMisfit(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}
	node.Spec.Taints = []corev1.Taint{{Key: "google.com/tpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}
	node.Status.Allocatable = corev1.ResourceList{"google.com/tpu": resource.MustParse("4")}
	pod := func(tolerate bool, label, chips string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Spec.NodeSelector = map[string]string{"a": label}
		if tolerate {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "google.com/tpu", Operator: corev1.TolerationOpExists}}
		}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"google.com/tpu": resource.MustParse(chips)}}}}
		return p
	}
	for _, tt := range []struct {
		pod  *corev1.Pod
		used string
		want string
	}{
		{pod(true, "b", "4"), "0", ""},
		{pod(true, "b", "4"), "1", "Insufficient google.com/tpu"},
		{pod(false, "b", "4"), "0", "node(s) had untolerated taint(s) {google.com/tpu: present}"},
		{pod(true, "c", "4"), "0", "node(s) didn't match Pod's node affinity/selector"},
	} {
		got := misfit(tt.pod, node, []*corev1.Node{node}, nil)
		if got == "" {
			got = full(tt.pod, node, corev1.ResourceList{"google.com/tpu": resource.MustParse(tt.used)})
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// TestDecide: the failure policy of a JobSet chooses a rule, and the Job that is the cause.
func TestDecide(t *testing.T) {
	failed := func(name, of, reason, message string, second int64) *batchv1.Job {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{jobset.ReplicatedJobNameKey: of}}}
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.Unix(second, 0)}}
		return j
	}
	jobs := []*batchv1.Job{failed("a", "x", "BackoffLimitExceeded", "", 2), failed("b", "y", "PodFailurePolicy", "exit code 7", 1), failed("c", "y", "PodFailurePolicy", "", 3)}
	for _, tt := range []struct {
		name  string
		rules []jobset.FailurePolicyRule
		want  jobset.FailurePolicyAction
		first string
	}{
		{"no rule", nil, jobset.RestartJobSet, "b"},
		{"by reason", []jobset.FailurePolicyRule{{Action: jobset.FailJobSet, OnJobFailureReasons: []string{"BackoffLimitExceeded"}}}, jobset.FailJobSet, "a"},
		{"by message", []jobset.FailurePolicyRule{{Action: jobset.FailJobSet, OnJobFailureMessagePatterns: []string{"code [0-9]$"}}}, jobset.FailJobSet, "b"},
		{"by job", []jobset.FailurePolicyRule{{Action: jobset.FailJobSet, TargetReplicatedJobs: []string{"z"}}, {Action: jobset.RestartJobSetAndIgnoreMaxRestarts, TargetReplicatedJobs: []string{"y"}}}, jobset.RestartJobSetAndIgnoreMaxRestarts, "b"},
	} {
		if action, first := decide(tt.rules, jobs); action != tt.want || first.Name != tt.first {
			t.Errorf("%s: %s of %s, want %s of %s", tt.name, action, first.Name, tt.want, tt.first)
		}
	}
}

func TestExitMatch(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 42}}}}
	other := "other"
	for _, tt := range []struct {
		rule batchv1.PodFailurePolicyOnExitCodesRequirement
		want bool
	}{
		{batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{42}}, true},
		{batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "NotIn", Values: []int32{42}}, false},
		{batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "NotIn", Values: []int32{1}}, true},
		{batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{42}, ContainerName: &other}, false},
	} {
		if _, _, ok := exitMatch(&tt.rule, pod); ok != tt.want {
			t.Errorf("%+v: %v, want %v", tt.rule, ok, tt.want)
		}
	}
}

func TestAPodThatASuspendedJobDeletesIsNoFailure(t *testing.T) {
	job := &batchv1.Job{Spec: batchv1.JobSpec{Suspend: new(true)}}
	now := metav1.Now()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: new(int64(30)), Finalizers: []string{batchv1.JobTrackingFinalizer}}}
	w := &jobWork{job: job}
	w.count(pod)
	if len(w.counted) != 1 || job.Status.Failed != 0 {
		t.Fatalf("counted %d pods, %d as failed", len(w.counted), job.Status.Failed)
	}
	pod.Finalizers = nil // as unfinalize leaves it
	job.Spec.Suspend = new(false)
	pod.Status.Phase = corev1.PodFailed
	if w.count(pod); job.Status.Failed != 0 {
		t.Error("its end counts after the Job was resumed")
	}
}
