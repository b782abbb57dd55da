package control

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/sim/kubeapi/store"
)

// restartKey is the label, and the annotation, with the number of the restart.
const restartKey = "jobset.sigs.k8s.io/restart-attempt"

// A children holds the Jobs of a JobSet.
type children struct {
	previous, active, successful, failed []*batchv1.Job
}

// jobSets is the JobSet controller.
type jobSets struct{ *Controllers }

// look lets the controller look at a JobSet.
func (c jobSets) look(was *jobset.JobSet) {
	if was.DeletionTimestamp != nil || was.Spec.ManagedBy != nil && *was.Spec.ManagedBy != jobset.JobSetControllerName {
		return
	}
	js := was.DeepCopy()
	jobs := c.children(js)
	js.Status.ReplicatedJobsStatus = statuses(js, jobs)
	switch {
	case jobSetOver(js):
		c.deleteJobs(jobs.active)
		c.expireJobSet(js)
	default:
		c.deleteJobs(jobs.previous)
		c.advance(js, jobs)
	}
	if !equal(was.Status, js.Status) {
		c.save(store.JobSets, js, true)
	}
}

func jobSetOver(js *jobset.JobSet) bool {
	return isTrue(js.Status.Conditions, string(jobset.JobSetCompleted)) || isTrue(js.Status.Conditions, string(jobset.JobSetFailed))
}

func (c jobSets) children(js *jobset.JobSet) (all children) {
	for _, j := range list[batchv1.Job](c.Controllers, store.Jobs) {
		switch {
		case !ownedBy(j, js.UID):
		case j.Labels[restartKey] != strconv.Itoa(int(js.Status.Restarts)):
			all.previous = append(all.previous, j)
		case jobIs(j, batchv1.JobComplete):
			all.successful = append(all.successful, j)
		case jobIs(j, batchv1.JobFailed):
			all.failed = append(all.failed, j)
		default:
			all.active = append(all.active, j)
		}
	}
	return all
}

// statuses counts the Jobs of each replicated Job.
func statuses(js *jobset.JobSet, jobs children) []jobset.ReplicatedJobStatus {
	var all []jobset.ReplicatedJobStatus
	for _, r := range js.Spec.ReplicatedJobs {
		st := jobset.ReplicatedJobStatus{Name: r.Name}
		mine := func(list []*batchv1.Job) (of []*batchv1.Job) {
			for _, j := range list {
				if j.Labels[jobset.ReplicatedJobNameKey] == r.Name {
					of = append(of, j)
				}
			}
			return of
		}
		st.Succeeded, st.Failed = int32(len(mine(jobs.successful))), int32(len(mine(jobs.failed)))
		for _, j := range mine(jobs.active) {
			pods := *j.Spec.Parallelism
			if j.Spec.Completions != nil {
				pods = min(pods, *j.Spec.Completions)
			}
			if j.Status.Ready != nil && j.Status.Succeeded+*j.Status.Ready >= pods {
				st.Ready++
			}
			if j.Status.Active > 0 {
				st.Active++
			}
			if suspended(j) {
				st.Suspended++
			}
		}
		all = append(all, st)
	}
	return all
}

// advance does the next step for a JobSet that has not ended.
func (c jobSets) advance(js *jobset.JobSet, jobs children) {
	if len(jobs.failed) > 0 {
		c.failed(js, jobs.failed)
		return
	}
	if c.succeeded(js, jobs.successful) {
		return
	}
	c.createService(js)
	if len(jobs.previous) == 0 {
		c.createJobs(js, jobs)
	}
	suspend := js.Spec.Suspend != nil && *js.Spec.Suspend
	for _, j := range jobs.active {
		if suspended(j) != suspend {
			c.suspend(js, j, suspend)
		}
	}
	switch {
	case suspend:
		c.jobSetCondition(js, jobset.JobSetSuspended, true, corev1.EventTypeNormal, "SuspendedJobs", "jobset is suspended")
	case isTrue(js.Status.Conditions, string(jobset.JobSetSuspended)):
		c.jobSetCondition(js, jobset.JobSetSuspended, false, corev1.EventTypeNormal, "ResumeJobs", "jobset is resumed")
	}
}

// jobSetCondition sets a condition, and records an event if the condition changes.
func (c jobSets) jobSetCondition(js *jobset.JobSet, kind jobset.JobSetConditionType, status bool, event, reason, message string) {
	if condition(&js.Status.Conditions, c.now(), string(kind), status, reason, message) {
		c.event(store.JobSets, js, event, reason, message, "jobset-controller")
	}
}

// succeeded ends a JobSet whose Jobs have succeeded. It reports whether it did.
func (c jobSets) succeeded(js *jobset.JobSet, successful []*batchv1.Job) bool {
	policy := js.Spec.SuccessPolicy
	var targets []string
	if policy != nil {
		targets = policy.TargetReplicatedJobs
	}
	want, have := 0, 0
	for _, r := range js.Spec.ReplicatedJobs {
		if len(targets) == 0 || slices.Contains(targets, r.Name) {
			want += int(r.Replicas)
		}
	}
	for _, j := range successful {
		if len(targets) == 0 || slices.Contains(targets, j.Labels[jobset.ReplicatedJobNameKey]) {
			have++
		}
	}
	enough := have >= want && want > 0
	if policy != nil && policy.Operator == jobset.OperatorAny {
		enough = have > 0
	}
	if !enough {
		return false
	}
	js.Status.TerminalState = string(jobset.JobSetCompleted)
	c.jobSetCondition(js, jobset.JobSetCompleted, true, corev1.EventTypeNormal, "AllJobsCompleted", "jobset completed successfully")
	return true
}

// failed applies the failure policy of a JobSet.
func (c jobSets) failed(js *jobset.JobSet, jobs []*batchv1.Job) {
	fail := func(reason, message string, first *batchv1.Job) {
		js.Status.TerminalState = string(jobset.JobSetFailed)
		c.jobSetCondition(js, jobset.JobSetFailed, true, corev1.EventTypeWarning, reason, firstFailed(message, first))
	}
	if js.Spec.FailurePolicy == nil {
		fail("FailedJobs", "jobset failed due to one or more job failures", earliest(jobs))
		return
	}
	action, first := decide(js.Spec.FailurePolicy.Rules, jobs)
	switch {
	case action == jobset.FailJobSet:
		fail("FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action", first)
	case action == jobset.RestartJobSet && js.Status.RestartsCountTowardsMax >= js.Spec.FailurePolicy.MaxRestarts:
		fail("ReachedMaxRestarts", "jobset failed due to reaching max number of restarts", first)
	default:
		js.Status.Restarts++
		if action == jobset.RestartJobSet {
			js.Status.RestartsCountTowardsMax++
		}
		c.event(store.JobSets, js, corev1.EventTypeWarning, string(action)+"FailurePolicyAction", firstFailed(fmt.Sprintf("applying %s failure policy action", action), first), "jobset-controller")
	}
}

func firstFailed(message string, j *batchv1.Job) string {
	return fmt.Sprintf("%s (first failed job: %s)", message, j.Name)
}

// decide finds the first rule about one of the failed Jobs. It returns what the rule says,
// and the first of those Jobs. Without a rule, the JobSet restarts.
func decide(rules []jobset.FailurePolicyRule, jobs []*batchv1.Job) (jobset.FailurePolicyAction, *batchv1.Job) {
	for _, r := range rules {
		var of []*batchv1.Job
		for _, j := range jobs {
			if applies(r, j) {
				of = append(of, j)
			}
		}
		if len(of) > 0 {
			return r.Action, earliest(of)
		}
	}
	return jobset.RestartJobSet, earliest(jobs)
}

func applies(r jobset.FailurePolicyRule, j *batchv1.Job) bool {
	f := failureOf(j)
	if len(r.OnJobFailureReasons) > 0 && !slices.Contains(r.OnJobFailureReasons, f.Reason) {
		return false
	}
	matches := func(p string) bool { ok, err := regexp.MatchString(p, f.Message); return ok && err == nil }
	if len(r.OnJobFailureMessagePatterns) > 0 && !slices.ContainsFunc(r.OnJobFailureMessagePatterns, matches) {
		return false
	}
	return len(r.TargetReplicatedJobs) == 0 || slices.Contains(r.TargetReplicatedJobs, j.Labels[jobset.ReplicatedJobNameKey])
}

func failureOf(j *batchv1.Job) batchv1.JobCondition {
	for _, c := range j.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return batchv1.JobCondition{}
}

// earliest returns the Job that failed first.
func earliest(jobs []*batchv1.Job) *batchv1.Job {
	return slices.MinFunc(jobs, func(a, b *batchv1.Job) int {
		return failureOf(a).LastTransitionTime.Compare(failureOf(b).LastTransitionTime.Time)
	})
}

// deleteJobs deletes Jobs with their pods. A Job is gone when all its pods are.
func (c jobSets) deleteJobs(jobs []*batchv1.Job) {
	for _, j := range jobs {
		if j.DeletionTimestamp == nil {
			c.remove(store.Jobs, j, metav1.DeletePropagationForeground)
		}
	}
}

// expireJobSet deletes a JobSet whose time to live since its end is over.
func (c jobSets) expireJobSet(js *jobset.JobSet) {
	if js.Spec.TTLSecondsAfterFinished == nil {
		return
	}
	for _, cond := range js.Status.Conditions {
		if cond.Type != string(jobset.JobSetCompleted) && cond.Type != string(jobset.JobSetFailed) || cond.Status != metav1.ConditionTrue {
			continue
		}
		at := cond.LastTransitionTime.Add(seconds(int64(*js.Spec.TTLSecondsAfterFinished)))
		if c.now().Before(at) {
			c.wakeAt(at)
			return
		}
		c.remove(store.JobSets, js, metav1.DeletePropagationForeground)
		return
	}
}

func subdomain(js *jobset.JobSet) string {
	if js.Spec.Network != nil && js.Spec.Network.Subdomain != "" {
		return js.Spec.Network.Subdomain
	}
	return js.Name
}

func hasNames(js *jobset.JobSet) bool {
	return js.Spec.Network != nil && js.Spec.Network.EnableDNSHostnames != nil && *js.Spec.Network.EnableDNSHostnames
}

// createService creates the headless service for the names of the pods.
func (c jobSets) createService(js *jobset.JobSet) {
	if !hasNames(js) {
		return
	}
	if _, err := c.store.Get(store.Services, js.Namespace, subdomain(js)); err == nil {
		return
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: subdomain(js), Namespace: js.Namespace, OwnerReferences: owner(store.JobSets, js)}}
	s.Spec.ClusterIP, s.Spec.Selector, s.Spec.PublishNotReadyAddresses = corev1.ClusterIPNone, map[string]string{jobset.JobSetNameKey: js.Name}, true
	if err := c.create(store.Services, s); err != nil {
		c.event(store.JobSets, js, corev1.EventTypeWarning, "HeadlessServiceCreationFailed", err.Error(), "jobset-controller")
	}
}

// createJobs creates the missing Jobs.
func (c jobSets) createJobs(js *jobset.JobSet, jobs children) {
	have := slices.Concat(jobs.active, jobs.successful, jobs.failed)
	for _, r := range js.Spec.ReplicatedJobs {
		for i := range int(r.Replicas) {
			j := jobOf(js, r, i)
			if named(have, j.Namespace, j.Name) != nil {
				continue
			}
			if err := c.create(store.Jobs, j); err != nil {
				c.event(store.JobSets, js, corev1.EventTypeWarning, "JobCreationFailed", err.Error(), "jobset-controller")
			}
		}
	}
}

// jobOf returns a Job of a JobSet.
func jobOf(js *jobset.JobSet, r jobset.ReplicatedJob, i int) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: *r.Template.ObjectMeta.DeepCopy(), Spec: *r.Template.Spec.DeepCopy()}
	j.Name, j.Namespace, j.OwnerReferences = fmt.Sprintf("%s-%s-%d", js.Name, r.Name, i), js.Namespace, owner(store.JobSets, js)
	marks := marksOf(js, r, i, j)
	annotations := with(marks, nil)
	for _, from := range []map[string]string{r.Template.Annotations, js.Annotations} {
		for _, key := range []string{jobset.ExclusiveKey, jobset.NodeSelectorStrategyKey} {
			if v := from[key]; v != "" {
				annotations[key] = v
			}
		}
	}
	for _, meta := range []*metav1.ObjectMeta{&j.ObjectMeta, &j.Spec.Template.ObjectMeta} {
		meta.Labels = with(meta.Labels, marks)
		meta.Annotations = with(meta.Annotations, annotations)
	}
	if hasNames(js) {
		j.Spec.Template.Spec.Subdomain = subdomain(js)
	}
	suspend := js.Spec.Suspend != nil && *js.Spec.Suspend
	j.Spec.Suspend = &suspend
	return j
}

// marksOf returns the labels and annotations for a Job's place in its JobSet.
func marksOf(js *jobset.JobSet, r jobset.ReplicatedJob, i int, j *batchv1.Job) map[string]string {
	global, groupIndex, all, inGroup := i, i, 0, 0
	before := true
	for _, o := range js.Spec.ReplicatedJobs {
		before = before && o.Name != r.Name
		n := int(o.Replicas)
		all += n
		if before {
			global += n
		}
		if o.GroupName == r.GroupName {
			inGroup += n
			if before {
				groupIndex += n
			}
		}
	}
	hash := sha1.Sum([]byte(js.Namespace + "/" + j.Name))
	marks := map[string]string{
		jobset.JobSetNameKey: js.Name, jobset.JobSetUIDKey: string(js.UID), jobset.ReplicatedJobNameKey: r.Name,
		restartKey: strconv.Itoa(int(js.Status.Restarts)), jobset.ReplicatedJobReplicas: strconv.Itoa(int(r.Replicas)),
		jobset.GlobalReplicasKey: strconv.Itoa(all), jobset.JobIndexKey: strconv.Itoa(i), jobset.JobKey: hex.EncodeToString(hash[:]),
		jobset.JobGlobalIndexKey: strconv.Itoa(global), jobset.GroupNameKey: r.GroupName, jobset.GroupReplicasKey: strconv.Itoa(inGroup),
		jobset.JobGroupIndexKey: strconv.Itoa(groupIndex),
	}
	if co := js.Spec.Coordinator; co != nil {
		marks[jobset.CoordinatorKey] = fmt.Sprintf("%s-%s-%d-%d.%s", js.Name, co.ReplicatedJob, co.JobIndex, co.PodIndex, subdomain(js))
	}
	return marks
}

// suspend suspends or resumes a Job. A resumed Job gets what Kueue has changed in the
// template.
func (c jobSets) suspend(js *jobset.JobSet, was *batchv1.Job, suspend bool) {
	j := was.DeepCopy()
	j.Spec.Suspend = &suspend
	if !suspend {
		for _, r := range js.Spec.ReplicatedJobs {
			if r.Name != j.Labels[jobset.ReplicatedJobNameKey] {
				continue
			}
			from, to := r.Template.Spec.Template, &j.Spec.Template
			to.Labels, to.Annotations = with(to.Labels, from.Labels), with(to.Annotations, from.Annotations)
			to.Spec.NodeSelector = with(to.Spec.NodeSelector, from.Spec.NodeSelector)
			to.Spec.Tolerations = from.Spec.Tolerations
		}
	}
	c.save(store.Jobs, j, false)
}
