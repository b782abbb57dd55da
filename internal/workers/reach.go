// Package workers turns a selection into open connections to workers. It asks workers which
// runs they know, and says which workers are silent. It folds failures that many workers
// share.
package workers

import (
	"strings"
	"time"

	"multihost/internal/hosts"
	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/stage"
)

// Reach finds slices and connects to their workers.
type Reach struct {
	*stage.Invocation
	provision.Place
	Cloud  provision.Provider // provider of slices
	Access overssh.Access
	Dialer remote.Dialer // reaches the workers

	// Cluster is the cluster whose pods are the workers; nil: there is none. ClusterFlags
	// name it for another command.
	Cluster      *record.Cluster
	ClusterFlags string

	// ReadOnly forbids every change: Cloud refuses it with a *gcp.ReadOnlyError, and so do
	// connections to workers.
	ReadOnly bool
}

// OutagePause delays reporting an outage, or its end, so that workers lost together are
// reported in one line.
const OutagePause = 300 * time.Millisecond

// WarnLimit limits the search for leftovers beside a command.
const WarnLimit = 10 * time.Second

// OnHosts reports whether the slices come from a HostList.
func (d *Reach) OnHosts() bool {
	_, ok := provision.As[hosts.HostList](d.Cloud)
	return ok
}

// Hosts returns the hosts that replace slices, as a user types them, or "".
func (d *Reach) Hosts() string {
	list, _ := provision.As[hosts.HostList](d.Cloud)
	return list.String()
}

// Flag returns the flag with which another command selects the workers of prefix, or the
// hosts.
func (d *Reach) Flag(prefix string) string {
	if d.OnHosts() {
		return "--hosts=" + remote.Quote(d.Hosts())
	}
	return strings.TrimSpace("--tpu-prefix=" + prefix + " " + d.ClusterFlags)
}

// RecordedCluster returns the cluster in which a run was started, from this machine's
// record, or nil if there is no cluster or no record.
func RecordedCluster(stateDir, run string) (*record.Cluster, error) {
	rec, err := record.LoadRecord(stateDir, run)
	if err != nil || rec == nil {
		return nil, err
	}
	return rec.Cluster, nil
}

// RecordedHosts returns the hosts on which a run was started, from this machine's record,
// or nil if it is on slices or has no record.
func RecordedHosts(stateDir, run string) (hosts.HostList, error) {
	rec, err := record.LoadRecord(stateDir, run)
	if err != nil || rec == nil || rec.Hosts == "" {
		return nil, err
	}
	return hosts.ParseHosts(rec.Hosts)
}
