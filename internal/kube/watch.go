package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// A Change is one step of a watch.
type Change[T any] struct {
	// Object is a new or changed object. With Gone, Object is its last known state. It is
	// nil in a Synced change.
	Object *T
	Gone   bool

	// Synced says that Watch has reported all changes up to now. It comes at the beginning,
	// and after each new list of all objects.
	Synced bool
}

type WatchOptions struct {
	ListOptions

	// Away, if not nil, is called once when an outage begins, with the reason, and once
	// when it ends, with nil.
	Away func(error)
}

// watchLimit limits how long the server serves one request for a watch. If a front end drops the
// connection silently, Watch notices that after this time at the latest.
const watchLimit = 5 * time.Minute

// shortWatch is the shortest time between the starts of two watches.
const shortWatch = 500 * time.Millisecond

// Watch reports the existing objects and then each change to f, until f fails or ctx ends. It
// starts again after an outage of the server, and when the server no longer knows the latest
// changes. It omits no object, but may report several changes of an object as one. Watch returns
// f's error, the cause of ctx, or an *Error that is not temporary, for example a missing
// permission.
func (o Objects[T]) Watch(ctx context.Context, w WatchOptions, f func(Change[T]) error) error {
	state := &watcher[T]{o: o, w: w, f: f, known: map[string]*T{}}
	for {
		if err := state.sync(ctx); err != nil {
			if again, err := state.outage(ctx, err); !again {
				return err
			}
			continue
		}
		for state.version != "" {
			if err := state.follow(ctx); err != nil {
				if again, err := state.outage(ctx, err); !again {
					return err
				}
			}
		}
	}
}

// watcher is the state of a Watch.
type watcher[T any] struct {
	o Objects[T]
	w WatchOptions
	f func(Change[T]) error

	known   map[string]*T // by UID
	version string        // where the watch continues; "": list everything
	pause   time.Duration // before the next try during an outage; 0: no outage
}

// told wraps an error of the function f of Watch.
type told struct{ error }

func (t told) Unwrap() error { return t.error }

// outage waits before the next try. If again is false, there is no next try, and Watch
// returns the error.
func (s *watcher[T]) outage(ctx context.Context, err error) (again bool, _ error) {
	var own told
	if errors.As(err, &own) {
		return false, own.error
	}
	if ctx.Err() != nil {
		return false, fmt.Errorf("%s: %w", s.o.what("watch", ""), context.Cause(ctx))
	}
	if !retryable(err) {
		return false, err
	}
	if s.pause == 0 {
		s.pause = 200 * time.Millisecond
		if s.w.Away != nil {
			s.w.Away(err)
		}
	}
	select {
	case <-s.o.c.cfg.Clock.After(s.pause):
	case <-ctx.Done():
	}
	s.pause = min(2*s.pause, mostPause)
	return true, nil
}

// reached notes that the server has answered.
func (s *watcher[T]) reached() {
	if s.pause != 0 && s.w.Away != nil {
		s.w.Away(nil)
	}
	s.pause = 0
}

// sync lists all objects and reports what has changed.
func (s *watcher[T]) sync(ctx context.Context) error {
	all, version, err := s.o.List(ctx, s.w.ListOptions)
	if err != nil {
		return err
	}
	s.reached()
	now := map[string]*T{}
	for i := range all {
		uid, changed := metaOf(&all[i])
		now[uid] = &all[i]
		if old := s.known[uid]; old != nil {
			if _, before := metaOf(old); before == changed {
				continue
			}
		}
		if err := s.f(Change[T]{Object: &all[i]}); err != nil {
			return told{err}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(s.known)) {
		if now[uid] == nil {
			if err := s.f(Change[T]{Object: s.known[uid], Gone: true}); err != nil {
				return told{err}
			}
		}
	}
	s.known, s.version = now, version
	if err := s.f(Change[T]{Synced: true}); err != nil {
		return told{err}
	}
	return nil
}

// follow watches until the server ends the watch. If everything must be listed again, it
// sets version to "".
func (s *watcher[T]) follow(ctx context.Context) error {
	seconds := int64(watchLimit / time.Second)
	watching, stop := context.WithTimeout(ctx, watchLimit+tryLimit)
	defer stop()
	what := s.o.what("watch", "")
	stream, err := s.o.at().Watch(watching, metav1.ListOptions{
		LabelSelector: s.w.Labels, FieldSelector: s.w.Fields, ResourceVersion: s.version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	if Expired(err) {
		s.version = ""
		return nil
	}
	if err != nil {
		return s.o.c.fail(what, err, 1)
	}
	defer stream.Stop()
	s.reached()
	short := s.o.c.cfg.Clock.After(shortWatch)
	for e := range stream.ResultChan() {
		if e.Type == watch.Error {
			err := apierrors.FromObject(e.Object)
			if Expired(err) || apierrors.IsInternalError(err) { // an internal error: the watch fell behind
				s.version = ""
				return nil
			}
			return s.o.c.fail(what, err, 1)
		}
		if err := s.take(what, e); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select { // a pause, in case the server ends each watch at once
	case <-short:
	case <-ctx.Done():
	}
	return nil // the limit has passed, or the connection has ended; the next watch finds out
}

// take handles one event of a watch.
func (s *watcher[T]) take(what string, e watch.Event) error {
	raw, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	s.version = raw.GetResourceVersion()
	if e.Type == watch.Bookmark {
		return nil
	}
	object, err := decode[T](what, raw)
	if err != nil {
		return err
	}
	uid := string(raw.GetUID())
	if e.Type == watch.Deleted {
		delete(s.known, uid)
	} else {
		s.known[uid] = object
	}
	if err := s.f(Change[T]{Object: object, Gone: e.Type == watch.Deleted}); err != nil {
		return told{err}
	}
	return nil
}

// metaOf returns the UID and the version of an object.
func metaOf[T any](object *T) (uid, version string) {
	if m, ok := any(object).(metav1.Object); ok {
		return string(m.GetUID()), m.GetResourceVersion()
	}
	return "", ""
}
