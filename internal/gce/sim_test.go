package gce_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"multihost/internal/gce"
	"multihost/internal/provision"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/tpu"
)

// The Provider reports what happens to a slice in the simulator, and whether the slice is
// then lost.
func TestLivesOnTheSimulator(t *testing.T) {
	t.Parallel()
	none := provision.Decision{}
	lost := func(cause provision.Loss, why string) provision.Decision {
		return provision.Decision{Step: provision.StepRecreate, Loss: cause, Why: why}
	}
	for name, tt := range map[string]struct {
		tier   provision.Tier
		before string
		after  string // fault once the slice is active
		life   provision.Life
		word   string
		want   provision.Decision // zero: no loss
	}{
		"capacity":    {provision.OnDemand, "no-capacity", "", provision.Waiting, "WAITING_FOR_CAPACITY", none},
		"flex-start":  {provision.FlexStart, "no-capacity", "", provision.Waiting, "WAITING_FOR_CAPACITY", none},
		"quota":       {provision.OnDemand, "group-quota", "", provision.Waiting, "WAITING_FOR_QUOTA", none},
		"error":       {provision.OnDemand, "group-error", "", provision.Failed, "FAILED", lost(provision.Infrastructure, "the slice request FAILED: Instance creation failed: Internal error. Please try again or contact Google Support. (Code: '0')")},
		"stuck":       {provision.OnDemand, "group-stuck worker=1", "", provision.Provisioning, "PROVISIONING", none},
		"degraded":    {provision.OnDemand, "group-topology state=ACTIVE_DEGRADED", "", provision.Active, "ACTIVE_DEGRADED", none},
		"host":        {provision.OnDemand, "group-no-recovery", "group-host-error group=m-0", provision.Recovering, "REACTIVATING", none},
		"reservation": {provision.ReservationBound, "group-no-recovery", "group-host-error group=m-0", provision.Recovering, "REACTIVATING", none},
		"preempted":   {provision.Spot, "", "group-preempt group=m-1", provision.Suspended, "PREEMPTED", lost(provision.Preempted, "slice m-1 is PREEMPTED")},
		"over":        {provision.FlexStart, "", "group-run-ends group=m-1", provision.Suspended, "RUN_DURATION_OVER", lost(provision.Expired, "the slice request is RUN_DURATION_OVER")},
	} {
		t.Run(name, func(t *testing.T) {
			c := simcloud.Start(t, sim.Config{})
			p := gce.New(c.GCP, "")
			inject := func(text string) {
				if text == "" {
					return
				}
				f, err := sim.ParseFault(text)
				testkit.Must(t, err)
				c.Fault(f)
			}
			r := request(t)
			r.Tier = tt.tier
			switch tt.tier {
			case provision.FlexStart:
				r.MaxRunDuration = time.Hour
			case provision.ReservationBound:
				r.Reservation = "r"
				reserve(t, c.Sim)
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
				if end := tpu.FirstEnd(res.Slices); !end.Equal(res.Until) || end.IsZero() != (r.MaxRunDuration == 0) {
					t.Errorf("its slices end at %s, want %s", end, res.Until)
				}
				inject(tt.after)
			}
			until(tt.life, tt.word)
			if d := provision.Decide(res.Sight(nil)); tt.want != none && d != tt.want {
				t.Errorf("got %+v, want %+v", d, tt.want)
			}
			if _, err := p.Delete(t.Context(), r.ID, provision.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// reserve makes a reservation r of 8 VMs.
func reserve(t *testing.T, cloud http.Handler) {
	t.Helper()
	const body = `{"name":"r","specificReservationRequired":true,"deploymentType":"DENSE","specificReservation":{"count":"8","instanceProperties":{"machineType":"tpu7x-standard-4t"}}}`
	answer := httptest.NewRecorder()
	cloud.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/compute/v1/projects/"+sim.DefaultProject+"/zones/"+sim.DefaultZone+"/reservations", strings.NewReader(body)))
	if answer.Code != http.StatusOK {
		t.Fatal(answer.Body)
	}
}
