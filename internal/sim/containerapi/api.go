// Package containerapi is the part of the API of Google Kubernetes Engine, v1 and v1beta1,
// that the simulator has: clusters, their node pools, operations, and the versions on offer.
// The Kubernetes API of a cluster is not in it: see cloud.Kubernetes.
//
// A node pool with TPU chips is a slice: it gets all of its nodes or, under the faults
// no-capacity, group-quota and group-error for its name, none, and is then in state ERROR
// until it is deleted. Autoscaling adds no nodes. Changes of clusters and pools are not
// modelled. The texts of stockouts have the words that XPK looks for; those of most refusals
// are the simulator's own.
package containerapi

import "multihost/internal/sim/cloud"

// An API serves requests from the state of a cloud.
type API struct{ *cloud.Cloud }

// New returns the API over the state of c.
func New(c *cloud.Cloud) API { return API{c} }
