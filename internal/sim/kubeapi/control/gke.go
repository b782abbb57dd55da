package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/sim/kubeapi/store"
)

const tpuResource = corev1.ResourceName("google.com/tpu")

// admitPod does to a new pod what admission does: it sets the pod's priority and applies
// JobSet's rules of exclusive placement.
func (c *Controllers) admitPod(p *corev1.Pod) error {
	if name := p.Spec.PriorityClassName; name != "" && p.Spec.Priority == nil {
		value, ok := c.priority(name)
		if !ok {
			return apierrors.NewForbidden(store.Pods.Resource(), p.Name, fmt.Errorf("no PriorityClass with name %v was found", name))
		}
		p.Spec.Priority = &value
	}
	if p.Spec.Priority == nil {
		zero := int32(0)
		p.Spec.Priority = &zero
	}
	if p.Annotations[jobset.JobSetNameKey] == "" {
		return nil
	}
	priority := strconv.Itoa(int(*p.Spec.Priority))
	p.Labels = with(p.Labels, map[string]string{"jobset.sigs.k8s.io/priority": priority})
	if key := p.Annotations[jobset.ExclusiveKey]; key != "" && indexOf(p) == 0 {
		p.Spec.Affinity = exclusive(key, p.Labels[jobset.JobKey], priority)
	}
	return nil
}

// exclusive returns the affinity of a leader: in a topology domain there may be only one
// Job of a priority.
func exclusive(topology, job, priority string) *corev1.Affinity {
	var a corev1.Affinity
	text := fmt.Sprintf(`{
		"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": %[1]q, "namespaceSelector": {}, "labelSelector": {"matchExpressions": [
			{"key": %[2]q, "operator": "In", "values": [%[3]q]}]}}]},
		"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": %[1]q, "namespaceSelector": {}, "labelSelector": {"matchExpressions": [
			{"key": %[2]q, "operator": "Exists"}, {"key": %[2]q, "operator": "NotIn", "values": [%[3]q]},
			{"key": "jobset.sigs.k8s.io/priority", "operator": "In", "values": [%[4]q]}]}}]}}`, topology, jobset.JobKey, job, priority)
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil // cannot happen, because all values are quoted
	}
	return &a
}

// priority returns the value of a priority class.
func (c *Controllers) priority(name string) (value int32, ok bool) {
	o, err := c.store.Get(store.PriorityClasses, "", name)
	if err != nil {
		return priorityOf(name, nil)
	}
	return priorityOf(name, o)
}

// priorityOf returns the value of a class. o is nil if no such object exists.
func priorityOf(name string, o *store.Object) (value int32, ok bool) {
	switch {
	case name == "system-cluster-critical":
		return 2000000000, true
	case name == "system-node-critical":
		return 2000001000, true
	case o == nil:
		return 0, false
	}
	n, _, _ := unstructured.NestedInt64(o.Object, "value")
	return int32(n), true
}

// Admit does what admission does to objects that users create. Pods get the priority of
// their class. Kueue suspends objects that name a queue.
func Admit(k *store.Kind, o *store.Object, get func(k *store.Kind, namespace, name string) *store.Object) error {
	switch k {
	case store.JobSets:
		if o.GetLabels()[queueLabel] != "" {
			return unstructured.SetNestedField(o.Object, true, "spec", "suspend")
		}
	case store.Pods:
		name, _, _ := unstructured.NestedString(o.Object, "spec", "priorityClassName")
		value := int32(0)
		if name != "" {
			var ok bool
			if value, ok = priorityOf(name, get(store.PriorityClasses, "", name)); !ok {
				return apierrors.NewForbidden(store.Pods.Resource(), o.GetName(), fmt.Errorf("no PriorityClass with name %v was found", name))
			}
		}
		if _, ok, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "priority"); !ok {
			return unstructured.SetNestedField(o.Object, int64(value), "spec", "priority")
		}
	}
	return nil
}

// If containers of a pod have TPU chips, gkeVariables adds the variables of GKE's webhook
// and of its device plugin to them.
func gkeVariables(p *corev1.Pod, j *batchv1.Job, index int) {
	workers := 1
	if j.Spec.Completions != nil {
		workers = int(*j.Spec.Completions)
	}
	host := func(job string, i int) string {
		name := fmt.Sprintf("%s-%d", job, i)
		if p.Spec.Subdomain != "" {
			name += "." + p.Spec.Subdomain
		}
		return name
	}
	hosts, id := []string{"localhost"}, 0
	if workers > 1 && index >= 0 {
		hosts, id = nil, index
		for i := range workers {
			hosts = append(hosts, host(j.Name, i))
		}
	}
	for i := range p.Spec.Containers {
		ct := &p.Spec.Containers[i]
		chips := ct.Resources.Limits[tpuResource]
		if chips.IsZero() {
			continue
		}
		add := func(name, value string) { addVariable(ct, corev1.EnvVar{Name: name, Value: value}) }
		add("TPU_WORKER_ID", strconv.Itoa(id))
		add("TPU_WORKER_HOSTNAMES", strings.Join(hosts, ","))
		if set := p.Labels[jobset.JobSetNameKey]; set != "" && workers > 1 {
			first := fmt.Sprintf("%s-%s-0", set, p.Labels[jobset.ReplicatedJobNameKey])
			add("MEGASCALE_COORDINATOR_ADDRESS", host(first, 0))
			add("MEGASCALE_NUM_SLICES", p.Labels[jobset.ReplicatedJobReplicas])
			add("MEGASCALE_SLICE_ID", p.Labels[jobset.JobIndexKey])
		}
		deviceVariables(p.Spec.NodeSelector, workers, int(chips.Value()), add)
	}
}

// families has the names of TPU types by accelerator label: the first part of the name, and
// what one chip adds to the number in the name.
var families = map[string]struct {
	prefix string
	cores  int
}{
	"tpu-v4-podslice": {"v4", 2}, "tpu-v5-lite-podslice": {"v5litepod", 1}, "tpu-v5p-slice": {"v5p", 2}, "tpu-v6e-slice": {"v6e", 1}, "tpu7x": {"tpu7x", 2}, "tpu7": {"tpu7", 2},
}

// deviceVariables adds the variables that the device plugin sets when it allocates chips.
func deviceVariables(selector map[string]string, workers, chips int, add func(name, value string)) {
	topology := selector["cloud.google.com/gke-tpu-topology"]
	family, ok := families[selector["cloud.google.com/gke-tpu-accelerator"]]
	if !ok || topology == "" {
		return
	}
	var dims []int
	total := 1
	for d := range strings.SplitSeq(topology, "x") {
		n, err := strconv.Atoi(d)
		if err != nil || n < 1 {
			return
		}
		dims = append(dims, n)
		total *= n
	}
	for len(dims) < 3 {
		dims = append(dims, 1)
	}
	perHost := []int{min(2, dims[0]), min(2, dims[1]), 1}
	if workers == 1 {
		perHost = dims
	}
	hosts, wrap := make([]string, 3), make([]string, 3)
	for i, d := range dims {
		hosts[i] = strconv.Itoa(max(1, d/perHost[i]))
		wrap[i] = strconv.FormatBool(d%4 == 0 && family.cores == 2)
	}
	bounds := fmt.Sprintf("%d,%d,%d", perHost[0], perHost[1], perHost[2])
	add("TPU_ACCELERATOR_TYPE", fmt.Sprintf("%s-%d", family.prefix, total*family.cores))
	add("TPU_TOPOLOGY", topology)
	for _, prefix := range []string{"TPU_", ""} {
		add(prefix+"HOST_BOUNDS", strings.Join(hosts, ","))
		add(prefix+"CHIPS_PER_HOST_BOUNDS", bounds)
	}
	add("TPU_TOPOLOGY_WRAP", strings.Join(wrap, ","))
	add("WRAP", strings.Join(wrap, ","))
	add("TPU_TOPOLOGY_ALT", "false")
	add("ALT", "false")
	add("TPU_SKIP_MDS_QUERY", "true")
	var ports []string
	for i := range max(chips, 1) {
		ports = append(ports, strconv.Itoa(8431+i))
	}
	add("TPU_RUNTIME_METRICS_PORTS", strings.Join(ports, ","))
	if total >= 64 {
		add("ENABLE_ICI_RESILIENCY", "true")
	}
}

// addVariable adds a variable if the container does not have it.
func addVariable(c *corev1.Container, v corev1.EnvVar) {
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == v.Name }) {
		c.Env = append(c.Env, v)
	}
}

// with returns a map with further entries.
func with(m, more map[string]string) map[string]string {
	all := make(map[string]string, len(m)+len(more))
	maps.Copy(all, m)
	maps.Copy(all, more)
	return all
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// equal reports whether two structs are the same in JSON.
func equal(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}
