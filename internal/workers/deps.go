// Package workers turns a selection into standing connections to workers, and asks them
// which runs they know. It says who is silent, and folds what failed on many.
package workers

import (
	"context"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/hosts"
	"multihost/internal/journal"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/stage"
)

// Networks creates the network of a job. *network.Client implements it.
type Networks interface {
	Plan(ctx context.Context, o network.Options) (network.Plan, error)
	Apply(ctx context.Context, p network.Plan) error
	Show(ctx context.Context, name string) (network.Info, error)
}

// Deps holds what the package works with.
type Deps struct {
	Cloud    provision.Provider // of slices
	Networks Networks
	Project  string
	Zone     string
	Access   overssh.Access
	Dialer   remote.Dialer // reaches the workers
	Sink     event.Sink
	Journal  *journal.Journal // part of Sink; whatever starts or follows a run opens it; nil: no journal is kept
	Clock    gcp.Clock
	StateDir string // holds runs/<run>/run.json and, by default, the logs
	Owner    string // "user@machine" of the runner, written into every run

	// ReadOnly forbids every change: Cloud and Networks refuse a change with a
	// *gcp.ReadOnlyError, and so do the connections to workers and the files below
	// StateDir. For PlanRun, PlanJob and PlanDetach.
	ReadOnly bool

	// ExitStatus returns the exit status of the program for an error, for the summary
	// of a run.
	ExitStatus func(error) int

	// CtrlC is what an interrupt does, for the message that says so. Empty: like
	// Interrupted without an Answer.
	CtrlC stage.Answer

	// Confirm asks the user, who has been shown line, whether slices are to be requested.
	// An error means no. Nil: nobody is asked.
	Confirm func(ctx context.Context, line string) error

	Roots  gcp.Roots   // of the APIs that workers call themselves
	Agents program.Set // what runs on workers where no runner does

	// OpenBucket opens the bucket of jobs without a runner. Bucket and BucketDir are
	// where the user says that the named run is. Empty: where this machine's record of
	// the run says.
	OpenBucket        func(ctx context.Context, bucket, dir string) (*detach.Bucket, error)
	Bucket, BucketDir string

	stand   State
	Tier    string    // of the slices that this command asks for; empty: it asks for none
	present *Presence // nil: this command copies no logs

	// Checked is called before the first request, after all checks that need none. It
	// may be nil.
	Checked func()

	// Leave is closed when the user wants to leave at once: nothing more is waited for,
	// and what may still be running or exist is reported.
	Leave <-chan struct{}
}

// WhatCtrlCDoes says what an interrupt will do to a run that is going on.
func (d *Deps) WhatCtrlCDoes(ours bool) string {
	switch {
	case d.CtrlC == stage.Ask:
		return "Ctrl-C asks whether to stop it or to leave it running"
	case (&stage.Interrupted{Answer: d.CtrlC}).Detaches(ours):
		return "Ctrl-C leaves it running"
	}
	return "Ctrl-C stops it on every worker"
}

// Detached returns a context for work that must continue although ctx has ended, such
// as stopping the workers and deleting slices. It ends after limit, or when the user
// wants to leave at once.
func (d *Deps) Detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	base, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-d.Leave:
			cancel()
		case <-stop:
		}
	}()
	return base, func() {
		close(stop)
		<-finished
		cancel()
	}
}

// OutagePause delays reporting an outage, or its end, so that workers lost together are
// reported in one line.
const OutagePause = 300 * time.Millisecond

// Age returns the time since created; 0 if created is zero.
func (d *Deps) Age(created time.Time) time.Duration {
	if created.IsZero() {
		return 0
	}
	return d.Clock.Now().Sub(created)
}

// WarnLimit limits the search for leftovers that runs beside a command.
const WarnLimit = 10 * time.Second

// OnHosts reports whether the slices are those of a HostList.
func (d *Deps) OnHosts() bool {
	_, ok := provision.As[hosts.HostList](d.Cloud)
	return ok
}
