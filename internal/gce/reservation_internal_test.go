package gce

import (
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/encoding/protojson"

	"multihost/internal/testkit"
)

// Compute Engine's answers about a reservation show whether slices can use it.
func TestReservationsAreJudged(t *testing.T) {
	t.Parallel()
	const (
		vms   = `"specificReservationRequired":true,"specificReservation":{"count":"8","inUseCount":"2","instanceProperties":{"machineType":"ct6e-standard-4t"}}`
		chips = `"specificReservationRequired":true,"aggregateReservation":{"vmFamily":"VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT6E","workloadType":"BATCH",` +
			`"reservedResources":[{"accelerator":{"acceleratorCount":32}}],"inUseResources":[{"accelerator":{"acceleratorCount":24}}]}`
		ready = `"status":"READY",`
	)
	few := strings.Replace(vms, `"2"`, `"5"`, 1)
	for _, tt := range []struct{ story, body, owner, want string }{
		{"all is well", ready + vms, "p", "6 of 8 VMs of ct6e-standard-4t are free"},
		{"it is being made", `"status":"CREATING",` + vms, "p", "6 of 8 VMs of ct6e-standard-4t are free | bad: it is CREATING, not READY"},
		{"too few are free", ready + few, "p", "3 of 8 VMs of ct6e-standard-4t are free | bad: 4 VMs are needed"},
		{"another machine type", ready + strings.Replace(vms, "ct6e-standard-4t", "projects/p/zones/z/machineTypes/ct5p-hightpu-4t", 1), "p",
			"6 of 8 VMs of ct5p-hightpu-4t are free | bad: it has ct5p-hightpu-4t, and the slices need ct6e-standard-4t"},
		{"some are broken", ready + strings.Replace(vms, `"inUseCount"`, `"assuredCount":"7","inUseCount"`, 1), "p", "6 of 8 VMs of ct6e-standard-4t are free | only 7 of its VMs can be used now"},
		{"anybody uses it", ready + strings.Replace(vms, "true", "false", 1), "p",
			"6 of 8 VMs of ct6e-standard-4t are free | specificReservationRequired is false: VMs that do not name it use it, too, and Compute Engine may refuse slices that name it"},
		{"of chips", ready + chips, "p", "8 of 32 chips of CT6E are free | bad: 16 chips are needed"},
		{"of chips of another family", ready + strings.NewReplacer("CT6E", "CT5P", "24", "8").Replace(chips), "p", "24 of 32 chips of CT5P are free | bad: it has CT5P, and the slices need CT6E"},
		{"for serving", ready + strings.NewReplacer("BATCH", "SERVING", "24", "8").Replace(chips), "p",
			"24 of 32 chips of CT6E are free | its workload type is SERVING, which Google makes for inference and not for training"},
		{"of something else", ready + `"specificReservationRequired":true`, "p", " | it does not say which machines it has"},
		{"all capacity", ready + vms + `,"advancedDeploymentControl":{"reservationOperationalMode":"ALL_CAPACITY"},"deleteAtTime":"2027-01-01T00:00:00Z"`, "p",
			"6 of 8 VMs of ct6e-standard-4t are free, until 2027-01-01T00:00:00Z | its mode is ALL_CAPACITY: Compute Engine does not repair slices there; after the failure of a host, delete them and make them again"},
		{"of another project", ready + vms, "o", "6 of 8 VMs of ct6e-standard-4t are free | bad: project o does not share it"},
		{"shared in the organization", ready + vms + `,"shareSettings":{"shareType":"ORGANIZATION"}`, "o", "6 of 8 VMs of ct6e-standard-4t are free"},
		{"shared with this project", ready + vms + `,"shareSettings":{"shareType":"SPECIFIC_PROJECTS","projectMap":{"p":{"projectId":"p"}}}`, "o", "6 of 8 VMs of ct6e-standard-4t are free"},
		{"shared with this project by number", ready + vms + `,"shareSettings":{"shareType":"SPECIFIC_PROJECTS","projectMap":{"7":{"projectId":"p"}}}`, "o", "6 of 8 VMs of ct6e-standard-4t are free"},
		{"shared with others", ready + vms + `,"shareSettings":{"shareType":"SPECIFIC_PROJECTS","projectMap":{"8":{"projectId":"8"}}}`, "o",
			"6 of 8 VMs of ct6e-standard-4t are free | the projects with which project o shares it do not name p; they may name its number"},
	} {
		r := new(computepb.Reservation)
		testkit.Must(t, protojson.Unmarshal([]byte("{"+tt.body+"}"), r))
		w := wish{owner: tt.owner, project: "p", machine: "ct6e-standard-4t", family: "CT6E", vms: 4, chips: 16}
		if got := saidOf(w.judge(r)); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.story, got, tt.want)
		}
	}
}

func saidOf(j *judgement) string {
	text := j.text
	for _, e := range j.errors {
		text += " | bad: " + e
	}
	return strings.Join(append([]string{text}, j.warnings...), " | ")
}

func TestBlocksOfReservationsAreJudged(t *testing.T) {
	t.Parallel()
	w := wish{vms: 4}
	for body, want := range map[string]string{
		`{"name":"b","status":"READY","count":8,"inUseCount":4,"healthInfo":{"healthStatus":"HEALTHY"}}`: "; of block b 4 of 8",
		`{"name":"b","status":"READY","count":8,"inUseCount":5}`:                                         "; of block b 3 of 8 | bad: 4 VMs are needed in block b",
		`{"name":"b","status":"INVALID","count":8,"healthInfo":{"healthStatus":"DEGRADED"}}`:             "; of block b 8 of 8 | bad: block b is INVALID, not READY | block b is DEGRADED",
	} {
		b := new(computepb.ReservationBlock)
		testkit.Must(t, protojson.Unmarshal([]byte(body), b))
		j := &judgement{}
		w.judgeBlock(j, b, true)
		if got := saidOf(j); got != want {
			t.Errorf("%s:\n got %s\nwant %s", body, got, want)
		}
	}
}

func TestNamesOfReservations(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"r": "p r ", "projects/o/reservations/r": "o r ", "r/reservationBlocks/b": "p r b", "projects/o/reservations/r/reservationBlocks/b": "o r b",
		"R": "", "projects/o/r": "", "": "", "r/b": "",
	} {
		got := ""
		if CheckReservation(name) == nil {
			project, reservation, block := splitReservation(name, "p")
			got = fmt.Sprintf("%s %s %s", project, reservation, block)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
