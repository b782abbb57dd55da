//go:build unix

package agent

import (
	"fmt"
	"strconv"
	"strings"
)

// A Preflight is the answer of the preflight's script.
type Preflight struct {
	Ended     bool // the script came to its end
	NUMANodes int
	Numactl   bool      // numactl is installed
	Failed    []Setting // settings that are not as wanted
	last      string    // last line of the output, whatever it says
}

// A Setting is a setting of the worker that differs from the wanted value.
type Setting struct{ Name, Want, Why string }

func (s Setting) String() string {
	return fmt.Sprintf("preflight: %s is not %s: %s", s.Name, s.Want, s.Why)
}

// preflightLine begins each line of the answer.
const preflightLine = "multihost-preflight "

// ReadPreflight reads the output of the preflight's script.
func ReadPreflight(out []byte) (p Preflight) {
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if line != "" {
			p.last = line
		}
		text, ok := strings.CutPrefix(line, preflightLine)
		if !ok {
			continue
		}
		word, fields, _ := strings.Cut(text, " ")
		f := append([]string{word}, strings.SplitN(fields+strings.Repeat("\t", 7), "\t", 8)...)
		switch {
		case f[0] == "end":
			p.Ended = true
		case f[0] == "info" && f[1] == "numa_nodes":
			p.NUMANodes, _ = strconv.Atoi(f[2])
		case f[0] == "info" && f[1] == "numactl":
			p.Numactl = f[2] == "yes"
		case f[0] == "result" && f[5] == "failed":
			p.Failed = append(p.Failed, Setting{f[1], f[2], f[7]})
		}
	}
	return p
}

// Refusal returns why the command must not start, or nil. Without TPU devices it never
// starts. The mode is that of --preflight: with "require", every setting must be as wanted.
func (p Preflight) Refusal(mode string) error {
	for _, s := range p.Failed {
		if s.Name == "tpu_devices" || mode == "require" {
			return fmt.Errorf("preflight: %s: %s", s.Name, s.Why)
		}
	}
	if !p.Ended && mode != "check" {
		return fmt.Errorf("preflight did not end: %s", p.last)
	}
	return nil
}
