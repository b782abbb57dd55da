//go:build unix

package detached

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Place says which worker of the job this is.
type Place struct {
	Slice, Worker int
	Node          string
	Coordinator   string // address of worker 0 of the job; "": it is in the bucket
	Own           string // address of this worker

	// only for a VM of a group:
	VM    string // name of the VM
	peers string // digest of the names of all workers of the slice, as this VM knows them
}

func (p Place) String() string { return nameOf(p.Slice, p.Worker) }

func nameOf(slice, worker int) string { return fmt.Sprintf("s%dw%d", slice, worker) }

// index is the number of the worker among all workers of the job.
func (p Place) index(j Job) int { return p.Slice*j.Workers + p.Worker }

// Keys of values of the metadata server, from which a worker learns its place.
const (
	ownAddress   = "network-interfaces/0/ip"
	endpointsKey = "attributes/worker-network-endpoints"
	envKey       = "attributes/tpu-env"
	nameKey      = "name"
	numberKey    = "attributes/agent-worker-number"
	groupKey     = "attributes/created-by"
)

// placeKeys are the values that parsePlace needs.
func placeKeys(j Job) []string {
	if j.Apart {
		return []string{ownAddress, endpointsKey, nameKey, numberKey, groupKey}
	}
	return []string{ownAddress, endpointsKey, envKey}
}

// parsePlace reads the place of this worker from values of its metadata server. It never
// guesses: a wrong guess would give two workers one place. A malformed number is an error.
// A missing number is an error too, unless it can be only 0: because a slice has one
// worker, or the job has one slice.
func parsePlace(j Job, values map[string]string) (p Place, err error) {
	if j.Apart {
		p, err = placeInGroup(j, values)
	} else {
		p, err = placeInNode(j, values[envKey], values[endpointsKey], values[ownAddress])
	}
	if err != nil {
		return Place{}, fmt.Errorf("the metadata server does not tell which worker this is: %w", err)
	}
	return p, nil
}

// placeInGroup is parsePlace for a VM of a group. The name of the VM consists of the name
// of the group, a dash and a suffix without dashes. So it shows the slice. No name shows
// the number of the worker. The list of names is complete if it has one name for each
// worker of the slice, this VM's among them.
func placeInGroup(j Job, values map[string]string) (Place, error) {
	p := Place{VM: values[nameKey], Own: values[ownAddress]}
	if i := strings.LastIndexByte(p.VM, '-'); i > 0 {
		p.Node = p.VM[:i]
	}
	if p.Slice = slices.Index(j.Nodes, p.Node); p.Slice < 0 {
		return Place{}, fmt.Errorf("VM %q is not named after a slice", p.VM)
	}
	if by := values[groupKey]; by != "" && path.Base(by) != p.Node {
		return Place{}, fmt.Errorf("VM %q was made by group %q", p.VM, path.Base(by))
	}
	r := reader{values: map[string]string{"agent-worker-number": values[numberKey]}}
	if p.Worker = r.place("agent-worker-number", j.Workers); r.err != nil {
		return Place{}, r.err
	}
	if p.Worker >= j.Workers {
		return Place{}, fmt.Errorf("its agent-worker-number is %d of %d", p.Worker, j.Workers)
	}
	endpoints := strings.FieldsFunc(values[endpointsKey], func(c rune) bool { return c == ',' })
	if j.Workers == 1 && len(endpoints) == 0 {
		endpoints = []string{p.VM}
	}
	unique := slices.Compact(slices.Sorted(slices.Values(endpoints)))
	if len(endpoints) != j.Workers || len(unique) != j.Workers || !slices.Contains(unique, p.VM) {
		return Place{}, fmt.Errorf("its worker-network-endpoints do not name %q among %d VMs: %.200q", p.VM, j.Workers, values[endpointsKey])
	}
	sum := sha256.Sum256([]byte(strings.Join(endpoints, ",")))
	p.peers = hex.EncodeToString(sum[:4])
	if !j.gathers() {
		p.Coordinator = p.Own
	}
	return p, nil
}

// A VM of a group says with an object that it is ready for an attempt. seat returns the
// name of this object, below the directory of the attempt. The object contains the address
// of the VM.
func (p Place) seat() string { return p.String() + "." + p.peers + "." + p.VM }

var seatName = regexp.MustCompile(`/(s([0-9]{1,6})w([0-9]{1,6}))\.([0-9a-f]{8})\.([a-z0-9-]+)$`)

// absent returns a text about the workers that are not ready yet, or "" if all are. seats
// are the names of all seats. A slice is ready when each number has one VM, and all of
// these know the same VMs.
func absent(j Job, seats []string) string {
	vms := map[string][]string{} // by worker and digest
	sums := make([][]string, j.Slices)
	for _, name := range seats {
		m := seatName.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		slice, _ := strconv.Atoi(m[2]) // the pattern matches only numbers
		if slice < j.Slices {
			vms[m[1]+"."+m[4]], sums[slice] = append(vms[m[1]+"."+m[4]], m[5]), append(sums[slice], m[4])
		}
	}
	var missing []string
	for s, all := range sums {
		var least []string
		slices.Sort(all)
		for i, sum := range slices.Compact(all) {
			without, err := withoutVM(j, s, sum, vms)
			if err != nil {
				return err.Error()
			}
			if i == 0 || len(without) < len(least) {
				least = without
			}
		}
		if len(all) == 0 {
			least, _ = withoutVM(j, s, "", vms)
		}
		missing = append(missing, least...)
	}
	switch len(missing) {
	case 0:
		return ""
	case 1:
		return missing[0] + " has not come"
	}
	return fmt.Sprintf("%d workers have not come, %s first", len(missing), missing[0])
}

// Each worker of a slice needs a VM that knows the list of VMs with the digest sum.
// withoutVM returns the workers that have no such VM yet.
func withoutVM(j Job, slice int, sum string, vms map[string][]string) (missing []string, err error) {
	for w := range j.Workers {
		name := nameOf(slice, w)
		switch has := vms[name+"."+sum]; len(has) {
		case 0:
			missing = append(missing, name)
		case 1:
		default:
			return nil, errors.New("VMs " + strings.Join(has, " and ") + " say that they are " + name)
		}
	}
	return missing, nil
}

// placeInNode is parsePlace for a worker of a node of the TPU API.
func placeInNode(j Job, env, endpoints, own string) (Place, error) {
	p := Place{Own: own}
	r := reader{values: map[string]string{}}
	first, _, _ := strings.Cut(endpoints, ",")
	p.Coordinator = first[strings.LastIndexByte(first, ':')+1:]
	for line := range strings.Lines(env) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		value = strings.Trim(value, ` '"`)
		switch r.values[key] = value; key {
		case "NODE_ID":
			p.Node = value
		case "MEGASCALE_COORDINATOR_ADDRESS":
			p.Coordinator = value
			if i := strings.LastIndexByte(value, ':'); i >= 0 {
				p.Coordinator = value[:i]
			}
		}
	}
	p.Worker = r.place("WORKER_ID", j.Workers)
	if p.Slice = slices.Index(j.Nodes, p.Node); p.Slice < 0 {
		p.Slice = r.place("MEGASCALE_SLICE_ID", j.Slices)
	}
	return p, r.err
}
