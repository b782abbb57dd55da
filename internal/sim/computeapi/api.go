// Package computeapi is the part of the Compute Engine API, v1, that the simulator has:
// the project's metadata, networks, subnetworks, firewall rules, workload policies, instance
// templates, images, machine types and operations.
package computeapi

import "multihost/internal/sim/cloud"

// An API serves requests from the state of a cloud.
type API struct{ *cloud.Cloud }

// New returns the API over the state of c.
func New(c *cloud.Cloud) API { return API{c} }

// networks is the part of the API for networks, subnetworks and firewall rules.
type networks struct{ API }

// machines is the part of the API for VMs and for what they are made of.
type machines struct{ API }
