package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

type podUID = types.UID

// again is the pause before a request to the API is repeated.
const again = 200 * time.Millisecond

// states writes the states of pods to the API. It implements kubelet.API. A pod never waits for
// the API, so it continues while the API is unavailable.
type states struct {
	ctx     context.Context // ends when the kubelet closes
	client  dynamic.Interface
	log     *log.Logger
	running *sync.WaitGroup

	mu  sync.Mutex
	due map[podUID]*due // pods whose status is being written
}

// due is a status to write.
type due struct {
	change func(*corev1.Pod) // nil: nothing new since the writer began to write
	done   chan struct{}     // closed when the status is written
}

// Update implements kubelet.API.
func (s *states) Update(pod *corev1.Pod, change func(*corev1.Pod)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	if d := s.due[pod.UID]; d != nil {
		d.change = change
		return
	}
	d := &due{change: change, done: make(chan struct{})}
	s.due[pod.UID] = d
	s.running.Go(func() { s.write(pod, d) })
}

// next returns the change to write next. If there is none, it returns nil, and the writer
// must end.
func (s *states) next(pod *corev1.Pod, d *due) func(*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change := d.change
	d.change = nil
	if change == nil {
		delete(s.due, pod.UID)
	}
	return change
}

// write writes the status of a pod until the API has the newest one.
func (s *states) write(pod *corev1.Pod, d *due) {
	defer close(d.done)
	for change := s.next(pod, d); change != nil; change = s.next(pod, d) {
		s.until("status of "+pod.Name, func() error { return s.change(pod, change) })
	}
}

// until repeats f until it succeeds, the pod is gone, or the kubelet closes.
func (s *states) until(what string, f func() error) {
	for {
		err := f()
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return
		case apierrors.IsConflict(err): // another writer was first
			if s.ctx.Err() != nil {
				return
			}
			continue
		}
		if s.ctx.Err() == nil {
			s.log.Printf("%s: %v", what, err)
		}
		if !pause(s.ctx, again) {
			return
		}
	}
}

// get returns a pod. If the API has another pod of that name, the error says that the pod was
// not found.
func (s *states) get(pod *corev1.Pod) (*corev1.Pod, error) {
	o, err := s.client.Resource(podsGVR).Namespace(pod.Namespace).Get(s.ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if o.GetUID() != pod.UID {
		return nil, apierrors.NewNotFound(podsGVR.GroupResource(), pod.Name)
	}
	now := &corev1.Pod{}
	return now, decode(o, now)
}

func (s *states) change(pod *corev1.Pod, change func(*corev1.Pod)) error {
	now, err := s.get(pod)
	if err != nil {
		return err
	}
	change(now)
	o, err := encode(now)
	if err != nil {
		return err
	}
	_, err = s.client.Resource(podsGVR).Namespace(pod.Namespace).UpdateStatus(s.ctx, o, metav1.UpdateOptions{FieldManager: manager})
	return err
}

// Remove implements kubelet.API.
func (s *states) Remove(pod *corev1.Pod) {
	s.mu.Lock()
	d := s.due[pod.UID]
	s.mu.Unlock()
	if d != nil {
		<-d.done
	}
	zero := int64(0)
	s.until("end of "+pod.Name, func() error {
		err := s.client.Resource(podsGVR).Namespace(pod.Namespace).Delete(s.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if apierrors.IsConflict(err) { // it may be another pod of that name
			if _, err := s.get(pod); err != nil {
				return err
			}
		}
		return err
	})
}

// watch passes the pods of the kubelet's nodes to the simulated kubelet, until k is closed.
func (k *Kubelet) watch() {
	known := make(map[podUID]*unstructured.Unstructured)
	for {
		if err := k.watchOnce(known); err != nil && k.ctx.Err() == nil {
			k.cfg.Log.Printf("watch of pods: %v", err)
		}
		if !pause(k.ctx, again) {
			return
		}
	}
}

// watchOnce lists the pods, then watches them until the watch ends. known has the pods that
// the API had.
func (k *Kubelet) watchOnce(known map[podUID]*unstructured.Unstructured) error {
	in := k.client.Resource(podsGVR)
	bound := metav1.ListOptions{FieldSelector: "spec.nodeName!="}
	all, err := in.List(k.ctx, bound)
	if err != nil {
		return err
	}
	is := make(map[podUID]bool, len(all.Items))
	for i := range all.Items {
		is[all.Items[i].GetUID()] = true
	}
	for uid, o := range known {
		if !is[uid] {
			k.see(known, o, true)
		}
	}
	for i := range all.Items {
		k.see(known, &all.Items[i], false)
	}
	bound.ResourceVersion = all.GetResourceVersion()
	w, err := in.Watch(k.ctx, bound)
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok || e.Type == watch.Error || e.Type == watch.Bookmark {
			return fmt.Errorf("%s: %w", e.Type, errors.New("the watch has ended"))
		}
		k.see(known, o, e.Type == watch.Deleted)
	}
	return nil
}

// see passes a state of a pod to the simulated kubelet.
func (k *Kubelet) see(known map[podUID]*unstructured.Unstructured, o *unstructured.Unstructured, gone bool) {
	if gone {
		delete(known, o.GetUID())
	} else {
		known[o.GetUID()] = o
	}
	node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
	if !k.has(node) {
		return
	}
	k.pods.See(o, func(pod *corev1.Pod) error { return decode(o, pod) }, gone)
}
