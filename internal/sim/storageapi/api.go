// Package storageapi is the simulator's Cloud Storage API: buckets and objects.
package storageapi

import "multihost/internal/sim/cloud"

// An API serves requests from the state of a cloud.
type API struct{ *cloud.Cloud }

// New returns the API over the state of c.
func New(c *cloud.Cloud) API { return API{c} }
