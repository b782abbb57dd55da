package job

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

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
		{"v2-8", "us-central1-c", func(*provision.Request) {}, 0, "; price unknown for us-central1-c; "},
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
		_, cloud := onHardCloud(nil)
		e := Asking(r, "p", tt.zone, tt.mtu, untilDeleted(cloud, "q"), false)
		if !strings.Contains(e.Text, tt.want) || strings.Contains(e.Text, "\n") {
			t.Errorf("%s\nwant %s", e.Text, tt.want)
		}
		if (e.Hourly == nil) != strings.Contains(e.Text, "price unknown") {
			t.Errorf("usd_per_hour is %v: %s", e.Hourly, e.Text)
		}
		if dry := Asking(r, "p", tt.zone, tt.mtu, untilDeleted(cloud, "q"), true); dry.Text != strings.Replace(e.Text, "asking for", "would ask for", 1) {
			t.Errorf("of a dry run: %s", dry.Text)
		}
	}
}

// README.md shows the line of its own example.
func TestTheLineInTheREADME(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	testkit.Must(t, err)
	typ, err := tpu.ParseType("v5litepod-16")
	testkit.Must(t, err)
	e := Asking(provision.Request{ID: "train", Type: typ, Network: "mtu9k"}, "p", "us-east5-a", 0, BilledUntil(JobOptions{Lease: 30 * time.Minute}, false), false)
	if !strings.Contains(string(readme), "\nmultihost: "+e.Text+"\n") {
		t.Errorf("README.md does not have the line %s", e.Text)
	}
}

func TestWhatEndsTheBill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		o     JobOptions
		alone bool
		want  string
	}{
		{JobOptions{Lease: 30 * time.Minute}, false, "the command has ended, or 30m later if this machine is gone (--lease)"},
		{JobOptions{Lease: time.Hour, TTL: 24 * time.Hour}, false, "the command has ended, or 1h later if this machine is gone (--lease), at the latest 24h after the request (--ttl)"},
		{JobOptions{}, false, "this machine deletes them after the end of the command (--lease=0)"},
		{JobOptions{Keep: true, Lease: time.Hour}, false, "you delete them (--keep)"},
		{JobOptions{Keep: true, KeepOnFailure: true, TTL: time.Hour}, false, "you delete them (--keep), at the latest 1h after the request (--ttl)"},
		{JobOptions{KeepOnFailure: true, Lease: time.Hour}, false, "the command has ended, after a failure until you delete them (--keep-on-failure), or 1h later if this machine is gone (--lease)"},
		{JobOptions{KeepOnFailure: true, KeepFor: 2 * time.Hour}, true, "the command has ended on all workers, after a failure 2h longer (--keep-on-failure)"},
		{JobOptions{Lease: time.Hour, TTL: time.Hour}, true, "the command has ended on all workers, at the latest 1h after the request (--ttl)"},
		{JobOptions{Run: RunOptions{Detach: true}, Lease: 30 * time.Minute}, false, "30m after the command has ended (--lease)"},
		{JobOptions{Run: RunOptions{Detach: true}}, false, "you delete them (--detach, --lease=0)"},
	} {
		if got := BilledUntil(tt.o, tt.alone); got != tt.want {
			t.Errorf("billed until %s\nwant %s", got, tt.want)
		}
	}
}

// Before the first request the user is told and asked, before a further one for the same
// neither. A job that has taken over slices and loses them tells what it asks for then, and
// asks nobody, who may be asleep.
func TestARequestIsAnnouncedAndConfirmedOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story           string
		worked          bool
		no              error
		changed         bool
		lines, asked    int
		declinedAtFirst bool
	}{
		{story: "the first request and one more", lines: 1, asked: 1},
		{story: "the further request is for something else", changed: true, lines: 2, asked: 1},
		{story: "slices that were taken over are lost", worked: true, lines: 1},
		{story: "the user says no", no: errors.New("no"), lines: 1, asked: 1, declinedAtFirst: true},
	} {
		var sink testkit.Recorder
		asked := 0
		q, _ := onHardCloud(nil)
		q.worked, q.Sink = tt.worked, &sink
		q.Confirm = func(context.Context, string) error {
			asked++
			return tt.no
		}
		var no *declined
		if err := q.announce(t.Context()); errors.As(err, &no) != tt.declinedAtFirst || !errors.Is(err, tt.no) {
			t.Errorf("%s: %v", tt.story, err)
		}
		if tt.changed {
			q.o.Request.Tier = provision.Spot
		}
		if err := q.announce(t.Context()); err != nil {
			t.Errorf("%s: at the second time: %v", tt.story, err)
		}
		lines := 0
		for _, e := range sink.Events() {
			if _, ok := e.(event.Request); ok {
				lines++
			}
		}
		if lines != tt.lines || asked != tt.asked {
			t.Errorf("%s: %d lines, asked %d times, want %d and %d", tt.story, lines, asked, tt.lines, tt.asked)
		}
	}
}

// Only what is not there is asked for. Whoever may not look is told more by the request.
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
		_, h := onHardCloud(map[string][]error{"get": {tt.err}})
		h.res.State = tt.state
		there, err := isThere(t.Context(), (&workers.Deps{
			Reach: &workers.Reach{Cloud: h},
		}), "q")
		if there != tt.there || !errors.Is(err, tt.want) {
			t.Errorf("state %q, error %v: there %v, %v", tt.state, tt.err, there, err)
		}
	}
}

// What slices cost is that of the tier that this command asked for; of others the price is
// that on demand.
func TestWhatSlicesAreBilled(t *testing.T) {
	t.Parallel()
	slice := func(accelerator, zone string) tpu.Slice {
		return tpu.Slice{Name: "t", UID: "1", Type: accelerator, Zone: zone}
	}
	v4 := slice("v4-8", "us-central2-b")
	for _, tt := range []struct {
		tier string
		all  []tpu.Slice
		want string
	}{
		{"", []tpu.Slice{v4, v4}, "2 × v4-8, list price $25.76 an hour, on demand, in us-central2-b (" + tpu.PriceDate + ")"},
		{"spot", []tpu.Slice{v4, v4}, "2 × v4-8, list price $7.73 an hour, spot, in us-central2-b (" + tpu.PriceDate + ")"},
		{"reserved", []tpu.Slice{v4}, "1 × v4-8, price unknown for reserved in us-central2-b"},
		{"", []tpu.Slice{v4, slice("v2-8", "us-central1-c")}, "1 × v4-8, 1 × v2-8, price unknown for us-central1-c"},
		{"", []tpu.Slice{{Name: "host"}}, ""},
	} {
		if got := follow.Billed(tt.tier, tt.all); got != tt.want {
			t.Errorf("billed %q, want %q", got, tt.want)
		}
	}
}

// A no leaves a lost resource of an earlier runner as it is.
func TestNothingIsDeletedForARequestThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	q, h := onHardCloud(nil)
	q.worked = false
	q.Confirm = func(context.Context, string) error { return errors.New("no") }
	_, err := q.ready(t.Context(), func(*stage.Failure) error { return nil }, nil)
	testkit.Must(t, err) // the slices of the earlier runner are there
	q.worked, h.fails, h.calls = false, map[string][]error{"wait": {errSuspended}}, nil
	_, err = q.ready(t.Context(), func(*stage.Failure) error { return nil }, nil)
	var no *declined
	if !errors.As(err, &no) || strings.Join(h.calls, " ") != "wait get" {
		t.Errorf("ended with %v after the calls %v, want a no after wait and get", err, h.calls)
	}
}
