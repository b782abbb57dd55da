// Package projectapi serves the simulator's APIs about a project and its users: enabled
// services, the policy, quotas, OS Login and Secret Manager.
package projectapi

import "multihost/internal/sim/cloud"

// An API serves requests from the state of a cloud.
type API struct{ *cloud.Cloud }

// New returns the API over the state of c.
func New(c *cloud.Cloud) API { return API{c} }
