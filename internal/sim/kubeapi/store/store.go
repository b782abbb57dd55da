// Package store keeps the objects of one simulated Kubernetes cluster, as etcd and the
// registry of an API server do. It has kinds, defaults, validation, resource versions,
// field managers, finalizers, and a history of events for watches.
//
// A stored object never changes: a write stores a new one. So readers share objects without
// copies, and must not change them.
package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/watch"
)

// An Object is a stored object. Nobody may change it; see the comment of the package.
type Object = unstructured.Unstructured

// maxEvents is how many past events a watch can read.
const maxEvents = 10000

// An Event is one change of one object.
type Event struct {
	Version uint64
	Type    watch.EventType // Added, Modified or Deleted
	Kind    *Kind
	Object  *Object // after the change; for Deleted: the last state, with the version of the deletion
	Old     *Object // before the change; nil for Added
}

// A Store has the objects of one cluster. Its methods are safe for concurrent use.
type Store struct {
	now    func() time.Time
	typing *typing
	admit  Admission

	mu      sync.Mutex
	kinds   []*Kind
	bare    bool
	version uint64
	objects map[*Kind]map[string]*Object // by namespace/name
	lost    map[string]bool              // names of deleted nodes
	events  []Event
	oldest  uint64        // events up to this version are forgotten
	changed chan struct{} // closed at the next change
}

// An Admission may change a new object or refuse it. It must read other objects only with
// get, which returns nil if an object does not exist.
type Admission func(k *Kind, o *Object, get func(k *Kind, namespace, name string) *Object) error

// New returns a store with the namespaces that every cluster has. admit sees every new
// object. It may be nil.
func New(now func() time.Time, admit Admission) (*Store, error) {
	typing, err := newTyping()
	if err != nil {
		return nil, err
	}
	s := &Store{now: now, typing: typing, admit: admit, kinds: Kinds(), version: 1, objects: make(map[*Kind]map[string]*Object), lost: make(map[string]bool), changed: make(chan struct{})}
	for _, name := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
		if _, err := s.Create(Namespaces, "", NewObject(Namespaces, "", name), Write{}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// NewObject returns an object with a name and nothing else.
func NewObject(k *Kind, namespace, name string) *Object {
	o := &Object{}
	o.SetGroupVersionKind(k.GroupVersion(k.Stored()).WithKind(k.Kind))
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// A Write says how to write an object.
type Write struct {
	Manager string // manager of the written fields; "": none
	Status  bool   // write only the status; otherwise, all but the status
	DryRun  bool   // do everything but the write
	Force   bool   // for an apply: take fields from other managers
}

// Kinds returns the kinds that the cluster serves.
func (s *Store) Kinds() []*Kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kinds)
}

// Served returns the kinds of objects that the API accepts. After Bare, JobSet and Kueue
// are among them only once their definitions exist.
func (s *Store) Served() []*Kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.kinds), func(k *Kind) bool {
		return s.bare && (k.Group == JobSets.Group || k.Group == Workloads.Group) && s.objects[CRDs][keyOf("", k.Plural+"."+k.Group)] == nil
	})
}

// Bare makes the cluster one without JobSet and Kueue.
func (s *Store) Bare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bare = true
}

// Find returns the kind with this group, version and plural name, or nil.
func (s *Store) Find(group, version, plural string) *Kind {
	for _, k := range s.Served() {
		if k.Group == group && k.Plural == plural && k.Serves(version) {
			return k
		}
	}
	return nil
}

// serveCRD adds the kinds of a resource definition.
func (s *Store) serveCRD(o *Object) {
	names, _, _ := unstructured.NestedMap(o.Object, "spec", "names")
	group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
	scope, _, _ := unstructured.NestedString(o.Object, "spec", "scope")
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
	k := &Kind{Group: group, Namespaced: scope == "Namespaced"}
	k.Kind, _ = names["kind"].(string)
	k.Plural, _ = names["plural"].(string)
	if k.Singular, _ = names["singular"].(string); k.Singular == "" {
		k.Singular = lower(k.Kind)
	}
	for _, v := range versions {
		m, _ := v.(map[string]any)
		name, _ := m["name"].(string)
		if served, _ := m["served"].(bool); served && name != "" {
			k.Versions = append(k.Versions, name)
		}
		if sub, _ := m["subresources"].(map[string]any); sub["status"] != nil {
			k.Status = true
		}
	}
	known := slices.ContainsFunc(s.kinds, func(o *Kind) bool { return o.Group == k.Group && o.Plural == k.Plural })
	if !known && k.Kind != "" && k.Plural != "" && len(k.Versions) > 0 {
		s.kinds = append(s.kinds, k)
	}
}

func keyOf(namespace, name string) string { return namespace + "/" + name }

// Get returns an object, or the error of the API if there is none.
func (s *Store) Get(k *Kind, namespace, name string) (*Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get(k, namespace, name)
}

func (s *Store) get(k *Kind, namespace, name string) (*Object, error) {
	o := s.objects[k][keyOf(namespace, name)]
	if o == nil {
		return nil, apierrors.NewNotFound(k.Resource(), name)
	}
	return o, nil
}

// List returns the objects of a namespace, or of all if it is "", sorted by namespace and
// name. It also returns the version of the list.
func (s *Store) List(k *Kind, namespace string) ([]*Object, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*Object
	for _, key := range slices.Sorted(maps.Keys(s.objects[k])) {
		if namespace == "" || strings.HasPrefix(key, namespace+"/") {
			list = append(list, s.objects[k][key])
		}
	}
	return list, s.version
}

// Since returns the events after a version, and a channel that is closed at the next
// change. ok is false if the store has forgotten some of these events.
func (s *Store) Since(version uint64) (events []Event, changed <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.oldest {
		return nil, s.changed, false
	}
	i, _ := slices.BinarySearchFunc(s.events, version+1, func(e Event, v uint64) int { return int(e.Version) - int(v) })
	return s.events[i:len(s.events):len(s.events)], s.changed, true
}

// Version returns the version of the newest change.
func (s *Store) Version() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Compact forgets all events, as a compaction of etcd does.
func (s *Store) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events, s.oldest = nil, s.version
}

// record stores a new state of an object, or nil if the object is gone. The caller holds
// mu.
func (s *Store) record(k *Kind, old, o *Object) *Object {
	s.version++
	e := Event{Version: s.version, Kind: k, Object: o, Old: old, Type: watch.Modified}
	if s.objects[k] == nil {
		s.objects[k] = make(map[string]*Object)
	}
	switch {
	case o == nil:
		e.Type, e.Object = watch.Deleted, old.DeepCopy()
		e.Object.SetResourceVersion(strconv.FormatUint(s.version, 10))
		if k == Nodes {
			s.lost[old.GetName()] = true
		}
		delete(s.objects[k], keyOf(old.GetNamespace(), old.GetName()))
	case old == nil:
		e.Type = watch.Added
	}
	if o != nil {
		o.SetResourceVersion(strconv.FormatUint(s.version, 10))
		s.objects[k][keyOf(o.GetNamespace(), o.GetName())] = o
		if k == CRDs {
			s.serveCRD(o)
		}
	}
	if len(s.events) >= maxEvents {
		half := len(s.events) / 2
		s.oldest = s.events[half-1].Version
		s.events = slices.Clone(s.events[half:])
	}
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
	return e.Object
}

// Create stores a new object. The store keeps o, so the caller must not change o
// afterwards.
func (s *Store) Create(k *Kind, namespace string, o *Object, w Write) (*Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.create(k, namespace, o, w)
}

func (s *Store) create(k *Kind, namespace string, o *Object, w Write) (*Object, error) {
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + rand.String(5))
	}
	if k.Namespaced {
		if err := s.checkNamespace(k, namespace, o); err != nil {
			return nil, err
		}
	} else {
		o.SetNamespace("")
	}
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetCreationTimestamp(s.time())
	o.SetDeletionTimestamp(nil)
	o.SetDeletionGracePeriodSeconds(nil)
	delete(metadataOf(o), "selfLink")
	if k.Status {
		o.SetGeneration(1)
		if k != Nodes && k != Namespaces && k != CRDs {
			delete(o.Object, "status")
		}
	}
	setDefaults(k, o)
	if s.admit != nil {
		get := func(k *Kind, namespace, name string) *Object { return s.objects[k][keyOf(namespace, name)] }
		if err := s.admit(k, o, get); err != nil {
			return nil, err
		}
	}
	o, err := fitted(k, o)
	if err != nil {
		return nil, err
	}
	if errs := validate(k, nil, o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(k.GroupKind(), o.GetName(), errs)
	}
	if s.objects[k][keyOf(o.GetNamespace(), o.GetName())] != nil {
		return nil, apierrors.NewAlreadyExists(k.Resource(), o.GetName())
	}
	o.SetUID(newUID())
	if w.Manager != "" && len(o.GetManagedFields()) == 0 {
		if o, err = s.typing.update(k, w, nil, o); err != nil {
			return nil, err
		}
	}
	if w.DryRun {
		return o, nil
	}
	return s.record(k, nil, o), nil
}

func (s *Store) checkNamespace(k *Kind, namespace string, o *Object) error {
	if ns := o.GetNamespace(); ns != "" && ns != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	o.SetNamespace(namespace)
	in, err := s.get(Namespaces, "", namespace)
	if err != nil {
		return err
	}
	if in.GetDeletionTimestamp() != nil {
		return apierrors.NewForbidden(k.Resource(), o.GetName(), fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	}
	return nil
}

func (s *Store) time() metav1.Time { return metav1.NewTime(s.now().Truncate(time.Second)) }

// Change calls change with a copy of an object and stores the copy afterwards.
func (s *Store) Change(k *Kind, namespace, name string, w Write, change func(*Object) error) (*Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.get(k, namespace, name)
	if err != nil {
		return nil, err
	}
	o := old.DeepCopy()
	if err := change(o); err != nil {
		return nil, err
	}
	return s.replace(k, old, o, w)
}

// replace stores o in place of old. The caller holds mu.
func (s *Store) replace(k *Kind, old, o *Object, w Write) (*Object, error) {
	if v := o.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(k.Resource(), old.GetName(), errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	if uid := o.GetUID(); uid != "" && uid != old.GetUID() {
		return nil, apierrors.NewConflict(k.Resource(), old.GetName(), precondition("UID", string(uid), string(old.GetUID())))
	}
	if o.GetName() != old.GetName() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", o.GetName(), old.GetName()))
	}
	s.keepUnwritten(k, old, o, w)
	setDefaults(k, o)
	o, err := fitted(k, o)
	if err != nil {
		return nil, err
	}
	if errs := validate(k, old, o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(k.GroupKind(), o.GetName(), errs)
	}
	if w.Manager != "" && equality.Semantic.DeepEqual(o.GetManagedFields(), old.GetManagedFields()) {
		if o, err = s.typing.update(k, w, old, o); err != nil {
			return nil, err
		}
	}
	o.SetResourceVersion(old.GetResourceVersion())
	if equality.Semantic.DeepEqual(old.Object, o.Object) {
		return old, nil
	}
	if w.DryRun {
		return o, nil
	}
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && isOver(k, o) {
		s.record(k, old, nil)
		return o, nil
	}
	return s.record(k, old, o), nil
}

// keepUnwritten copies from old the fields that a write may not change.
func (s *Store) keepUnwritten(k *Kind, old, o *Object, w Write) {
	if k.Status && w.Status {
		status, managed := o.Object["status"], o.GetManagedFields()
		o.Object = old.DeepCopy().Object
		o.Object["status"] = status
		if status == nil {
			delete(o.Object, "status")
		}
		o.SetManagedFields(managed)
		return
	}
	if k.Status {
		delete(o.Object, "status")
		if st, ok := old.DeepCopy().Object["status"]; ok {
			o.Object["status"] = st
		}
		if !equality.Semantic.DeepEqual(old.Object["spec"], o.Object["spec"]) {
			o.SetGeneration(old.GetGeneration() + 1)
		} else {
			o.SetGeneration(old.GetGeneration())
		}
	}
	o.SetNamespace(old.GetNamespace())
	o.SetUID(old.GetUID())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	if old.GetGenerateName() != "" {
		o.SetGenerateName(old.GetGenerateName())
	}
}

// isOver reports whether an object that is being deleted waits only for its finalizers.
func isOver(k *Kind, o *Object) bool {
	if k == Pods {
		grace := o.GetDeletionGracePeriodSeconds()
		return grace == nil || *grace == 0
	}
	return k != Namespaces
}

// A Removal says how to delete an object.
type Removal struct {
	Grace       *int64 // in seconds; nil: the grace period of the object
	Propagation metav1.DeletionPropagation
	UID         string // if not "", the object must have this UID
	Version     string // if not "", the object must have this version
	DryRun      bool
}

// Remove begins to delete an object. If nothing delays that, Remove deletes it at once, and
// gone is true. It returns the object as it is now, or as it was last.
func (s *Store) Remove(k *Kind, namespace, name string, r Removal) (o *Object, gone bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.get(k, namespace, name)
	if err != nil {
		return nil, false, err
	}
	if err := r.check(k, old); err != nil {
		return nil, false, err
	}
	o = old.DeepCopy()
	finalizers := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	switch r.Propagation {
	case metav1.DeletePropagationForeground:
		finalizers = append(finalizers, metav1.FinalizerDeleteDependents)
	case metav1.DeletePropagationOrphan:
		finalizers = append(finalizers, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationBackground:
	default:
		finalizers = o.GetFinalizers()
	}
	o.SetFinalizers(finalizers)
	grace := int64(0)
	if k == Pods {
		grace = graceOf(old, r.Grace)
	}
	if before := o.GetDeletionGracePeriodSeconds(); before != nil && *before < grace {
		grace = *before // a later request can only shorten the period
	}
	if o.GetDeletionTimestamp() == nil || k == Pods {
		at := metav1.NewTime(s.time().Add(time.Duration(grace) * time.Second))
		o.SetDeletionTimestamp(&at)
		o.SetDeletionGracePeriodSeconds(&grace)
		if o.GetGeneration() > 0 {
			o.SetGeneration(o.GetGeneration() + 1)
		}
	}
	if k == Namespaces {
		_ = unstructured.SetNestedField(o.Object, "Terminating", "status", "phase")
	}
	if r.DryRun {
		return o, false, nil
	}
	if len(finalizers) == 0 && isOver(k, o) {
		return s.record(k, old, nil), true, nil
	}
	if equality.Semantic.DeepEqual(old.Object, o.Object) {
		return old, false, nil
	}
	return s.record(k, old, o), false, nil
}

func (r Removal) check(k *Kind, old *Object) error {
	if r.UID != "" && r.UID != string(old.GetUID()) {
		return unwanted(k, old, "UID", r.UID, string(old.GetUID()), "deleted and then recreated")
	}
	if r.Version != "" && r.Version != old.GetResourceVersion() {
		return unwanted(k, old, "ResourceVersion", r.Version, old.GetResourceVersion(), "modified")
	}
	return nil
}

// graceOf returns how many seconds a pod gets to end: 0 if it has no node or has ended.
func graceOf(pod *Object, asked *int64) int64 {
	node, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	switch {
	case node == "", phase == "Succeeded", phase == "Failed":
		return 0
	case asked != nil:
		return *asked
	}
	if n, ok, _ := unstructured.NestedInt64(pod.Object, "spec", "terminationGracePeriodSeconds"); ok {
		return n
	}
	return 30
}

// Apply does a server-side apply. It merges the fields of patch into the object, and makes
// the manager the owner of these fields. If the object does not exist, Apply creates it.
func (s *Store) Apply(k *Kind, namespace, name string, patch *Object, w Write) (o *Object, created bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.get(k, namespace, name)
	if err != nil && w.Status {
		return nil, false, err
	}
	if patch.GetName() == "" {
		patch.SetName(name)
	}
	if patch.GetName() != name {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", patch.GetName(), name))
	}
	if len(patch.GetManagedFields()) > 0 {
		return nil, false, apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	if k.Namespaced && patch.GetNamespace() == "" {
		patch.SetNamespace(namespace)
	}
	if uid := patch.GetUID(); old == nil && uid != "" {
		return nil, false, apierrors.NewConflict(k.Resource(), name, precondition("UID", string(uid), ""))
	}
	o, err = s.typing.apply(k, w, old, patch)
	if err != nil {
		return nil, false, err
	}
	w.Manager = "" // the fields have their managers already
	if old == nil {
		o, err = s.create(k, namespace, o, w)
		return o, true, err
	}
	o, err = s.replace(k, old, o, w)
	return o, false, err
}

// A refusal is an error with the text of a real server.
type refusal string

func (r refusal) Error() string { return string(r) }

func precondition(what, want, have string) error {
	return refusal(fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", what, want, what, have))
}

// unwanted says that the object that a deletion names is not the one that is there. A real
// server names the kind in this place, not the resource.
func unwanted(k *Kind, o *Object, what, want, have, how string) error {
	return apierrors.NewConflict(schema.GroupResource{Group: k.Group, Resource: k.Kind}, o.GetName(),
		refusal(fmt.Sprintf("the %[1]s in the precondition (%[2]s) does not match the %[1]s in record (%[3]s). The object might have been %[4]s", what, want, have, how)))
}

func newUID() types.UID { return types.UID(uuid.NewString()) }

// lower returns a name in small letters.
func lower(name string) string { return strings.ToLower(name) }

func metadataOf(o *Object) map[string]any {
	m, _ := o.Object["metadata"].(map[string]any)
	return m
}

// KindOf returns the kind of an object, or nil if the store does not know it.
func (s *Store) KindOf(gk schema.GroupKind) *Kind {
	for _, k := range s.Kinds() {
		if k.GroupKind() == gk {
			return k
		}
	}
	return nil
}

// Forget removes an object despite its finalizers.
func (s *Store) Forget(k *Kind, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, err := s.get(k, namespace, name); err == nil {
		s.record(k, o, nil)
	}
}

// WasNode reports whether a node with this name has been deleted, and no new one has been
// made since.
func (s *Store) WasNode(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost[name] && s.objects[Nodes][keyOf("", name)] == nil
}
