package qr_test

import (
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit/simcloud"
)

// A cloud is a simulated cloud with a client of its queued resources.
type cloud struct {
	*simcloud.Cloud
	*qr.Client
}

const testZone = simcloud.Zone

func start(t *testing.T, cfg sim.Config) *cloud {
	t.Helper()
	c := simcloud.Start(t, cfg)
	return &cloud{c, qr.New(c.GCP)}
}

func (c *cloud) create(r qr.Request) {
	c.T.Helper()
	if _, created, err := c.Create(c.T.Context(), r); err != nil || !created {
		c.T.Fatalf("create: created %v, %v", created, err)
	}
}

// ready makes a queued resource and waits until it is ready.
func (c *cloud) ready(r qr.Request) qr.Resource {
	c.T.Helper()
	c.create(r)
	res, _, err := c.Wait(c.T.Context(), r.ID, quick(nil))
	if err != nil {
		c.T.Fatal(err)
	}
	return res
}

// quick returns options for a wait that reads often.
func quick(change func(*qr.WaitOptions)) qr.WaitOptions {
	o := qr.WaitOptions{Poll: gcp.Backoff{First: 200 * time.Millisecond, Max: 400 * time.Millisecond}}
	if change != nil {
		change(&o)
	}
	return o
}

// said returns the reported states of a resource, in order.
func (c *cloud) said(name string) (states []string) {
	for _, e := range c.Log.Events() {
		if s, ok := e.(event.State); ok && s.Name == name {
			states = append(states, s.State)
		}
	}
	return states
}
