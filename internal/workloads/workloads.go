// Package workloads makes, lists, explains, reads and deletes the workloads of a cluster.
// Package workload says what the objects of a cluster mean; this package reads and writes
// them.
//
// # Decisions
//
//   - A workload is its JobSet. The other objects are found from the JobSet: pods by their
//     label, Kueue's object by its owner, events by the objects that they are about.
//   - Create first checks that the queue and the priority class exist, because the server
//     checks that only when it makes pods. Then it asks the server to check the JobSet.
//     Only after that does it push an image.
//   - If a cluster has no Kueue, or a user may read only one namespace, commands show less
//     and do not fail.
package workloads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/kube"
	"multihost/internal/provision"
	"multihost/internal/tpu"
	"multihost/internal/workload"
)

// A Cluster gives access to the workloads of one Kubernetes cluster. Its methods are safe for
// concurrent use.
type Cluster struct {
	Client *kube.Client
	Name   string           // the cluster's name, if it is of GKE, for commands about it
	Flags  string           // flags that name the cluster in other commands: "--cluster=c"; may be ""
	Sink   event.Sink       // required
	Now    func() time.Time // nil: the system's clock
	// Pools returns the node pools. Nil means that they are unknown.
	Pools func(ctx context.Context) ([]workload.Pool, error)
}

func (c *Cluster) now() time.Time {
	if c.Now == nil {
		return time.Now()
	}
	return c.Now()
}

func (c *Cluster) jobsets() kube.Objects[jobset.JobSet] { return kube.JobSets.In(c.Client, "") }

// command returns a command line about a workload of the cluster.
func (c *Cluster) command(words ...string) string {
	return strings.TrimRight("multihost "+strings.Join(words, " ")+" "+c.Flags, " ")
}

// An AbsentError says that a cluster lacks what a command needs.
type AbsentError struct {
	Text   string
	Advice string // what to type
	kind   fault.Kind
	err    error
}

func (e *AbsentError) Error() string { return e.Text }
func (e *AbsentError) Unwrap() error { return e.err }

// Fault returns fault.Unavailable for a missing workload, and fault.Configuration for what
// the cluster's owner must set up.
func (e *AbsentError) Fault() fault.Kind { return e.kind }

// Hint returns the advice.
func (e *AbsentError) Hint() string { return e.Advice }

// get returns the JobSet of a workload. If there is none, the error is an *AbsentError.
func (c *Cluster) get(ctx context.Context, name string) (*jobset.JobSet, error) {
	js, err := c.jobsets().Get(ctx, name)
	if kube.NotFound(err) {
		if _, _, listed := c.jobsets().List(ctx, kube.ListOptions{}); kube.NotFound(listed) {
			return nil, noJobSet(listed)
		}
		return nil, &AbsentError{Text: fmt.Sprintf("there is no workload %q in namespace %q", name, c.Client.Namespace()), Advice: "what there is: " + c.command("workload", "list"), kind: fault.Unavailable, err: err}
	}
	return js, err
}

func noJobSet(err error) error {
	return &AbsentError{Text: "the cluster has no JobSet, which workloads need", Advice: "install it with: multihost cluster create", kind: fault.Configuration, err: err}
}

// A Workload describes a workload, from its JobSet.
type Workload struct {
	Name    string
	UID     string // of the JobSet
	User    string // "": it was not made by multihost
	Slices  int
	Workers int // of a slice
	Command string
	Created time.Time
	Ended   bool
}

// Find returns a workload, or nil if there is none.
func (c *Cluster) Find(ctx context.Context, name string) (*Workload, error) {
	js, err := c.jobsets().Get(ctx, name)
	if kube.NotFound(err) || err == nil && js.Labels[workload.LabelWorkload] == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w := &Workload{Name: js.Name, UID: string(js.UID), User: js.Labels[provision.LabelUser], Command: workload.CommandOf(js), Created: js.CreationTimestamp.Time, Ended: !workload.EndOf(js).IsZero()}
	w.Slices, w.Workers, _ = workload.Shape(js)
	return w, nil
}

// A Row describes a workload.
type Row struct {
	Name      string         `json:"name"`
	Namespace string         `json:"namespace"`
	User      string         `json:"user,omitempty"`
	State     workload.State `json:"state"`
	Slices    int            `json:"slices"`
	Workers   int            `json:"workers"` // number of workers of all slices
	Nodes     string         `json:"nodes,omitempty"`
	Priority  string         `json:"priority,omitempty"`
	Queue     string         `json:"queue,omitempty"`
	// Ahead is how many workloads come before this one in its queue. It is null if the workload
	// does not wait for quota.
	Ahead    *int       `json:"ahead"`
	Restarts int        `json:"restarts"`
	Created  time.Time  `json:"created"`
	Ended    *time.Time `json:"ended"`
	Command  string     `json:"command,omitempty"`
}

// List returns the workloads of the namespace, newest last.
func (c *Cluster) List(ctx context.Context) ([]Row, error) {
	all, _, err := c.jobsets().List(ctx, kube.ListOptions{Labels: workload.LabelWorkload})
	if kube.NotFound(err) {
		return nil, noJobSet(err)
	}
	if err != nil {
		return nil, err
	}
	queued, err := c.queued(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([]Row, len(all))
	for i := range all {
		rows[i] = row(&all[i], queued)
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	return rows, nil
}

func row(js *jobset.JobSet, queued queues) Row {
	own, others := queued.of(js)
	slicesOf, workers, nodes := workload.Shape(js)
	r := Row{
		Name: js.Name, Namespace: js.Namespace, User: js.Labels[provision.LabelUser], State: workload.StateOf(js, own),
		Slices: slicesOf, Workers: slicesOf * workers, Nodes: nodes, Queue: js.Labels[workload.LabelQueue],
		Restarts: int(js.Status.Restarts), Created: js.CreationTimestamp.Time, Command: workload.CommandOf(js),
	}
	for _, job := range js.Spec.ReplicatedJobs {
		r.Priority = cmp.Or(r.Priority, job.Template.Spec.Template.Spec.PriorityClassName)
	}
	if r.State == workload.Queued && own != nil {
		r.Ahead = new(workload.Ahead(*own, others))
	}
	if at := workload.EndOf(js); !at.IsZero() {
		r.Ended = &at
	}
	return r
}

// queues holds Kueue's objects that the user may read.
type queues struct {
	workloads []kueue.Workload
	local     []kueue.LocalQueue
}

// queued reads Kueue's objects of all namespaces, because namespaces share quota. If the user may
// not do that, it reads those of the namespace of c.Client.
func (c *Cluster) queued(ctx context.Context) (q queues, err error) {
	for _, namespace := range []string{kube.Everywhere, ""} {
		if q.workloads, _, err = kube.Workloads.In(c.Client, namespace).List(ctx, kube.ListOptions{}); err == nil {
			q.local, _, err = kube.LocalQueues.In(c.Client, namespace).List(ctx, kube.ListOptions{})
		}
		if err == nil || kube.NotFound(err) { // there may be no Kueue
			return q, nil
		}
		if fault.Of(err) != fault.Permission {
			return queues{}, err
		}
	}
	event.Notef(c.Sink, event.Debug, "", "cannot read the queue: %v", err)
	return queues{}, nil
}

// of returns Kueue's object for a JobSet, and the other Kueue objects that share its quota.
func (q queues) of(js *jobset.JobSet) (own *kueue.Workload, others []kueue.Workload) {
	for i := range q.workloads {
		if owned(&q.workloads[i], js) {
			own = &q.workloads[i]
		}
	}
	if own == nil {
		return nil, nil
	}
	shared := q.quota(own)
	for i := range q.workloads {
		if w := &q.workloads[i]; w != own && q.quota(w) == shared {
			others = append(others, *w)
		}
	}
	return own, others
}

func owned(w *kueue.Workload, js *jobset.JobSet) bool {
	for _, o := range w.OwnerReferences {
		if o.UID == js.UID {
			return true
		}
	}
	return false
}

// quota names the source of a workload's quota. It is the ClusterQueue, or the LocalQueue if the
// ClusterQueue is unknown.
func (q queues) quota(w *kueue.Workload) string {
	if w.Status.Admission != nil {
		return "cluster " + string(w.Status.Admission.ClusterQueue)
	}
	for i := range q.local {
		if l := &q.local[i]; l.Namespace == w.Namespace && l.Name == string(w.Spec.QueueName) {
			return "cluster " + string(l.Spec.ClusterQueue)
		}
	}
	return "local " + w.Namespace + "/" + string(w.Spec.QueueName)
}

// A Status is all that is known of a workload.
type Status struct {
	Row
	Wait     *workload.Wait `json:"wait"` // why it does not run; null: it runs or has ended
	Attempts []Attempt      `json:"attempts"`
	Message  string         `json:"message,omitempty"` // what the cluster says about its end
}

// An Attempt is one start of the command. It has the pods that the cluster still has.
type Attempt struct {
	Number   int    `json:"number"`
	Restart  int    `json:"restart"`
	Failure  string `json:"failure,omitempty"`  // who failed first, in words
	Replaced string `json:"replaced,omitempty"` // workers whose pod the cluster has replaced, folded
	Pods     []Pod  `json:"pods"`
}

// A Pod is a worker of an attempt.
type Pod struct {
	Worker  string     `json:"worker"`
	Name    string     `json:"name"`
	UID     string     `json:"uid"`
	Node    string     `json:"node,omitempty"`
	Started *time.Time `json:"started"`
	Ended   *time.Time `json:"ended"`
	Code    *int       `json:"code"` // exit status; null: it has not ended, or the status is unknown
	Text    string     `json:"text"`
}

// Status returns what the cluster says of a workload.
func (c *Cluster) Status(ctx context.Context, name string) (Status, error) {
	js, err := c.get(ctx, name)
	if err != nil {
		return Status{}, err
	}
	scene, err := c.scene(ctx, js)
	if err != nil {
		return Status{}, err
	}
	queued, err := c.queued(ctx)
	if err != nil {
		return Status{}, err
	}
	scene.Workload, scene.Others = queued.of(js)
	s := Status{Row: row(js, queued), Message: workload.EndMessage(js)}
	if w, ok := workload.Waits(scene); ok {
		s.Wait = &w
	}
	s.Attempts = attempts(scene.Pods)
	if s.State == workload.Failed {
		err = c.blame(ctx, js, &s)
	}
	return s, err
}

// scene reads the pods and events of a JobSet, and the node pools.
func (c *Cluster) scene(ctx context.Context, js *jobset.JobSet) (s workload.Scene, err error) {
	s = workload.Scene{Cluster: c.Name, Flags: c.Flags, Now: c.now(), JobSet: js}
	if s.Pods, err = c.pods(ctx, js.Name); err != nil {
		return s, err
	}
	events, _, err := kube.Events.In(c.Client, "").List(ctx, kube.ListOptions{})
	if err != nil && fault.Of(err) != fault.Permission {
		return s, err
	}
	s.Events = about(events, js, s.Pods)
	if c.Pools != nil && slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == "" }) {
		s.Pools = poolsOf(ctx, c)
	}
	return s, nil
}

// poolsOf returns the node pools, or nil if they cannot be read.
func poolsOf(ctx context.Context, c *Cluster) []workload.Pool {
	pools, err := c.Pools(ctx)
	if err != nil {
		event.Notef(c.Sink, event.Debug, "", "cannot read the node pools: %v", err)
		return nil
	}
	for i := range pools {
		if p := &pools[i]; p.FlexStart {
			if nodes, _, err := kube.Nodes.In(c.Client, "").List(ctx, kube.ListOptions{Labels: workload.LabelPool + "=" + p.Name}); err == nil {
				p.Nodes = len(nodes)
			}
		}
	}
	return pools
}

// about returns the events about a JobSet, its Jobs and its pods.
func about(events []corev1.Event, js *jobset.JobSet, pods []corev1.Pod) (own []corev1.Event) {
	uids := map[string]bool{string(js.UID): true}
	for _, p := range pods {
		uids[string(p.UID)] = true
	}
	for _, e := range events {
		o := e.InvolvedObject
		if uids[string(o.UID)] || o.Kind == "Job" && strings.HasPrefix(o.Name, js.Name+"-"+workload.JobName+"-") {
			own = append(own, e)
		}
	}
	return own
}

func (c *Cluster) pods(ctx context.Context, name string) ([]corev1.Pod, error) {
	pods, _, err := kube.Pods.In(c.Client, "").List(ctx, podsOf(name))
	return pods, err
}

func attempts(objects []corev1.Pod) (all []Attempt) {
	var pods []workload.Pod
	for i := range objects {
		if p, ok := workload.PodOf(&objects[i]); ok {
			pods = append(pods, p)
		}
	}
	for _, a := range workload.Attempts(pods) {
		one := Attempt{Number: a.Number, Restart: a.Restart, Replaced: tpu.FoldShort(a.Replaced())}
		if f, ok := a.FirstFailure(); ok {
			one.Failure = f.String()
		}
		for _, p := range a.Pods {
			one.Pods = append(one.Pods, podRow(p))
		}
		all = append(all, one)
	}
	return all
}

func podRow(p workload.Pod) Pod {
	r := Pod{Worker: p.Worker.String(), Name: p.Name, UID: p.UID, Node: p.Node, Text: "waiting"}
	if !p.Started.IsZero() {
		r.Started, r.Text = &p.Started, "running"
	}
	if !p.Ended.IsZero() {
		r.Ended = &p.Ended
	}
	if p.Exit.Known && !p.Ended.IsZero() {
		r.Code, r.Text = &p.Exit.Code, p.Exit.String()
	}
	if !p.Deleting.IsZero() && p.Ended.IsZero() {
		r.Text = "being deleted"
	}
	return r
}

// blame adds the failure that the Jobs report, if no attempt after the last restart has one. The
// pod that failed may be deleted.
func (c *Cluster) blame(ctx context.Context, js *jobset.JobSet, s *Status) error {
	for _, a := range s.Attempts {
		if a.Failure != "" && a.Restart == int(js.Status.Restarts) {
			return nil
		}
	}
	first, err := c.failedFirst(ctx, js)
	if first != nil {
		f := workload.Failure{Pod: *first}
		s.Attempts = append(s.Attempts, Attempt{Number: len(s.Attempts) + 1, Restart: first.Restart, Failure: f.String(), Pods: []Pod{podRow(*first)}})
	}
	return err
}

// failedFirst returns what the Jobs of a workload say of the pod that failed first. It returns
// nil if no Job names a pod, or if the user may not read Jobs.
func (c *Cluster) failedFirst(ctx context.Context, js *jobset.JobSet) (first *workload.Pod, err error) {
	jobs, _, err := kube.Jobs.In(c.Client, "").List(ctx, podsOf(js.Name))
	if err != nil && fault.Of(err) != fault.Permission {
		return nil, err
	}
	for i := range jobs {
		if p, ok := workload.JobFailure(&jobs[i]); ok && (first == nil || p.Ended.Before(first.Ended)) {
			first = &p
		}
	}
	return first, nil
}

// Delete deletes workloads, and returns when they and their pods are gone. If one of them does
// not exist, Delete deletes none.
func (c *Cluster) Delete(ctx context.Context, names ...string) error {
	var all []*jobset.JobSet
	for _, name := range names {
		js, err := c.get(ctx, name)
		if err != nil {
			return err
		}
		all = append(all, js)
	}
	for _, js := range all {
		if _, err := c.jobsets().Delete(ctx, js.Name, kube.RemoveOptions{UID: string(js.UID), Foreground: true}); err != nil {
			return err
		}
	}
	for _, js := range all {
		event.Notef(c.Sink, event.Info, "if that takes long, see why: "+c.command("workload", "status", js.Name), "waiting until the pods of workload %s have ended", js.Name)
		if err := c.gone(ctx, js); err != nil {
			return err
		}
		event.Notef(c.Sink, event.Info, "", "deleted workload %s", js.Name)
	}
	return nil
}

// annotationStopped is the annotation that says who stops a workload.
const annotationStopped = "multihost/stopped-by"

// Stop writes by into the JobSet, for everybody who follows the workload, and deletes the
// workload. It returns when the pods are gone. It does not delete another workload of the same
// name.
func Stop(ctx context.Context, c *Cluster, w *Workload, by string) error {
	switch now, err := c.Find(ctx, w.Name); {
	case err != nil:
		return err
	case now == nil || now.UID != w.UID:
		return nil
	}
	patch := map[string]any{"metadata": map[string]any{"uid": w.UID, "annotations": map[string]any{annotationStopped: by}}}
	if _, err := c.jobsets().Merge(ctx, w.Name, patch, kube.WriteOptions{}); err != nil { // the user may lack this right
		event.Notef(c.Sink, event.Debug, "", "cannot say who stops workload %s: %v", w.Name, err)
	}
	return c.Delete(ctx, w.Name)
}

// outage returns a function that reports outages of a watch. meanwhile is text for the end of the
// warning, or "".
func (c *Cluster) outage(what, meanwhile string) func(error) {
	return func(err error) {
		if err != nil {
			event.Notef(c.Sink, event.Warn, "", "the cluster does not answer about %s%s: %v", what, meanwhile, err)
		} else {
			event.Notef(c.Sink, event.Info, "", "the cluster answers about %s again", what)
		}
	}
}

// errGone ends a watch.
var errGone = errors.New("gone")

// gone waits until a JobSet is gone. With foreground deletion, its pods are then gone too.
func (c *Cluster) gone(ctx context.Context, js *jobset.JobSet) error {
	err := c.jobsets().Watch(ctx, kube.WatchOptions{ListOptions: named(js), Away: c.outage("the workload", "")}, there(js, new(false)))
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// finished waits until a workload has ended or its JobSet has gone, and returns errGone.
func (c *Cluster) finished(ctx context.Context, js *jobset.JobSet) error {
	gone := there(js, new(false))
	return c.jobsets().Watch(ctx, kube.WatchOptions{ListOptions: named(js)}, func(change kube.Change[jobset.JobSet]) error {
		if change.Object != nil && change.Object.UID == js.UID && !workload.EndOf(change.Object).IsZero() {
			return errGone
		}
		return gone(change)
	})
}

func named(js *jobset.JobSet) kube.ListOptions {
	return kube.ListOptions{Fields: "metadata.name=" + js.Name}
}

// there returns a callback for a watch. The callback ends the watch with errGone when the JobSet
// is gone. It sets seen when it sees the JobSet.
func there(js *jobset.JobSet, seen *bool) func(kube.Change[jobset.JobSet]) error {
	return func(change kube.Change[jobset.JobSet]) error {
		switch {
		case change.Synced && !*seen:
			return errGone
		case change.Synced || change.Object.UID != js.UID:
		case change.Gone:
			return errGone
		default:
			*seen = true
		}
		return nil
	}
}
