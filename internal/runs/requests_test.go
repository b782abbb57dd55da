package runs

import (
	"testing"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/lease"
	"multihost/internal/provision"
	"multihost/internal/qr"
)

func TestWhenGone(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	gone := func(t lease.Terms, begun bool, until time.Time) string {
		return atTheLatest(whenGone(t, begun), lastMoment(t.TTL, time.Hour, until, now))
	}
	for _, row := range []struct {
		terms lease.Terms
		begun bool
		want  string
	}{
		{lease.Terms{}, false, "never by itself"},
		{lease.Terms{Lease: time.Hour}, false, "never by itself"},
		{lease.Terms{Adopt: 30 * time.Minute}, true, "never by itself"},
		{lease.Terms{Adopt: 30 * time.Minute, Lease: time.Hour}, false, "30m after its boot"},
		{lease.Terms{Adopt: 30 * time.Minute, Lease: time.Hour}, true, "1h after its end"},
		{lease.Terms{Lease: time.Hour, KeepOnFailure: true}, true, "1h after its end, never after a failure"},
		{lease.Terms{Lease: time.Hour, KeepOnFailure: true, KeepFor: 2 * time.Hour}, true, "1h after its end, 2h after a failure"},
		{lease.Terms{Lease: time.Hour, TTL: 3 * time.Hour}, true, "1h after its end, at the latest in 2h00m"},
		{lease.Terms{TTL: 3 * time.Hour}, true, "in 2h00m"},
		{lease.Terms{TTL: time.Minute}, true, "in 0 s"},
	} {
		if got := gone(row.terms, row.begun, time.Time{}); got != row.want {
			t.Errorf("%+v, begun %t: %q, want %q", row.terms, row.begun, got, row.want)
		}
		if back, ok := lease.ReadTerms(row.terms.Metadata(program.Set{}, nil)); ok != row.terms.On() || ok && gone(back, row.begun, time.Time{}) != row.want {
			t.Errorf("%+v is read back as %+v, %t", row.terms, back, ok)
		}
	}
	until := now.Add(90 * time.Minute) // when the provider takes the slices away
	for want, terms := range map[string]lease.Terms{
		"in 1h30m": {},
		"1h after its end, at the latest in 1h30m": {Lease: time.Hour, TTL: 3 * time.Hour},
		"in 1h00m": {TTL: 2 * time.Hour},
	} {
		if got := gone(terms, true, until); got != want {
			t.Errorf("%+v, until %s: %q, want %q", terms, until, got, want)
		}
	}
	if got := gone(lease.Terms{}, true, now.Add(-time.Minute)); got != "in 0 s" {
		t.Errorf("a moment that has passed: %q", got)
	}
}

func TestWaitsFor(t *testing.T) {
	t.Parallel()
	ready := qr.SliceState{State: "READY", Ready: true}
	for want, res := range map[string]qr.Resource{
		"FAILED, holds quota":          {State: "FAILED"},
		"waits: ACCEPTED":              {State: "ACCEPTED", NodeCount: 2},
		"boots: 1/2 slices ready":      {State: "ACTIVE", NodeCount: 2, Slices: []qr.SliceState{ready, {}}},
		"ready, no command":            {State: "ACTIVE", NodeCount: 2, Slices: []qr.SliceState{ready, ready}},
		"SUSPENDED, holds quota":       {State: "SUSPENDED", NodeCount: 1, Slices: []qr.SliceState{{}}},
		"waits: WAITING_FOR_RESOURCES": {State: "WAITING_FOR_RESOURCES", NodeCount: 1},
	} {
		if got := waitsFor(res.Neutral()); got != want {
			t.Errorf("%+v: %q, want %q", res, got, want)
		}
	}
	remains := provision.Resource{State: "WITHOUT_GROUPS", Life: provision.Requested, Free: true}
	if got := waitsFor(remains); got != "WITHOUT_GROUPS, costs nothing" {
		t.Errorf("remains: %q", got)
	}
}

func TestWhoseWorkersWereAllAsked(t *testing.T) {
	t.Parallel()
	state := func(states ...string) (res qr.Resource) {
		for _, s := range states {
			res.Slices = append(res.Slices, qr.SliceState{State: s, Ready: s == "READY"})
		}
		return res
	}
	for _, row := range []struct {
		res  qr.Resource
		want bool
	}{
		{state(), true},
		{state("CREATING", "READY"), true},
		{state("READY", "REPAIRING"), false}, // a command may be running there
		{state("RESTARTING"), false},
		{qr.Resource{State: "SUSPENDED", Slices: state("PREEMPTED").Slices}, true},
	} {
		if got := allAsked(row.res.Neutral()); got != row.want {
			t.Errorf("%+v: %t", row.res, got)
		}
	}
}
