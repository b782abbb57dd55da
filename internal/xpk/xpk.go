// Package xpk converts the flags of XPK, Google's tool for training on GKE, into the options of
// a cluster or a workload. It calls no cluster.
//
// # Decisions
//
//   - A flag has XPK's meaning and XPK's default, also where the flag of the same name of
//     multihost's own commands has another one.
//   - A flag that asks for something that multihost does not make is refused by its name, in
//     one sentence. A flag without which the result is the same is accepted with a warning.
//   - XPK writes the command into a script inside of a YAML text. A quote, a line break, a
//     comment or a "&" in the command or in a variable breaks it, and SIGTERM reaches only
//     the shell. Here the command stays one argument of multihost-agent, which sends signals
//     to all processes.
package xpk

import (
	"fmt"
	"regexp"
	"strings"

	"multihost/internal/fault"
	"multihost/internal/tpu"
)

// A FlagError reports a wrong value of a flag.
type FlagError struct {
	Flag   string // without dashes
	Text   string
	Advice string // what to type; may be empty
}

func (e *FlagError) Error() string { return e.Text }

// Fault returns fault.Usage.
func (e *FlagError) Fault() fault.Kind { return fault.Usage }

// Hint returns the advice.
func (e *FlagError) Hint() string { return e.Advice }

// problems collects the errors of flags.
type problems []*FlagError

func (p *problems) add(flag, advice, format string, args ...any) {
	*p = append(*p, &FlagError{Flag: flag, Text: fmt.Sprintf(format, args...), Advice: advice})
}

// Two flags for the same value.
const (
	tpuTypeFlag    = "tpu-type"
	deviceTypeFlag = "device-type"
)

var withTopology = regexp.MustCompile(`^([a-z0-9]+)-([0-9]+x[0-9]+(?:x[0-9]+)?)$`)

// Type parses an accelerator type in XPK's form: v5litepod-16, or v5p-4x4x8 with the topology
// instead of the number.
func Type(text string) (tpu.Type, error) {
	m := withTopology.FindStringSubmatch(strings.ToLower(text))
	if m == nil {
		return tpu.ParseType(text)
	}
	family, topology := m[1], m[2]
	if family == "v5e" {
		family = "v5litepod"
	}
	for _, t := range tpu.Types() {
		if t.Generation.Family == family && t.Topology == topology {
			return t, nil
		}
	}
	for _, machine := range tpu.Machines() {
		g, known := generation(machine.Generation)
		if !known || g.Family != family || machine.Single {
			continue
		}
		if t, err := tpu.TypeOf(machine.Name, topology); err == nil {
			return t, nil
		}
	}
	return tpu.ParseType(text)
}

func generation(name string) (tpu.Generation, bool) {
	for _, g := range tpu.Generations() {
		if g.Name == name {
			return g, true
		}
	}
	return tpu.Generation{}, false
}

// other matches XPK's names for machines with GPUs and for machines without accelerators:
// h100-80gb-8, n2-standard-32-4.
var other = regexp.MustCompile(`^(l4|a100|h100|h200|b200|gb200|[a-z][0-9][a-z]?-(standard|highmem|highcpu|megamem))-`)

// typeOf reads --tpu-type and --device-type. XPK requires exactly one of them. elsewhere is
// advice about machines without TPU chips.
func (p *problems) typeOf(tpuType, device, elsewhere string) (t tpu.Type) {
	flag, text := tpuTypeFlag, tpuType
	switch {
	case tpuType != "" && device != "":
		p.add(deviceTypeFlag, "", "--tpu-type and --device-type exclude each other: give one of them")
		return t
	case device != "":
		flag, text = deviceTypeFlag, device
	case tpuType == "":
		p.add(tpuTypeFlag, "add --tpu-type=v5litepod-16, for example", "which accelerator type? --tpu-type is missing")
		return t
	}
	if flag == deviceTypeFlag && other.MatchString(text) {
		p.add(flag, elsewhere, "--device-type=%s has no TPU chips: this command is for TPU slices only", text)
		return t
	}
	t, err := Type(text)
	if err == nil {
		_, err = tpu.NodesOf(t)
	}
	if err != nil {
		p.add(flag, strings.Join(fault.Hints(err), "\n"), "--%s: %v", flag, err)
	}
	return t
}
