package qr_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

func force(change func(*qr.DeleteOptions)) qr.DeleteOptions {
	o := qr.DeleteOptions{Force: true, Poll: gcp.Backoff{First: 200 * time.Millisecond, Max: 400 * time.Millisecond}}
	if change != nil {
		change(&o)
	}
	return o
}

func TestDeleteWithItsSlices(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	deleted, err := c.Delete(t.Context(), "q7", force(nil))
	if err != nil || !deleted {
		t.Fatalf("deleted %v, %v", deleted, err)
	}
	left, err := c.Slices(t.Context())
	if err != nil || len(left) != 1 || left[0].Name != "other" {
		t.Errorf("left: %+v, %v", left, err)
	}
	if _, err := c.Get(t.Context(), "q7"); gcp.ClassOf(err) != gcp.NotFound {
		t.Errorf("it still exists: %v", err)
	}
	for _, e := range c.Log.Events() {
		if p, ok := e.(event.Progress); ok && p.Phase == "delete" && p.Total == 2 {
			return
		}
	}
	t.Error("no progress was shown")
}

// As soon as the name is free, somebody requests another resource with this name. Delete
// must not delete it or its slices.
func TestANamesakeIsNotDeleted(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	var asked atomic.Bool
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			asked.Store(true)
			return false
		}
		if !asked.Load() || !strings.HasSuffix(r.URL.Path, "/queuedResources/q7") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"name": "projects/p/locations/z/queuedResources/q7", "state": {"state": "ACCEPTED"}, "createTime": "2101-01-01T00:00:00Z"}`))
		return true
	})
	deleted, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.Limit = 20 * time.Second }))
	if !deleted || err != nil {
		t.Errorf("deleted %v, %v", deleted, err)
	}
	if n := c.Calls("DELETE", ""); n != 1 {
		t.Errorf("%d deletions were asked for, want 1", n)
	}
}

func TestDeleteNothingIsNoError(t *testing.T) {
	c := start(t, sim.Config{})
	if deleted, err := c.Delete(t.Context(), "nope", force(nil)); deleted || err != nil {
		t.Errorf("deleted %v, %v", deleted, err)
	}
}

func TestDeleteWithoutForceLeavesSlicesAlone(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	deleted, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.Force = false }))
	var nodes *qr.NodesError
	if deleted || !errors.As(err, &nodes) || !strings.Contains(err.Error(), "t-0, t-1") || !strings.Contains(nodes.Hint(), "--force") {
		t.Errorf("deleted %v, %v", deleted, err)
	}
	if n := c.Calls("DELETE", ""); n != 0 {
		t.Errorf("%d deletions were asked for", n)
	}
}

func TestDeleteWithoutForceWhileProvisioning(t *testing.T) {
	c := start(t, sim.Config{Step: 20 * time.Millisecond})
	c.create(request(t, nil))
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete {
			return false
		}
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":{"code":400,"status":"FAILED_PRECONDITION","message":"its nodes must be deleted first"}}`))
		return true
	})
	_, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.Force = false }))
	var nodes *qr.NodesError
	if !errors.As(err, &nodes) || !strings.Contains(nodes.Hint(), "--force") {
		t.Errorf("got %v", err)
	}
}

func TestDeleteWithoutForceInTheQueue(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "no-capacity"})
	c.create(request(t, nil))
	c.waitState("q7", "WAITING_FOR_RESOURCES")
	if deleted, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.Force = false })); !deleted || err != nil {
		t.Errorf("deleted %v, %v", deleted, err)
	}
}

func TestDeleteOnlyOwn(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, func(r *qr.Request) { r.Mark("Run.A", "ada") }))
	_, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.OnlyRun = "run-b" }))
	var owner *qr.OwnerError
	if !errors.As(err, &owner) || owner.Owner != "run run-a of ada" || c.Calls("DELETE", "") != 0 {
		t.Errorf("got %v", err)
	}
	if deleted, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.OnlyRun = "Run.A" })); !deleted || err != nil {
		t.Errorf("deleted %v, %v", deleted, err)
	}
}

func TestDeleteStuckIsAskedForAgain(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "qr-failed", QR: "q7"})
	c.Fault(sim.Fault{Name: "delete-stuck", QR: "q7", Count: 2})
	c.create(request(t, nil))
	c.waitState("q7", "FAILED")
	deleted, err := c.Delete(t.Context(), "q7", force(nil))
	if err != nil || !deleted {
		t.Fatalf("deleted %v, %v", deleted, err)
	}
	if n := c.Calls("DELETE", "queuedResources"); n < 3 { // on a slow machine, the third may seem stuck, too
		t.Errorf("asked for %d times, want 3", n)
	}
	if !c.Log.Said(event.Info, "its deletion is asked for again") {
		t.Error("nothing was said about it")
	}
}

func TestDeleteJoinsADeletionUnderWay(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	c.Fault(sim.Fault{Name: "slow-operations", Delay: 5 * time.Second})
	if _, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.Async = true })); err != nil {
		t.Fatal(err)
	}
	deleted, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.Force = false }))
	if err != nil || !deleted || c.Calls("DELETE", "") != 1 {
		t.Errorf("deleted %v, %v after %d calls", deleted, err, c.Calls("DELETE", ""))
	}
}

func TestDeleteReplyLost(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	c.Fault(sim.Fault{Name: "drop-reply", Method: "DELETE"})
	if deleted, err := c.Delete(t.Context(), "q7", force(nil)); !deleted || err != nil {
		t.Errorf("deleted %v, %v", deleted, err)
	}
}

func TestDeleteDeadlineSaysWhatIsLeft(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	c.Fault(sim.Fault{Name: "slow-operations", Delay: time.Minute})
	deleted, err := c.Delete(t.Context(), "q7", force(func(o *qr.DeleteOptions) { o.Limit = 200 * time.Second }))
	var late *qr.DeadlineError
	if deleted || !errors.As(err, &late) || late.State != "DELETING" || late.Detail != "2 slices still exist" ||
		!strings.Contains(late.Hint(), "may still be billed") {
		t.Errorf("deleted %v, %v", deleted, err)
	}
}

func TestDeleteWithoutPermission(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			http.Error(w, "{}", http.StatusForbidden)
		}
		return r.Method == http.MethodDelete
	})
	if deleted, err := c.Delete(t.Context(), "q7", force(nil)); deleted || gcp.ClassOf(err) != gcp.Permission {
		t.Errorf("deleted %v, %v", deleted, err)
	}
}

// lateAPI does not answer for a time. After a deletion is requested, it returns the resource
// for three reads.
type lateAPI struct {
	away  func() bool
	looks int // looks since the deletion was requested
	asked bool
}

func (a *lateAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := http.StatusOK, "{}"
	switch {
	case a.away():
		return nil, io.ErrUnexpectedEOF
	case r.Method == http.MethodDelete:
		a.asked = true
	case strings.HasSuffix(r.URL.Path, "/queuedResources/q7") && a.looks == 3:
		status, body = http.StatusNotFound, `{"error": {"code": 404, "status": "NOT_FOUND"}}`
	case strings.HasSuffix(r.URL.Path, "/queuedResources/q7"):
		state := "ACTIVE"
		if a.asked {
			state = "DELETING"
			a.looks++
		}
		body = `{"name": "projects/p/locations/z/queuedResources/q7", "createTime": "2026-01-02T03:04:05Z", "state": {"state": "` + state + `"}}`
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// The limit of a deletion begins when the API gets the request. A longer outage before that
// does not end the deletion.
func TestADeletionHasItsTimeWhenItIsAskedFor(t *testing.T) {
	clock := testkit.NewJumpClock()
	begin, calls := clock.Now(), 0
	api := &lateAPI{away: func() bool {
		calls++
		return calls > 2 && clock.Now().Sub(begin) < time.Hour // after the first look
	}}
	c := qr.New(gcp.New(gcp.Config{Project: "p", Zone: "z", DisableAuth: true, Transport: api, Clock: clock}))
	deleted, err := c.Delete(t.Context(), "q7", qr.DeleteOptions{Force: true, Limit: 20 * time.Minute})
	if !deleted || err != nil || api.looks != 3 {
		t.Errorf("deleted = %v after %d looks, %v", deleted, api.looks, err)
	}
}
