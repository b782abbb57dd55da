package announce

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A cloud has one queued resource.
type cloud struct {
	provision.Provider
	res qr.Resource
	err error
}

func (c cloud) Get(context.Context, string) (provision.Resource, error) {
	return c.res.Neutral(), c.err
}

func (c cloud) Undoing(id string, _ ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Delete: "multihost qr delete " + id + " --force"}}
}

func TestTheLineBeforeARequest(t *testing.T) {
	t.Parallel()
	day := tpu.PriceDate
	const ends = "you delete them: multihost qr delete q --force"
	for _, tt := range []struct {
		accelerator, zone string
		change            func(*provision.Request)
		mtu               int
		want              string
	}{
		{"v4-8", "us-central2-b", func(*provision.Request) {}, 0,
			"asking for 1 × v4-8 (1 worker, 4 chips), on demand, in us-central2-b, network default; list price $12.88 an hour (" + day + "); billed until " + ends},
		{"v6e-256", "us-east5-a", func(r *provision.Request) { r.NodeCount, r.Tier, r.Network = 2, provision.Spot, "mtu9k" }, 8896,
			"asking for 2 × v6e-256 (128 workers, 512 chips), spot, in us-east5-a, network mtu9k (MTU 8896); list price $622.08 an hour (" + day + "); billed until " + ends},
		{"v6e-4", "southamerica-west1-a", func(r *provision.Request) { r.Tier = provision.Spot }, 0,
			", spot, in southamerica-west1-a, network default; price unknown for spot in southamerica-west1-a; "},
		{"v4-8", "us-central2-b", func(r *provision.Request) { r.Reservation = "r-1" }, 0,
			", reserved (r-1), in us-central2-b, network default; price unknown for reserved in us-central2-b; "},
		{"v4-8", "us-central2-b", func(r *provision.Request) { r.Tier = provision.BestEffort }, 0, ", best effort, in us-central2-b, network default; price unknown for best effort in us-central2-b; "},
		{"v4-8", "us-central2-b", func(r *provision.Request) { r.Tier = provision.Guaranteed }, 0, ", guaranteed, in us-central2-b, network default; price unknown for guaranteed in us-central2-b; "},
		{"v5p-8", "europe-west4-b", func(r *provision.Request) { r.Tier, r.MaxRunDuration = provision.FlexStart, 24*time.Hour }, 0,
			"price unknown for flex-start in europe-west4-b; billed until " + ends + ", at the latest 24h after they begin to run (--max-run-duration)"},
		{"v2-8", "us-central1-c", func(*provision.Request) {}, 0, "; price unknown for v2; "},
		{"tpu7x-16", "us-central1-c", func(r *provision.Request) { r.Tier = provision.Spot }, 0, "; price unknown for tpu7x; "},
		{"ct6e-standard-4t:2x4", "us-east5-a", func(r *provision.Request) {
			r.NodeCount, r.Apart, r.SlicesDeadline = 2, true, 30*time.Minute
		}, 0, "asking for 2 × ct6e-standard-4t:2x4 (4 workers, 16 chips), on demand, in us-east5-a, network default; list price $43.20 an hour (" + tpu.PriceDate + "); billed until " + ends +
			"; if slices are missing 30m after the first one has come, all are given back (--slices-deadline)"},
		{"ct6e-standard-4t:2x4", "us-east5-a", func(r *provision.Request) { r.Apart, r.SlicesDeadline = true, 30*time.Minute }, 0, "billed until " + ends},
		{"v5litepod-16", "us-central2-b", func(r *provision.Request) { r.Tier = provision.Spot }, 0, "; price unknown for us-central2-b; "},
		{"v4-8", "us-central2-b", func(r *provision.Request) { r.Network = "projects/p/global/networks/n" }, 0, ", network n; "},
		{"v4-8", "us-central2-b", func(r *provision.Request) {
			r.Network = "https://www.googleapis.com/compute/v1/projects/host/global/networks/n"
		}, 0,
			", network projects/host/global/networks/n; "},
		{"v4-8", "us-central2-b", func(r *provision.Request) { r.Subnetwork = "s" }, 0, ", subnetwork s; "},
		{"v4-8", "us-central2-b", func(r *provision.Request) { r.Network, r.Subnetwork = "n", "s" }, 0, ", network n, subnetwork s; "},
		{"v4-8", "us-central2-b", func(r *provision.Request) { r.Interfaces = []provision.Interface{{Network: "a"}, {Subnetwork: "b"}} }, 0, ", network a and subnetwork b; "},
	} {
		typ, err := tpu.ParseType(tt.accelerator)
		testkit.Must(t, err)
		r := provision.Request{ID: "q", Type: typ}
		tt.change(&r)
		e := Asking(r, "p", tt.zone, tt.mtu, untilDeleted(cloud{}, "q"), false)
		if !strings.Contains(e.Text, tt.want) || strings.Contains(e.Text, "\n") {
			t.Errorf("%s\nwant %s", e.Text, tt.want)
		}
		if e.MaxRun != r.MaxRunDuration {
			t.Errorf("max_run_ns is %v, want %v", e.MaxRun, r.MaxRunDuration)
		}
		if (e.Hourly == nil) != strings.Contains(e.Text, "price unknown") {
			t.Errorf("usd_per_hour is %v: %s", e.Hourly, e.Text)
		}
		if dry := Asking(r, "p", tt.zone, tt.mtu, untilDeleted(cloud{}, "q"), true); dry.Text != strings.Replace(e.Text, "asking for", "would ask for", 1) {
			t.Errorf("of a dry run: %s", dry.Text)
		}
	}
}

// README.md shows the line that its own example prints.
func TestTheLineInTheREADME(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	testkit.Must(t, err)
	typ, err := tpu.ParseType("v5litepod-16")
	testkit.Must(t, err)
	e := Asking(provision.Request{ID: "train", Type: typ, Network: "mtu9k"}, "p", "us-east5-a", 0, BilledUntil(Bill{Lease: 30 * time.Minute}, false), false)
	if !strings.Contains(string(readme), "\nmultihost: "+e.Text+"\n") {
		t.Errorf("README.md does not have the line %s", e.Text)
	}
}

func TestWhatEndsTheBill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		o     Bill
		alone bool
		want  string
	}{
		{Bill{Lease: 30 * time.Minute}, false, "the command has ended, or 30m later if this machine is gone (--lease)"},
		{Bill{Lease: time.Hour, TTL: 24 * time.Hour}, false, "the command has ended, or 1h later if this machine is gone (--lease), at the latest 24h after the request (--ttl)"},
		{Bill{}, false, "this machine deletes them after the end of the command (--lease=0)"},
		{Bill{Keep: true, Lease: time.Hour}, false, "you delete them (--keep)"},
		{Bill{Keep: true, KeepOnFailure: true, TTL: time.Hour}, false, "you delete them (--keep), at the latest 1h after the request (--ttl)"},
		{Bill{KeepOnFailure: true, Lease: time.Hour}, false, "the command has ended, after a failure until you delete them (--keep-on-failure), or 1h later if this machine is gone (--lease)"},
		{Bill{KeepOnFailure: true, KeepFor: 2 * time.Hour}, true, "the command has ended on all workers, after a failure 2h longer (--keep-on-failure)"},
		{Bill{Lease: time.Hour, TTL: time.Hour}, true, "the command has ended on all workers, at the latest 1h after the request (--ttl)"},
		{Bill{Detach: true, Lease: 30 * time.Minute}, false, "30m after the command has ended (--lease)"},
		{Bill{Detach: true}, false, "you delete them (--detach, --lease=0)"},
	} {
		if got := BilledUntil(tt.o, tt.alone); got != tt.want {
			t.Errorf("billed until %s\nwant %s", got, tt.want)
		}
	}
}

// Only a missing resource is announced. If the user may not read it, the error of the
// request says more.
func TestWhetherAResourceIsThere(t *testing.T) {
	t.Parallel()
	away := &gcp.Error{Class: gcp.Unavailable}
	for _, tt := range []struct {
		state string
		err   error
		there bool
		want  error
	}{
		{state: "ACTIVE", there: true},
		{state: "FAILED", there: true},
		{state: "DELETING"},
		{err: &gcp.Error{Class: gcp.NotFound}},
		{err: &gcp.Error{Class: gcp.Permission}},
		{err: away, want: away},
	} {
		d := Deps{Reach: &workers.Reach{Cloud: cloud{res: qr.Resource{State: tt.state}, err: tt.err}}}
		there, err := isThere(t.Context(), d, "q")
		if there != tt.there || !errors.Is(err, tt.want) {
			t.Errorf("state %q, error %v: there %v, %v", tt.state, tt.err, there, err)
		}
	}
}
