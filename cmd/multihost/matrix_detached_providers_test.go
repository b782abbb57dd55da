package main

import (
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/sim"
)

// A lonelyProvider makes the slices of a job without runner. Each one has a matrix of its
// own.
type lonelyProvider struct {
	*matrixProvider
	mark    string   // mark before its table
	workers int      // number of workers of the job
	gathers bool     // the workers wait for each other before they begin
	whole   int      // the first phase with a complete request
	api     string   // a part of the path that every call of the provider's API has
	paths   []string // paths of the resources that workers delete

	starts func(s *lonelyStage) // called before the job starts

	// state returns two texts. left is the state of the slices and of their request, or ""
	// if there are neither slices nor a queued resource. phase is the present phase until
	// there are workers, then "". If nothing can change without workers, phase is still.
	state func(sim.Status) (left, phase string)
}

// still is the phase in which nothing changes without workers.
const still = "still"

// lonelyOnTPU makes two slices of one worker each, with a queued resource.
var lonelyOnTPU = &lonelyProvider{
	matrixProvider: onTPU,
	mark:           "matrix of jobs without runner: go test ./cmd/multihost -run '^TestMatrixOfDetachedJobs$' -update",
	workers:        2,
	api:            "/v2alpha1/",
	paths:          []string{inTPU + "queuedResources/m?force=true"},
	starts:         func(*lonelyStage) {},
	state: func(now sim.Status) (left, phase string) {
		switch {
		case len(now.Queued) > 0:
			left = now.Queued[0].State
		case len(now.Nodes) > 0:
			left = "slice " + now.Nodes[0].ID
		}
		return left, map[string]string{"CREATING": "requested", "ACCEPTED": "requested", "WAITING_FOR_RESOURCES": "waiting", "PROVISIONING": "provisioning",
			"SUSPENDED": still, "FAILED": still}[left]
	},
}

// lonelyOnGCE makes two slices of two VMs each, on Compute Engine.
var lonelyOnGCE = &lonelyProvider{
	matrixProvider: onGCE,
	mark:           "matrix of jobs without runner on Compute Engine: go test ./cmd/multihost -run TestMatrixOfDetachedJobsOnComputeEngine -update",
	workers:        4,
	gathers:        true,
	whole:          untilWaiting,
	api:            "/compute/v1/",
	paths:          []string{inZone + "instanceGroupManagers/m-0", inZone + "instanceGroupManagers/m-1"},
	starts: func(s *lonelyStage) {
		if s.phase == "waiting" { // otherwise the simulator would provide the machines at once
			s.set("no-capacity group=m-*")
		}
	},
	state: groupState,
}

// groupState is the function state of a lonelyProvider whose slices are groups. The last
// slice decides the phase.
func groupState(now sim.Status) (left, phase string) {
	all := 0
	for _, g := range now.Groups {
		phase = ""
		vms := map[string]int{}
		for _, vm := range g.VMs {
			vms[vm.Status]++
		}
		switch {
		case vms["PROVISIONING"]+vms["STAGING"] > 0 && g.Topology == "ACTIVATING":
			phase = "provisioning"
		case g.Waiting && slices.ContainsFunc(now.Faults, func(f sim.FaultStatus) bool { return strings.HasPrefix(f.Fault, "no-capacity") }):
			phase = "waiting"
		case vms["TERMINATED"]+vms[""] == len(g.VMs) && (g.Topology == "INCOMPLETE" || g.Topology == "FAILED"):
			all++
		}
		left += strings.TrimSpace(g.ID+" "+g.Topology) + "; "
	}
	if all > 0 && all == len(now.Groups) {
		phase = still
	}
	return strings.TrimSuffix(left, "; "), phase
}

// remains names what exists in the cloud, or returns "" if there is nothing.
func (on *lonelyProvider) remains(s *lonelyStage) string {
	for _, kind := range on.kinds {
		var all map[string]json.RawMessage
		if err := json.Unmarshal([]byte(s.call(http.MethodGet, kind, "")), &all); err != nil {
			return err.Error()
		}
		for _, key := range []string{"items", path.Base(kind)} {
			if list := string(all[key]); list != "" && list != "[]" {
				return path.Base(kind) + " " + list
			}
		}
	}
	return ""
}

// set sets a fault of the simulator.
func (s *lonelyStage) set(text string) {
	fault, err := sim.ParseFault(text)
	if err == nil {
		_, err = s.server.Inject(fault)
	}
	if err != nil {
		s.t.Error(err)
	}
}

// hostFails lets a host fail. All VMs of its slice restart.
func (s *lonelyStage) hostFails() {
	s.set("group-host-error group=m-1")
	s.awaitDown("m-1")
}

// hostIsAway makes a host fail. Another host comes only after the time d.
func (s *lonelyStage) hostIsAway(d time.Duration) {
	s.set("group-no-recovery group=m-1")
	s.hostFails()
	s.wg.Go(func() {
		<-time.After(d)
		_, _ = s.server.Clear("group-no-recovery")
	})
}

// adminDeletesVM deletes one VM of a slice.
func (s *lonelyStage) adminDeletesVM() {
	s.mu.Lock()
	i := slices.IndexFunc(s.vms, s.lastVM())
	name := s.vms[i].spec.Name
	s.mu.Unlock()
	s.call(http.MethodDelete, inZone+"instances/"+name, "")
	for s.anybodyOf(func(vm *stageVM) bool { return vm.spec.Name == name }) {
		<-time.After(simStep)
	}
}

func (s *lonelyStage) adminDeletesGroup() {
	s.call(http.MethodDelete, inZone+"instanceGroupManagers/m-1", "")
	s.awaitDown("m-1")
}

// runEnds stops all activity until Compute Engine has ended the VMs.
func (s *lonelyStage) runEnds() {
	s.standStill(shortLife + time.Minute)
	s.awaitDown("m-*")
}

// TestMatrixOfDetachedJobsOnComputeEngine is TestMatrixOfDetachedJobs for slices that
// Compute Engine makes.
func TestMatrixOfDetachedJobsOnComputeEngine(t *testing.T) { runLonelyMatrix(t, lonelyOnGCE) }
