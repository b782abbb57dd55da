package qr_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/zones"

	"github.com/google/go-cmp/cmp"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

func TestCreateMarksWhoseItIs(t *testing.T) {
	c := start(t, sim.Config{})
	res, created, err := c.Create(t.Context(), request(t, nil))
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	want := map[string]string{"multihost-tool": "multihost", "multihost-run": "q7", "multihost-user": "ada"}
	if diff := cmp.Diff(want, res.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if got := res.Owner(); got != "run q7 of ada" {
		t.Errorf("owner %q", got)
	}
}

func TestInvalidRequestMakesNoCall(t *testing.T) {
	c := start(t, sim.Config{})
	_, created, err := c.Create(t.Context(), request(t, func(r *qr.Request) { r.Type = mustType(t, "v3-8") }))
	var invalid *qr.InvalidError
	if created || !errors.As(err, &invalid) {
		t.Errorf("created %v, %v", created, err)
	}
	if n := c.Calls("POST", ""); n != 0 {
		t.Errorf("%d calls were made", n)
	}
}

func TestReservationOfAnotherZoneIsRefused(t *testing.T) {
	c := start(t, sim.Config{})
	_, _, err := c.Create(t.Context(), request(t, func(r *qr.Request) { r.Reservation = "projects/p/locations/us-east5-a/reservations/r" }))
	if err == nil || !strings.Contains(err.Error(), "is in zone us-east5-a") || c.Calls("POST", "") != 0 {
		t.Errorf("got %v", err)
	}
}

func TestEveryTierIsAcceptedByTheCloud(t *testing.T) {
	c := start(t, sim.Config{})
	for name, r := range goldenRequests(t) {
		r.ID, r.NodePrefix, r.NodeID = "qr-"+name, "", ""
		r.Network, r.Subnetwork, r.ServiceAccount = "", "", ""
		if !r.ValidUntilTime.IsZero() {
			r.ValidAfterTime, r.ValidUntilTime = time.Now(), time.Now().Add(time.Hour)
		}
		r.DataDisks = nil
		for i := range r.Interfaces {
			r.Interfaces[i].Network, r.Interfaces[i].Subnetwork = "default", ""
		}
		if name == "single-slice-full" {
			r.Description = "mine"
		}
		if _, created, err := c.Create(t.Context(), r); err != nil || !created {
			t.Errorf("%s: created %v, %v", name, created, err)
		}
		if res, err := c.Get(t.Context(), r.ID); err != nil || res.NodeCount != r.NodeCount {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
}

func TestCreateReplyLostMakesOne(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "drop-reply", Method: "POST", Path: "*queuedResources*"})
	_, created, err := c.Create(t.Context(), request(t, nil))
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	if n := c.Calls("POST", "queuedResources"); n != 2 {
		t.Errorf("%d creates were sent, want the first and its repetition", n)
	}
	if all, err := c.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%d exist, %v", len(all), err)
	}
}

// A request that was cut off arrives after the first read. If the job did not know that the
// request made the resource, nobody would delete it.
func TestARequestThatArrivesAfterTheInterruptIsOurs(t *testing.T) {
	c := start(t, sim.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var late *http.Request
	var looks atomic.Int32
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodPost && strings.Contains(r.URL.Path, "queuedResources"):
			body, err := io.ReadAll(r.Body)
			testkit.Must(t, err)
			late, err = http.NewRequestWithContext(t.Context(), http.MethodPost, c.Sim.URL()+r.URL.RequestURI(), bytes.NewReader(body))
			testkit.Must(t, err)
			late.Header = r.Header.Clone()
			cancel()
			<-r.Context().Done()
			return true
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/queuedResources/q7") && looks.Add(1) == 2:
			answer, err := http.DefaultClient.Do(late)
			testkit.Must(t, err)
			answer.Body.Close()
		}
		return false
	})
	_, created, err := c.Create(ctx, request(t, nil))
	if !created || !errors.Is(err, context.Canceled) {
		t.Errorf("created %v, %v", created, err)
	}
}

// An API that has forgotten the request id answers a repeated request with "already
// exists".
func TestCreateReplyLostAndRequestIDForgotten(t *testing.T) {
	c := start(t, sim.Config{})
	var posts atomic.Int32
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "queuedResources") {
			q := r.URL.Query()
			if posts.Add(1) > 1 {
				q.Set("requestId", "00000000-0000-4000-8000-000000000001")
			}
			r.URL.RawQuery = q.Encode()
		}
		return false
	})
	c.Fault(sim.Fault{Name: "drop-reply", Method: "POST", Path: "*queuedResources*"})
	_, created, err := c.Create(t.Context(), request(t, nil))
	if err != nil || !created {
		t.Errorf("created %v, %v", created, err)
	}
}

func TestCreateSurvives503And429(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "api-error", Code: 503, Method: "POST", Count: 3})
	c.create(request(t, nil))
	var ids []string
	for _, r := range c.Sim.Requests() {
		if _, id, ok := strings.Cut(r.Path, "requestId="); ok {
			ids = append(ids, id)
		}
	}
	if len(ids) != 4 || ids[0] != ids[3] {
		t.Errorf("request ids %q, want four times the same", ids)
	}
}

func TestExistsAlreadyAndIsTheSame(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	for _, when := range []string{"at once", "when ACTIVE"} {
		res, created, err := c.Create(t.Context(), request(t, nil))
		if err != nil || created || res.ID != "q7" {
			t.Errorf("%s: %+v, created %v, %v", when, res, created, err)
		}
		if _, _, err := c.Wait(t.Context(), "q7", quick(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if !c.Log.Said(event.Info, "exists already and is what was asked for") {
		t.Error("nothing was said about it")
	}
}

func TestExistsAlreadyAndIsAnother(t *testing.T) {
	tests := map[string]struct {
		change func(*qr.Request)
		want   string
	}{
		"other owner":   {func(r *qr.Request) { r.Mark("q7", "eve") }, `label multihost-user: it has "ada", you asked for "eve"`},
		"other type":    {func(r *qr.Request) { r.Type = mustType(t, "v4-32") }, `accelerator type: it has "v4-16", you asked for "v4-32"`},
		"more slices":   {func(r *qr.Request) { r.NodeCount = 3 }, `number of slices: it has "2", you asked for "3"`},
		"other tier":    {func(r *qr.Request) { r.Tier = qr.Spot }, `tier: it has "on-demand", you asked for "spot"`},
		"other network": {func(r *qr.Request) { r.Network = "" }, `network: it has "mtu9k", you asked for "default"`},
		"other script":  {func(r *qr.Request) { r.Metadata = map[string]string{"startup-script": "x"} }, "metadata startup-script: it has another value"},
		"internal":      {func(r *qr.Request) { r.InternalIPs = true }, `external addresses: it has "true", you asked for "false"`},
	}
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, created, err := c.Create(t.Context(), request(t, tt.change))
			var conflict *qr.ConflictError
			if created || !errors.As(err, &conflict) || !strings.Contains(err.Error(), tt.want) || conflict.Owner != "run q7 of ada" {
				t.Errorf("created %v, %v; want %q", created, err, tt.want)
			}
		})
	}
}

func TestExistsAlreadyAndIsDead(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "qr-failed", QR: "q7", Message: "no such luck"})
	c.create(request(t, nil))
	c.waitState("q7", "FAILED")
	_, created, err := c.Create(t.Context(), request(t, nil))
	var state *qr.StateError
	if created || !errors.As(err, &state) || state.State != "FAILED" || !strings.Contains(state.Hint(), "multihost qr delete q7 --force") {
		t.Errorf("created %v, %v", created, err)
	}
}

// A slice of another resource has the name. It stays, so Create must not wait for the name.
func TestASliceOfThatNameExistsAlready(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	c.waitState("q7", "ACTIVE")
	res, err := c.Get(t.Context(), "q7")
	if err != nil {
		t.Fatal(err)
	}
	name := res.Nodes[0]
	_, created, err := c.Create(t.Context(), request(t, func(r *qr.Request) { r.ID, r.NodeCount, r.NodePrefix, r.NodeID = "q8", 1, "", name }))
	var taken *qr.TakenError
	if created || !errors.As(err, &taken) || taken.Slice != name || !strings.Contains(taken.Hint(), "--node-prefix") {
		t.Errorf("created %v, %v", created, err)
	}
	if c.Log.Said(event.Info, "is DELETING") {
		t.Error("a deletion was blamed")
	}
}

func TestExistsAlreadyWhileDeleting(t *testing.T) {
	c := start(t, sim.Config{})
	c.create(request(t, nil))
	c.waitState("q7", "ACTIVE")
	c.Fault(sim.Fault{Name: "slow-operations", Delay: 5 * time.Second})
	if _, err := c.Delete(t.Context(), "q7", qr.DeleteOptions{Force: true, Async: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sim.Clear("slow-operations"); err != nil {
		t.Fatal(err)
	}
	_, created, err := c.Create(t.Context(), request(t, func(r *qr.Request) { r.Mark("q7", "bob") }))
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	res, err := c.Get(t.Context(), "q7")
	if err != nil || res.Labels[qr.LabelUser] != "bob" {
		t.Errorf("%+v, %v", res, err)
	}
	if !c.Log.Said(event.Info, "is DELETING") {
		t.Error("nothing was said about it")
	}
}

func TestCreateOperationErrorIsTold(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "op-error", Code: 400, Message: "Cloud TPU received a bad request (EID: 0x1234)"})
	_, created, err := c.Create(t.Context(), request(t, nil))
	var op *gcp.OperationError
	if created || !errors.As(err, &op) || !strings.Contains(err.Error(), "EID: 0x1234") {
		t.Errorf("created %v, %v", created, err)
	}
}

// A request beyond the quota is not repeated. The error says what the request asks for, and
// which dead requests hold some of the quota.
func TestQuotaIsToldAndNotRetried(t *testing.T) {
	c := start(t, sim.Config{Quota: 40})
	dead := request(t, func(r *qr.Request) { r.ID, r.NodeCount, r.NodePrefix = "old", 1, "" })
	refused := func(diagnosis, hint string) {
		t.Helper()
		before := c.Calls("POST", "queuedResources")
		_, created, err := c.Create(t.Context(), request(t, func(r *qr.Request) { r.NodeCount = 3 }))
		if calls := c.Calls("POST", "queuedResources") - before; created || gcp.ClassOf(err) != gcp.Quota || calls != 1 {
			t.Errorf("created %v, %v after %d calls", created, err, calls)
			return
		}
		if got := gcp.Hint(err); !strings.HasSuffix(err.Error(), diagnosis) || !strings.Contains(got, hint) {
			t.Errorf("%v\nhint: %s", err, got)
		}
	}
	refused("allows 40 in zone us-central2-b, and this asks for 48 of it", "multihost gc --look")
	c.create(dead)
	c.Fault(sim.Fault{Name: "qr-failed", QR: "old", Message: "no luck"})
	if _, _, err := c.Wait(t.Context(), "old", quick(nil)); !errors.As(err, new(*qr.StateError)) {
		t.Fatal(err)
	}
	refused("and this asks for 48 of it; other queued resources have 16: old (16, FAILED)", "multihost gc --delete")
}

// The create operation may continue long after the resource has reached a later state. That
// must not count as a failed create.
func TestCreateOperationThatNeverEnds(t *testing.T) {
	c := start(t, sim.Config{})
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/operations/") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"name":"projects/p/locations/z/operations/o1"}`))
		return true
	})
	c.create(request(t, nil))
}

// While nobody knows whether the API accepts a request, Create says that it waits.
func TestARequestThatNobodyAcceptsIsNoSilence(t *testing.T) {
	c := start(t, sim.Config{})
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		text := `{"name":"projects/p/locations/z/operations/o1"}`
		switch {
		case strings.HasSuffix(r.URL.Path, "/queuedResources/q7"):
			text = `{"name":"projects/p/locations/z/queuedResources/q7","state":{"state":"CREATING"}}`
		case !strings.Contains(r.URL.Path, "/operations/"):
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text))
		return true
	})
	c.create(request(t, nil))
	if !c.Log.Said(event.Info, "whether it accepts queued resource q7; waiting at most 2m") {
		t.Errorf("nobody says why it waits: %v", c.Log.Notes())
	}
}

// If Create is interrupted after the API has accepted the request, the caller must learn
// that the resource exists.
func TestInterruptedCreateSaysThatItExists(t *testing.T) {
	c := start(t, sim.Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted by the user")
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/operations/") {
			cancel(stop)
		}
		return false
	})
	_, created, err := c.Create(ctx, request(t, nil))
	if !created || !errors.Is(err, stop) {
		t.Errorf("created %v, %v", created, err)
	}
}

// waitState waits until the cloud shows a state.
func (c *cloud) waitState(id, state string) {
	c.T.Helper()
	err := gcp.Poll(c.T.Context(), gcp.SystemClock, gcp.Backoff{First: 2 * time.Millisecond, Max: 10 * time.Millisecond}, func(ctx context.Context) (bool, error) {
		res, err := c.Get(ctx, id)
		return err == nil && res.State == state, err
	})
	if err != nil {
		c.T.Fatal(err)
	}
}

// The service expands a request for several slices into one entry per slice. That is still
// the same request.
func TestExistsAlreadyAndIsExpanded(t *testing.T) {
	c := start(t, sim.Config{})
	r := request(t, nil)
	body := r.Body(sim.DefaultProject, testZone, time.Now())
	spec := body.Tpu.NodeSpec[0]
	body.Name, body.Tpu.NodeSpec = "projects/1/locations/z/queuedResources/q7", nil
	for _, name := range r.NodeNames() {
		body.Tpu.NodeSpec = append(body.Tpu.NodeSpec, &tpuapi.NodeSpec{NodeId: name, Node: spec.Node, Parent: spec.Parent})
	}
	body.State = &tpuapi.QueuedResourceState{State: "ACTIVE"}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusConflict)
			text := `{"error":{"code":409,"status":"ALREADY_EXISTS","message":"Resource already exists"}}`
			_, _ = w.Write([]byte(text))
			return true
		}
		_, _ = w.Write(text)
		return true
	})
	res, created, err := c.Create(t.Context(), r)
	if err != nil || created || res.NodeCount != 2 {
		t.Errorf("%+v, created %v, %v", res, created, err)
	}
}

// The error for a zone that does not exist never lists what zones offer, whichever call
// comes first. The error for a zone that exists does.
func TestAZoneThatDoesNotExistIsNamed(t *testing.T) {
	c := start(t, sim.Config{})
	elsewhere := func(zone string) *qr.Client {
		return qr.New(gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: zone, DisableAuth: true, TPUEndpoint: c.Sim.URL() + "/", Clock: testkit.NewFastClock(), Sink: c.Log}))
	}
	wrong := elsewhere("us-centrl2-b")
	for name, call := range map[string]func() error{
		"list":   func() error { _, err := wrong.List(t.Context()); return err },
		"slices": func() error { _, err := wrong.Slices(t.Context()); return err },
		"get":    func() error { _, err := wrong.Get(t.Context(), "q7"); return err },
		"create": func() error { _, _, err := wrong.Create(t.Context(), request(t, nil)); return err },
	} {
		err := call()
		var unknown *zones.NoZoneError
		if !errors.As(err, &unknown) || !slices.Equal(unknown.Near, []string{testZone}) || unknown.Hint() != "repeat the command with --zone="+testZone || gcp.ClassOf(err) != gcp.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, _, err := elsewhere("us-west4-a").Create(t.Context(), request(t, func(r *qr.Request) { r.Type = mustType(t, "v4-8") }))
	var offers *zones.NoTypeError
	if !errors.As(err, &offers) {
		t.Errorf("a zone without the type: %v", err)
	}
}
