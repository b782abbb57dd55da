package controllers

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"multihost/internal/kube"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// XPK's names for the queue and for its descriptions of a cluster.
const (
	ClusterQueue = "cluster-queue"
	LocalQueue   = "multislice-queue"
	namespace    = "default"
)

// Slices describes the slices of a cluster. Objects makes the queue and XPK's ConfigMaps from it.
type Slices struct {
	Cluster     string
	Type        tpu.Type
	Nodes       tpu.Nodes // of one slice
	Count       int
	Tier        provision.Tier
	Reservation string
}

// Objects returns the objects of the queue: the priorities of workloads, the queue with a quota
// of all chips, and XPK's ConfigMaps. XPK's command workload create reads in the ConfigMaps what
// fits into the cluster. kueue is the version of Kueue's kinds: "v1beta2" or "v1beta1". For a
// cluster without slices, it returns only the priorities.
func (s Slices) Objects(kueue string) []unstructured.Unstructured {
	var all []unstructured.Unstructured
	add := func(apiVersion, kind, namespace, name string, fields map[string]any) {
		o := unstructured.Unstructured{Object: fields}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		o.SetNamespace(namespace)
		o.SetName(name)
		all = append(all, o)
	}
	for _, p := range []struct {
		name  string
		value int64
	}{{"very-low", 100}, {"low", 250}, {"medium", 500}, {"high", 750}, {"very-high", 1000}} {
		add("scheduling.k8s.io/v1", "PriorityClass", "", p.name, map[string]any{"value": p.value, "globalDefault": false, "description": p.name})
	}
	if s.Count == 0 {
		return all
	}
	group := "kueue.x-k8s.io/" + kueue
	flavor := fmt.Sprintf("%dx%s", s.Count, s.flavorType())
	add(group, "ResourceFlavor", "", flavor, map[string]any{"spec": map[string]any{"nodeLabels": map[string]any{
		"cloud.google.com/gke-tpu-accelerator": s.Nodes.Accelerator, "cloud.google.com/gke-tpu-topology": s.Nodes.Topology,
	}}})
	add(group, "ClusterQueue", "", ClusterQueue, map[string]any{"spec": map[string]any{
		"namespaceSelector": map[string]any{},
		"preemption":        map[string]any{"reclaimWithinCohort": "Never", "withinClusterQueue": "LowerPriority"},
		"resourceGroups": []any{map[string]any{
			"coveredResources": []any{"google.com/tpu"},
			"flavors": []any{map[string]any{"name": flavor, "resources": []any{map[string]any{
				"name": "google.com/tpu", "nominalQuota": fmt.Sprint(s.Count * s.Nodes.Count * s.Nodes.Machine.Chips),
			}}}},
		}},
	}})
	add(group, "LocalQueue", namespace, LocalQueue, map[string]any{"spec": map[string]any{"clusterQueue": ClusterQueue}})
	add("v1", "ConfigMap", namespace, s.Cluster+"-resources-configmap", map[string]any{"data": map[string]any{s.Type.Name: fmt.Sprint(s.Count * s.Nodes.Count)}})
	about := map[string]any{"capacity_type": capacities[s.Tier]}
	if s.Reservation != "" {
		about["reservation_id"] = s.Reservation
	}
	add("v1", "ConfigMap", namespace, s.Cluster+"-metadata-configmap", map[string]any{"data": about})
	return all
}

// flavorType returns the accelerator type as a part of a name, without colons.
func (s Slices) flavorType() string {
	if s.Type.Machine != "" {
		return s.Type.Machine + "-" + s.Type.Topology
	}
	return s.Type.Name
}

// capacities are XPK's words for the tiers.
var capacities = map[provision.Tier]string{
	provision.OnDemand: "ON_DEMAND", provision.Spot: "SPOT", provision.Reserved: "RESERVATION", provision.FlexStart: "FLEX_START",
}

// Difference says how an existing object differs from the wanted one.
type Difference string

const (
	Same    Difference = "same"
	Missing Difference = "missing"
	Changed Difference = "changed" // made by multihost, with other fields
	Foreign Difference = "foreign" // made by somebody else, with other fields
)

// KueueVersion returns the version of Kueue's kinds to use: v1beta2 if it is served.
func (i Installer) KueueVersion(ctx context.Context) (string, error) {
	_, err := i.Client.Resource(ctx, "kueue.x-k8s.io/v1beta2", "ClusterQueue")
	switch {
	case err == nil:
		return "v1beta2", nil
	case kube.NotFound(err):
		return "v1beta1", nil
	}
	return "", err
}

// Compare compares an object with the cluster's object of the same name.
func (i Installer) Compare(ctx context.Context, want unstructured.Unstructured) (Difference, error) {
	have, err := i.get(ctx, want.GetAPIVersion(), want.GetKind(), want.GetNamespace(), want.GetName())
	switch {
	case err != nil:
		return "", err
	case have == nil:
		return Missing, nil
	case contains(have.Object, want.Object):
		return Same, nil
	case madeByUs(have):
		return Changed, nil
	}
	return Foreign, nil
}

// contains reports whether have has all fields of want, with the same contents. A field that want
// sets to false or {} may be missing in have. Lists are compared item by item.
func contains(have, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		for name, value := range w {
			empty := reflect.DeepEqual(value, false) || reflect.DeepEqual(value, map[string]any{})
			if v, is := h[name]; !is && !empty || is && !contains(v, value) {
				return false
			}
		}
		return ok || len(w) == 0
	case []any:
		h, _ := have.([]any)
		for n, value := range w {
			if n >= len(h) || !contains(h[n], value) {
				return false
			}
		}
		return len(h) == len(w)
	}
	return fmt.Sprint(have) == fmt.Sprint(want)
}
