package gkenode

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// AddVariables adds to containers with TPU chips the variables of GKE's webhook and of its
// device plugin. The pod belongs to the Job. index is its index in the Job, or negative if
// the Job's pods have none.
func AddVariables(p *corev1.Pod, job *batchv1.Job, index int) {
	workers := 1
	if job.Spec.Completions != nil {
		workers = int(*job.Spec.Completions)
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
			hosts = append(hosts, host(job.Name, i))
		}
	}
	for i := range p.Spec.Containers {
		ct := &p.Spec.Containers[i]
		chips := ct.Resources.Limits[TPU]
		if chips.IsZero() {
			continue
		}
		add := func(name, value string) { AddVariable(ct, corev1.EnvVar{Name: name, Value: value}) }
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

// families maps accelerator labels to names of TPU types: the first part of the name, and
// what one chip adds to the number in it.
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

// AddVariable adds a variable unless the container has it.
func AddVariable(c *corev1.Container, v corev1.EnvVar) {
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == v.Name }) {
		c.Env = append(c.Env, v)
	}
}
