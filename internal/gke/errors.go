package gke

import (
	"fmt"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/remote"
)

// A Difference is a property in which a resource differs from the wanted one.
type Difference struct {
	Field string `json:"field"`
	Have  string `json:"have"`
	Want  string `json:"want"`
}

func describe(diffs []Difference) string {
	var parts []string
	for _, d := range diffs {
		parts = append(parts, fmt.Sprintf("%s is %s, wanted %s", d.Field, d.Have, d.Want))
	}
	return strings.Join(parts, "; ")
}

// listed lists at most three names.
func listed(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// A MismatchError says that a resource exists with other settings. Nothing was changed.
type MismatchError struct {
	Resource    string // "cluster", "node pool" or "workload policy"
	Name        string
	Cluster     string
	Differences []Difference
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s %q exists and is different: %s", e.Resource, e.Name, describe(e.Differences))
}

// Class returns the class for gcp.ClassOf.
func (e *MismatchError) Class() gcp.Class { return gcp.AlreadyExists }

// Fault returns the fault.Kind that belongs to Class.
func (e *MismatchError) Fault() fault.Kind { return e.Class().Fault() }

func (e *MismatchError) Hint() string {
	switch e.Resource {
	case kindPool:
		return "make another cluster beside it: multihost cluster create OTHER; or add --force, which deletes the node pool and what runs on it, and makes it anew"
	case kindPolicy:
		return "look at it with: gcloud compute resource-policies describe " + e.Name
	}
	return "make another cluster beside it: multihost cluster create OTHER; or delete this one first: multihost cluster delete " + e.Name
}

// A BusyError says that node pools stay because workloads run on them, or may run on them.
// Nothing was changed.
type BusyError struct {
	Cluster string
	Verb    string   // "delete" or "remake"
	Pools   []string // nil: the whole cluster
	Pods    []string // "NAMESPACE/NAME"
	Err     error    // why the pods are not known, or nil
}

func (e *BusyError) Error() string {
	what := fmt.Sprintf("%s cluster %q", e.Verb, e.Cluster)
	if len(e.Pools) > 0 {
		what = fmt.Sprintf("%s node pool %s of cluster %q", e.Verb, listed(e.Pools), e.Cluster)
	}
	if e.Err != nil {
		return fmt.Sprintf("%s: whether workloads run there is not known: %v", what, e.Err)
	}
	return fmt.Sprintf("%s: workloads run there: %s", what, listed(e.Pods))
}

// Unwrap returns why the pods are not known.
func (e *BusyError) Unwrap() error { return e.Err }

// Class returns the class for gcp.ClassOf.
func (e *BusyError) Class() gcp.Class { return gcp.Conflict }

// Fault returns the fault.Kind that belongs to Class.
func (e *BusyError) Fault() fault.Kind { return e.Class().Fault() }

func (e *BusyError) Hint() string {
	return "wait until the workloads have ended; or add --force, which ends them"
}

// A MissingError says that a cluster does not exist.
type MissingError struct{ Cluster, Region string }

func (c *calls) missing(name string) error { return &MissingError{Cluster: name, Region: c.region()} }

func (e *MissingError) Error() string {
	return fmt.Sprintf("cluster %q does not exist in region %s", e.Cluster, e.Region)
}

// Class returns the class for gcp.ClassOf.
func (e *MissingError) Class() gcp.Class { return gcp.NotFound }

// Fault returns the fault.Kind that belongs to Class.
func (e *MissingError) Fault() fault.Kind { return e.Class().Fault() }

func (e *MissingError) Hint() string {
	return "list the clusters of the project with: multihost cluster list; then --zone=ZONE"
}

// A FailedError says that a cluster, or some of its node pools, is in state ERROR.
type FailedError struct {
	Cluster string
	Pools   []string // nil: the cluster itself
	Reason  string   // GKE's words
}

func (e *FailedError) Error() string {
	meaning, _ := explain(e.Reason)
	what := fmt.Sprintf("cluster %q is in state ERROR", e.Cluster)
	if len(e.Pools) > 0 {
		what = fmt.Sprintf("make node pool %s of cluster %q: %s", listed(e.Pools), e.Cluster, meaning)
	}
	if e.Reason != "" {
		what += ": " + e.Reason
	}
	return what
}

// Class returns the class for gcp.ClassOf.
func (e *FailedError) Class() gcp.Class {
	if stockoutText.MatchString(e.Reason) {
		return gcp.Capacity
	}
	if _, _, _, quota := gcp.QuotaOf(e.Reason); quota {
		return gcp.Quota
	}
	return gcp.Conflict
}

// Fault returns the fault.Kind that belongs to Class.
func (e *FailedError) Fault() fault.Kind { return e.Class().Fault() }

func (e *FailedError) Hint() string {
	if len(e.Pools) == 0 {
		return "delete it: multihost cluster delete " + e.Cluster + "; then make it again"
	}
	if _, hint := explain(e.Reason); hint != "" {
		return hint
	}
	return "the same command deletes them and makes them again; what exists is billed: multihost cluster show " + e.Cluster
}

// A NotOursError says that somebody made a cluster without multihost. Nothing was deleted.
type NotOursError struct {
	Cluster string

	project, region string
}

func (e *NotOursError) Error() string {
	return fmt.Sprintf("delete cluster %q: it was not made by multihost", e.Cluster)
}

// Class returns the class for gcp.ClassOf.
func (e *NotOursError) Class() gcp.Class { return gcp.Conflict }

// Fault returns the fault.Kind that belongs to Class.
func (e *NotOursError) Fault() fault.Kind { return e.Class().Fault() }

// Hint returns gcloud's command that deletes the cluster.
func (e *NotOursError) Hint() string {
	return "if it is yours to delete: " + remote.CommandLine("gcloud", "container", "clusters", "delete", e.Cluster, "--location="+e.region, "--project="+e.project)
}

// A SlowError says that a resource did not reach its state in time. It may still reach it.
type SlowError struct {
	What  string // "create cluster \"c\""
	State string
	Limit time.Duration
}

func (e *SlowError) Error() string {
	return fmt.Sprintf("%s: it is still %s after %s", e.What, e.State, event.Duration(e.Limit))
}

// Class returns the class for gcp.ClassOf.
func (e *SlowError) Class() gcp.Class { return gcp.Timeout }

// Fault returns the fault.Kind that belongs to Class.
func (e *SlowError) Fault() fault.Kind { return e.Class().Fault() }

func (e *SlowError) Hint() string {
	return "it goes on without multihost; the same command goes on waiting"
}

// A VersionError says that GKE does not offer a version.
type VersionError struct {
	Version, Region string
	Valid           []string // newest first
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("choose version %q: region %s does not offer it", e.Version, e.Region)
}

// Fault returns fault.Usage.
func (e *VersionError) Fault() fault.Kind { return fault.Usage }

// Hint names some of the versions that GKE offers.
func (e *VersionError) Hint() string {
	return "leave out --gke-version, or choose one of: " + listed(e.Valid)
}
