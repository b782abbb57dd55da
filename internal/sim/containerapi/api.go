// Package containerapi is a part of the API of Google Kubernetes Engine, v1 and v1beta1:
// clusters, their node pools, operations, and the versions to choose from. The Kubernetes
// API of a cluster is elsewhere, see cloud.Kubernetes.
//
// A node pool with TPU chips is a slice. It gets all of its nodes or, if the fault
// no-capacity, group-quota or group-error is active for its name, none. Then its state is
// ERROR until it is deleted. Autoscaling adds no nodes. Changes of clusters and pools are
// not modelled. If there is no capacity, the texts have the words that XPK looks for. The
// texts of most refusals are the simulator's own.
package containerapi

import "multihost/internal/sim/cloud"

// An API serves requests from the state of a cloud.
type API struct{ *cloud.Cloud }

// New returns the API over the state of c.
func New(c *cloud.Cloud) API { return API{c} }
