package gc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/workers"
)

// owned is a ClusterInventory that returns all and err.
type owned struct {
	all []gke.Info
	err error
}

func (o owned) Owned(context.Context) ([]gke.Info, error) { return o.all, o.err }

func TestIdleClustersAreListedAndNeverDeleted(t *testing.T) {
	t.Parallel()
	typed := &stage.Invocation{Clock: testkit.NewJumpClock(), Sink: event.Discard}
	d := Deps{Reach: &workers.Reach{Invocation: typed, Place: provision.Place{Project: "p", Zone: "us-west4-a"}}}
	usd := 19.2
	of := func(name, region, user string, workloads []string, unread string) gke.Info {
		return gke.Info{Name: name, Region: region, State: "RUNNING", User: user, Workloads: workloads, Unread: unread,
			Pools: []gke.Pool{{Name: name + "-np-0", Type: "v5litepod-16"}}, Cost: gke.Cost{Slices: &usd, Parts: []gke.Part{{Name: "default-pool", Text: "default-pool: price unknown"}}}}
	}
	all := owned{all: []gke.Info{
		of("idle", "us-west4", "ann", []string{}, ""), of("busy", "us-west4", "ann", []string{"default/train"}, ""), of("unknown", "us-west4", "ann", nil, "no route"),
		of("far", "us-east5", "ann", []string{}, ""), of("bobs", "us-west4", "bob", []string{}, ""),
	}}
	left, err := idleClusters(t.Context(), d, GCOptions{Clusters: all, User: "ann"})
	testkit.Must(t, err)
	var names []string
	for _, l := range left {
		names = append(names, l.Name)
		if l.Useless || l.Slices != 1 || l.Type != "v5litepod-16" || l.Hourly != nil || len(l.Parts) != 1 || l.Parts[0].Hourly != nil {
			t.Errorf("%+v", l)
		}
	}
	if !slices.Equal(names, []string{"idle", "unknown"}) || !strings.Contains(left[0].Evidence, "no pod asks") || !strings.Contains(left[1].Evidence, "not known") {
		t.Errorf("listed %v: %+v", names, left)
	}
	all.all[0].Created, all.all[2].Created = d.Clock.Now().Add(-2*time.Hour), d.Clock.Now().Add(-time.Minute)
	left, err = idleClusters(t.Context(), d, GCOptions{Clusters: all, User: "ann", OlderThan: time.Hour})
	if err != nil || len(left) != 1 || left[0].Name != "idle" {
		t.Errorf("older than an hour: %+v, %v", left, err)
	}
	if left, err := idleClusters(t.Context(), d, GCOptions{Clusters: owned{err: &gcp.Error{Class: gcp.Permission}}}); err != nil || left != nil {
		t.Errorf("without the API: %v, %v", left, err)
	}
	if _, err := idleClusters(t.Context(), d, GCOptions{Clusters: owned{err: errors.New("broken")}}); err == nil {
		t.Error("an error is lost")
	}
}
