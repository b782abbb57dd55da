package gce

import (
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/tpu"
)

// identityScript runs when a VM boots. It makes the worker's number readable through the
// API.
//
//go:embed identity.sh
var identityScript string

// Number implements provision.Numberer. It returns the startup script in a form that does
// not wait for metadata.
func (p *Provider) Number(tpu.Slice) string {
	return strings.Replace(identityScript, "{1..300}", "{1..3}", 1) + "wait $!\n"
}

// withIdentity returns a startup script that reports the number of the worker, then runs
// the user's script.
func withIdentity(script string) (string, error) {
	if script == "" {
		return identityScript, nil
	}
	first, rest, _ := strings.Cut(script, "\n")
	if !strings.HasPrefix(first, "#!") {
		return "", errors.New("metadata startup-script: its first line is no #! line")
	}
	if words := strings.Fields(strings.TrimPrefix(first, "#!")); len(words) == 0 || !slices.Contains([]string{"bash", "sh"}, words[len(words)-1][strings.LastIndexByte(words[len(words)-1], '/')+1:]) {
		return "", fmt.Errorf("metadata startup-script: %q is not bash or sh; multihost adds to the script what tells the number of a worker", first)
	}
	return identityScript + rest, nil
}

// A told is a VM's report about its place in its slice.
type told struct {
	vm        string   // name of the VM
	number    int      // number of the worker
	endpoints []string // all workers of the slice in order, according to the VM
}

// readTold reads the text of identity.sh, or metadata with the same meaning.
func readTold(vm, text string) (told, bool) {
	number, all, ok := strings.Cut(strings.TrimSpace(text), " ")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || all == "" {
		return told{}, false
	}
	return told{vm: vm, number: n, endpoints: strings.Split(all, ",")}, true
}

// inOrder returns the names of the VMs of a slice in the order of their workers, which
// neither names nor lists of the API show. If the VMs contradict each other, the slice has
// no order.
func inOrder(vms []string, all []told) ([]string, error) {
	order := make([]string, len(vms))
	by := map[string]told{}
	for _, t := range all {
		by[t.vm] = t
	}
	for _, vm := range vms {
		t, ok := by[vm]
		switch {
		case !ok:
			return nil, fmt.Errorf("VM %s has not told which worker it is", vm)
		case t.number >= len(vms):
			return nil, fmt.Errorf("VM %s says that it is worker %d of %d", vm, t.number, len(vms))
		case order[t.number] != "":
			return nil, fmt.Errorf("VMs %s and %s both say that they are worker %d", order[t.number], vm, t.number)
		case !slices.Equal(t.endpoints, by[vms[0]].endpoints):
			return nil, fmt.Errorf("VMs %s and %s name different workers: %s and %s", vms[0], vm, strings.Join(by[vms[0]].endpoints, ","), strings.Join(t.endpoints, ","))
		case len(t.endpoints) != len(vms):
			return nil, fmt.Errorf("VM %s names %d workers of a slice with %d VMs", vm, len(t.endpoints), len(vms))
		}
		order[t.number] = vm
	}
	return order, nil
}
