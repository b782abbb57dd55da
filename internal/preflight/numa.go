package preflight

import (
	"cmp"
	"fmt"
	"strings"

	"multihost/internal/fault"
	"multihost/internal/tpu"
)

// NUMA is a --numa policy.
type NUMA string

// The policies.
const (
	NUMAAuto      NUMA = "auto"      // bind on generations where that helps
	NUMABind      NUMA = "bind"      // only memory of node 0
	NUMAPreferred NUMA = "preferred" // memory of node 0 first, of other nodes when that is full
	NUMAOff       NUMA = "off"
)

// ParseNUMA reads a --numa value in any case. "" means auto.
func ParseNUMA(text string) (NUMA, error) {
	switch n := NUMA(strings.ToLower(text)); n {
	case "":
		return NUMAAuto, nil
	case NUMAAuto, NUMABind, NUMAPreferred, NUMAOff:
		return n, nil
	}
	return "", fmt.Errorf("parse numa %q: want auto, bind, preferred or off", text)
}

// A NUMAError reports a NUMA policy that a worker cannot follow.
type NUMAError struct {
	Mode   NUMA
	Reason string
	hint   string
}

func (e *NUMAError) Error() string {
	return fmt.Sprintf("bind to numa node 0 (--numa=%s): %s", e.Mode, e.Reason)
}

// Fault returns fault.Usage.
func (e *NUMAError) Fault() fault.Kind { return fault.Usage }

// Hint says what to type instead.
func (e *NUMAError) Hint() string { return e.hint }

// CheckNUMA returns a *NUMAError if a policy is not allowed on a generation. It needs no
// worker.
func CheckNUMA(mode NUMA, generation tpu.Generation) error {
	if (mode == NUMABind || mode == NUMAPreferred) && !generation.NUMA {
		_, _, err := NUMAWrap(mode, generation, Report{})
		return err
	}
	return nil
}

// NUMAWrap returns the words that go before the command on the worker of rep, or none if
// the command runs unbound. note is "" or a sentence with the decision and its reason. If
// the worker cannot follow the policy, the error is a *NUMAError.
//
// Binding is known to help only on v4 and v5p (MaxText's PREFLIGHT.md). It halves the
// memory that the command can use.
func NUMAWrap(mode NUMA, generation tpu.Generation, rep Report) (argv []string, note string, err error) {
	switch mode {
	case NUMAOff:
		return nil, "", nil
	case NUMAAuto, "":
		return wrapAuto(generation, rep)
	case NUMABind, NUMAPreferred:
	default:
		_, err := ParseNUMA(string(mode))
		return nil, "", err
	}
	if !generation.NUMA {
		return nil, "", &NUMAError{mode,
			fmt.Sprintf("only v4 and v5p gain from it, and %s would only lose half of its memory", cmp.Or(generation.Name, "this machine")),
			"leave --numa out, or --numa=off"}
	}
	if rep.NUMANodes < 2 {
		return nil, "one NUMA node: the command runs unbound", nil
	}
	if !rep.HasNumactl {
		return nil, "", &NUMAError{mode, "numactl is not installed on the worker",
			"install it: multihost preflight apply --install, or leave --numa out"}
	}
	if mode == NUMAPreferred {
		return []string{"numactl", "--preferred=0", "--cpunodebind=0"},
			"command on NUMA node 0, memory of node 0 first" + ofMemory(rep), nil
	}
	return bound(), "command and memory bound to NUMA node 0" + ofMemory(rep), nil
}

func wrapAuto(generation tpu.Generation, rep Report) ([]string, string, error) {
	switch {
	case !generation.NUMA, rep.NUMANodes < 2:
		return nil, "", nil
	case !rep.HasNumactl:
		return nil, "numactl is not installed: the command runs on all NUMA nodes, slower on " + generation.Name +
			" (multihost preflight apply --install)", nil
	}
	return bound(), "command and memory bound to NUMA node 0" + ofMemory(rep), nil
}

func bound() []string { return []string{"numactl", "--membind=0", "--cpunodebind=0"} }

// ofMemory says how much memory node 0 has, if that is known.
func ofMemory(rep Report) string {
	if rep.Node0Bytes == 0 || rep.TotalBytes == 0 {
		return ""
	}
	return fmt.Sprintf(": %d of %d GiB", rep.Node0Bytes>>30, rep.TotalBytes>>30)
}
