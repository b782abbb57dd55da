// Package tpuapi is the simulator's Cloud TPU API, v2 and v2alpha1: nodes, queued
// resources, operations, locations, accelerator types and runtime versions.
package tpuapi

import "multihost/internal/sim/cloud"

// An API serves requests from the state of a cloud.
type API struct{ *cloud.Cloud }

// New returns the API over the state of c.
func New(c *cloud.Cloud) API { return API{c} }
