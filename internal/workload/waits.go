package workload

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"multihost/internal/tpu"
)

// A Scene has the cluster's objects from which Waits finds out why a workload waits.
type Scene struct {
	Cluster  string // the cluster's name, if it is of GKE, for commands about it
	Flags    string // flags that name the cluster in other commands: "--cluster=c"; may be ""
	Now      time.Time
	JobSet   *jobset.JobSet
	Workload *kueue.Workload  // Kueue's object for the JobSet, or nil
	Others   []kueue.Workload // the other workloads of the same ClusterQueue
	Pods     []corev1.Pod     // pods of the JobSet
	Events   []corev1.Event   // about the JobSet, its Jobs and its pods
	Pools    []Pool           // node pools of the cluster; nil: unknown
}

// A Pool is a node pool of GKE.
type Pool struct {
	Name        string
	State       string // GKE's word: RUNNING, PROVISIONING, RECONCILING, ERROR, …
	Message     string // why it is in State, if GKE says so
	Accelerator string // label of its nodes
	Topology    string
	FlexStart   bool // its nodes come when there is capacity for them
	Nodes       int  // number of existing nodes; negative: unknown
	Unknown     bool // it has TPU chips of an unknown type
}

// A Wait says why a workload does not run.
type Wait struct {
	Why     string `json:"why"`     // one sentence without a full stop
	Command string `json:"command"` // what to type
	Normal  bool   `json:"normal"`  // it usually passes within minutes
}

// Waits returns why the workload does not run on all its workers, or false if it runs there or
// has ended. If there are several causes, Waits returns the earliest one on the way from the
// queue to the running programs.
func Waits(s Scene) (Wait, bool) {
	if s.JobSet == nil || s.over() {
		return Wait{}, false
	}
	for _, ask := range []func() (Wait, bool){s.held, s.queued, s.checked, s.terminating, s.broken, s.unscheduled, s.starting} {
		if w, ok := ask(); ok {
			return w, true
		}
	}
	return Wait{}, false
}

// over reports whether the JobSet has ended.
func (s Scene) over() bool {
	return s.JobSet.Status.TerminalState != "" || meta.IsStatusConditionTrue(s.JobSet.Status.Conditions, string(jobset.JobSetCompleted)) ||
		meta.IsStatusConditionTrue(s.JobSet.Status.Conditions, string(jobset.JobSetFailed))
}

func (s Scene) command(words ...string) string {
	return strings.TrimRight("multihost "+strings.Join(words, " ")+" "+s.Flags, " ")
}

// cluster returns the command that shows the queues and node pools of the cluster.
func (s Scene) cluster() string {
	if s.Cluster == "" {
		return s.command("workload", "list")
	}
	return "multihost cluster show " + s.Cluster
}

// held returns why the workload does not even wait for quota: it is suspended or deactivated, or
// Kueue has not queued it yet.
func (s Scene) held() (Wait, bool) {
	queue := s.JobSet.Labels[LabelQueue]
	suspended := s.JobSet.Spec.Suspend != nil && *s.JobSet.Spec.Suspend
	switch {
	case queue == "" && suspended:
		return Wait{Why: "somebody has suspended it, and it belongs to no queue that would resume it", Command: fmt.Sprintf("kubectl patch jobset %s --namespace=%s --type=merge --patch='{\"spec\":{\"suspend\":false}}'", s.JobSet.Name, s.JobSet.Namespace)}, true
	case queue == "" || s.Workload == nil && !suspended:
		return Wait{}, false
	case s.Workload == nil:
		young := s.Now.Sub(s.JobSet.CreationTimestamp.Time) < time.Minute
		return Wait{Why: fmt.Sprintf("Kueue has not put it into queue %s yet", queue), Command: s.cluster(), Normal: young}, true
	case s.Workload.Spec.Active != nil && !*s.Workload.Spec.Active:
		why := "somebody has deactivated it"
		if c := s.condition(kueue.WorkloadEvicted); c != nil && c.Message != "" {
			why = "Kueue has deactivated it: " + sentence(c.Message)
		}
		return Wait{Why: why, Command: s.command("workload", "delete", s.JobSet.Name)}, true
	}
	return Wait{}, false
}

func (s Scene) condition(kind string) *metav1.Condition {
	if s.Workload == nil {
		return nil
	}
	return meta.FindStatusCondition(s.Workload.Status.Conditions, kind)
}

func (s Scene) isTrue(kind string) bool {
	c := s.condition(kind)
	return c != nil && c.Status == metav1.ConditionTrue
}

// These patterns match what Kueue says about a workload without quota. They are from Kueue's
// source.
var (
	lacking  = regexp.MustCompile(`insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed`)
	tooLarge = regexp.MustCompile(`insufficient quota for (\S+) in flavor (\S+), previously considered podsets requests \((\S+)\) \+ current podset request \((\S+)\) > maximum capacity \((\S+)\)`)
	unfit    = regexp.MustCompile(`flavor (\S+) doesn't match node affinity`)
	closed   = regexp.MustCompile(`(LocalQueue|ClusterQueue) (\S+) (is stopped|is inactive|doesn't exist|is terminating or missing|not found)`)
	preempts = regexp.MustCompile(`Preempted to accommodate a workload \(UID: (\S+), JobUID: ([^)]*)\) due to (.*?)(;|$)`)
)

// queued returns why Kueue gives the workload no quota.
func (s Scene) queued() (Wait, bool) {
	if s.Workload == nil || s.isTrue(kueue.WorkloadQuotaReserved) {
		return Wait{}, false
	}
	message := ""
	if c := s.condition(kueue.WorkloadQuotaReserved); c != nil {
		message = c.Message
	}
	w := s.quota(message)
	if again := s.evicted(); again != "" {
		w.Why, w.Normal = again+", and waits again: "+w.Why, false
	}
	return w, true
}

// quota explains a message of Kueue about quota.
func (s Scene) quota(message string) Wait {
	list := s.command("workload", "list")
	requeue := s.Workload.Status.RequeueState
	switch {
	case requeue != nil && requeue.RequeueAt != nil && requeue.RequeueAt.After(s.Now):
		return Wait{Why: fmt.Sprintf("Kueue tries again in %s", requeue.RequeueAt.Sub(s.Now).Round(time.Second)), Command: list, Normal: true}
	case tooLarge.MatchString(message):
		m := tooLarge.FindStringSubmatch(message)
		return Wait{Why: fmt.Sprintf("it needs %s of %s, and the quota of %s is %s: it can never start", sum(m[3], m[4]), m[1], m[2], m[5]), Command: s.cluster()}
	case lacking.MatchString(message):
		m := lacking.FindStringSubmatch(message)
		why := fmt.Sprintf("%s more of %s must become free in %s", m[3], m[1], m[2])
		if who := s.holders(corev1.ResourceName(m[1]), kueue.ResourceFlavorReference(m[2])); who != "" {
			why += ", which " + who
		}
		return Wait{Why: why + s.place(), Command: list}
	case closed.MatchString(message):
		m := closed.FindStringSubmatch(message)
		state := map[string]string{"doesn't exist": "does not exist", "not found": "does not exist", "is terminating or missing": "does not exist or is being deleted"}
		return Wait{Why: fmt.Sprintf("%s %s %s", m[1], m[2], cmp.Or(state[m[3]], m[3])), Command: s.cluster()}
	case unfit.MatchString(message):
		return Wait{Why: fmt.Sprintf("no quota of the cluster is for %s", s.wanted()), Command: s.cluster()}
	case message != "":
		return Wait{Why: "Kueue says: " + sentence(message) + s.place(), Command: list}
	}
	return Wait{Why: "Kueue has not looked at it yet" + s.place(), Command: list, Normal: true}
}

// sum adds two numbers of a message, or joins texts that are no numbers.
func sum(a, b string) string {
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	if errX != nil || errY != nil {
		return a + "+" + b
	}
	return strconv.FormatInt(x+y, 10)
}

// evicted returns why Kueue took the quota of the workload back, or "" if it did not.
func (s Scene) evicted() string {
	c := s.condition(kueue.WorkloadEvicted)
	if c == nil || c.Status != metav1.ConditionTrue {
		return ""
	}
	switch c.Reason {
	case kueue.WorkloadEvictedByPreemption:
		return "it was preempted" + s.preemptor(c.Message)
	case kueue.WorkloadEvictedByPodsReadyTimeout:
		return "it lost its quota because its pods were not ready in time"
	case kueue.WorkloadEvictedByAdmissionCheck:
		return "it lost its quota to an admission check: " + sentence(c.Message)
	case kueue.WorkloadEvictedByClusterQueueStopped, kueue.WorkloadEvictedByLocalQueueStopped:
		return "it lost its quota because its queue was stopped"
	case kueue.WorkloadEvictedDueToNodeFailures:
		return "it lost its nodes: " + sentence(c.Message)
	}
	return "it lost its quota: " + sentence(cmp.Or(c.Message, c.Reason))
}

// preemptor names the workload for which this one was preempted.
func (s Scene) preemptor(message string) string {
	m := preempts.FindStringSubmatch(message)
	if m == nil {
		if c := s.condition(kueue.WorkloadPreempted); c != nil {
			m = preempts.FindStringSubmatch(c.Message)
		}
	}
	if m == nil {
		return ""
	}
	for _, other := range s.Others {
		if string(other.UID) == m[1] {
			return " by " + describe(other)
		}
	}
	return " by a workload that is gone"
}

// nameOf returns the name of the JobSet of a Kueue workload, or else the name of the
// workload itself.
func nameOf(w kueue.Workload) string {
	for _, o := range w.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return o.Name
		}
	}
	return w.Name
}

// describe returns the name of a workload and its priority.
func describe(w kueue.Workload) string {
	if ref := w.Spec.PriorityClassRef; ref != nil && ref.Name != "" {
		return fmt.Sprintf("%s (priority %s)", nameOf(w), ref.Name)
	}
	return nameOf(w)
}

// holders names the workloads with quota of a flavor, largest first, or returns "".
func (s Scene) holders(res corev1.ResourceName, flavor kueue.ResourceFlavorReference) string {
	type holder struct {
		name string
		n    int64
	}
	var all []holder
	for _, w := range s.Others {
		var n int64
		// A workload that has ended keeps its admission, and holds nothing.
		if w.Status.Admission == nil || meta.IsStatusConditionTrue(w.Status.Conditions, kueue.WorkloadFinished) {
			continue
		}
		for _, set := range w.Status.Admission.PodSetAssignments {
			if set.Flavors[res] == flavor {
				usage := set.ResourceUsage[res]
				n += usage.Value()
			}
		}
		if n > 0 {
			all = append(all, holder{describe(w), n})
		}
	}
	slices.SortFunc(all, func(a, b holder) int { return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.name, b.name)) })
	names := make([]string, len(all))
	for i, h := range all {
		names[i] = fmt.Sprintf("%s with %d", h.name, h.n)
	}
	switch len(all) {
	case 0:
		return ""
	case 1:
		return names[0] + " holds"
	}
	return tpu.FewNames(names) + " hold"
}

// place says how many workloads come before this one, or returns "" if none does.
func (s Scene) place() string {
	switch n := Ahead(*s.Workload, s.Others); n {
	case 0:
		return ""
	case 1:
		return "; 1 workload comes before it"
	default:
		return fmt.Sprintf("; %d workloads come before it", n)
	}
}

// Ahead returns how many of the other workloads of a ClusterQueue come before w: those that
// wait for quota with a higher priority, or with the same one for a longer time.
func Ahead(w kueue.Workload, others []kueue.Workload) (n int) {
	for _, other := range others {
		if meta.IsStatusConditionTrue(other.Status.Conditions, kueue.WorkloadQuotaReserved) || meta.IsStatusConditionTrue(other.Status.Conditions, kueue.WorkloadFinished) ||
			other.Spec.Active != nil && !*other.Spec.Active || other.UID == w.UID {
			continue
		}
		if cmp.Or(cmp.Compare(priority(w), priority(other)), queuedSince(other).Compare(queuedSince(w))) < 0 {
			n++
		}
	}
	return n
}

func priority(w kueue.Workload) int32 {
	if w.Spec.Priority == nil {
		return 0
	}
	return *w.Spec.Priority
}

// queuedSince returns when a workload took its place in the queue. If the pods of a
// workload are not ready in time, Kueue evicts it and gives it a new place at that time.
// Every other workload keeps the place from its creation.
func queuedSince(w kueue.Workload) time.Time {
	if c := meta.FindStatusCondition(w.Status.Conditions, kueue.WorkloadEvicted); c != nil && c.Status == metav1.ConditionTrue && c.Reason == kueue.WorkloadEvictedByPodsReadyTimeout {
		return c.LastTransitionTime.Time
	}
	return w.CreationTimestamp.Time
}

// checked returns the admission check for which a workload with quota still waits.
func (s Scene) checked() (Wait, bool) {
	if s.Workload == nil || s.isTrue(kueue.WorkloadAdmitted) {
		return Wait{}, false
	}
	for _, c := range s.Workload.Status.AdmissionChecks {
		if c.State == kueue.CheckStateReady {
			continue
		}
		why := fmt.Sprintf("it has its quota, and admission check %s is %s", c.Name, strings.ToLower(string(c.State)))
		if c.Message != "" {
			why += ": " + sentence(c.Message)
		}
		return Wait{Why: why, Command: s.cluster(), Normal: c.State == kueue.CheckStatePending}, true
	}
	return Wait{Why: "it has its quota, and Kueue has not admitted it yet", Command: s.command("workload", "list"), Normal: true}, true
}

// stuckAfter is how long a pod may exist after its grace period: the kubelet and the
// controllers need some seconds.
const stuckAfter = time.Minute

// terminating returns the pod that does not end. JobSet makes the pods of the next attempt
// when all of the last one are gone.
func (s Scene) terminating() (Wait, bool) {
	for _, p := range s.sorted() {
		if p.DeletionTimestamp == nil || s.Now.Sub(p.DeletionTimestamp.Time) < stuckAfter {
			continue
		}
		return Wait{
			Why:     fmt.Sprintf("pod %s on node %s has been ending for %s: the other pods wait until it is gone", p.Name, p.Spec.NodeName, s.Now.Sub(p.DeletionTimestamp.Time).Round(time.Second)),
			Command: fmt.Sprintf("kubectl delete pod %s --namespace=%s --force --grace-period=0", p.Name, p.Namespace),
		}, true
	}
	return Wait{}, false
}

// sorted returns the pods in the order of their workers.
func (s Scene) sorted() []corev1.Pod {
	pods := slices.Clone(s.Pods)
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		x, _ := PodOf(&a)
		y, _ := PodOf(&b)
		return x.Worker.Compare(y.Worker)
	})
	return pods
}

// imageFaults are the reasons why a container gets no image, and faults the other reasons
// why it does not start.
var (
	imageFaults = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"}
	faults      = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff", "PreCreateHookError", "PreStartHookError", "PostStartHookError"}
)

// broken returns why containers cannot start.
func (s Scene) broken() (Wait, bool) {
	var (
		workers []tpu.WorkerID
		found   *corev1.ContainerStateWaiting
		image   string
		about   corev1.Pod
	)
	for _, p := range s.sorted() {
		at, ok := PodOf(&p)
		if !ok || p.DeletionTimestamp != nil {
			continue
		}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if w := c.State.Waiting; w != nil && (slices.Contains(imageFaults, w.Reason) || slices.Contains(faults, w.Reason)) {
				if found == nil {
					found, image, about = w, c.Image, p
				}
				workers = append(workers, at.Worker)
				break
			}
		}
	}
	if found == nil {
		return Wait{}, false
	}
	message := found.Message
	if found.Reason == "ImagePullBackOff" { // this only says that the kubelet waits; the event has the cause
		if told := s.told(about, "Failed", "Failed to pull image"); told != "" {
			message = told
		}
	}
	if slices.Contains(imageFaults, found.Reason) {
		return Wait{Why: fmt.Sprintf("%s cannot get the image %s: %s", tpu.FoldShort(workers), image, imageCause(message)), Command: s.command("workload", "delete", s.JobSet.Name)}, true
	}
	return Wait{Why: fmt.Sprintf("%s cannot start the container: %s: %s", tpu.FoldShort(workers), found.Reason, sentence(message)), Command: s.command("workload", "delete", s.JobSet.Name)}, true
}

// imageCause explains a kubelet's message about an image. An unknown message stays as it
// is.
func imageCause(message string) string {
	low := strings.ToLower(message)
	switch {
	case strings.Contains(low, "not found") || strings.Contains(low, "manifest unknown") || strings.Contains(low, "name unknown"):
		return "the registry does not have it"
	case strings.Contains(low, "403 forbidden") || strings.Contains(low, "401 unauthorized") || strings.Contains(low, "denied") || strings.Contains(low, "authorization failed"):
		return "the nodes may not read it: their service account needs the role Artifact Registry Reader"
	case strings.Contains(low, "no match for platform"):
		return "it has no variant for the nodes' processors"
	case strings.Contains(low, "no space left"):
		return "the disk of the node is full"
	}
	return sentence(message)
}

// told returns the message of the newest event about the pod that has the reason, if the
// message contains part, or "".
func (s Scene) told(about corev1.Pod, reason, part string) string {
	var newest time.Time
	text := ""
	for _, e := range s.Events {
		if e.InvolvedObject.UID != about.UID || e.Reason != reason || !strings.Contains(e.Message, part) {
			continue
		}
		if at := when(e); text == "" || at.After(newest) {
			newest, text = at, e.Message
		}
	}
	return text
}

// when returns the last time of an event. Newer components fill only EventTime.
func when(e corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

// unscheduled returns why pods have no node.
func (s Scene) unscheduled() (Wait, bool) {
	var workers []tpu.WorkerID
	message := ""
	for _, p := range s.sorted() {
		at, ok := PodOf(&p)
		if !ok || p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
			continue
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				workers = append(workers, at.Worker)
				message = cmp.Or(message, c.Message, s.told(p, "FailedScheduling", ""))
			}
		}
	}
	if len(workers) == 0 {
		return Wait{}, false
	}
	who := tpu.FoldShort(workers)
	if w, ok := s.pools(who); ok {
		return w, true
	}
	short, _, _ := strings.Cut(message, " preemption: ")
	short = strings.TrimSuffix(short, " no new claims to deallocate,")
	return Wait{Why: fmt.Sprintf("no node is free for %s: %s", who, sentence(short)), Command: s.cluster()}, true
}

// wanted describes the nodes that the workload asks for.
func (s Scene) wanted() string {
	a, t := s.selector(labelAccelerator), s.selector(labelTopology)
	if a == "" {
		return "the nodes that it asks for"
	}
	return fmt.Sprintf("%s with topology %s", a, t)
}

func (s Scene) selector(label string) string {
	for _, job := range s.JobSet.Spec.ReplicatedJobs {
		if v := job.Template.Spec.Template.Spec.NodeSelector[label]; v != "" {
			return v
		}
	}
	return ""
}

// pools returns why the node pools have no nodes for workers. The parameter who names these
// workers.
func (s Scene) pools(who string) (Wait, bool) {
	accelerator, topology := s.selector(labelAccelerator), s.selector(labelTopology)
	if s.Pools == nil || accelerator == "" {
		return Wait{}, false
	}
	var fit []Pool
	for _, p := range s.Pools {
		if p.Accelerator == accelerator && p.Topology == topology {
			fit = append(fit, p)
		}
	}
	if len(fit) == 0 && !slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.Unknown }) {
		return Wait{Why: fmt.Sprintf("no node pool of the cluster has %s, which %s needs", s.wanted(), who), Command: s.cluster()}, true
	}
	for _, p := range fit {
		if p.State == "ERROR" {
			return Wait{Why: fmt.Sprintf("%s has no node, and node pool %s is broken: %s", who, p.Name, poolCause(p.Message)), Command: s.cluster()}, true
		}
	}
	for _, p := range fit {
		switch {
		case p.FlexStart && p.Nodes == 0:
			return Wait{Why: fmt.Sprintf("Google Cloud has no capacity for node pool %s yet (flex-start), which %s needs", p.Name, who), Command: s.cluster()}, true
		case p.State == "PROVISIONING":
			return Wait{Why: fmt.Sprintf("node pool %s is being made, and %s needs it", p.Name, who), Command: s.cluster(), Normal: true}, true
		case p.State == "RECONCILING" || p.State == "STOPPING":
			return Wait{Why: fmt.Sprintf("GKE changes or repairs node pool %s, and %s needs it", p.Name, who), Command: s.cluster(), Normal: p.State == "RECONCILING"}, true
		}
	}
	return Wait{}, false
}

// poolCause explains GKE's message about a broken pool.
func poolCause(message string) string {
	low := strings.ToLower(message)
	switch {
	case strings.Contains(low, "lack of capacity") || strings.Contains(low, "exhausted") || strings.Contains(low, "stockout"):
		return "Google Cloud has no capacity of this type in the zone"
	case strings.Contains(low, "quota"):
		return "the project has not enough quota: " + sentence(message)
	case message == "":
		return "GKE does not say why"
	}
	return sentence(message)
}

// starting returns what the cluster still does before the command runs on every worker.
func (s Scene) starting() (Wait, bool) {
	status := s.command("workload", "status", s.JobSet.Name)
	want, have := 0, 0
	for _, job := range s.JobSet.Spec.ReplicatedJobs {
		n := 1
		if p := job.Template.Spec.Parallelism; p != nil {
			n = int(*p)
		}
		want += n * int(job.Replicas)
	}
	var waiting []tpu.WorkerID
	why := "starting its container"
	for _, p := range s.sorted() {
		at, ok := PodOf(&p)
		if !ok || p.DeletionTimestamp != nil || at.Restart != int(s.JobSet.Status.Restarts) {
			continue
		}
		have++
		if p.Status.Phase != corev1.PodPending {
			continue
		}
		if len(waiting) == 0 {
			why = s.startingPod(p)
		}
		waiting = append(waiting, at.Worker)
	}
	switch {
	case len(waiting) > 0:
		return Wait{Why: tpu.FoldShort(waiting) + ": " + why, Command: status, Normal: true}, true
	case have < want:
		if refused := s.refused(); refused != "" {
			return Wait{Why: fmt.Sprintf("the cluster makes no more pods after %d of %d: %s", have, want, refused), Command: status}, true
		}
		return Wait{Why: fmt.Sprintf("the cluster has made %d of %d pods", have, want), Command: status, Normal: true}, true
	}
	return Wait{}, false
}

// startingPod returns what a node does before the containers of a pod run.
func (s Scene) startingPod(p corev1.Pod) string {
	for _, trouble := range []string{"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "NetworkNotReady"} {
		if text := s.told(p, trouble, ""); text != "" {
			return fmt.Sprintf("node %s cannot prepare the pod: %s", p.Spec.NodeName, sentence(text))
		}
	}
	if s.told(p, "Pulling", "") != "" && s.told(p, "Pulled", "") == "" {
		return fmt.Sprintf("node %s is fetching the image", p.Spec.NodeName)
	}
	return fmt.Sprintf("node %s is starting the container", cmp.Or(p.Spec.NodeName, "(not chosen yet)"))
}

// leaderFirst is the text with which JobSet refuses the pods of a slice until the slice's
// first pod has a node.
const leaderFirst = "leader pod not yet scheduled"

// refused returns why the cluster refuses to make pods, or "". It ignores refusals that end when
// the first pod of each slice has a node.
func (s Scene) refused() string {
	var newest time.Time
	text := ""
	for _, e := range s.Events {
		if e.Reason == "FailedCreate" && !strings.Contains(e.Message, leaderFirst) && (text == "" || when(e).After(newest)) {
			newest, text = when(e), sentence(e.Message)
		}
	}
	return text
}

// sentence makes a message of the cluster a part of a sentence: one line without a full
// stop.
func sentence(message string) string {
	return strings.TrimRight(strings.Join(strings.Fields(message), " "), ".;: ")
}
