// Package control does in a simulated cluster what users see of the controllers of a real
// one: the scheduler, the Job controller, JobSet, Kueue, GKE's webhook, the garbage
// collector, and a few that only report that things are ready.
//
// One goroutine does all of it. After a change of any object, it goes through all objects,
// so that each controller sees one consistent state. Each version of an object is decoded
// once. All controllers share the structs, so nobody may change them.
//
// The controllers leave out what multihost does not use: the back-off of Jobs with a
// backoffLimit, success policies for parts of a JobSet, startup policies, cohorts and
// borrowing, admission checks, topologies, and preemption by the scheduler.
package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/sim/kubeapi/store"
)

// Controllers are the controllers of one cluster.
type Controllers struct {
	store   *store.Store
	now     func() time.Time
	decoded map[*store.Kind]map[types.UID]decoded
	next    time.Time // when something is due even without a change; zero: never
}

type decoded struct {
	version string
	object  any
}

// New returns controllers. They work during Run.
func New(s *store.Store, now func() time.Time) *Controllers {
	return &Controllers{store: s, now: now, decoded: make(map[*store.Kind]map[types.UID]decoded)}
}

// Run works until ctx is done.
func (c *Controllers) Run(ctx context.Context) {
	for ctx.Err() == nil {
		version := c.store.Version()
		c.pass()
		events, changed, _ := c.store.Since(version)
		if len(events) == 0 {
			c.wait(ctx, changed)
		}
	}
}

// wait waits for a change, or until something is due.
func (c *Controllers) wait(ctx context.Context, changed <-chan struct{}) {
	var timer <-chan time.Time
	if !c.next.IsZero() {
		t := time.NewTimer(max(c.next.Sub(c.now()), time.Millisecond))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-changed:
	case <-timer:
	case <-ctx.Done():
	}
}

// pass lets every controller look at everything once.
func (c *Controllers) pass() {
	c.next = time.Time{}
	gc := collector{c}
	gc.ready()
	queues{Controllers: c}.look()
	for _, js := range list[jobset.JobSet](c, store.JobSets) {
		jobSets{c}.look(js)
	}
	c.jobs()
	c.schedule()
	gc.collect()
}

// wakeAt makes the controllers look again at the time t at the latest.
func (c *Controllers) wakeAt(t time.Time) {
	if c.next.IsZero() || t.Before(c.next) {
		c.next = t
	}
}

// list returns all objects of a kind. The caller must not change them.
func list[T any](c *Controllers, k *store.Kind) []*T {
	objects, _ := c.store.List(k, "")
	was := c.decoded[k]
	is := make(map[types.UID]decoded, len(objects))
	all := make([]*T, 0, len(objects))
	for _, o := range objects {
		d, ok := was[o.GetUID()]
		if !ok || d.version != o.GetResourceVersion() {
			t := new(T)
			if store.Decode(o, t) != nil {
				continue
			}
			d = decoded{o.GetResourceVersion(), t}
		}
		is[o.GetUID()] = d
		all = append(all, d.object.(*T))
	}
	c.decoded[k] = is
	return all
}

// named returns the object of that name in a list, or nil.
func named[T any, P interface {
	*T
	metav1.Object
}](all []P, namespace, name string) P {
	for _, o := range all {
		if o.GetName() == name && o.GetNamespace() == namespace {
			return o
		}
	}
	return nil
}

func (c *Controllers) create(k *store.Kind, o metav1.Object) error {
	object, err := store.Encode(o)
	if err != nil {
		return err
	}
	object.SetGroupVersionKind(k.GroupVersion(k.Stored()).WithKind(k.Kind))
	status := object.Object["status"]
	made, err := c.store.Create(k, o.GetNamespace(), object, store.Write{Manager: managerOf(k)})
	if err == nil && k == store.Nodes && status != nil {
		c.setStatus(k, made, status)
	}
	return err
}

func managerOf(k *store.Kind) string {
	switch k {
	case store.Jobs, store.Services:
		return "jobset-controller"
	case store.Workloads:
		return "kueue"
	}
	return "kube-controller-manager"
}

// save writes an object, or only its status. It returns no error if somebody else has
// written or deleted the object meanwhile: the next pass sees that.
func (c *Controllers) save(k *store.Kind, o metav1.Object, status bool) {
	object, err := store.Encode(o)
	if err != nil {
		return
	}
	object.SetGroupVersionKind(k.GroupVersion(k.Stored()).WithKind(k.Kind))
	_, err = c.store.Change(k, o.GetNamespace(), o.GetName(), store.Write{Status: status}, func(old *store.Object) error {
		if old.GetUID() != o.GetUID() {
			return apierrors.NewNotFound(k.Resource(), o.GetName())
		}
		object.DeepCopyInto(old)
		return nil
	})
	_ = err // the only possible error: the object is gone
}

// remove deletes an object.
func (c *Controllers) remove(k *store.Kind, o metav1.Object, how metav1.DeletionPropagation) {
	_, _, err := c.store.Remove(k, o.GetNamespace(), o.GetName(), store.Removal{UID: string(o.GetUID()), Propagation: how})
	_ = err // the only possible error: the object is gone
}

// event records an event of an object. If the same event exists, event counts one more.
func (c *Controllers) event(k *store.Kind, o metav1.Object, kind, reason, message, component string) {
	now := metav1.NewTime(c.now())
	for _, e := range list[corev1.Event](c, store.Events) {
		if e.InvolvedObject.UID == o.GetUID() && e.Reason == reason && e.Message == message {
			again := e.DeepCopy()
			again.Count++
			again.LastTimestamp = now
			c.save(store.Events, again, false)
			return
		}
	}
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = "default"
	}
	err := c.create(store.Events, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", o.GetName(), c.now().UnixNano()), Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{Kind: k.Kind, APIVersion: k.GroupVersion(k.Stored()).String(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()},
		Reason:         reason, Message: message, Type: kind, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
	})
	_ = err // as in a real cluster, an event that cannot be written is lost
}

// owner returns the reference of an object to the controller that made it.
func owner(k *store.Kind, o metav1.Object) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: k.GroupVersion(k.Stored()).String(), Kind: k.Kind, Name: o.GetName(), UID: o.GetUID(), Controller: &yes, BlockOwnerDeletion: &yes}}
}

// ownedBy reports whether the controller of an object has this id.
func ownedBy(o metav1.Object, uid types.UID) bool {
	ref := metav1.GetControllerOf(o)
	return ref != nil && ref.UID == uid
}

// condition sets a condition, with a new time if its status changes. It reports whether
// anything has changed.
func condition(list *[]metav1.Condition, now time.Time, kind string, status bool, reason, message string) bool {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now)}
	if status {
		c.Status = metav1.ConditionTrue
	}
	i := slices.IndexFunc(*list, func(o metav1.Condition) bool { return o.Type == kind })
	if i < 0 {
		*list = append(*list, c)
		return true
	}
	old := (*list)[i]
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	(*list)[i] = c
	return old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message
}

// isTrue reports whether a condition holds.
func isTrue(list []metav1.Condition, kind string) bool {
	return slices.ContainsFunc(list, func(c metav1.Condition) bool { return c.Type == kind && c.Status == metav1.ConditionTrue })
}
