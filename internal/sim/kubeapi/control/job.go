package control

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/sim/kubeapi/gkenode"
	"multihost/internal/sim/kubeapi/store"
)

// jobs lets the Job controller look at all Jobs.
func (c *Controllers) jobs() {
	all, pods := list[batchv1.Job](c, store.Jobs), list[corev1.Pod](c, store.Pods)
	c.release(all, pods)
	for _, j := range all {
		if j.DeletionTimestamp != nil {
			continue
		}
		w := &jobWork{Controllers: c, job: j.DeepCopy()}
		for _, p := range pods {
			if ownedBy(p, j.UID) {
				w.pods = append(w.pods, p)
			}
		}
		w.sync()
	}
}

// release lets pods go whose Job is gone or being deleted.
func (c *Controllers) release(all []*batchv1.Job, pods []*corev1.Pod) {
	for _, p := range pods {
		if !slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) {
			continue
		}
		counts := slices.ContainsFunc(all, func(j *batchv1.Job) bool { return j.DeletionTimestamp == nil && ownedBy(p, j.UID) })
		if !counts {
			c.unfinalize(item{store.Pods, store.NewObject(store.Pods, p.Namespace, p.Name)}, batchv1.JobTrackingFinalizer)
		}
	}
}

// A jobWork is the work on one Job.
type jobWork struct {
	*Controllers
	job     *batchv1.Job // the Job after the work
	pods    []*corev1.Pod
	counted []*corev1.Pod // ended pods that are being counted now
}

func (w *jobWork) sync() {
	before := w.job.Status.DeepCopy()
	for i := range w.pods {
		w.count(w.pods[i])
	}
	if !jobOver(w.job) {
		w.advance()
	}
	w.tally()
	if !equal(before, &w.job.Status) {
		w.save(store.Jobs, w.job, true)
	}
	for _, p := range w.counted { // only after the count is written
		w.unfinalize(item{store.Pods, store.NewObject(store.Pods, p.Namespace, p.Name)}, batchv1.JobTrackingFinalizer)
	}
	w.expire()
}

// count counts a pod that has ended, once.
func (w *jobWork) count(p *corev1.Pod) {
	// A pod that a suspended Job has deleted never counts, even if it ends after the Job was
	// resumed.
	unwanted := suspended(w.job) && p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
	if !slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) || !ended(p) && !unwanted {
		return
	}
	w.counted = append(w.counted, p)
	st := &w.job.Status
	switch {
	case p.Status.Phase == corev1.PodSucceeded:
		st.Succeeded++
		if i := indexOf(p); i >= 0 {
			st.CompletedIndexes = addIndex(st.CompletedIndexes, i)
		}
	case suspended(w.job) || jobOver(w.job) && p.Status.Phase != corev1.PodFailed:
		// A pod deleted because its Job is suspended or over has not failed.
	default:
		action, message := w.policy(p)
		if action != batchv1.PodFailurePolicyActionIgnore {
			st.Failed++
		}
		if action == batchv1.PodFailurePolicyActionFailJob && w.conditionOf(batchv1.JobFailureTarget) == nil {
			w.set(batchv1.JobFailureTarget, true, batchv1.JobReasonPodFailurePolicy, message)
		}
	}
}

// ended reports whether a pod has ended. A deleted pod has ended, too, once its kubelet has
// let it go.
func ended(p *corev1.Pod) bool {
	return podOver(p) || p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// policy returns what the policy of the Job says about the failure of a pod.
func (w *jobWork) policy(p *corev1.Pod) (batchv1.PodFailurePolicyAction, string) {
	if w.job.Spec.PodFailurePolicy == nil {
		return batchv1.PodFailurePolicyActionCount, ""
	}
	for i, r := range w.job.Spec.PodFailurePolicy.Rules {
		if r.OnExitCodes != nil {
			if name, code, ok := exitMatch(r.OnExitCodes, p); ok {
				return r.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching %v rule at index %d", name, p.Namespace, p.Name, code, r.Action, i)
			}
			continue
		}
		for _, want := range r.OnPodConditions {
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == want.Type && c.Status == want.Status }) {
				return r.Action, fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", p.Namespace, p.Name, want.Type, r.Action, i)
			}
		}
	}
	return batchv1.PodFailurePolicyActionCount, ""
}

// exitMatch returns the container whose exit code fits a rule.
func exitMatch(r *batchv1.PodFailurePolicyOnExitCodesRequirement, p *corev1.Pod) (name string, code int32, ok bool) {
	for _, c := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		t := c.State.Terminated
		if t == nil || t.ExitCode == 0 || r.ContainerName != nil && *r.ContainerName != c.Name {
			continue
		}
		if slices.Contains(r.Values, t.ExitCode) == (r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
			return c.Name, t.ExitCode, true
		}
	}
	return "", 0, false
}

// advance starts and ends pods as the Job requires.
func (w *jobWork) advance() {
	j := w.job
	if suspended(j) {
		w.deleteActive()
		j.Status.StartTime = nil
		if w.set(batchv1.JobSuspended, true, "JobSuspended", "Job suspended") {
			w.event(store.Jobs, j, corev1.EventTypeNormal, "Suspended", "Job suspended", "job-controller")
		}
		return
	}
	now := metav1.NewTime(w.now())
	if cond := w.conditionOf(batchv1.JobSuspended); cond != nil && cond.Status == corev1.ConditionTrue {
		w.set(batchv1.JobSuspended, false, "JobResumed", "Job resumed")
		j.Status.StartTime = &now
	}
	if j.Status.StartTime == nil {
		j.Status.StartTime = &now
	}
	failing := w.conditionOf(batchv1.JobFailureTarget)
	if failing == nil && j.Status.Failed > *j.Spec.BackoffLimit {
		w.set(batchv1.JobFailureTarget, true, batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
		failing = w.conditionOf(batchv1.JobFailureTarget)
	}
	if failing == nil && w.late() {
		w.set(batchv1.JobFailureTarget, true, batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		failing = w.conditionOf(batchv1.JobFailureTarget)
	}
	switch {
	case failing != nil:
		w.deleteActive()
		if !slices.ContainsFunc(w.pods, func(p *corev1.Pod) bool { return !ended(p) }) {
			w.set(batchv1.JobFailed, true, failing.Reason, failing.Message)
			w.event(store.Jobs, j, corev1.EventTypeWarning, failing.Reason, failing.Message, "job-controller")
		}
	case w.complete():
		w.set(batchv1.JobSuccessCriteriaMet, true, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		w.set(batchv1.JobComplete, true, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		j.Status.CompletionTime = &now
		w.event(store.Jobs, j, corev1.EventTypeNormal, "Completed", "Job completed", "job-controller")
	default:
		w.createPods()
	}
}

// late reports whether the Job has run longer than it may.
func (w *jobWork) late() bool {
	limit := w.job.Spec.ActiveDeadlineSeconds
	if limit == nil {
		return false
	}
	at := w.job.Status.StartTime.Add(seconds(*limit))
	if w.now().Before(at) {
		w.wakeAt(at)
		return false
	}
	return true
}

func (w *jobWork) complete() bool {
	if n := w.job.Spec.Completions; n != nil {
		return w.job.Status.Succeeded >= *n
	}
	return w.job.Status.Succeeded > 0 && !slices.ContainsFunc(w.pods, func(p *corev1.Pod) bool { return !ended(p) })
}

// deleteActive deletes the running pods.
func (w *jobWork) deleteActive() {
	for _, p := range w.pods {
		if !podOver(p) && p.DeletionTimestamp == nil {
			w.remove(store.Pods, p, metav1.DeletePropagationBackground)
		}
	}
}

// createPods creates the missing pods.
func (w *jobWork) createPods() {
	j := w.job
	want := int(*j.Spec.Parallelism)
	active := 0
	taken := make(map[int]bool)
	for _, p := range w.pods {
		waits := j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
		if ended(p) || p.DeletionTimestamp != nil && !waits {
			continue
		}
		active++
		taken[indexOf(p)] = true
	}
	if n := j.Spec.Completions; n != nil {
		want = min(want, int(*n-j.Status.Succeeded))
	}
	indexed := j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
	for i := 0; active < want; i++ {
		if !indexed {
			w.createPod(-1)
			active++
			continue
		}
		if i >= int(*j.Spec.Completions) {
			return
		}
		if taken[i] || hasIndex(j.Status.CompletedIndexes, i) {
			continue
		}
		if !w.createPod(i) {
			return
		}
		active++
	}
}

// createPod creates the pod of an index. It returns false if the pod must wait.
func (w *jobWork) createPod(index int) bool {
	j := w.job
	p := &corev1.Pod{ObjectMeta: *j.Spec.Template.ObjectMeta.DeepCopy(), Spec: *j.Spec.Template.Spec.DeepCopy()}
	p.Namespace, p.OwnerReferences, p.Finalizers = j.Namespace, owner(store.Jobs, j), []string{batchv1.JobTrackingFinalizer}
	p.GenerateName = j.Name + "-"
	p.Labels = with(p.Labels, map[string]string{
		batchv1.ControllerUidLabel: string(j.UID), batchv1.JobNameLabel: j.Name, "controller-uid": string(j.UID), "job-name": j.Name,
	})
	if index >= 0 {
		n := strconv.Itoa(index)
		p.Labels[batchv1.JobCompletionIndexAnnotation] = n
		p.Annotations = with(p.Annotations, map[string]string{batchv1.JobCompletionIndexAnnotation: n})
		p.GenerateName = fmt.Sprintf("%s-%d-", j.Name, index)
		p.Spec.Hostname = fmt.Sprintf("%s-%d", j.Name, index)
		for i := range p.Spec.Containers {
			gkenode.AddVariable(&p.Spec.Containers[i], corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation)},
			}})
		}
	}
	if err := w.admitPod(p); err != nil {
		w.event(store.Jobs, j, corev1.EventTypeWarning, "FailedCreate", "Error creating: "+err.Error(), "job-controller")
		return false
	}
	if p.Annotations[jobset.ExclusiveKey] != "" && index > 0 && !w.follow(p) {
		return false
	}
	gkenode.AddVariables(p, j, index)
	if err := w.create(store.Pods, p); err != nil {
		w.event(store.Jobs, j, corev1.EventTypeWarning, "FailedCreate", "Error creating: "+err.Error(), "job-controller")
		return false
	}
	return true
}

// follow is for Jobs with exclusive placement, whose pod with index 0 is the leader. It
// sends another pod to the leader's node pool. It returns false while the leader has no
// node.
func (w *jobWork) follow(p *corev1.Pod) bool {
	key := p.Annotations[jobset.ExclusiveKey]
	for _, leader := range w.pods {
		if indexOf(leader) != 0 || leader.DeletionTimestamp != nil || leader.Spec.NodeName == "" {
			continue
		}
		node, err := w.store.Get(store.Nodes, "", leader.Spec.NodeName)
		if err != nil || node.GetLabels()[key] == "" {
			return false
		}
		p.Spec.NodeSelector = with(p.Spec.NodeSelector, map[string]string{key: node.GetLabels()[key]})
		return true
	}
	return false
}

// tally counts the running pods.
func (w *jobWork) tally() {
	var active, ready, terminating int32
	for _, p := range w.pods {
		switch {
		case ended(p):
		case p.DeletionTimestamp != nil:
			terminating++
		default:
			active++
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
	}
	st := &w.job.Status
	st.Active, st.Ready, st.Terminating = active, &ready, &terminating
	st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
}

// expire deletes a Job whose time to live since its end is over.
func (w *jobWork) expire() {
	ttl := w.job.Spec.TTLSecondsAfterFinished
	if ttl == nil || !jobOver(w.job) {
		return
	}
	for _, c := range w.job.Status.Conditions {
		if c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed {
			at := c.LastTransitionTime.Add(seconds(int64(*ttl)))
			if w.now().Before(at) {
				w.wakeAt(at)
				return
			}
			w.remove(store.Jobs, w.job, metav1.DeletePropagationForeground)
			return
		}
	}
}

func (w *jobWork) conditionOf(kind batchv1.JobConditionType) *batchv1.JobCondition {
	i := slices.IndexFunc(w.job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &w.job.Status.Conditions[i]
}

// set sets a condition of the Job. It reports whether the condition's status has changed.
func (w *jobWork) set(kind batchv1.JobConditionType, status bool, reason, message string) bool {
	now := metav1.NewTime(w.now())
	c := batchv1.JobCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastProbeTime: now, LastTransitionTime: now}
	if status {
		c.Status = corev1.ConditionTrue
	}
	old := w.conditionOf(kind)
	switch {
	case old == nil:
		w.job.Status.Conditions = append(w.job.Status.Conditions, c)
		return true
	case old.Status == c.Status:
		return false
	}
	*old = c
	return true
}

func suspended(j *batchv1.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

// jobOver reports whether a Job has completed or failed.
func jobOver(j *batchv1.Job) bool {
	return jobIs(j, batchv1.JobComplete) || jobIs(j, batchv1.JobFailed)
}

func jobIs(j *batchv1.Job, kind batchv1.JobConditionType) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

// indexOf returns the completion index of a pod, or a negative number.
func indexOf(p *corev1.Pod) int {
	i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil {
		return -1
	}
	return i
}

// indexes parses a set of indexes in text form: 1,3-5.
func indexes(text string) []int {
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		b := a
		if ranged {
			b, _ = strconv.Atoi(to)
		}
		for i := a; i <= b; i++ {
			all = append(all, i)
		}
	}
	return all
}

func hasIndex(text string, i int) bool { return slices.Contains(indexes(text), i) }

// addIndex adds an index to a set in text form. Like the Job controller, it writes a range
// only for three or more numbers in a row.
func addIndex(text string, i int) string {
	all := append(indexes(text), i)
	slices.Sort(all)
	all = slices.Compact(all)
	var parts []string
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n] == all[0]+n {
			n++
		}
		first, last := strconv.Itoa(all[0]), strconv.Itoa(all[n-1])
		switch {
		case n == 1:
			parts = append(parts, first)
		case n == 2:
			parts = append(parts, first, last)
		default:
			parts = append(parts, first+"-"+last)
		}
		all = all[n:]
	}
	return strings.Join(parts, ",")
}
