package gce_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// onSimulator runs a simulator, and a Provider that talks to it.
func onSimulator(t *testing.T, backend string) (*sim.Server, *gce.Provider) {
	t.Helper()
	s, err := sim.Start(t.Context(), sim.Config{Dir: t.TempDir(), Step: time.Millisecond, Backend: backend})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	client := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, ComputeEndpoint: s.URL() + "/compute/v1/", Sink: new(testkit.Recorder), Clock: testkit.NewFastClock()})
	t.Cleanup(client.Close)
	return s, gce.New(client, "")
}

// The simulator's VMs tell their numbers, which do not follow their names.
func TestSlicesOnTheSimulator(t *testing.T) {
	t.Parallel()
	s, p := onSimulator(t, "process")
	r := request(t)
	if _, created, err := p.Create(t.Context(), r); err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	var res provision.Resource
	testkit.Eventually(t, "two slices that are ready", func() bool {
		var err error
		res, err = p.Get(t.Context(), r.ID)
		return err == nil && res.Life == provision.Active && res.ReadySlices() == 2
	})
	for i, g := range s.Status().Groups {
		for _, vm := range g.VMs {
			w := res.Slices[i].Workers[vm.Worker]
			if w.Name != vm.Name || w.External == "" {
				t.Errorf("%s: worker %d is %+v, want VM %s", g.ID, vm.Worker, w, vm.Name)
			}
			keys, _, err := p.HostKeys(t.Context(), res.Slices[i], vm.Worker)
			if err != nil || len(keys) == 0 {
				t.Errorf("%s: host keys %q of worker %d, %v", g.ID, keys, vm.Worker, err)
			}
		}
		if slices.IsSortedFunc(res.Slices[i].Workers, func(a, b tpu.Worker) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("%s: the workers are in the order of their names: %+v", g.ID, res.Slices[i].Workers)
		}
	}
	if deleted, err := p.Delete(t.Context(), r.ID, provision.DeleteOptions{OnlyRun: "m"}); !deleted || err != nil {
		t.Errorf("deleted %v, %v", deleted, err)
	}
	if left := s.Status().Groups; len(left) > 0 {
		t.Errorf("left are %+v", left)
	}
}

// The Provider reports what happens to a slice in the simulator.
func TestLivesOnTheSimulator(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tier   provision.Tier
		before string // a fault
		after  string // one, once the slice is active
		life   provision.Life
		word   string
	}{
		"capacity":    {provision.OnDemand, "no-capacity", "", provision.Waiting, "WAITING_FOR_CAPACITY"},
		"flex-start":  {provision.FlexStart, "no-capacity", "", provision.Waiting, "WAITING_FOR_CAPACITY"},
		"quota":       {provision.OnDemand, "group-quota", "", provision.Waiting, "WAITING_FOR_QUOTA"},
		"error":       {provision.OnDemand, "group-error", "", provision.Failed, "FAILED"},
		"stuck":       {provision.OnDemand, "group-stuck worker=1", "", provision.Provisioning, "PROVISIONING"},
		"degraded":    {provision.OnDemand, "group-topology state=ACTIVE_DEGRADED", "", provision.Active, "ACTIVE_DEGRADED"},
		"host":        {provision.OnDemand, "group-no-recovery", "group-host-error group=m-0", provision.Recovering, "REACTIVATING"},
		"reservation": {provision.ReservationBound, "group-no-recovery", "group-host-error group=m-0", provision.Recovering, "REACTIVATING"},
		"preempted":   {provision.Spot, "", "group-preempt group=m-0", provision.Suspended, "PREEMPTED"},
		"over":        {provision.FlexStart, "", "group-run-ends group=m-0", provision.Suspended, "RUN_DURATION_OVER"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := onSimulator(t, "none")
			inject := func(text string) {
				if text == "" {
					return
				}
				f, err := sim.ParseFault(text)
				testkit.Must(t, err)
				_, err = s.Inject(f)
				testkit.Must(t, err)
			}
			r := request(t)
			r.NodeCount, r.Nodes, r.Tier = 1, []string{"m-0"}, tt.tier
			switch tt.tier {
			case provision.FlexStart:
				r.MaxRunDuration = time.Hour
			case provision.ReservationBound:
				r.Reservation = "r"
			}
			inject(tt.before)
			_, _, err := p.Create(t.Context(), r)
			testkit.Must(t, err)
			var res provision.Resource
			until := func(life provision.Life, word string) {
				t.Helper()
				testkit.Eventually(t, word, func() bool {
					var err error
					res, err = p.Get(t.Context(), r.ID)
					return err == nil && res.Life == life && res.State == word
				})
			}
			if tt.after != "" {
				until(provision.Active, "ACTIVE")
				if (tt.tier == provision.FlexStart) == res.Until.IsZero() {
					t.Errorf("ends %s", res.Until)
				}
				inject(tt.after)
			}
			until(tt.life, tt.word)
			if _, err := p.Delete(t.Context(), r.ID, provision.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}
