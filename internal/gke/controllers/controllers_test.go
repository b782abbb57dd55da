package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/oauth2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"multihost/internal/event"
	"multihost/internal/gke/controllers"
	"multihost/internal/kube"
	"multihost/internal/provision"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// The embedded objects have the versions that All returns. After a change of a version, run go
// generate ./internal/gke/controllers.
func TestObjectsAreThoseOfTheVersions(t *testing.T) {
	t.Parallel()
	for _, c := range controllers.All() {
		objects, err := c.Objects()
		testkit.Must(t, err)
		image, definitions, last := "", 0, ""
		for _, o := range objects {
			switch o.GetKind() {
			case "Deployment":
				list, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
				image, _ = list[0].(map[string]any)["image"].(string)
				if o.GetName() != c.Deployment || o.GetNamespace() != c.Namespace {
					t.Errorf("%s: the deployment is %s/%s", c.Name, o.GetNamespace(), o.GetName())
				}
			case "CustomResourceDefinition":
				definitions++
			}
			last = o.GetKind()
		}
		if want := c.Image + ":" + c.Version; image != want {
			t.Errorf("%s: image %s, want %s", c.Name, image, want)
		}
		if objects[0].GetKind() != "Namespace" || definitions == 0 || last != "ValidatingWebhookConfiguration" {
			t.Errorf("%s: from %s to %s, with %d definitions", c.Name, objects[0].GetKind(), last, definitions)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	c := controllers.Controller{Name: "JobSet", Version: "v0.11.1", Kind: "JobSet", APIVersion: "jobset.x-k8s.io/v1alpha2"}
	ours := controllers.State{Served: true, Deployed: true, Available: true, Ours: true, Version: "v0.11.1"}
	with := func(change func(*controllers.State)) controllers.State { s := ours; change(&s); return s }
	for name, tt := range map[string]struct {
		have controllers.State
		want controllers.Verdict
		why  string
	}{
		"nothing":           {controllers.State{}, controllers.Install, "v0.11.1"},
		"the same":          {ours, controllers.Keep, "v0.11.1"},
		"an older one":      {with(func(s *controllers.State) { s.Version = "v0.9.0" }), controllers.Upgrade, "from v0.9.0 to v0.11.1"},
		"a newer one":       {with(func(s *controllers.State) { s.Version = "v0.12.0" }), controllers.Keep, "v0.12.0, which is newer than v0.11.1"},
		"one that starts":   {with(func(s *controllers.State) { s.Available = false }), controllers.Wait, "v0.11.1 is not ready yet"},
		"one of others":     {with(func(s *controllers.State) { s.Ours, s.Version = false, "v0.10.1" }), controllers.Keep, "v0.10.1, which multihost has not installed"},
		"one without name":  {with(func(s *controllers.State) { s.Ours, s.Version = false, "" }), controllers.Keep, "a version that is not known, which multihost has not installed"},
		"one elsewhere":     {controllers.State{Served: true}, controllers.Keep, "it is there, and multihost has not installed it"},
		"one too old":       {controllers.State{Deployed: true, Available: true, Version: "v0.1.0"}, controllers.Refuse, "v0.1.0 is installed, and does not serve JobSet of jobset.x-k8s.io/v1alpha2"},
		"a strange version": {with(func(s *controllers.State) { s.Version = "main" }), controllers.Keep, "main, which is newer than v0.11.1"},
	} {
		if got, why := c.Judge(tt.have); got != tt.want || why != tt.why {
			t.Errorf("%s: %s, %q; want %s, %q", name, got, why, tt.want, tt.why)
		}
	}
}

func cluster(t *testing.T) (controllers.Installer, *kube.Client) {
	t.Helper()
	s, err := kubeapi.New(kubeapi.Config{Dir: t.TempDir()})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	client, err := kube.New(kube.Config{Server: s.URL(), CA: s.CA(), Token: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"}), Sink: event.Discard})
	testkit.Must(t, err)
	t.Cleanup(client.Close)
	return controllers.Installer{Client: client, Sink: event.Discard, Clock: testkit.NewFastClock()}, client
}

// The simulator's cluster serves JobSet and Kueue from its start, as if somebody else had
// installed them. Apply still makes every object, and a second Apply changes nothing.
func TestInstallation(t *testing.T) {
	t.Parallel()
	i, _ := cluster(t)
	for _, c := range controllers.All() {
		s, err := i.Look(t.Context(), c)
		if err != nil || !s.Served || s.Deployed {
			t.Errorf("%s before: %+v, %v", c.Name, s, err)
		}
		for range 2 {
			testkit.Must(t, i.Apply(t.Context(), c))
			testkit.Must(t, i.Await(t.Context(), c))
		}
		s, err = i.Look(t.Context(), c)
		if want := (controllers.State{Served: true, Deployed: true, Available: true, Ours: true, Version: c.Version}); err != nil || s != want {
			t.Errorf("%s: %+v, %v", c.Name, s, err)
		}
	}
}

func TestQueueOfSlices(t *testing.T) {
	t.Parallel()
	i, _ := cluster(t)
	ty, err := tpu.ParseType("v5litepod-16")
	testkit.Must(t, err)
	nodes, err := tpu.NodesOf(ty)
	testkit.Must(t, err)
	s := controllers.Slices{Cluster: "c", Type: ty, Nodes: nodes, Count: 2, Tier: provision.Reserved, Reservation: "projects/x/reservations/r"}
	version, err := i.KueueVersion(t.Context())
	if err != nil || version != "v1beta2" {
		t.Fatalf("version %s, %v", version, err)
	}
	compare := func(want controllers.Difference) {
		t.Helper()
		for _, o := range s.Objects(version) {
			if got, err := i.Compare(t.Context(), o); err != nil || got != want {
				t.Errorf("%s %s: %s, %v, want %s", o.GetKind(), o.GetName(), got, err, want)
			}
		}
	}
	compare(controllers.Missing)
	for _, o := range s.Objects(version) {
		testkit.Must(t, i.ApplyObject(t.Context(), o))
	}
	compare(controllers.Same)
	s.Count = 3
	for _, o := range s.Objects(version) {
		want := map[string]controllers.Difference{"ClusterQueue": controllers.Changed, "ResourceFlavor": controllers.Missing}[o.GetKind()]
		if o.GetName() == "c-resources-configmap" {
			want = controllers.Changed
		}
		if got, err := i.Compare(t.Context(), o); err != nil || want != "" && got != want {
			t.Errorf("one more: %s %s: %s, %v, want %s", o.GetKind(), o.GetName(), got, err, want)
		}
	}
	for _, s.Count = range []int{3, 4, 2} {
		for _, o := range s.Objects(version) {
			testkit.Must(t, i.ApplyObject(t.Context(), o))
		}
		compare(controllers.Same)
	}
}

func TestQueueIsThatOfXPK(t *testing.T) {
	t.Parallel()
	ty, err := tpu.ParseType("tpu7x-8")
	testkit.Must(t, err)
	nodes, err := tpu.NodesOf(ty)
	testkit.Must(t, err)
	found := map[string]map[string]any{}
	for _, o := range (controllers.Slices{Cluster: "golden", Type: ty, Nodes: nodes, Count: 100, Tier: provision.Spot}).Objects("v1beta1") {
		found[o.GetKind()+" "+o.GetName()] = o.Object
	}
	for name, want := range map[string]string{
		"ConfigMap golden-resources-configmap": `map[tpu7x-8:100]`,
		"ConfigMap golden-metadata-configmap":  `map[capacity_type:SPOT]`,
	} {
		if got := found[name]["data"]; strings.TrimSpace(sprint(got)) != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
	queue := sprint(found["ClusterQueue cluster-queue"]["spec"])
	for _, want := range []string{"nominalQuota:400", "name:100xtpu7x-8", "withinClusterQueue:LowerPriority", "reclaimWithinCohort:Never"} {
		if !strings.Contains(queue, want) {
			t.Errorf("the queue %s lacks %s", queue, want)
		}
	}
	if sprint(found["LocalQueue multislice-queue"]["spec"]) != "map[clusterQueue:cluster-queue]" || found["PriorityClass medium"]["value"] != int64(500) {
		t.Errorf("got %v", found)
	}
	if got := found["ClusterQueue cluster-queue"]["apiVersion"]; got != "kueue.x-k8s.io/v1beta1" {
		t.Errorf("version %v", got)
	}
	if all := (controllers.Slices{Cluster: "c"}).Objects("v1beta2"); len(all) != 5 {
		t.Errorf("without slices: %d objects, want the priorities", len(all))
	}
}

func sprint(v any) string { return fmt.Sprint(v) }
