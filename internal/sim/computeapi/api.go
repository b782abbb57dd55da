// Package computeapi is the simulator's part of the Compute Engine API, v1: the project's
// metadata, networks, subnetworks, firewall rules, workload policies, instance templates,
// images, machine types and operations.
package computeapi

import "multihost/internal/sim/cloud"

// An API serves requests from the state of a cloud.
type API struct{ *cloud.Cloud }

// New returns the API over the state of c.
func New(c *cloud.Cloud) API { return API{c} }

// networks serves networks, subnetworks and firewall rules.
type networks struct{ API }

// machines serves VMs and what they are made from.
type machines struct{ API }
