package kubeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"multihost/internal/sim/kubeapi/store"
)

const (
	watchLimit    = 45 * time.Minute // limit for a watch that gives none
	bookmarkEvery = 20 * time.Second
)

// A watcher sends events to one client.
type watcher struct {
	q       *request
	sel     selection
	out     *json.Encoder
	flush   func() error
	version uint64 // everything up to this version is sent
}

func (s objects) watch(w http.ResponseWriter, q *request) error {
	sel, err := q.selection()
	if err != nil {
		return err
	}
	limit := watchLimit
	if n, err := strconv.Atoi(q.query.Get("timeoutSeconds")); err == nil && n > 0 {
		limit = time.Duration(n) * time.Second
	}
	var from uint64
	text := q.query.Get("resourceVersion")
	if text != "" {
		if from, err = strconv.ParseUint(text, 10, 64); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", text))
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	h := &watcher{q: q, sel: sel, out: json.NewEncoder(w), flush: control.Flush, version: from}
	if h.flush() != nil {
		return nil
	}
	initial := q.flag("sendInitialEvents")
	if from == 0 || initial {
		if h.existing(s.store, initial) != nil {
			return nil
		}
	}
	h.follow(s.store, limit)
	return nil
}

// existing sends the objects that exist.
func (h *watcher) existing(st *store.Store, mark bool) error {
	all, version := st.List(h.q.kind, h.q.namespace)
	for _, o := range all {
		if !h.sel.has(h.q.kind, o) {
			continue
		}
		if err := h.send(watch.Added, o); err != nil {
			return err
		}
	}
	h.version = version
	if mark {
		if err := h.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"}); err != nil {
			return err
		}
	}
	return h.flush()
}

func (h *watcher) bookmark(annotations map[string]string) error {
	o := store.NewObject(h.q.kind, "", "")
	o.SetResourceVersion(strconv.FormatUint(h.version, 10))
	o.SetAnnotations(annotations)
	return h.send(watch.Bookmark, o)
}

func (h *watcher) send(t watch.EventType, o *store.Object) error {
	return h.out.Encode(map[string]any{"type": t, "object": h.q.kind.FromStored(h.q.version, o).Object})
}

// follow sends events until the client goes, the server closes, or the limit has passed.
func (h *watcher) follow(st *store.Store, limit time.Duration) {
	end := time.NewTimer(limit)
	defer end.Stop()
	marks := time.NewTicker(bookmarkEvery)
	defer marks.Stop()
	for {
		events, changed, ok := st.Since(h.version)
		if !ok {
			gone := apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", h.version, st.Version()))
			_ = h.out.Encode(map[string]any{"type": watch.Error, "object": statusOf(gone)})
			_ = h.flush()
			return
		}
		if h.sendAll(events) != nil {
			return
		}
		select {
		case <-changed:
		case <-marks.C:
			if h.q.flag("allowWatchBookmarks") && (h.bookmark(nil) != nil || h.flush() != nil) {
				return
			}
		case <-end.C:
			return
		case <-h.q.Context().Done():
			return
		}
	}
}

// sendAll sends the events of objects in the selection. If an object begins to match, its
// event is Added; if it no longer matches, Deleted.
func (h *watcher) sendAll(events []store.Event) error {
	sent := false
	for _, e := range events {
		h.version = e.Version
		if e.Kind != h.q.kind || h.q.namespace != "" && e.Object.GetNamespace() != h.q.namespace {
			continue
		}
		before, after := h.sel.has(e.Kind, e.Old), e.Type != watch.Deleted && h.sel.has(e.Kind, e.Object)
		o := e.Object
		var t watch.EventType
		switch {
		case after && !before:
			t = watch.Added
		case after:
			t = watch.Modified
		case before:
			t = watch.Deleted
			o = e.Old.DeepCopy()
			if e.Type == watch.Deleted {
				o = e.Object
			}
			if o.GetResourceVersion() != strconv.FormatUint(e.Version, 10) {
				o.SetResourceVersion(strconv.FormatUint(e.Version, 10))
			}
		default:
			continue
		}
		if err := h.send(t, o); err != nil {
			return err
		}
		sent = true
	}
	if !sent {
		return nil
	}
	return h.flush()
}
