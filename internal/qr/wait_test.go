package qr_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/tpu"

	"github.com/google/go-cmp/cmp"
)

func TestHappyMultiSlice(t *testing.T) {
	c := start(t, sim.Config{Step: 30 * time.Millisecond})
	c.create(request(t, nil))
	var mu sync.Mutex
	probed := map[string]int{}
	res, list, err := c.Wait(t.Context(), "q7", quick(func(o *qr.WaitOptions) {
		o.Probe = func(_ context.Context, s tpu.Slice) error {
			mu.Lock()
			defer mu.Unlock()
			probed[s.Name]++
			if s.Name == "t-1" && probed[s.Name] < 3 {
				return errors.New("s1w0 refuses connections")
			}
			return nil
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if res.State != "ACTIVE" || len(list) != 2 {
		t.Fatalf("%+v, %d slices", res, len(list))
	}
	for i, s := range list {
		if s.Index != i || s.Name != []string{"t-0", "t-1"}[i] || len(s.Workers) != 2 || !s.MultiSlice ||
			s.QueuedResource != "q7" || s.UID == "" || s.Network != "mtu9k" || s.Zone != testZone {
			t.Errorf("slice %d: %+v", i, s)
		}
	}
	if diff := cmp.Diff(map[string]int{"t-0": 1, "t-1": 3}, probed); diff != "" {
		t.Errorf("probes (-want +got):\n%s", diff)
	}
	// A state that lasts shorter than the pause between two reads may never be seen. The
	// states that are seen come in order, each once.
	order := []string{"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"}
	last := -1
	for _, state := range c.said("q7") {
		i := slices.Index(order, state)
		if i <= last {
			t.Errorf("state %s is out of order in %q", state, c.said("q7"))
		}
		last = i
	}
	if last != len(order)-1 {
		t.Errorf("ACTIVE was not said: %q", c.said("q7"))
	}
	var phases []string
	for _, e := range c.Log.Events() {
		if p, ok := e.(event.Phase); ok && p.Name != provision.PhaseProvision {
			phases = append(phases, p.Name+" "+string(p.State))
		}
	}
	want := []string{"queue started", "queue done", "boot started", "boot done"}
	if diff := cmp.Diff(want, phases); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

func TestReadyAtOnce(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	if _, list, err := c.Wait(t.Context(), "q7", quick(nil)); err != nil || len(list) != 2 {
		t.Errorf("%d slices, %v", len(list), err)
	}
}

func TestSingleSlice(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, func(r *qr.Request) { r.NodeCount, r.NodePrefix, r.Type = 1, "", mustType(t, "v5litepod-8") }))
	_, list, err := c.Wait(t.Context(), "q7", quick(nil))
	if err != nil || len(list) != 1 || list[0].Name != "q7" || list[0].MultiSlice {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestStatesThatEndAWait(t *testing.T) {
	tests := map[string]struct {
		fault sim.Fault
		state string
		want  string // a part of the message
		hint  string
	}{
		"failed": {sim.Fault{Name: "qr-failed", QR: "q7", Message: "no luck (EID: 0x77)"},
			"FAILED", `queued resource "q7": it FAILED: no luck (EID: 0x77)`, "multihost qr delete q7 --force"},
		"suspended while waiting": {sim.Fault{Name: "qr-suspended", QR: "q7"},
			"SUSPEND", "by Google (preemption or maintenance)", "counts against the quota"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := start(t, sim.Config{Step: 20 * time.Millisecond})
			c.Fault(tt.fault)
			c.create(request(t, nil))
			_, _, err := c.Wait(t.Context(), "q7", quick(nil))
			var state *qr.StateError
			if !errors.As(err, &state) || !strings.HasPrefix(state.State, tt.state) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(state.Hint(), tt.hint) {
				t.Errorf("got %q, hint %q", err, state.Hint())
			}
		})
	}
}

func TestEveryEndStateHasItsOwnMessageAndHint(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, state := range []string{"FAILED", "SUSPENDING", "SUSPENDED", "DELETING", qr.NotFound} {
		err := provision.NewStateError(qr.Resource{ID: "q7", State: state}.Neutral())
		if state == qr.NotFound {
			err = qr.Missing("q7")
		}
		var e *qr.StateError
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", state, err)
		}
		if seen[e.Error()] || e.Hint() == "" {
			t.Errorf("%s: %q, hint %q", state, e.Error(), e.Hint())
		}
		seen[e.Error()] = true
	}
}

func TestDeletedBySomeoneElse(t *testing.T) {
	c := start(t, sim.Config{Step: 30 * time.Millisecond})
	c.Fault(sim.Fault{Name: "no-capacity"})
	c.create(request(t, nil))
	var once sync.Once
	c.onRead("q7", func(n int) {
		if n == 5 {
			once.Do(func() {
				if _, err := c.Delete(t.Context(), "q7", qr.DeleteOptions{Force: true, Async: true}); err != nil {
					t.Error(err)
				}
			})
		}
	})
	_, _, err := c.Wait(t.Context(), "q7", quick(nil))
	var state *qr.StateError
	if !errors.As(err, &state) || state.State != "DELETING" && state.State != qr.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestWaitForNothing(t *testing.T) {
	c := start(t, sim.Config{})
	_, _, err := c.Wait(t.Context(), "nope", quick(nil))
	var state *qr.StateError
	if !errors.As(err, &state) || state.State != qr.NotFound || !strings.Contains(state.Hint(), "multihost qr list") {
		t.Errorf("got %v", err)
	}
}

func TestNeverGetsCapacity(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "no-capacity"})
	c.Fault(sim.Fault{Name: "qr-failed", QR: "dead"})
	c.create(request(t, func(r *qr.Request) { r.ID, r.NodePrefix = "dead", "" }))
	c.create(request(t, nil))
	c.waitState("dead", "FAILED")
	c.waitState("q7", "WAITING_FOR_RESOURCES")
	const limit = 200 * time.Second // 2 s of the clock, within which the diagnosis must be made
	_, _, err := c.Wait(t.Context(), "q7", quick(func(o *qr.WaitOptions) { o.QueueLimit, o.AdviceAfter = limit, 5*time.Second }))
	var late *qr.DeadlineError
	if !errors.As(err, &late) || late.Phase != provision.PhaseQueue || late.State != "WAITING_FOR_RESOURCES" || late.Limit != limit {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(late.Hint(), "multihost qr wait q7") || !strings.Contains(late.Error(), "it is WAITING_FOR_RESOURCES; 1 FAILED or SUSPENDED ones exist (dead)") {
		t.Errorf("got %v, hint %q", late, late.Hint())
	}
	if late.HintWhenGone() != "let it wait longer with --queue-timeout=TIME" {
		t.Errorf("hint when it is gone: %q", late.HintWhenGone())
	}
	if !c.Log.Said(event.Info, "1 FAILED or SUSPENDED ones exist (dead)") {
		t.Errorf("no diagnosis: %v", c.Log.Events())
	}
	if res, err := c.Get(t.Context(), "q7"); err != nil || res.State != "WAITING_FOR_RESOURCES" {
		t.Errorf("it was touched: %+v, %v", res, err)
	}
	for _, e := range c.Log.Events() {
		if p, ok := e.(event.Progress); ok && (p.Phase != provision.PhaseQueue || p.Limit != limit || p.Total != 2) {
			t.Errorf("progress %+v", p)
		}
	}
}

// A phase may end just when its limit passes. The wait reads the state after the limit, and
// continues.
func TestCapacityComesWithTheLimit(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "no-capacity"})
	c.create(request(t, nil))
	c.waitState("q7", "WAITING_FOR_RESOURCES")
	c.onRead("q7", func(n int) {
		if n == 2 { // the read after the limit
			if _, err := c.Sim.Clear("no-capacity"); err != nil {
				t.Error(err)
			}
			c.waitStateDirect("q7", "WAITING_FOR_RESOURCES")
		}
	})
	_, _, err := c.Wait(t.Context(), "q7", quick(func(o *qr.WaitOptions) {
		o.QueueLimit = 200 * time.Second
		o.Poll = gcp.Backoff{First: time.Hour, Max: time.Hour}
		o.ProvisionLimit, o.BootLimit = 10*time.Second, 10*time.Second
	}))
	var late *qr.DeadlineError
	if errors.As(err, &late) && late.Phase == provision.PhaseQueue {
		t.Errorf("got %v", err)
	}
}

func TestWorkersNeverAnswer(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	_, list, err := c.Wait(t.Context(), "q7", quick(func(o *qr.WaitOptions) {
		o.BootLimit, o.AdviceAfter = 200*time.Second, 5*time.Second
		o.Probe = func(ctx context.Context, s tpu.Slice) error {
			if s.Name == "t-0" {
				return nil
			}
			<-ctx.Done() // the limit ends a dial that hangs
			return context.Cause(ctx)
		}
	}))
	var late *qr.DeadlineError
	if !errors.As(err, &late) || late.Phase != provision.PhaseBoot || late.State != "ACTIVE" || len(list) != 2 {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(late.Detail, "t-1: READY, but not all workers answer") || strings.Contains(late.Detail, "t-0") {
		t.Errorf("detail %q", late.Detail)
	}
	if !strings.Contains(late.HintWhenGone(), "multihost doctor --network=") {
		t.Errorf("once it is deleted %q is to be typed", late.HintWhenGone())
	}
}

func TestUnhealthySliceIsNotReady(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	c.Fault(sim.Fault{Name: "maintenance", Node: "t-1"})
	_, _, err := c.Wait(t.Context(), "q7", quick(func(o *qr.WaitOptions) { o.BootLimit = 200 * time.Second }))
	var late *qr.DeadlineError
	if !errors.As(err, &late) || !strings.Contains(late.Detail, "t-1: health UNHEALTHY_MAINTENANCE") {
		t.Errorf("got %v", err)
	}
}

func TestPreemptedWhileBooting(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	var once sync.Once
	_, _, err := c.Wait(t.Context(), "q7", quick(func(o *qr.WaitOptions) {
		o.Probe = func(context.Context, tpu.Slice) error {
			once.Do(func() { c.Fault(sim.Fault{Name: "preempt", Node: "t-0"}) })
			return errors.New("connection refused")
		}
	}))
	var state *qr.StateError
	if !errors.As(err, &state) || !strings.HasPrefix(state.State, "SUSPEND") || !strings.HasPrefix(state.By, "Google") {
		t.Errorf("got %v", err)
	}
}

func TestWaitSurvives503sAndBrokenConnections(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	// The client's own retries give up after two minutes of its clock. The wait lasts
	// longer.
	var reads atomic.Int32
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet {
			return false
		}
		switch n := reads.Add(1); {
		case n > 40:
			return false
		case n%3 == 0:
			panic(http.ErrAbortHandler)
		case n%3 == 1:
			http.Error(w, "{}", http.StatusServiceUnavailable)
		default:
			http.Error(w, "{}", http.StatusTooManyRequests)
		}
		return true
	})
	_, list, err := c.Wait(t.Context(), "q7", quick(nil))
	if err != nil || len(list) != 2 {
		t.Errorf("%d slices, %v", len(list), err)
	}
	if !c.Log.Said(event.Warn, "cannot be read; trying again") {
		t.Error("nothing was said about it")
	}
}

func TestDeadlineWhileTheAPIIsDown(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "{}", http.StatusServiceUnavailable)
		return true
	})
	_, _, err := c.Wait(t.Context(), "q7", quick(func(o *qr.WaitOptions) { o.QueueLimit = time.Second }))
	var late *qr.DeadlineError
	if !errors.As(err, &late) || late.State != "" || late.Err == nil || !strings.Contains(err.Error(), "its state is unknown") {
		t.Errorf("got %v", err)
	}
}

func TestLoginThatRunsOutDoesNotEndAWait(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	var reads atomic.Int32
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if n := reads.Add(1); r.Method == http.MethodGet && n > 1 && n < 6 {
			http.Error(w, "{}", http.StatusUnauthorized)
			return true
		}
		return false
	})
	if _, _, err := c.Wait(t.Context(), "q7", quick(nil)); err != nil {
		t.Error(err)
	}
}

func TestNoPermissionEndsAWait(t *testing.T) {
	c := start(t, sim.Config{})
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "{}", http.StatusForbidden)
		return true
	})
	_, _, err := c.Wait(t.Context(), "q7", quick(nil))
	if gcp.ClassOf(err) != gcp.Permission {
		t.Errorf("got %v", err)
	}
}

func TestInterruptedWait(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "no-capacity"})
	c.create(request(t, nil))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted by the user")
	c.onRead("q7", func(n int) {
		if n == 3 {
			cancel(stop)
		}
	})
	res, _, err := c.Wait(ctx, "q7", quick(nil))
	if !errors.Is(err, stop) || res.ID != "q7" {
		t.Errorf("%+v, %v", res, err)
	}
}

// onRead calls f before the n-th read of a queued resource, counted from 1.
func (c *cloud) onRead(id string, f func(n int)) {
	var n atomic.Int32
	c.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/queuedResources/"+id) {
			f(int(n.Add(1)))
		}
		return false
	})
}

// waitStateDirect waits until the cloud shows another state than not. It asks the cloud
// directly, without the proxy.
func (c *cloud) waitStateDirect(id, not string) {
	direct := qr.New(gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: testZone, DisableAuth: true,
		TPUEndpoint: c.Sim.URL() + "/", ComputeEndpoint: c.Sim.URL() + "/compute/v1/"}))
	err := gcp.Poll(c.T.Context(), gcp.SystemClock, gcp.Backoff{First: 2 * time.Millisecond, Max: 10 * time.Millisecond}, func(ctx context.Context) (bool, error) {
		res, err := direct.Get(ctx, id)
		return err == nil && res.State != not, err
	})
	if err != nil {
		c.T.Error(err)
	}
}
