// Package plan has the document of a dry run, which says what a command would do. The document
// is JSON or text for people.
package plan

import (
	"encoding/json"
	"fmt"
	"time"

	"multihost/internal/announce"
	"multihost/internal/cost"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// Version is the version of a Plan's JSON document. It changes when a field gets another
// meaning or goes away.
const Version = 1

// A Plan says what a command would do, in the order of the fields. Secrets are masked. String
// returns the plan for people.
type Plan struct {
	Version int    `json:"version"`
	Command string `json:"command"` // "run", "job" or "job --detach"
	Run     string `json:"run"`
	Attempt int    `json:"attempt"`
	Project string `json:"project,omitempty"`
	Zone    string `json:"zone,omitempty"`

	Network  *network.Plan   `json:"network,omitempty"` // from --network-create
	Resource *ResourceChange `json:"queued_resource,omitempty"`

	// MayDelete says whether the workers have the right to delete the queued resource without a
	// runner. It is absent if no worker has to delete it.
	MayDelete *announce.DeletionRight `json:"workers_may_delete,omitempty"`

	Upload *Upload        `json:"upload,omitempty"` // for a job without runner
	Slices []PlannedSlice `json:"slices"`

	Login Login  `json:"login"`
	Asked bool   `json:"workers_asked"`       // the workers were asked what they have and lack
	Why   string `json:"not_asked,omitempty"` // why the workers were not asked

	TakesOver *RunOnWorkers  `json:"takes_over,omitempty"` // an active run that the command would only follow or leave running; it then sends, sets and starts nothing
	Stops     []RunOnWorkers `json:"stops"`

	Files     *Files          `json:"files,omitempty"` // absent with an existing folder
	Preflight *PreflightPlan  `json:"preflight,omitempty"`
	Free      FreePlan        `json:"free"`
	Start     StartPlan       `json:"start"`
	Workers   []PlannedWorker `json:"workers"`

	Limits Limits   `json:"limits"`
	Logs   LogPlan  `json:"logs"`
	End    EndPlan  `json:"end"`
	Cost   CostPlan `json:"cost"`
}

// The changes that a command makes to a resource.
const (
	ResourceCreate   = "create"
	ResourceUse      = "use"      // the resource exists and matches the request
	ResourceRecreate = "recreate" // the resource is deleted first, or is already being deleted
	ResourceReset    = "reset"    // its VMs are rebooted
)

// ResourceChange says what a job does with its queued resource.
type ResourceChange struct {
	ID      string          `json:"id"`
	Do      string          `json:"do"`
	State   string          `json:"state,omitempty"` // state of the existing resource
	Owner   string          `json:"owner,omitempty"` // owner of the existing resource
	Why     string          `json:"why,omitempty"`
	Tier    string          `json:"tier"`
	Request json.RawMessage `json:"request,omitempty"` // request body to send
	Gcloud  string          `json:"gcloud,omitempty"`  // the equal gcloud command line
	Parts   []cost.Part     `json:"parts,omitempty"`   // the parts to make, if there are several

	// Name is the resource's name in messages, such as: queued resource m.
	Name string `json:"name"`
}

// Upload says what the command puts into the bucket of a job without runner.
type Upload struct {
	URL     string   `json:"url"`
	Objects []string `json:"objects"`
}

// PlannedSlice is a slice for the command.
type PlannedSlice struct {
	Name     string `json:"name"`
	Type     string `json:"type,omitempty"`
	Topology string `json:"topology,omitempty"`
	Workers  int    `json:"workers"`
	Network  string `json:"network,omitempty"`
	State    string `json:"state"` // state in the API's words, or "to be made"
}

// Login says how to reach the workers.
type Login struct {
	User    string      `json:"user"`
	Key     string      `json:"key"`               // the public key; "": the command would make one
	File    string      `json:"file"`              // file of the private key
	Adds    string      `json:"adds,omitempty"`    // where the command would add the key
	Cluster string      `json:"cluster,omitempty"` // context of the cluster whose pods are the workers, which need no key
	Way     overssh.Way `json:"way"`
	Jump    string      `json:"jump,omitempty"`
}

// RunOnWorkers is a run that is active on the workers.
type RunOnWorkers struct {
	Run     string `json:"run"`
	Attempt int    `json:"attempt"`
	Owner   string `json:"owner"`
	Workers string `json:"workers"` // folded
	Command string `json:"command"`
	Why     string `json:"why,omitempty"`
}

// Files says what the command sends to the workers.
type Files struct {
	Dir     string   `json:"dir"`
	To      string   `json:"to"` // directory on each worker
	Count   int      `json:"count"`
	Bytes   int64    `json:"bytes"`
	Digest  string   `json:"digest"`
	Ignored []string `json:"ignored"`
}

// PreflightPlan says what happens to the settings of the workers.
type PreflightPlan struct {
	Mode     string          `json:"mode"` // apply, require, check or off
	Platform string          `json:"platform"`
	Install  bool            `json:"install"`
	Changes  []SettingChange `json:"changes"`         // on the workers that were asked
	Notes    []string        `json:"notes,omitempty"` // about NUMA binding
}

// SettingChange is one setting that the command would change, or could not.
type SettingChange struct {
	Setting string `json:"setting"`
	From    string `json:"from"`
	To      string `json:"to"`
	Workers string `json:"workers"`          // folded
	Reason  string `json:"reason,omitempty"` // why the setting would stay as it is
}

// FreePlan lists the processes to stop so that the TPU is free.
type FreePlan struct {
	Policy  string    `json:"policy"`
	Stopped []Stopped `json:"stopped"`
}

// Stopped is a process to stop so that the TPU is free.
type Stopped struct {
	Worker  string `json:"worker"`
	PID     int    `json:"pid"`
	User    string `json:"user"`
	Command string `json:"command"`
}

// StartPlan says what the command starts on the workers.
type StartPlan struct {
	Script    string   `json:"script,omitempty"`
	Argv      []string `json:"argv,omitempty"`
	Directory string   `json:"directory"` // on the worker
	Unset     []string `json:"unset"`
	Venv      string   `json:"venv,omitempty"` // directory on the worker; made if it does not exist
	Processes int      `json:"processes_per_worker"`
}

// PlannedWorker says what the command does on one worker.
type PlannedWorker struct {
	Worker  string            `json:"worker"`
	Slice   string            `json:"slice"`
	Address string            `json:"address"`
	User    string            `json:"user"`
	Env     map[string]string `json:"env"`
	Wrap    []string          `json:"wrap,omitempty"` // words before the command

	// Only if the workers were asked:
	Files   *int   `json:"new_files,omitempty"`
	Bytes   *int64 `json:"new_bytes,omitempty"`
	Removed *int   `json:"removed_files,omitempty"`
}

// Limits say how long everything may take, and how often a failed run starts again. A time
// of 0 means no limit.
type Limits struct {
	Queue       time.Duration `json:"queue_ns,omitempty"`
	Slices      time.Duration `json:"slices_ns,omitempty"` // how long slices that have come are kept while others are missing
	Provision   time.Duration `json:"provision_ns,omitempty"`
	Boot        time.Duration `json:"boot_ns,omitempty"`
	Connect     time.Duration `json:"connect_ns"`
	Start       time.Duration `json:"start_ns"`
	Command     time.Duration `json:"command_ns"`
	Lost        time.Duration `json:"lost_ns"`
	Grace       time.Duration `json:"grace_ns"`
	FailFast    bool          `json:"fail_fast"`
	Restarts    int           `json:"max_restarts"`
	Preemptions int           `json:"max_preemptions"` // -1: no limit
	MaxLog      int64         `json:"max_log_bytes"`   // -1: no limit
	TTL         time.Duration `json:"ttl_ns,omitempty"`
	Lease       time.Duration `json:"lease_ns,omitempty"`
	MaxRun      time.Duration `json:"max_run_ns,omitempty"` // time after which the provider takes the slices away; 0: never
}

// LogPlan says where the output goes.
type LogPlan struct {
	Dir    string   `json:"dir"`
	Files  []string `json:"files"`
	Remote string   `json:"on_workers"`
}

// EndPlan says what the command deletes at the end.
type EndPlan struct {
	Deletes string        `json:"deletes,omitempty"` // the queued resource
	Keeps   string        `json:"keeps,omitempty"`   // why a queued resource stays
	KeepFor time.Duration `json:"keep_for_ns,omitempty"`

	Leaves bool `json:"-"` // the command leaves the run after its start, so only the run's workers can delete anything
}

// CostPlan says what the slices cost while they exist.
type CostPlan struct {
	Hourly *float64 `json:"usd_per_hour"` // null: unknown
	Tier   string   `json:"tier"`
	Source string   `json:"source"`
}

// ErrNotRefused reports that a dry run had clients that can change something.
var ErrNotRefused = fault.New(fault.Internal, "a dry run had clients that change something")

// ChangeOf describes what a job does with its resource in a zone. refused is the error with
// which the provider of a dry run refuses the request. The error contains the request. refused
// is nil if nothing was requested.
func ChangeOf(cloud provision.Provider, zone, do string, res provision.Resource, request provision.Request, refused *gcp.ReadOnlyError) *ResourceChange {
	c := &ResourceChange{ID: request.ID, Do: do, State: res.State, Tier: string(request.Asks()), Name: provision.NameOf(cloud, request.ID)}
	if res.State != "" && len(res.Nodes) > 0 {
		c.Owner = res.Owner()
	}
	switch {
	case refused != nil:
		c.Request = json.RawMessage(refused.Body)
	case do != ResourceRecreate:
		return c
	}
	if p, ok := provision.As[provision.Previewer](cloud); ok {
		body, command := p.Preview(request)
		c.Gcloud = command
		if c.Request == nil || command == "" { // if no single command makes the request, the provider has refused only its first part
			c.Request = body
		}
	}
	if p, ok := provision.As[provision.Itemizer](cloud); ok {
		c.Parts = cost.Parts(p.ItemsOf(request), request.Type.Name, c.Tier, zone)
	}
	return c
}

// Expected returns the slices that a request will create, as far as they are known in
// advance.
func Expected(o provision.Request, project, zone string) []tpu.Slice {
	all := make([]tpu.Slice, len(o.NodeNames()))
	for i, name := range o.NodeNames() {
		all[i] = tpu.Slice{
			Index: i, Name: name, Project: project, Zone: zone, Type: o.Type.Name, Network: o.Network,
			QueuedResource: o.ID, MultiSlice: len(all) > 1 && !o.Apart, Workers: make([]tpu.Worker, o.Type.Workers),
		}
		for w := range all[i].Workers {
			all[i].Workers[w].Internal = fmt.Sprintf("<address of %s>", tpu.WorkerID{Slice: i, Worker: w})
		}
	}
	return all
}
