package gce_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

var made = []string{"POST resourcePolicies/m-a", "POST instanceTemplates/m-a", "POST instanceGroupManagers/m-0", "POST instanceGroupManagers/m-1"}

func TestCreateUseDelete(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	if _, err := f.Get(ctx, "m"); !errors.Is(err, provision.ErrNotFound) || gcp.ClassOf(err) != gcp.NotFound {
		t.Fatalf("got %v", err)
	}
	res, created, err := f.Create(ctx, request(t))
	if err != nil || !created || res.Life != provision.Waiting || res.Type != "tpu7x-16" || res.Tier != provision.Spot || res.NodeCount != 2 || !slices.Equal(f.calls, made) {
		t.Fatalf("got %+v, %v, %v after %q", res, created, err, f.calls)
	}
	if _, created, err := f.Create(ctx, request(t)); err != nil || created || len(f.calls) != len(made) {
		t.Errorf("again: %v, %v after %q", created, err, f.calls)
	}
	f.boot("m-0", 1, 0)
	if res, err = f.Get(ctx, "m"); err != nil || res.Life != provision.Provisioning || len(res.Slices) != 1 || res.ReadySlices() != 1 {
		t.Errorf("one of two: got %+v, %v", res, err)
	}
	f.boot("m-1", 0, 1)
	res, err = f.Get(ctx, "m")
	if err != nil || res.Life != provision.Active || res.ReadySlices() != 2 {
		t.Fatalf("got %+v, %v", res, err)
	}
	want := []tpu.Worker{{Name: "m-0-0001", Internal: "10.0.0.1", External: "34.0.0.1"}, {Name: "m-0-0000", Internal: "10.0.0.0", External: "34.0.0.0"}}
	if s := res.Slices[0]; !slices.Equal(s.Workers, want) || s.Type != "tpu7x-16" || s.RuntimeVersion != "ubuntu-accel-2404-amd64-tpu-tpu7x-v20261101" || s.Network != "default" || s.QueuedResource != "m" {
		t.Errorf("got %+v", s)
	}
	all, err := f.Slices(ctx)
	if err != nil || len(all) != 2 || !slices.Equal(all[0].Workers, want) || all[1].Index != -1 {
		t.Errorf("got %+v, %v", all, err)
	}
	if list, err := f.List(ctx); err != nil || len(list) != 1 || list[0].Life != provision.Active {
		t.Errorf("got %+v, %v", list, err)
	}
	if deleted, err := f.Delete(ctx, "m", provision.DeleteOptions{OnlyRun: "other"}); deleted || fault.Of(err) != fault.Permission {
		t.Errorf("of another run: %v, %v", deleted, err)
	}
	f.calls = nil
	if deleted, err := f.Delete(ctx, "m", provision.DeleteOptions{OnlyRun: "m"}); !deleted || err != nil {
		t.Errorf("got %v, %v", deleted, err)
	}
	if want := []string{"DELETE instanceGroupManagers/m-0", "DELETE instanceGroupManagers/m-1", "DELETE instanceTemplates/m-a", "DELETE resourcePolicies/m-a"}; !slices.Equal(f.calls, want) {
		t.Errorf("got %q", f.calls)
	}
	if deleted, err := f.Delete(ctx, "m", provision.DeleteOptions{}); deleted || err != nil {
		t.Errorf("twice: %v, %v", deleted, err)
	}
}

// A creation may stop after any call, even before its answer. The next one makes the
// missing parts, once.
func TestCreateGoesOn(t *testing.T) {
	for n := range len(made) {
		for _, did := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, done %v", n, did), func(t *testing.T) {
				f := start(t)
				changes := 0
				cut := func(r *http.Request) bool {
					changes++
					return changes > n
				}
				if did {
					f.after = cut
				} else {
					f.before = func(w http.ResponseWriter, r *http.Request) bool {
						if r.Method == http.MethodGet || !cut(r) {
							return false
						}
						refuse(w, 503, "backendError", "try again")
						return true
					}
				}
				_, created, err := f.Create(t.Context(), request(t))
				if want := n > 0 || did; created != want || !did && err == nil {
					t.Errorf("got %v, %v", created, err)
				}
				f.mu.Lock()
				f.before, f.after = nil, nil
				f.mu.Unlock()
				if res, _, err := f.Create(t.Context(), request(t)); err != nil || res.Life != provision.Waiting {
					t.Errorf("again: %+v, %v", res, err)
				}
				if !slices.Equal(f.calls, made) {
					t.Errorf("made %q", f.calls)
				}
				if deleted, err := f.Delete(t.Context(), "m", provision.DeleteOptions{}); !deleted || err != nil {
					t.Errorf("delete: %v, %v", deleted, err)
				}
			})
		}
	}
}

func TestAnInterruptedCreateSaysWhatExists(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	quit := errors.New("quit")
	f.after = func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/instanceGroupManagers") {
			cancel(quit)
			return true
		}
		return false
	}
	if _, created, err := f.Create(ctx, request(t)); !created || !errors.Is(err, quit) {
		t.Errorf("got %v, %v", created, err)
	}
}

// A dry run reports that nothing exists, as does a request that is refused at once. If a
// resource is being deleted, a dry run reports that first.
func TestACreateThatMakesNothingSaysWhatExists(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	var refused *gcp.ReadOnlyError
	if res, created, err := f.dry.Create(ctx, request(t)); !errors.As(err, &refused) || created || res.ID != "" || res.State != "" {
		t.Errorf("a dry run: got %+v, %v, %v", res, created, err)
	}
	f.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			http.Error(w, `{"error": {"code": 403, "message": "no right"}}`, http.StatusForbidden)
		}
		return r.Method == http.MethodPost
	}
	if res, created, err := f.Create(ctx, request(t)); gcp.ClassOf(err) != gcp.Permission || created || res.ID != "" || res.State != "" {
		t.Errorf("without the right: got %+v, %v, %v", res, created, err)
	}
	f.before = nil
	_, _, err := f.Create(ctx, request(t))
	testkit.Must(t, err)
	for _, name := range []string{"m-0", "m-1"} {
		f.things["zones/us-east5-a/instanceGroupManagers/"+name]["currentActions"] = object{"deleting": 4}
		f.things["zones/us-east5-a/instanceGroupManagers/"+name]["targetSize"] = 0
	}
	was, err := f.Get(ctx, "m")
	testkit.Must(t, err)
	if was.Life != provision.Deleting {
		t.Fatalf("it is %+v", was)
	}
	if res, created, err := f.dry.Create(ctx, request(t)); !errors.As(err, &refused) || created || res.Life != provision.Deleting {
		t.Errorf("one is being deleted: got %+v, %v, %v", res, created, err)
	}
}

func TestCreateLeavesOthersAlone(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	_, _, err := f.Create(ctx, request(t))
	testkit.Must(t, err)
	f.calls = nil
	for name, change := range map[string]func(*provision.Request){
		"another type":    func(r *provision.Request) { r.Type, _ = tpu.ParseType("tpu7x-32") },
		"another's slice": func(r *provision.Request) { r.Mark("n", "ann") },
	} {
		r := request(t)
		change(&r)
		var conflict *provision.ConflictError
		if _, created, err := f.Create(ctx, r); created || !errors.As(err, &conflict) || conflict.Owner != "run m of ann" {
			t.Errorf("%s: got %v, %v", name, created, err)
		}
	}
	r := request(t)
	r.ID, r.Nodes = "n", []string{"n-0", "m-1"}
	var taken *gce.TakenError
	if _, created, err := f.Create(ctx, r); !created || !errors.As(err, &taken) || taken.Name != "m-1" {
		t.Errorf("a slice of m: got %v, %v", created, err)
	}
	if want := []string{"POST resourcePolicies/n-a", "POST instanceTemplates/n-a", "POST instanceGroupManagers/n-0"}; !slices.Equal(f.calls, want) {
		t.Errorf("made %q", f.calls)
	}
}

// After the workers of a run have deleted the groups, the template stays. It does not
// prevent a request of another type.
func TestWhatARunHasLeftIsReplaced(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	_, _, err := f.Create(ctx, request(t))
	testkit.Must(t, err)
	for _, name := range []string{"m-0", "m-1"} {
		delete(f.things, "zones/us-east5-a/instanceGroupManagers/"+name)
	}
	f.age("instanceTemplates")
	f.age("resourcePolicies")
	if _, err := f.Get(ctx, "m"); !errors.Is(err, provision.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if list, err := f.List(ctx); err != nil || len(list) != 1 || list[0].Life != provision.Failed || list[0].Labels[provision.LabelRun] != "m" {
		t.Errorf("got %+v, %v", list, err)
	}
	r := request(t)
	r.Tier = provision.OnDemand
	if res, created, err := f.Create(ctx, r); err != nil || !created || res.Tier != provision.OnDemand {
		t.Errorf("got %+v, %v, %v", res, created, err)
	}
}

// age makes the parts of a kind so old that no request uses them.
func (f *fake) age(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, thing := range f.things {
		if strings.Contains(key, "/"+kind+"/") {
			thing["creationTimestamp"] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		}
	}
}

// Sweep deletes the rest of a run's resource only when its groups are gone, and when nobody
// can be making it.
func TestSweep(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	left := func() int { return f.count("instanceTemplates") + f.count("resourcePolicies") }
	testkit.Must(t, f.Sweep(t.Context(), "m", "m", false))
	delete(f.things, "zones/us-east5-a/instanceGroupManagers/m-0")
	testkit.Must(t, f.Sweep(t.Context(), "m", "m", false))
	if f.count("instanceGroupManagers") != 1 || left() != 2 {
		t.Errorf("with a group: %d parts are left", left())
	}
	delete(f.things, "zones/us-east5-a/instanceGroupManagers/m-1")
	testkit.Must(t, f.Sweep(t.Context(), "m", "another", false))
	if left() != 2 {
		t.Errorf("parts of another run: %d are left", left())
	}
	f.age("resourcePolicies")
	testkit.Must(t, f.Sweep(t.Context(), "m", "m", false))
	if left() != 2 {
		t.Errorf("young parts: %d are left", left())
	}
	testkit.Must(t, f.Sweep(t.Context(), "m", "another", true))
	if left() != 2 {
		t.Errorf("young parts of another run: %d are left", left())
	}
	f.age("instanceTemplates")
	testkit.Must(t, f.Sweep(t.Context(), "m", "m", false))
	if left() != 0 {
		t.Errorf("%d parts are left", left())
	}
	_, _, err = f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	delete(f.things, "zones/us-east5-a/instanceGroupManagers/m-0")
	delete(f.things, "zones/us-east5-a/instanceGroupManagers/m-1")
	testkit.Must(t, f.Sweep(t.Context(), "m", "m", true))
	if left() != 0 {
		t.Errorf("young parts of a run that is over: %d are left", left())
	}
	testkit.Must(t, f.Sweep(t.Context(), "m", "m", false))
}

// A command may make old parts anew while Sweep deletes them. The new parts stay.
func TestSweepLeavesWhatIsMadeMeanwhile(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	for key := range f.things {
		if strings.Contains(key, "/instanceGroupManagers/") {
			delete(f.things, key)
		}
	}
	f.age("instanceTemplates")
	f.age("resourcePolicies")
	f.after = func(r *http.Request) bool {
		for key, thing := range f.things {
			if strings.Contains(key, "/resourcePolicies/") {
				thing["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
			}
		}
		return false
	}
	testkit.Must(t, f.Sweep(t.Context(), "m", "m", false))
	if templates, policies := f.count("instanceTemplates"), f.count("resourcePolicies"); templates != 0 || policies != 1 {
		t.Errorf("%d templates and %d policies are left", templates, policies)
	}
}

// A request uses young parts of its run. It replaces old ones, because Sweep may be
// deleting them.
func TestOldPartsAreMadeAnew(t *testing.T) {
	for _, c := range []struct {
		lost, old string
		want      string
	}{
		{"", "", "POST groups"},
		{"", "instanceTemplates", "DELETE template, DELETE policy, POST policy, POST template, POST groups"},
		{"instanceTemplates", "", "POST template, POST groups"},
		{"instanceTemplates", "resourcePolicies", "DELETE policy, POST policy, POST template, POST groups"},
	} {
		t.Run(c.want, func(t *testing.T) {
			f := start(t)
			_, _, err := f.Create(t.Context(), request(t))
			testkit.Must(t, err)
			for key := range f.things {
				if strings.Contains(key, "/instanceGroupManagers/") || c.lost != "" && strings.Contains(key, "/"+c.lost+"/") {
					delete(f.things, key)
				}
			}
			f.age(c.old)
			f.calls = nil
			_, created, err := f.Create(t.Context(), request(t))
			short := strings.NewReplacer("instanceTemplates/m-a", "template", "resourcePolicies/m-a", "policy", "instanceGroupManagers/m-0, POST instanceGroupManagers/m-1", "groups")
			if got := short.Replace(strings.Join(f.calls, ", ")); err != nil || !created || got != c.want {
				t.Errorf("got %s, %v, %v", got, created, err)
			}
		})
	}
}

// A request that broke off is repeated with another property. If a group exists, the error
// names the difference. Otherwise nothing costs money, and the parts are made anew.
func TestAnotherRequestOfTheSameRun(t *testing.T) {
	for want, change := range map[string]func(*provision.Request){
		`accelerator type: it has "tpu7x-16", you asked for "tpu7x-32"`:               func(r *provision.Request) { r.Type, _ = tpu.ParseType("tpu7x-32") },
		`image: it has the newest one, you asked for "projects/p/global/images/mine"`: func(r *provision.Request) { r.Own = gce.Settings{Image: "projects/p/global/images/mine"} },
		`tier: it has "spot", you asked for "on-demand"`:                              func(r *provision.Request) { r.Tier = provision.OnDemand },
	} {
		for n := 1; n <= len(made); n++ {
			t.Run(fmt.Sprintf("%s after %d parts", want[:4], n), func(t *testing.T) {
				f := start(t)
				ctx, cancel := context.WithCancelCause(t.Context())
				f.after = func(*http.Request) bool {
					if len(f.calls) == n {
						cancel(errors.New("this machine dies"))
					}
					return len(f.calls) == n
				}
				f.before = func(_ http.ResponseWriter, r *http.Request) bool {
					return r.Method != http.MethodGet && ctx.Err() != nil
				}
				_, _, err := f.Create(ctx, request(t))
				if n < len(made) && err == nil {
					t.Fatal("the first request was not broken off")
				}
				f.mu.Lock()
				f.before, f.after, f.calls = nil, nil, f.calls[:0]
				f.mu.Unlock()
				r := request(t)
				change(&r)
				res, created, err := f.Create(t.Context(), r)
				if n < 3 {
					policy, _ := f.things["regions/us-east5/resourcePolicies/m-a"]["workloadPolicy"].(object)
					if err != nil || !created || res.Type != r.Type.Name || res.Tier != r.Tier || policy["acceleratorTopology"] != r.Type.Topology {
						t.Errorf("got %+v, %v, %v with %v after %q", res, created, err, policy, f.calls)
					}
					return
				}
				var conflict *provision.ConflictError
				if !errors.As(err, &conflict) || created || len(f.calls) > 0 || err.Error() != `create slice request "m": it exists and belongs to run m of ann: `+want {
					t.Errorf("got %v, %v after %q", created, err, f.calls)
				}
			})
		}
	}
}

func TestAZoneWithoutTheMachineTypeIsTold(t *testing.T) {
	f := start(t)
	delete(f.things, "zones/us-east5-a/machineTypes/tpu7x-standard-4t")
	var lacks *gce.MachineError
	if _, created, err := f.Create(t.Context(), request(t)); created || !errors.As(err, &lacks) || len(f.calls) > 0 {
		t.Errorf("got %v, %v after %q", created, err, f.calls)
	}
}

func TestQuotaIsToldAtOnce(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	f.things["zones/us-east5-a/instanceGroupManagers/m-1"]["status"] = object{"bulkInstanceOperation": object{"inProgress": true,
		"lastProgressCheck": object{"error": object{"errors": []any{object{"code": "QUOTA_EXCEEDED", "message": "Quota TPUS_PER_TPU_FAMILY exceeded"}}}}}}
	for range 2 {
		res, err := f.Get(t.Context(), "m")
		testkit.Must(t, err)
		if res.Life != provision.Waiting {
			t.Errorf("got %+v", res)
		}
	}
	said := 0
	for _, n := range f.said.Notes() {
		if n.Level == event.Warn && strings.Contains(n.Text, "the quota of the project is too small: Quota TPUS_PER_TPU_FAMILY exceeded") {
			said++
		}
	}
	if said != 1 {
		t.Errorf("said %d times: %+v", said, f.said.Notes())
	}
}

// If the VMs of a slice contradict each other about their numbers, the slice is not used.
func TestASliceWithoutOrderIsNotReady(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	f.boot("m-0", 1, 0)
	f.boot("m-1", 0, 1)
	f.attributes["m-1-0000"] = nil
	f.attributes["m-0-0001"] = f.attributes["m-0-0000"]
	res, err := f.Get(t.Context(), "m")
	testkit.Must(t, err)
	for i, want := range []string{"state ACTIVE, but VMs m-0-0000 and m-0-0001 both say that they are worker 1", "state ACTIVE, but VM m-1-0000 has not told which worker it is"} {
		if ok, why := res.Slices[i].Ready(); ok || why != want {
			t.Errorf("got %v, %q", ok, why)
		}
	}
	// The metadata have the values, if the API shows them.
	vm := f.things["zones/us-east5-a/instances/m-1-0000"]["metadata"].(object)
	vm["items"] = []any{object{"key": "agent-worker-number", "value": "0"}, object{"key": "worker-network-endpoints", "value": "m-1-0000,m-1-0001"}}
	res, err = f.Get(t.Context(), "m")
	if ok, why := res.Slices[1].Ready(); !ok || err != nil {
		t.Errorf("got %q, %v", why, err)
	}
}

func TestAttributesOfASlice(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	f.boot("m-0", 1, 0)
	f.attributes["m-0-0001"] = append(f.attributes["m-0-0001"], object{"namespace": "multihost", "key": "state", "value": "run=r"},
		object{"namespace": "multihost", "key": "old-state", "value": "no"}, object{"namespace": "x", "key": "state", "value": "no"})
	texts, err := f.Attributes(t.Context(), "m-0", "state")
	if err != nil || len(texts) != 1 || texts[0] != "run=r" {
		t.Errorf("got %q, %v", texts, err)
	}
}

func TestSlicesOfOthers(t *testing.T) {
	f := start(t)
	f.things["zones/us-east5-a/instanceGroupManagers/x"] = object{"name": "x", "id": "7", "targetSize": 2}
	f.things["zones/us-east5-a/instanceGroupManagers/web"] = object{"name": "web", "id": "8", "targetSize": 2}
	f.boot("x", 1, 0)
	said := f.attributes["x-0000"]
	f.attributes["x-0000"] = nil // they do not have our startup script
	all, err := f.Slices(t.Context())
	if err != nil || len(all) != 1 || len(all[0].Workers) != 0 || len(all[0].Untold) != 2 || all[0].Untold[1] != (tpu.Worker{Name: "x-0001", Internal: "10.0.0.1", External: "34.0.0.1"}) || all[0].Condition != tpu.Making {
		t.Errorf("got %+v, %v", all, err)
	}
	if script := f.Number(all[0]); !strings.Contains(script, "agent-worker-number") || !strings.HasSuffix(script, "\nwait $!\n") || strings.Contains(script, "300") {
		t.Errorf("got %s", script)
	}
	f.attributes["x-0000"] = said
	all, err = f.Slices(t.Context())
	if err != nil || len(all) != 1 || all[0].Untold != nil || all[0].Type != "tpu7x-16" || all[0].Name != "x" || all[0].Workers[0].Name != "x-0001" {
		t.Errorf("got %+v, %v", all, err)
	}
	if list, err := f.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("got %+v, %v", list, err)
	}
}

// A deletion without effect is repeated. After the time limit, the error says what is left.
func TestDeleteUntilGone(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	stuck := 0
	f.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/m-1") {
			stuck++
			answer(w, object{"name": "op", "status": "RUNNING", "zone": "us-east5-a"})
			return true
		}
		return false
	}
	var late *provision.DeadlineError
	if _, err := f.Delete(t.Context(), "m", provision.DeleteOptions{Limit: 75 * time.Second}); !errors.As(err, &late) || late.Detail != "group m-1 is left" || stuck < 2 {
		t.Errorf("got %v after %d requests", err, stuck)
	}
	if f.count("instanceTemplates") != 1 {
		t.Error("the template went before the groups")
	}
}

// A deletion that is always refused ends at its time limit.
func TestADeletionThatIsAlwaysRefusedEnds(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	refused := 0
	f.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete || refused == 1000 {
			return false
		}
		refused++
		refuse(w, http.StatusConflict, "resourceInUse", "something uses it")
		return true
	}
	var late *provision.DeadlineError
	if deleted, err := f.Delete(t.Context(), "m", provision.DeleteOptions{Limit: 10 * time.Second}); !errors.As(err, &late) || deleted {
		t.Errorf("deleted %v, %v, after %d refusals", deleted, err, refused)
	}
}

// The time limit of a deletion does not count the time in which the API does not answer.
func TestADeletionHasItsTimeOnceItIsRequested(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	away := 0
	f.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/instanceGroupManagers") || away == 100 {
			return false
		}
		away++
		refuse(w, http.StatusServiceUnavailable, "backendError", "come back later")
		return true
	}
	if deleted, err := f.Delete(t.Context(), "m", provision.DeleteOptions{Limit: 10 * time.Second}); err != nil || !deleted || away != 100 {
		t.Errorf("deleted %v, %v, after %d refusals", deleted, err, away)
	}
}

const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOxu0tuzdIgwbeBmKFVJ7qRz2TmlJ8x2ZGt9TBjEqCBh"

// The metadata of every VM get the key beside the existing keys, even if somebody else
// changes the metadata at the same time.
func TestAdmit(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	f.boot("m-0", 1, 0)
	slice := func() tpu.Slice {
		res, err := f.Get(t.Context(), "m")
		testkit.Must(t, err)
		return res.Slices[0]
	}
	raced := false
	f.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "m-0-0001/setMetadata") && !raced {
			raced = true
			f.things["zones/us-east5-a/instances/m-0-0001"]["metadata"] = object{"fingerprint": "g", "items": []any{object{"key": "ssh-keys", "value": "eve:x y"}}}
		}
		return false
	}
	login := provision.Login{Name: "ann", PublicKey: key}
	if door, err := f.Door(t.Context(), slice(), login); door.Open || err != nil {
		t.Errorf("got %+v, %v", door, err)
	}
	if user, changed, err := f.Admit(t.Context(), slice(), login); user != "ann" || !changed || err != nil || !raced {
		t.Errorf("got %q, %v, %v", user, changed, err)
	}
	for vm, want := range map[string]string{"m-0-0000": "[map[key:a value:b] map[key:ssh-keys value:ann:" + key + " ann]]", "m-0-0001": "[map[key:ssh-keys value:eve:x y\nann:" + key + " ann]]"} {
		if got := fmt.Sprint(f.things["zones/us-east5-a/instances/"+vm]["metadata"].(object)["items"]); got != want {
			t.Errorf("%s has %s", vm, got)
		}
	}
	f.calls = nil
	if _, changed, err := f.Admit(t.Context(), slice(), login); changed || err != nil || len(f.calls) > 0 {
		t.Errorf("again: %v, %v after %q", changed, err, f.calls)
	}
}

func TestHostKeys(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	f.boot("m-0", 1, 0)
	f.attributes["m-0-0001"] = append(f.attributes["m-0-0001"], object{"namespace": "hostkeys", "key": "ssh-ed25519", "value": strings.Fields(key)[1]})
	res, err := f.Get(t.Context(), "m")
	testkit.Must(t, err)
	keys, vm, err := f.HostKeys(t.Context(), res.Slices[0], 0)
	if err != nil || vm != "m-0-0001" || !slices.Equal(keys, []string{key}) {
		t.Errorf("got %q of %q, %v", keys, vm, err)
	}
	for _, worker := range []int{1, 2} {
		if keys, _, err := f.HostKeys(t.Context(), res.Slices[0], worker); err == nil {
			t.Errorf("worker %d: got %q", worker, keys)
		}
	}
	if _, _, err := f.HostKeys(t.Context(), res.Slices[0], 1); !errors.Is(err, provision.ErrNoHostKeys) {
		t.Errorf("got %v", err)
	}
}

func TestRestartResetsAllVMs(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	f.boot("m-0", 1, 0)
	f.boot("m-1", 1, 0)
	f.calls = nil
	testkit.Must(t, f.Restart(t.Context(), "m"))
	slices.Sort(f.calls)
	if want := []string{"POST instances/m-0-0000/reset", "POST instances/m-0-0001/reset", "POST instances/m-1-0000/reset", "POST instances/m-1-0001/reset"}; !slices.Equal(f.calls, want) {
		t.Errorf("got %q", f.calls)
	}
}

// Workers delete only resources that belong to the run according to the API.
func TestUndoing(t *testing.T) {
	f := start(t)
	_, _, err := f.Create(t.Context(), request(t))
	testkit.Must(t, err)
	u := f.Undoing("m", "m-0", "m-1")
	if len(u.Parts) != 2 {
		t.Fatalf("got %+v", u)
	}
	for _, part := range u.Parts {
		_, at, _ := strings.Cut(part.Look, root)
		if proof := part.Proof(provision.LabelRun, "m"); proof.Path != "/description" || f.things[at]["description"] != proof.Value || part.Delete != part.Look {
			t.Errorf("%s is %+v, want %+v", at, f.things[at], proof)
		}
		if _, at, _ := strings.Cut(part.Probe, root); f.things[at] != nil || !strings.HasPrefix(at, "zones/us-east5-a/instanceGroupManagers/") {
			t.Errorf("probes %s", part.Probe)
		}
	}
}

func TestPreview(t *testing.T) {
	f := start(t)
	body, _ := f.Preview(request(t))
	for _, part := range []string{`"workload_policy":{`, `"instance_template":{`, `"groups":[{`, "images/family/ubuntu-accel-2404-amd64-tpu-tpu7x"} {
		if !strings.Contains(strings.ReplaceAll(string(body), `": `, `":`), part) {
			t.Errorf("%s is not in %s", part, body)
		}
	}
}

// A resource without a group counts as being made while one of its parts is young. Later it
// counts as left over.
func TestWhatHasNoGroupYetIsNoLeftover(t *testing.T) {
	for _, tt := range []struct {
		parts []string
		ages  []time.Duration
		want  provision.Life
		age   time.Duration
	}{
		{[]string{"resourcePolicies"}, []time.Duration{0}, provision.Requested, 0},
		{[]string{"resourcePolicies", "instanceTemplates"}, []time.Duration{time.Hour, time.Minute}, provision.Requested, time.Minute},
		{[]string{"resourcePolicies", "instanceTemplates"}, []time.Duration{time.Minute, time.Hour}, provision.Requested, time.Minute},
		{[]string{"resourcePolicies", "instanceTemplates"}, []time.Duration{2 * time.Hour, time.Hour}, provision.Failed, time.Hour},
		{[]string{"resourcePolicies"}, []time.Duration{time.Hour}, provision.Failed, time.Hour},
	} {
		t.Run(fmt.Sprint(tt.parts, tt.ages), func(t *testing.T) {
			f := start(t)
			if _, _, err := f.Create(t.Context(), request(t)); err != nil {
				t.Fatal(err)
			}
			now := time.Now().Truncate(time.Second)
			f.mu.Lock()
			for key := range f.things {
				kind := path.Base(path.Dir(key))
				if i := slices.Index(tt.parts, kind); i >= 0 {
					f.things[key]["creationTimestamp"] = now.Add(-tt.ages[i]).Format(time.RFC3339)
				} else if kind != "machineTypes" {
					delete(f.things, key)
				}
			}
			f.mu.Unlock()
			list, err := f.List(t.Context())
			if err != nil || len(list) != 1 {
				t.Fatalf("%v: got %+v, %v", tt, list, err)
			}
			if r := list[0]; r.Life != tt.want || !r.CreateTime.Equal(now.Add(-tt.age)) || r.Standing() != "state WITHOUT_GROUPS, has no slices, costs nothing and holds no quota" {
				t.Errorf("%v: got %s, made at %v, %s", tt, r.Life, r.CreateTime, r.Standing())
			}
			if run, user, ours := list[0].Made(); run != "m" || user != "ann" || !ours {
				t.Errorf("%v: made by run %q of %q, %v", tt, run, user, ours)
			}
		})
	}
}

// A refused or interrupted Create leaves nothing, unless a group exists.
func TestACreateThatDoesNotSucceed(t *testing.T) {
	for name, tt := range map[string]struct {
		at        string
		interrupt bool
		left      int
	}{
		"refused":             {at: "/instanceTemplates"},
		"group refused":       {at: "/instanceGroupManagers"},
		"second slice":        {at: "m-1", left: 3},
		"interrupted":         {at: "/instanceTemplates", interrupt: true},
		"interrupted a group": {at: "/instanceGroupManagers", interrupt: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			before := len(f.things)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			groups := 0
			f.before = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPost {
					return false
				}
				if strings.HasSuffix(r.URL.Path, "/instanceGroupManagers") {
					groups++
				}
				if !strings.HasSuffix(r.URL.Path, tt.at) && (tt.at != "m-1" || groups < 2) {
					return false
				}
				if tt.interrupt {
					cancel()
				}
				refuse(w, 403, "forbidden", "no network nope")
				return true
			}
			_, created, err := f.Create(ctx, request(t))
			if err == nil || created != (tt.left > 0) || len(f.things)-before != tt.left {
				t.Errorf("created %v, %v; left are %d parts", created, err, len(f.things)-before)
			}
			if f.said.Said(event.Info, "its parts that were made are deleted again") != (tt.left == 0) {
				t.Errorf("said %v", f.said.Notes())
			}
		})
	}
}
