package workload

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/agent/pod"
	"multihost/internal/tpu"
)

// A Pod is what was last seen of a pod of a workload.
type Pod struct {
	Worker  tpu.WorkerID
	Restart int // number of restarts of the JobSet when it made the pod
	Name    string
	UID     string
	Node    string // "" while no node is chosen

	Created  time.Time
	Started  time.Time // start of the first container; zero: none has started
	Deleting time.Time // when somebody asked for its deletion; zero: nobody has
	Ended    time.Time // when its last container ended, or the pod was gone; zero: it lives
	Gone     bool      // the object was deleted

	Exit Exit // of the container that failed first; without a failure, of the one that ended last
}

// An Exit is how a container ended. The zero Exit means that this is unknown.
type Exit struct {
	Known     bool
	Container string
	Code      int
	Time      time.Time // by the clock of the node; in whole seconds unless the agent reported it
	Cause     Cause
	Detail    string   // what the cluster says about Cause
	Agent     *pod.End // what the agent reported; nil: nothing
}

// A Cause says what ended a container, if the program did not end by itself.
type Cause string

// The causes.
const (
	NoCause     Cause = ""
	OutOfMemory Cause = "OOMKilled"        // the kernel killed a process of the container
	Disrupted   Cause = "DisruptionTarget" // the cluster took the pod away: preemption, a node that shuts down
	Evicted     Cause = "Evicted"          // the node had not enough memory or disk
	Lost        Cause = "Lost"             // the pod is gone, and its exit is unknown
)

// PodOf returns what a pod object says, or false for a pod that is no worker of a workload.
func PodOf(o *corev1.Pod) (Pod, bool) {
	slice, err := strconv.Atoi(o.Labels[jobset.JobIndexKey])
	if err != nil {
		return Pod{}, false
	}
	worker, err := strconv.Atoi(cmp.Or(o.Labels[labelWorker], o.Annotations[labelWorker]))
	if err != nil {
		return Pod{}, false
	}
	restart, err := strconv.Atoi(cmp.Or(o.Labels[labelRestart], o.Annotations[labelRestart], "0"))
	if err != nil {
		return Pod{}, false
	}
	p := Pod{
		Worker: tpu.WorkerID{Slice: slice, Worker: worker}, Restart: restart,
		Name: o.Name, UID: string(o.UID), Node: o.Spec.NodeName, Created: o.CreationTimestamp.Time,
	}
	if o.DeletionTimestamp != nil {
		p.Deleting = o.DeletionTimestamp.Time
		if grace := o.DeletionGracePeriodSeconds; grace != nil { // the stamp is the end of the grace period
			p.Deleting = p.Deleting.Add(-time.Duration(*grace) * time.Second)
		}
	}
	var last time.Time
	ended := len(o.Status.ContainerStatuses) > 0
	for _, c := range o.Status.ContainerStatuses {
		end := p.read(o, c)
		ended = ended && !end.IsZero()
		if end.After(last) {
			last = end
		}
	}
	if over := o.Status.Phase == corev1.PodFailed || o.Status.Phase == corev1.PodSucceeded; over && !p.Exit.Known {
		// An evicted pod may have no statuses of containers.
		p.Exit = Exit{Known: o.Status.Phase == corev1.PodFailed, Code: 137, Time: whenFailed(o)}
		p.Exit.Cause, p.Exit.Detail = causeOf(o, "")
		last, ended = p.Exit.Time, true
	}
	if ended {
		p.Ended = last
	}
	return p, true
}

// read adds what a container's status says. end is when the container ended, or zero.
func (p *Pod) read(o *corev1.Pod, c corev1.ContainerStatus) (end time.Time) {
	var began time.Time
	switch {
	case c.State.Running != nil:
		began = c.State.Running.StartedAt.Time
	case c.State.Terminated != nil:
		e := exitOf(o, c.Name, c.State.Terminated)
		if worse(e, p.Exit) {
			p.Exit = e
		}
		began, end = c.State.Terminated.StartedAt.Time, e.Time
	}
	if !began.IsZero() && (p.Started.IsZero() || began.Before(p.Started)) {
		p.Started = began
	}
	return end
}

// Vanished returns what is known of p after its object has gone. at is when that was seen.
func (p Pod) Vanished(at time.Time) Pod {
	p.Gone = true
	if p.Ended.IsZero() {
		p.Ended = at
	}
	if !p.Exit.Known {
		p.Exit.Cause = Lost
	}
	return p
}

// Failed reports whether the pod ended with a code other than 0.
func (p Pod) Failed() bool { return p.Exit.Known && p.Exit.Code != 0 }

// Succeeded reports whether the pod ended with 0.
func (p Pod) Succeeded() bool { return p.Exit.Known && p.Exit.Code == 0 && !p.Ended.IsZero() }

// exitOf returns how a container ended.
func exitOf(o *corev1.Pod, name string, t *corev1.ContainerStateTerminated) Exit {
	e := Exit{Known: true, Container: name, Code: int(t.ExitCode), Time: t.FinishedAt.Time}
	e.Cause, e.Detail = causeOf(o, t.Reason)
	if end, ok := pod.ParseEnd(t.Message); ok {
		e.Agent = &end
		if end.Code == e.Code { // otherwise the container was killed after the command's end
			e.Time = end.Time
		}
	}
	return e
}

// worse reports whether e replaces the exit than as the exit of the pod. A failure is worse than
// a success. An earlier failure is worse than a later one. A later success is worse than an
// earlier one.
func worse(e, than Exit) bool {
	switch failed := e.Code != 0; {
	case !than.Known || failed != (than.Code != 0):
		return !than.Known || failed
	case failed:
		return e.Time.Before(than.Time)
	default:
		return e.Time.After(than.Time)
	}
}

// causeOf returns why a pod ended, if something other than its program ended it.
func causeOf(o *corev1.Pod, reason string) (Cause, string) {
	if reason == string(OutOfMemory) {
		return OutOfMemory, ""
	}
	if o.Status.Reason == string(Evicted) {
		return Evicted, strings.TrimSpace(o.Status.Message)
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return Disrupted, strings.TrimSpace(c.Reason + ": " + c.Message)
		}
	}
	return NoCause, ""
}

// whenFailed returns when a pod without container statuses ended: the time of its newest
// condition, or else of its creation.
func whenFailed(o *corev1.Pod) (at time.Time) {
	for _, c := range o.Status.Conditions {
		if c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	if at.IsZero() {
		at = o.CreationTimestamp.Time
	}
	return at
}

// An Attempt is one start of the command on all workers.
type Attempt struct {
	Number  int   // from 1
	Restart int   // number of restarts of the JobSet
	Pods    []Pod // sorted by worker, then by age
}

// Attempts sorts the pods of a workload into attempts, oldest first. A new attempt begins when
// the number of restarts changes. It also begins when a worker gets another pod after all pods of
// the attempt have ended. If some pods are still alive, the cluster has only replaced that one
// pod. Replaced names the workers of such pods.
func Attempts(pods []Pod) []Attempt {
	sorted := slices.Clone(pods)
	slices.SortFunc(sorted, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Restart, b.Restart), a.Created.Compare(b.Created), a.Worker.Compare(b.Worker), cmp.Compare(a.UID, b.UID))
	})
	var all []Attempt
	for _, p := range sorted {
		n := len(all) - 1
		if n < 0 || all[n].Restart != p.Restart || all[n].overBefore(p) {
			all = append(all, Attempt{Number: n + 2, Restart: p.Restart})
			n++
		}
		all[n].Pods = append(all[n].Pods, p)
	}
	for _, a := range all {
		slices.SortStableFunc(a.Pods, func(a, b Pod) int { return a.Worker.Compare(b.Worker) })
	}
	return all
}

// overBefore reports whether the worker of p already had a pod in the attempt, and all pods
// of the attempt had ended when p was made. Times of creation have whole seconds.
func (a Attempt) overBefore(p Pod) bool {
	had := false
	for _, q := range a.Pods {
		if q.Ended.IsZero() || q.Ended.Truncate(time.Second).After(p.Created) {
			return false
		}
		had = had || q.Worker == p.Worker
	}
	return had
}

// Replaced returns the workers whose pod the cluster has replaced during the attempt. JobSet does
// not restart the other workers, which then wait for a process that is gone.
func (a Attempt) Replaced() (workers []tpu.WorkerID) {
	for i := 1; i < len(a.Pods); i++ {
		if w := a.Pods[i].Worker; w == a.Pods[i-1].Worker && !slices.Contains(workers, w) {
			workers = append(workers, w)
		}
	}
	return workers
}

// A Failure is the first failure of an attempt.
type Failure struct {
	Pod     Pod
	Stopped []tpu.WorkerID // the workers that ended later because of it
}

// FirstFailure returns the first failure of an attempt, or false if nothing failed. The earliest
// end by the clocks of the nodes comes first. A pod whose exit is unknown comes last. Clusters
// report only whole seconds. Within a second, a pod that ended by itself comes before a pod that
// was being stopped. Otherwise the agents' times decide.
func (a Attempt) FirstFailure() (Failure, bool) {
	var failed []Pod
	for _, p := range a.Pods {
		if p.Failed() || p.Exit.Cause == Lost {
			failed = append(failed, p)
		}
	}
	if len(failed) == 0 {
		return Failure{}, false
	}
	first := slices.MinFunc(failed, func(a, b Pod) int {
		return cmp.Or(
			compareBool(a.Exit.Known, b.Exit.Known),
			a.failedAt().Truncate(time.Second).Compare(b.failedAt().Truncate(time.Second)),
			compareBool(!a.stopped(), !b.stopped()), a.failedAt().Compare(b.failedAt()), a.Worker.Compare(b.Worker),
		)
	})
	f := Failure{Pod: first}
	for _, p := range a.Pods {
		if p.Worker != first.Worker && !p.Succeeded() && !p.Ended.IsZero() && !slices.Contains(f.Stopped, p.Worker) {
			f.Stopped = append(f.Stopped, p.Worker)
		}
	}
	return f, true
}

// compareBool orders true before false.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (p Pod) failedAt() time.Time {
	if p.Exit.Known && !p.Exit.Time.IsZero() {
		return p.Exit.Time
	}
	return p.Ended
}

// stopped reports whether somebody stopped the pod before its end.
func (p Pod) stopped() bool {
	if p.Exit.Cause != NoCause { // an end with a Cause is a failure of this pod
		return false
	}
	if p.Exit.Agent != nil {
		return p.Exit.Agent.Told != ""
	}
	return !p.Deleting.IsZero() && !p.Deleting.After(p.failedAt())
}

// String describes the failure: "s0w2 was first: exit code 1; s0w[0-1,3] stopped because of
// it".
func (f Failure) String() string {
	how := " was first: "
	if f.Pod.stopped() {
		how = " was stopped first: "
	}
	text := f.Pod.Worker.String() + how + f.Pod.Exit.String()
	if len(f.Stopped) > 0 {
		text += "; " + tpu.FoldShort(f.Stopped) + " stopped because of it"
	}
	return text
}

// String describes an exit.
func (e Exit) String() string {
	how := fmt.Sprintf("exit code %d", e.Code)
	if e.Agent != nil && e.Agent.Code == e.Code && e.Agent.Signal != "" {
		how = "killed by " + e.Agent.Signal
	}
	why := ""
	switch e.Cause {
	case NoCause:
	case OutOfMemory:
		why = "the kernel killed it because memory was short (OOMKilled)"
	case Disrupted:
		why = "the cluster took the pod away"
	case Evicted:
		why = "the node evicted the pod"
	case Lost:
		return "its pod is gone, and nothing tells how it ended"
	}
	switch {
	case why == "":
		if e.Agent != nil && e.Agent.Failure != "" {
			return how + ": " + e.Agent.Failure
		}
		return how
	case e.Detail != "":
		why += ": " + strings.TrimRight(e.Detail, ".: ")
	}
	return why + ", " + how
}

// jobFailure matches what the Job controller says about a failed pod. The pod may be deleted
// already.
var jobFailure = regexp.MustCompile(`^Container (\S+) for pod [^/]+/(\S+) failed with exit code (\d+) matching FailJob rule`)

// JobFailure returns what a failed Job says about the pod that failed, or false. Call it if
// FirstFailure finds no pod.
func JobFailure(job *batchv1.Job) (Pod, bool) {
	for _, c := range job.Status.Conditions {
		m := jobFailure.FindStringSubmatch(c.Message)
		if m == nil || c.Type != batchv1.JobFailed && c.Type != batchv1.JobFailureTarget {
			continue
		}
		slice, err := strconv.Atoi(job.Labels[jobset.JobIndexKey])
		if err != nil {
			continue
		}
		name, ok := strings.CutPrefix(m[2], job.Name+"-")
		index, _, dashed := strings.Cut(name, "-")
		worker, err := strconv.Atoi(index)
		if !ok || !dashed || err != nil {
			continue
		}
		code, _ := strconv.Atoi(m[3]) // digits
		restart, _ := strconv.Atoi(job.Labels[labelRestart])
		return Pod{
			Worker: tpu.WorkerID{Slice: slice, Worker: worker}, Restart: restart, Name: m[2], Ended: c.LastTransitionTime.Time, Gone: true,
			Exit: Exit{Known: true, Container: m[1], Code: code, Time: c.LastTransitionTime.Time},
		}, true
	}
	return Pod{}, false
}
