package gce_test

import (
	"strings"
	"testing"
	"time"

	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// The whole life of a resource on the simulator. Its VMs run the startup script in a real
// shell. The workers are in the order of their numbers. The slice recovers from a failed
// host. In the end nothing is left.
func TestOnTheSimulator(t *testing.T) {
	testkit.NeedWorker(t)
	server, err := sim.Start(t.Context(), sim.Config{Step: 20 * time.Millisecond, Dir: t.TempDir()})
	testkit.Must(t, err)
	defer func() { testkit.Must(t, server.Close()) }()
	said := &testkit.Recorder{}
	client := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, Sink: said, ComputeEndpoint: server.Env()["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"]})
	defer client.Close()
	p := gce.New(client, "")
	ctx := t.Context()
	fault := func(text string) {
		t.Helper()
		f, err := sim.ParseFault(text)
		testkit.Must(t, err)
		_, err = server.Inject(f)
		testkit.Must(t, err)
	}
	until := func(what string, done func(provision.Resource) bool) (last provision.Resource) {
		t.Helper()
		testkit.Eventually(t, what, func() bool {
			last, err = p.Get(ctx, "m")
			testkit.Must(t, err)
			return done(last)
		})
		return last
	}
	r := request(t)
	r.Tier = provision.OnDemand
	fault("no-capacity")
	res, created, err := p.Create(ctx, r)
	if err != nil || !created {
		t.Fatalf("got %+v, %v", res, err)
	}
	until("no capacity", func(r provision.Resource) bool {
		why := p.Explain(ctx, r, 0) // the advice stays right after the deletion of the request
		return r.Life == provision.Waiting && strings.Contains(why.Reason, "does not have enough resources") && why.Again == "try another zone with --zone=ZONE, or another tier: --flex-start"
	})
	_, err = server.Clear("all")
	testkit.Must(t, err)
	res, all, err := provider.Wait(ctx, p, "m", provider.WaitOptions{Clock: gcp.SystemClock, Sink: said, Poll: gcp.Backoff{First: 50 * time.Millisecond, Max: 50 * time.Millisecond}})
	if err != nil || len(all) != 2 || res.Life != provision.Active {
		t.Fatalf("got %+v, %v", res, err)
	}
	for i, g := range server.Status().Groups {
		s := all[i]
		for _, vm := range g.VMs {
			if w := s.Workers[vm.Worker]; w.Name != vm.Name || w.External == "" {
				t.Errorf("%s: worker %d is %+v, want VM %s", g.ID, vm.Worker, w, vm.Name)
			}
			if keys, name, err := p.HostKeys(ctx, s, vm.Worker); err != nil || len(keys) == 0 || name != vm.Name {
				t.Errorf("got %q of %q, %v", keys, name, err)
			}
		}
		// The simulator's workers are never in the order of their names.
		if len(s.Workers) != 2 || s.Workers[0].Name < s.Workers[1].Name {
			t.Errorf("got %+v", s.Workers)
		}
	}
	if user, changed, err := p.Admit(ctx, all[0], provision.Login{Name: "ann", PublicKey: key}); user != "ann" || !changed || err != nil {
		t.Errorf("got %q, %v, %v", user, changed, err)
	}
	fault("group-no-recovery")
	fault("group-host-error group=m-0")
	res = until("a host fails", func(r provision.Resource) bool { return r.Life == provision.Recovering })
	if d := provision.Decide(res.Sight(nil)); d.Step != provision.StepWait || d.Loss != provision.Infrastructure {
		t.Errorf("got %+v", d)
	}
	_, err = server.Clear("all")
	testkit.Must(t, err)
	until("it has recovered", func(r provision.Resource) bool { return r.Life == provision.Active && r.ReadySlices() == 2 })
	if deleted, err := p.Delete(ctx, "m", provision.DeleteOptions{OnlyRun: "m"}); !deleted || err != nil {
		t.Errorf("got %v, %v", deleted, err)
	}
	if list, err := p.List(ctx); err != nil || len(list) != 0 || len(server.Status().Groups) != 0 {
		t.Errorf("got %+v, %v; left are %+v", list, err, server.Status().Groups)
	}
}
