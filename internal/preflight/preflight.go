// Package preflight reads and applies the settings of a worker on which training over the
// data-centre network depends.
//
// One table (Settings) has the wanted values. One embedded bash script reads and applies
// them. The settings are independent: the script reads each one, writes it only if it
// differs, and reads it back. If one fails, the script still does the others. It never
// leaves a worker without a default route that the worker had before. No setting survives a
// reboot, so each attempt applies them again.
//
// # Decisions
//
//   - The preflight that multihost prints is the same script, with the table in it. Only
//     its function result differs: it writes records for the program, or text for people.
//     So a pod runs the script that the tests run.
package preflight

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"multihost/internal/fault"
	"multihost/internal/remote"
)

// Mode says whether a worker may be changed.
type Mode int

// The modes.
const (
	Apply Mode = iota // read, change what differs, read back
	Check             // only read
)

func (m Mode) String() string {
	if m == Check {
		return "check"
	}
	return "apply"
}

// Platform is where the workers run.
type Platform string

// The platforms.
const (
	GCE Platform = "gce"
	GKE Platform = "gke"
)

// ParsePlatform reads a --platform value in any case. "" means GCE.
func ParsePlatform(text string) (Platform, error) {
	switch p := Platform(strings.ToLower(text)); p {
	case "":
		return GCE, nil
	case GCE, GKE:
		return p, nil
	}
	return "", fmt.Errorf("parse platform %q: want gce or gke", text)
}

// NoDevices as Options.ExpectChips means that the worker is no TPU host.
const NoDevices = -1

// Options say what Run wants of a worker. The zero value applies everything on GCE, and
// expects at least one TPU device and no particular MTU.
type Options struct {
	Mode     Mode
	Platform Platform // "" means GCE
	// Install installs packages with missing tools, with apt-get.
	Install bool
	// ExpectMTU is the MTU of the network, or 0 if it is unknown: then the MTU is read but
	// not judged.
	ExpectMTU int
	// BetweenSlices is the MTU that several slices of one training need between them. It is 0
	// for one slice, because its chips exchange gradients over their own links.
	BetweenSlices int
	// ExpectChips is the number of TPU devices of a worker. 0 means at least one. NoDevices
	// means that nobody checks them.
	ExpectChips int
}

// Outcome is the result of one setting on one worker.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"      // was as wanted; nothing was written
	Changed Outcome = "changed" // was written, and reads back as wanted
	Skipped Outcome = "skipped" // does not exist on this worker, or is not expected there
	Failed  Outcome = "failed"  // is not as wanted
)

// NotAsWanted is the reason if a check finds another value than the wanted one and apply
// could set it.
const NotAsWanted = "not as wanted"

// Severity says what an outcome means for a run.
type Severity int

// The severities, in rising order.
const (
	Fine    Severity = iota
	Warning          // the run works, but more slowly
	Hard             // the run cannot work: TPU devices or the default route are missing
)

// A Result is the result of one setting on one worker.
type Result struct {
	Setting string  `json:"setting"`
	Want    string  `json:"want"`
	Before  string  `json:"before"`
	After   string  `json:"after"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`
	Lost    bool    `json:"lost,omitempty"` // something that worked before is lost, and the script could not restore it
}

// Severity says what the result means for a run.
func (r Result) Severity() Severity {
	switch {
	case r.Outcome != Failed:
		return Fine
	case r.Lost, r.Setting == devicesName:
		return Hard
	}
	return Warning
}

// A Report has the results of all settings of one worker, in the order of Settings.
type Report struct {
	Results    []Result `json:"results"`
	NUMANodes  int      `json:"numa_nodes"`
	Node0Bytes int64    `json:"numa_node0_bytes,omitempty"` // memory of NUMA node 0; 0: unknown
	TotalBytes int64    `json:"memory_bytes,omitempty"`     // memory of the worker; 0: unknown
	HasNumactl bool     `json:"has_numactl"`
	Devices    int      `json:"devices"`
	BootID     string   `json:"boot_id"`
}

// Severity returns the worst severity of the results. With require, every failure is
// Hard.
func (r Report) Severity(require bool) Severity {
	worst := Fine
	for _, res := range r.Results {
		s := res.Severity()
		if s == Warning && require {
			s = Hard
		}
		worst = max(worst, s)
	}
	return worst
}

// Failures returns the results that failed.
func (r Report) Failures() []Result {
	var failed []Result
	for _, res := range r.Results {
		if res.Outcome == Failed {
			failed = append(failed, res)
		}
	}
	return failed
}

// ErrNoReport means that the worker's answer was not the script's report.
var ErrNoReport = fault.New(fault.Unavailable, "no preflight report in the worker's answer")

// Run applies the settings to one worker, or only checks them. An error means that the
// state of the worker is unknown. A setting that could not be applied is a result, not an
// error. Run is safe for concurrent use and idempotent.
func Run(ctx context.Context, r remote.Runner, o Options) (Report, error) {
	out := &remote.Answer{Nonce: remote.NewNonce()}
	errs := &remote.Answer{Nonce: out.Nonce}
	cmd := program.Cmd(nil, append([]string{out.Nonce}, arguments(o)...)...)
	cmd.Stdout, cmd.Stderr, cmd.ReadOnly = out, errs, o.Mode == Check
	status, err := r.Run(ctx, cmd)
	if err != nil {
		return Report{}, fmt.Errorf("run preflight: %w", err)
	}
	report, err := parse(out.Records())
	if err != nil {
		return Report{}, fmt.Errorf("run preflight: %w (%s)", err, describe(status, errs.Trouble(), out.Trouble()))
	}
	return report, nil
}

// describe describes the end of the script for an error.
func describe(status remote.Status, stderr, stdout string) string {
	how := fmt.Sprintf("exit status %d", status.Code)
	if status.Signal != "" {
		how = "killed by SIG" + status.Signal
	}
	if line := cmp.Or(stderr, stdout); line != "" {
		return how + fmt.Sprintf(", last line %q", line)
	}
	return how + ", no output"
}

// MarshalText writes the severity as a word.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Severity) String() string {
	return [...]string{"fine", "warning", "hard"}[s]
}
