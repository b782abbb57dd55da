package gke_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/provision"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/tpu"
)

func wanted(t *testing.T, kind string, number int) gke.Options {
	t.Helper()
	ty, err := tpu.ParseType(kind)
	testkit.Must(t, err)
	return gke.Options{Name: "c", Type: ty, Slices: number, User: "ada"}
}

// free is a Reader of a cluster without workloads.
func free(context.Context, gke.Endpoint) ([]gke.Pod, error) { return nil, nil }

// busy is a Reader of a cluster with one pod on each of these node pools.
func busy(pools ...string) gke.Reader {
	return func(context.Context, gke.Endpoint) (pods []gke.Pod, err error) {
		for i, p := range pools {
			pods = append(pods, gke.Pod{Namespace: "default", Name: fmt.Sprintf("train-%d", i), Pool: p})
		}
		return pods, nil
	}
}

func apply(ctx context.Context, c *gke.Client, o gke.Options) error {
	plan, err := c.Plan(ctx, o)
	if err != nil {
		return err
	}
	return c.Apply(ctx, plan)
}

// shape returns the state of a cluster and of its slices in one line.
func shape(t *testing.T, c *gke.Client) string {
	t.Helper()
	info, err := c.Show(t.Context(), "c")
	var missing *gke.MissingError
	if errors.As(err, &missing) {
		return "nothing"
	}
	testkit.Must(t, err)
	text := info.State
	for _, p := range info.Pools {
		if p.Number >= 0 {
			text += fmt.Sprintf(" %s:%s:%s:%s", p.Name, p.Type, p.Tier, p.State)
		}
	}
	return text
}

// writes counts the requests that change something.
func writes(s *sim.Server) int {
	n := 0
	for _, r := range s.Requests() {
		if r.Method != http.MethodGet {
			n++
		}
	}
	return n
}

func fault(t *testing.T, c *simcloud.Cloud, text string) {
	t.Helper()
	f, err := sim.ParseFault(text)
	testkit.Must(t, err)
	c.Fault(f)
}

const two = "RUNNING c-np-0:v5litepod-16:on-demand:RUNNING c-np-1:v5litepod-16:on-demand:RUNNING"

func TestLifeOfACluster(t *testing.T) {
	cloud := simcloud.Start(t, sim.Config{})
	c := gke.New(cloud.GCP, free)
	if got := c.Context("c"); got != "gke_multihost-sim_us-central2_c" {
		t.Errorf("context %s", got)
	}
	o := wanted(t, "v5litepod-16", 2)
	testkit.Must(t, apply(t.Context(), c, o))
	if got := shape(t, c); got != two {
		t.Errorf("made %s", got)
	}
	before := writes(cloud.Sim)
	testkit.Must(t, apply(t.Context(), c, o))
	if n := writes(cloud.Sim); n != before || !cloud.Log.Said(event.Info, "nothing to change: cluster c is as wanted") {
		t.Errorf("the second time sends %d changes", n-before)
	}
	o.Slices = 3
	testkit.Must(t, apply(t.Context(), c, o))
	o.Slices = 1
	testkit.Must(t, apply(t.Context(), c, o))
	if got := shape(t, c); got != "RUNNING c-np-0:v5litepod-16:on-demand:RUNNING" {
		t.Errorf("after one more and two less: %s", got)
	}
	list, err := c.List(t.Context())
	if err != nil || len(list) != 1 || !list[0].Owned || list[0].User != "ada" || list[0].Network != "mtu9k" {
		t.Errorf("list: %+v, %v", list, err)
	}
	d, err := c.Delete(t.Context(), "c", false)
	if err != nil || !d.Exists || !slices.Contains(d.Pools, "c-np-0") {
		t.Errorf("delete: %+v, %v", d, err)
	}
	if d, err = c.Delete(t.Context(), "c", false); err != nil || d.Exists {
		t.Errorf("delete again: %+v, %v", d, err)
	}
	if got := shape(t, c); got != "nothing" {
		t.Errorf("left: %s", got)
	}
}

func TestEveryKindOfPoolIsMade(t *testing.T) {
	for name, change := range map[string]func(*gke.Options){
		"v5litepod-16": func(*gke.Options) {}, "v5litepod-4": func(*gke.Options) {}, "v6e-16": func(o *gke.Options) { o.Tier = provision.Spot },
		"ct6e-standard-8t:2x4": func(*gke.Options) {}, "v4-16": func(o *gke.Options) { o.Reservation = "projects/x/reservations/r" },
		"tpu7x-128": func(*gke.Options) {}, "tpu7x-8": func(*gke.Options) {}, "v5p-16": func(o *gke.Options) { o.Tier = provision.FlexStart },
	} {
		t.Run(name, func(t *testing.T) {
			cloud := simcloud.Start(t, sim.Config{})
			c := gke.New(cloud.GCP, free)
			o := wanted(t, name, 1)
			change(&o)
			testkit.Must(t, apply(t.Context(), c, o))
			info, err := c.Show(t.Context(), "c")
			if err != nil || info.Pools[0].State != "RUNNING" || info.Pools[0].Type != name {
				t.Errorf("made %+v, %v", info.Pools, err)
			}
			plan, err := c.Plan(t.Context(), o)
			if err != nil || !plan.Done() {
				t.Errorf("the second plan: %v\n%s", err, plan)
			}
		})
	}
}

// The error explains why a node pool has no machines. The same command makes the pool again.
func TestStockout(t *testing.T) {
	cloud := simcloud.Start(t, sim.Config{})
	c := gke.New(cloud.GCP, free)
	o := wanted(t, "v5litepod-16", 2)
	fault(t, cloud, "no-capacity group=c-np-1")
	err := apply(t.Context(), c, o)
	var failed *gke.FailedError
	if !errors.As(err, &failed) || gcp.ClassOf(err) != gcp.Capacity || !strings.Contains(err.Error(), `make node pool c-np-1 of cluster "c": the zone has no free machines of this type now`) {
		t.Errorf("got %v of class %v", err, gcp.ClassOf(err))
	}
	if !cloud.Log.Said(event.Warn, "cluster c exists (RUNNING) and is billed, with c-np-0 (RUNNING), c-np-1 (ERROR), default-pool (RUNNING)") {
		t.Errorf("it is not said what is billed: %v", cloud.Log.Notes())
	}
	if _, err := cloud.Sim.Clear("all"); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, apply(t.Context(), c, o))
	if got := shape(t, c); got != two {
		t.Errorf("made %s", got)
	}
}

// Answers may be lost. Apply finds whatever GKE has carried out.
func TestLostAnswers(t *testing.T) {
	cloud := simcloud.Start(t, sim.Config{})
	c := gke.New(cloud.GCP, free)
	fault(t, cloud, "drop-reply method=POST n=3")
	testkit.Must(t, apply(t.Context(), c, wanted(t, "v5litepod-16", 2)))
	if got := shape(t, c); got != two {
		t.Errorf("made %s", got)
	}
	fault(t, cloud, "drop-reply method=DELETE")
	if _, err := c.Delete(t.Context(), "c", false); err != nil {
		t.Error(err)
	}
}

// In some clusters GKE makes one change at a time. A refused change is repeated.
func TestBusyControlPlane(t *testing.T) {
	cloud := simcloud.Start(t, sim.Config{})
	c := gke.New(cloud.GCP, free)
	testkit.Must(t, apply(t.Context(), c, wanted(t, "v5litepod-16", 0)))
	fault(t, cloud, `api-error code=400 method=POST path=*/nodePools n=4 message="Cluster is running incompatible operation operation-1."`)
	testkit.Must(t, apply(t.Context(), c, wanted(t, "v5litepod-16", 2)))
	if got := shape(t, c); got != two {
		t.Errorf("made %s", got)
	}
}

// A command may break off at any moment, before or after a change. The next one continues.
func TestBrokenOffAnywhere(t *testing.T) {
	for n := range 4 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("change %d after %v", n, after), func(t *testing.T) {
				cloud := simcloud.Start(t, sim.Config{})
				c := gke.New(cloud.GCP, free)
				o := wanted(t, "tpu7x-16", 2)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				seen := 0
				cloud.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
					if r.Method == http.MethodGet || ctx.Err() != nil {
						return ctx.Err() != nil && !after && r.Method != http.MethodGet
					}
					if seen++; seen > n {
						cancel(errors.New("interrupted"))
						return !after
					}
					return false
				})
				if err := apply(ctx, c, o); err == nil {
					t.Fatal("it was not broken off")
				}
				cloud.Intercept(func(http.ResponseWriter, *http.Request) bool { return false })
				testkit.Must(t, apply(t.Context(), c, o))
				if got := shape(t, c); got != "RUNNING c-np-0:tpu7x-16:on-demand:RUNNING c-np-1:tpu7x-16:on-demand:RUNNING" {
					t.Errorf("made %s", got)
				}
			})
		}
	}
}

// Node pools stay if they have workloads, or may have some.
func TestWorkloadsKeepTheirPools(t *testing.T) {
	cloud := simcloud.Start(t, sim.Config{})
	o := wanted(t, "v5litepod-16", 2)
	testkit.Must(t, apply(t.Context(), gke.New(cloud.GCP, free), o))
	before := writes(cloud.Sim)
	unknown := func(context.Context, gke.Endpoint) ([]gke.Pod, error) { return nil, errors.New("no route to host") }
	for name, reader := range map[string]gke.Reader{"busy": busy("c-np-1"), "unknown": unknown} {
		c := gke.New(cloud.GCP, reader)
		less := o
		less.Slices = 1
		var kept *gke.BusyError
		if err := apply(t.Context(), c, less); !errors.As(err, &kept) || gcp.ClassOf(err) != gcp.Conflict {
			t.Errorf("%s: one less: %v", name, err)
		}
		if _, err := c.Delete(t.Context(), "c", false); !errors.As(err, &kept) {
			t.Errorf("%s: delete: %v", name, err)
		}
		info, err := c.Show(t.Context(), "c")
		if err != nil || (name == "busy") != slices.Equal(info.Workloads, []string{"default/train-0"}) || (name == "busy") != (info.Unread == "") {
			t.Errorf("%s: shows %v, %q, %v", name, info.Workloads, info.Unread, err)
		}
	}
	if n := writes(cloud.Sim); n != before {
		t.Errorf("%d changes were sent", n-before)
	}
	c := gke.New(cloud.GCP, busy("c-np-1"))
	less := o
	less.Slices, less.Force = 1, true
	testkit.Must(t, apply(t.Context(), c, less))
	if got := shape(t, c); got != "RUNNING c-np-0:v5litepod-16:on-demand:RUNNING" {
		t.Errorf("with force: %s", got)
	}
	if _, err := c.Delete(t.Context(), "c", true); err != nil {
		t.Error(err)
	}
}

func TestClustersOfOthersStay(t *testing.T) {
	cloud := simcloud.Start(t, sim.Config{})
	resp, err := http.Post(cloud.Sim.URL()+"/v1/projects/"+sim.DefaultProject+"/locations/us-central2/clusters", "application/json", strings.NewReader(`{"cluster":{"name":"c","initialNodeCount":1}}`))
	testkit.Must(t, err)
	_ = resp.Body.Close()
	c := gke.New(cloud.GCP, free)
	var foreign *gke.NotOursError
	if _, err := c.Delete(t.Context(), "c", true); resp.StatusCode != http.StatusOK || !errors.As(err, &foreign) {
		t.Errorf("status %d, delete: %v", resp.StatusCode, err)
	}
	if mine, err := c.Owned(t.Context()); err != nil || len(mine) != 0 {
		t.Errorf("owned: %v, %v", mine, err)
	}
}

func TestSlowCluster(t *testing.T) {
	cloud := simcloud.Start(t, sim.Config{Step: time.Hour})
	jump := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, ContainerEndpoint: cloud.Sim.URL() + "/", Clock: testkit.NewJumpClock()})
	defer jump.Close()
	c := gke.New(jump, free)
	var slow *gke.SlowError
	if err := apply(t.Context(), c, wanted(t, "v5litepod-16", 1)); !errors.As(err, &slow) || slow.State != "PROVISIONING" || gcp.ClassOf(err) != gcp.Timeout {
		t.Errorf("got %v", err)
	}
}
