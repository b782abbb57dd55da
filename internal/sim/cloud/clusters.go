package cloud

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	container "google.golang.org/api/container/v1beta1"
)

// A KubeNode is a node of a cluster of Google Kubernetes Engine.
type KubeNode struct {
	Name   string
	Labels map[string]string
	Chips  int // number of TPU chips; 0: none
}

// Kubernetes serves the Kubernetes APIs of clusters, by resource name:
// projects/P/locations/R/clusters/C. The methods may take long. Their callers do not hold
// the lock.
type Kubernetes interface {
	// Open starts the API of a cluster. It returns the address, "127.0.0.1:PORT", and the
	// certificate for its TLS, in PEM.
	Open(cluster string) (address string, ca []byte, err error)
	// SetPool replaces the nodes of a node pool.
	SetPool(cluster, pool string, nodes []KubeNode) error
	// Close ends the API of a cluster and everything that runs in the cluster.
	Close(cluster string) error
}

// A Cluster is a cluster of Google Kubernetes Engine, with its node pools.
type Cluster struct {
	Msg *container.Cluster // without node pools

	Pools []*container.NodePool // in the order of their creation
}

// Pool returns a node pool, or nil.
func (c *Cluster) Pool(name string) *container.NodePool {
	i := slices.IndexFunc(c.Pools, func(p *container.NodePool) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return c.Pools[i]
}

// IsContainer reports whether a request is for the API of Google Kubernetes Engine.
func IsContainer(r *http.Request) bool {
	parts := strings.Split(r.URL.Path, "/")
	return len(parts) >= 7 && (parts[1] == "v1" || parts[1] == "v1beta1") && parts[2] == "projects" && parts[4] == "locations" &&
		slices.Contains([]string{"clusters", "serverConfig", "operations"}, parts[6])
}

// NodeLabels returns the labels that GKE gives to the nodes of a pool. accelerator and
// topology belong to the pool's slice, and are "" for a pool without TPU chips.
func NodeLabels(p *container.NodePool, accelerator, topology string) map[string]string {
	labels := map[string]string{
		"cloud.google.com/gke-nodepool": p.Name, "node.kubernetes.io/instance-type": p.Config.MachineType, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
	}
	if accelerator != "" {
		labels["cloud.google.com/gke-tpu-accelerator"], labels["cloud.google.com/gke-tpu-topology"] = accelerator, topology
	}
	if p.Config.Spot {
		labels["cloud.google.com/gke-spot"] = "true"
	}
	for k, v := range p.Config.Labels {
		labels[k] = v
	}
	return labels
}

// NodeName returns the name of a node of a pool.
func NodeName(cluster, pool string, number int) string {
	return fmt.Sprintf("gke-%s-%s-%04d", cluster, pool, number)
}
