package workloads

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/event"
	"multihost/internal/kube"
	"multihost/internal/workload"
)

// FollowOptions say where output goes.
type FollowOptions struct {
	// Output opens the receiver of a container's output in an attempt. The first attempt is 1.
	// Follow opens each receiver once and closes it. If the receiver is a Holder, Follow writes
	// only what the receiver lacks. If Output is nil, Follow copies no output.
	Output func(attempt int, p workload.Pod, container string) (io.WriteCloser, error)
	// Ended is called with an attempt when the next attempt begins. Ended may be nil.
	Ended func(workload.Attempt)
	// Look is the pause between two checks of the reason why the workload does not run. 0 means
	// 10 seconds. The first check is after two seconds at most.
	Look time.Duration
	// Settle is how long output may still come after the end of the workload. 0 means one
	// minute.
	Settle time.Duration
}

// A Holder is a receiver that already has the beginning of the output from an earlier command.
type Holder interface {
	// Held opens the output that the receiver has. Follow closes the reader before it writes to
	// the receiver.
	Held() (io.ReadCloser, error)
}

// An Outcome is how a workload ended.
type Outcome struct {
	State      workload.State // Succeeded, Failed, or Leaving if somebody deleted it
	Message    string         // what the cluster says
	Stopped    string         // who has stopped it, if Leaving; "": unknown
	Attempts   []workload.Attempt
	Failure    *workload.Failure // the first failure of the last attempt; nil: none, or unknown
	Incomplete []Gap             // outputs that lack bytes
}

// A Gap is an output that lacks bytes.
type Gap struct {
	Attempt int
	Text    string // which output it is, and why: "attempt 1 s0w0: …"
}

func (g Gap) String() string { return g.Text }

// OfLast returns the gaps in the outputs of the last attempt.
func (o Outcome) OfLast() (gaps []Gap) {
	for _, g := range o.Incomplete {
		if g.Attempt >= len(o.Attempts) {
			gaps = append(gaps, g)
		}
	}
	return gaps
}

// Code returns the exit status of a workload. If the workload succeeded, Code returns 0.
// Otherwise it returns the exit status of the first failure of the last attempt, or 1 if that is
// unknown.
func (o Outcome) Code() int {
	switch {
	case o.State == workload.Succeeded:
		return 0
	case o.Failure != nil && o.Failure.Pod.Failed():
		return o.Failure.Pod.Exit.Code
	}
	return 1
}

// Follow copies the output of all workers of a workload, attempt after attempt, until the
// workload has ended. It reports why the workload waits, and each failure and restart. If
// ctx ends, the workload runs on.
func (c *Cluster) Follow(ctx context.Context, name string, o FollowOptions) (Outcome, error) {
	js, err := c.get(ctx, name)
	if err != nil {
		return Outcome{}, err
	}
	if o.Look == 0 {
		o.Look = 10 * time.Second
	}
	if o.Settle == 0 {
		o.Settle = time.Minute
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &following{Cluster: c, FollowOptions: o, js: js, steps: make(chan func()), pods: map[string]*followed{}}
	defer f.owned.Wait()
	defer cancel()
	return f.run(ctx)
}

// following is the state of a Follow. Only the goroutine of run uses it. Other goroutines send
// steps to that one.
type following struct {
	*Cluster
	FollowOptions
	js    *jobset.JobSet
	owned sync.WaitGroup // watches and copies
	steps chan func()

	pods       map[string]*followed // by UID
	copies     int                  // number of copies in progress
	incomplete []Gap
	attempts   int    // number of the newest attempt whose output has begun
	why        string // why the workload waits, as last reported
	restarts   int    // number of restarts, as last reported
	deleted    bool
	away       bool  // the cluster does not answer
	failed     error // error of a watch
}

// followed is a pod whose output is copied.
type followed struct {
	pod     workload.Pod
	copying bool
}

// send makes the goroutine of run execute a step, unless ctx ends before.
func (f *following) send(ctx context.Context, step func()) {
	select {
	case f.steps <- step:
	case <-ctx.Done():
	}
}

func (f *following) run(ctx context.Context) (Outcome, error) {
	f.watch(ctx)
	looks := time.NewTimer(min(f.Look, 2*time.Second))
	defer looks.Stop()
	var limit, ends <-chan time.Time
	for {
		over := f.over()
		switch {
		case f.failed != nil:
			return Outcome{}, f.failed
		case over && limit == nil:
			if err := f.last(ctx); err != nil {
				return Outcome{}, err
			}
			limit = time.After(f.Settle)
			continue // last may have begun to copy
		case over && f.copies == 0 && f.allEnded():
			return f.outcome(ctx)
		case over && f.copies == 0 && ends == nil:
			ends = time.After(min(f.Settle, endsLimit))
		}
		select {
		case step := <-f.steps:
			step()
		case <-looks.C:
			f.look(ctx)
			looks.Reset(f.Look)
		case <-ends:
			return f.outcome(ctx)
		case <-limit:
			if f.copies == 0 {
				return f.outcome(ctx)
			}
			f.incomplete = append(f.incomplete, Gap{f.attempts, fmt.Sprintf("%d outputs were still coming %s after the end", f.copies, f.Settle)})
			return f.outcome(ctx)
		case <-ctx.Done():
			return Outcome{}, context.Cause(ctx)
		}
	}
}

// endsLimit limits how long Follow, after the last output, waits for the ends of the pods. The
// cluster may report the end of the workload before those.
const endsLimit = 10 * time.Second

// allEnded reports whether each pod whose output was copied is known to have ended.
func (f *following) allEnded() bool {
	for _, p := range f.pods {
		if p.copying && p.pod.Ended.IsZero() {
			return false
		}
	}
	return true
}

// over reports whether the workload has ended, or somebody has deleted it.
func (f *following) over() bool { return f.deleted || !workload.EndOf(f.js).IsZero() }

// watch begins to watch the JobSet and its pods.
func (f *following) watch(ctx context.Context) {
	options := func(l kube.ListOptions, what string) kube.WatchOptions {
		report := f.outage(what, ", and the workload goes on")
		return kube.WatchOptions{ListOptions: l, Away: func(err error) {
			f.send(ctx, func() { f.away = err != nil })
			report(err)
		}}
	}
	f.owned.Go(func() {
		err := f.jobsets().Watch(ctx, options(named(f.js), "the workload"), func(change kube.Change[jobset.JobSet]) error {
			f.send(ctx, func() { f.changed(change) })
			return nil
		})
		f.send(ctx, func() { f.failed = err })
	})
	f.owned.Go(func() {
		err := kube.Pods.In(f.Client, "").Watch(ctx, options(podsOf(f.js.Name), "pods"), func(change kube.Change[corev1.Pod]) error {
			if change.Object != nil {
				f.send(ctx, func() { f.saw(ctx, change.Object, change.Gone) })
			}
			return nil
		})
		f.send(ctx, func() { f.failed = err })
	})
}

func podsOf(name string) kube.ListOptions {
	return kube.ListOptions{Labels: jobset.JobSetNameKey + "=" + name}
}

// changed handles a change of the JobSet.
func (f *following) changed(change kube.Change[jobset.JobSet]) {
	switch {
	case change.Object == nil:
	case change.Object.UID != f.js.UID: // somebody has made another one of this name
		f.deleted = true
	case change.Gone:
		f.deleted = true
	default:
		f.js = change.Object
		if n := int(f.js.Status.Restarts); n > f.restarts {
			f.restarts = n
			event.Notef(f.Sink, event.Warn, "", "the cluster restarts the workload (restart %d of %d)%s", n, f.most(), f.because(n-1))
		}
	}
}

func (f *following) most() int {
	if f.js.Spec.FailurePolicy == nil {
		return 0
	}
	return int(f.js.Spec.FailurePolicy.MaxRestarts)
}

// because returns ": " and the first failure after the given number of restarts, for a message,
// or "".
func (f *following) because(restart int) string {
	for _, a := range slices.Backward(workload.Attempts(f.history())) {
		if failure, ok := a.FirstFailure(); ok && a.Restart == restart {
			return ": " + failure.String()
		}
	}
	return ""
}

// history returns all pods that were seen.
func (f *following) history() []workload.Pod {
	all := make([]workload.Pod, 0, len(f.pods))
	for _, uid := range slices.Sorted(maps.Keys(f.pods)) {
		all = append(all, f.pods[uid].pod)
	}
	return all
}

// saw handles what a pod object says, and begins to copy the pod's output once there is
// some.
func (f *following) saw(ctx context.Context, o *corev1.Pod, gone bool) {
	now, ok := workload.PodOf(o)
	if !ok || o.Labels[jobset.JobSetUIDKey] != "" && o.Labels[jobset.JobSetUIDKey] != string(f.js.UID) {
		return
	}
	p := f.pods[now.UID]
	if p == nil {
		p = &followed{}
		f.pods[now.UID] = p
	}
	p.pod = now
	if gone {
		p.pod = now.Vanished(f.now())
	}
	if p.copying || gone || !begun(o) || f.Output == nil {
		return
	}
	p.copying = true
	attempt := f.attemptOf(now.UID)
	for i := range o.Spec.Containers {
		f.copy(ctx, o, now, &o.Spec.Containers[i], attempt)
	}
}

// attemptOf returns the number of the attempt of a pod. If the attempt is new, it calls Ended
// with the attempt before.
func (f *following) attemptOf(uid string) int {
	all := workload.Attempts(f.history())
	for i, a := range all {
		if !slices.ContainsFunc(a.Pods, func(p workload.Pod) bool { return p.UID == uid }) {
			continue
		}
		if a.Number > f.attempts {
			f.attempts = a.Number
			if i > 0 && f.Ended != nil {
				f.Ended(all[i-1])
			}
		}
		return a.Number
	}
	return 1 // cannot happen: the pod is in the history
}

// copy copies the output of a container until it has ended.
func (f *following) copy(ctx context.Context, o *corev1.Pod, p workload.Pod, container *corev1.Container, attempt int) {
	out, err := f.Output(attempt, p, container.Name)
	if err != nil {
		f.failed = err
		return
	}
	f.copies++
	f.owned.Go(func() {
		err := f.output(ctx, o, container, true, out)
		if closed := out.Close(); err == nil {
			err = closed
		}
		f.send(ctx, func() {
			f.copies--
			if err != nil {
				f.incomplete = append(f.incomplete, Gap{attempt, fmt.Sprintf("attempt %d %s: %v", attempt, p.Worker, err)})
			}
		})
	})
}

// last reads the pods once more at the end of the workload, because the watch of pods may be
// behind the watch of the JobSet.
func (f *following) last(ctx context.Context) error {
	pods, err := f.Cluster.pods(ctx, f.js.Name)
	for i := range pods {
		f.saw(ctx, &pods[i], false)
	}
	return err
}

// look reports why the workload does not run, if the reason has changed.
func (f *following) look(ctx context.Context) {
	if f.away || f.over() {
		return
	}
	queued, err := f.queued(ctx)
	if err != nil {
		return // the watches report outages
	}
	scene, err := f.scene(ctx, f.js)
	if err != nil {
		return
	}
	scene.Workload, scene.Others = queued.of(f.js)
	w, waits := workload.Waits(scene)
	switch {
	case w.Why == f.why:
		return
	case !waits:
		event.Notef(f.Sink, event.Info, "", "the command runs on all workers")
	case w.Normal:
		event.Notef(f.Sink, event.Info, "", "waiting: %s", w.Why)
	default:
		event.Notef(f.Sink, event.Warn, w.Command, "waiting: %s", w.Why)
	}
	f.why = w.Why
}

// outcome says how the workload ended.
func (f *following) outcome(ctx context.Context) (Outcome, error) {
	slices.SortFunc(f.incomplete, func(a, b Gap) int { return strings.Compare(a.Text, b.Text) })
	o := Outcome{State: workload.StateOf(f.js, nil), Message: workload.EndMessage(f.js), Attempts: workload.Attempts(f.history()), Incomplete: f.incomplete}
	if f.deleted && workload.EndOf(f.js).IsZero() {
		o.State, o.Stopped = workload.Leaving, f.js.Annotations[annotationStopped]
		return o, nil
	}
	if o.State != workload.Failed {
		return o, nil
	}
	if n := len(o.Attempts); n > 0 {
		if failure, ok := o.Attempts[n-1].FirstFailure(); ok && failure.Pod.Exit.Known {
			o.Failure = &failure
			return o, nil
		}
	}
	// The pod that failed may be deleted. Its Job still says how it failed.
	p, err := f.failedFirst(ctx, f.js)
	if p != nil {
		o.Failure = &workload.Failure{Pod: *p}
	}
	return o, err
}

// String describes an outcome in one line.
func (o Outcome) String() string {
	switch {
	case o.State == workload.Leaving && o.Stopped != "":
		return "stopped: " + o.Stopped
	case o.State == workload.Leaving:
		return "somebody has deleted the workload"
	case o.State == workload.Succeeded:
		return "succeeded"
	case o.Failure != nil:
		return "failed: " + o.Failure.String()
	}
	return strings.TrimSuffix("failed: "+o.Message, ": ")
}
