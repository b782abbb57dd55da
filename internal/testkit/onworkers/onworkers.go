//go:build unix

// Package onworkers is for tests of packages above package workers. It gives them a user's
// machine with local workers.
package onworkers

import (
	"context"
	"testing"
	"time"

	"multihost/internal/detach"
	"multihost/internal/gcp"
	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/workers"
)

// A Machine is a user's machine, with workers and records.
type Machine struct {
	*workers.Reach
	*record.Keeper
}

// Deps returns the machine of ann@laptop, with the workers of the fleet and a new directory for
// records. The Recorder gets the machine's messages.
func Deps(t testing.TB, fleet localworker.Fleet, cloud provision.Provider) (Machine, *testkit.Recorder) {
	t.Helper()
	said := &testkit.Recorder{}
	now := &stage.Invocation{Sink: said, Clock: gcp.SystemClock}
	return Machine{
		Reach: &workers.Reach{Invocation: now, Place: provision.Place{Project: "p", Zone: "z"}, Cloud: cloud,
			Access: overssh.Access{Login: "ann", RetryFor: time.Minute}, Dialer: fleet.Dialer()},
		Keeper: &record.Keeper{Of: now, StateDir: t.TempDir(), Owner: "ann@laptop"},
	}, said
}

// Bucket returns a source of jobs without runner: the bucket of a simulator. It gives d a fast
// clock. put writes an object of job r.
func Bucket(d *workers.Reach, c *simcloud.Cloud) (in detach.Source, put func(name, text string)) {
	d.Clock = testkit.NewFastClock()
	in.Bucket = simcloud.Bucket
	in.OpenBucket = func(ctx context.Context, bucket, dir string) (*detach.Bucket, error) {
		return detach.Open(ctx, c.GCP, bucket, dir)
	}
	return in, func(name, text string) {
		c.T.Helper()
		c.Put("r/"+name, text)
	}
}
