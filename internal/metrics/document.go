// Package metrics reads training steps from the output of a command, and reports how fast
// the training is: per worker, slice and run, and beside published figures. It names the
// workers that lag and those that have stopped.
//
// It is pure: bytes and times go in, a Document comes out. Reading costs less than a copy
// of the bytes. Memory is bounded for any number of steps: a worker keeps at most
// seriesBuckets points of its history, and digestMost distinct values of each figure.
//
// Words and units are the same everywhere. A step time is in seconds. TFLOP/s and tokens/s
// are per device, as MaxText prints them. A device is what JAX calls one: a chip, or half a
// chip on v2, v3 and tpu7x. MFU is a fraction, 0.6686 for 66.86 %.
//
// # Decisions
//
//   - Reading searches for the marker of a step line in whole chunks, without
//     splitting lines. A worker keeps counts of its distinct values, and points of its
//     history whose width is a power of two. So slices and runs are sums of their
//     workers, and nothing is kept twice.
//   - A published figure counts only for the same generation and number of slices.
//     --fail-below without such a figure is an error.
package metrics

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"multihost/internal/tpu"
)

// DocumentVersion is the version of Document as JSON. It grows when a field changes its
// meaning or is removed, not when a field is added.
const DocumentVersion = 1

// A Number is a figure that may be unknown: NaN in Go, null in JSON. In JSON it has seven
// significant digits. Infinities are null, too, because JSON has none.
type Number float64

// Unknown is the unknown Number.
var Unknown = Number(math.NaN())

// Known reports whether the figure is known and finite.
func (n Number) Known() bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Known() {
		return []byte("null"), nil
	}
	short, _ := strconv.ParseFloat(strconv.FormatFloat(float64(n), 'g', 7, 64), 64)
	if a := math.Abs(short); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.AppendFloat(nil, short, 'e', -1, 64), nil
	}
	return strconv.AppendFloat(nil, short, 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*n = Unknown
		return nil
	}
	v, err := strconv.ParseFloat(string(data), 64)
	*n = Number(v)
	return err
}

// A Document is everything known about the training of one run. The metrics command, the
// report page and the terminal view show it. Figures are computed nowhere else.
type Document struct {
	Version   int       `json:"version"`
	Run       string    `json:"run"`
	Command   string    `json:"command,omitempty"`
	Generated time.Time `json:"generated"`

	AcceleratorType string `json:"accelerator_type,omitempty"` // "v5litepod-256"; "": unknown, and so is MFU
	Generation      string `json:"generation,omitempty"`       // "v5e"
	// PeakTFLOPs is the bf16 peak of one device. MFU is relative to it.
	PeakTFLOPs Number `json:"peak_tflops_per_device"`
	PeakSource string `json:"peak_source,omitempty"`

	// Attempts are all attempts with logs on this machine, oldest first. Only the last one
	// has a series for each worker.
	Attempts []Attempt `json:"attempts"`

	Compare *Comparison `json:"compare,omitempty"` // set if the user asked for a published figure
}

// Newest returns the last attempt, or nil if there is none.
func (d *Document) Newest() *Attempt {
	if len(d.Attempts) == 0 {
		return nil
	}
	return &d.Attempts[len(d.Attempts)-1]
}

// An Attempt is one start of the command on all workers.
type Attempt struct {
	Number   int        `json:"number"`
	LogDir   string     `json:"log_dir,omitempty"`
	Began    *time.Time `json:"began,omitempty"`
	End      *time.Time `json:"end,omitempty"`
	Ended    bool       `json:"ended"`               // nothing will be added to its logs
	ExitCode *int       `json:"exit_code,omitempty"` // exit code of the first worker to fail, once the attempt has ended
	Cause    string     `json:"cause,omitempty"`     // why the attempt ended, unless it succeeded

	// Skipped is how many steps medians leave out of each worker, from the first one that
	// it printed. These steps contain compilation.
	Skipped int `json:"skipped_steps"`
	// MedianError bounds the relative error of the medians below. 0 means that they are
	// exact.
	MedianError Number `json:"median_error"`

	Figures
	Slices []Slice `json:"slices"`

	Stragglers []Straggler `json:"stragglers"`
	Stalls     []Stall     `json:"stalls"`
	// BadLoss is the first loss that is not a finite number.
	BadLoss *BadLoss `json:"bad_loss,omitempty"`
}

// Slice returns the slice with this number, or nil if there is none.
func (a *Attempt) Slice(number int) *Slice {
	for i := range a.Slices {
		if a.Slices[i].Number == number {
			return &a.Slices[i]
		}
	}
	return nil
}

// Figures holds what is known of a worker, a slice or a whole run.
type Figures struct {
	// Steps counts the step lines that were read, of all workers together.
	Steps     int64 `json:"steps"`
	FirstStep int64 `json:"first_step"` // meaningless while Steps is 0
	// Last is the newest step. For a slice or a run, it is that of the worker that is
	// furthest ahead.
	Last Sample `json:"last"`
	// Evaluations counts evaluations, and Restarts returns to an earlier step. Each is the
	// count of the worker with the highest count.
	Evaluations int `json:"evaluations"`
	Restarts    int `json:"restarts"`

	Median Median  `json:"median"`
	Series *Series `json:"series,omitempty"`
}

// A Slice is one slice of a run.
type Slice struct {
	Number int    `json:"number"`
	Name   string `json:"name,omitempty"`
	Figures
	Workers []Worker `json:"workers"`
}

// A Worker is one worker of a run.
type Worker struct {
	Name   string `json:"name"` // "s0w3"
	Slice  int    `json:"slice"`
	Worker int    `json:"worker"`
	Figures
	LogBytes int64 `json:"log_bytes"` // number of bytes read so far
}

// A Sample holds the figures of one step.
type Sample struct {
	Step        int64  `json:"step"` // meaningless while Steps is 0
	StepSeconds Number `json:"step_seconds"`
	TFLOPs      Number `json:"tflops_per_device"`
	MFU         Number `json:"mfu"`
	Tokens      Number `json:"tokens_per_second_per_device"`
	Loss        Number `json:"loss"`
	// LossText is "NaN", "Inf" or "-Inf" if the loss is not a finite number.
	LossText string `json:"loss_text,omitempty"`
	// At is when the line was read, while the run was followed. It is nil for lines from
	// files.
	At *time.Time `json:"at,omitempty"`
}

// A Median holds the median of each figure over the steps that count, without skipped
// steps, steps of the profiler and steps of a growing batch. For a slice or a run, it is
// over the steps of all workers.
type Median struct {
	Steps       int64  `json:"steps"` // number of steps with a step time, of all workers together
	StepSeconds Number `json:"step_seconds"`
	TFLOPs      Number `json:"tflops_per_device"`
	MFU         Number `json:"mfu"`
	Tokens      Number `json:"tokens_per_second_per_device"`
}

// A Series holds figures over steps, in columns of equal length, one for each figure. Point
// i stands for the steps Step[i] … Step[i]+StepsPerPoint-1. Its mean covers these steps,
// for a slice or a run those of all workers. Min and Max are single steps, so that joining
// steps loses no outlier. Skipped steps are included.
type Series struct {
	StepsPerPoint int64    `json:"steps_per_point"`
	Step          []int64  `json:"step"`
	Lines         []int64  `json:"lines"` // number of step lines behind the point
	StepSeconds   []Number `json:"step_seconds"`
	Min           []Number `json:"step_seconds_min"`
	Max           []Number `json:"step_seconds_max"`
	TFLOPs        []Number `json:"tflops_per_device"`
	MFU           []Number `json:"mfu"`
	Tokens        []Number `json:"tokens_per_second_per_device"`
	Loss          []Number `json:"loss"`     // mean of the finite losses
	BadLoss       []int64  `json:"bad_loss"` // number of losses that are NaN or infinite
}

// A StragglerKind says how a straggler lags.
type StragglerKind string

// The kinds of Straggler.
const (
	SlowSteps StragglerKind = "slow_steps" // its median step time is above that of the others
	Behind    StragglerKind = "behind"     // its last step is before that of the others
)

// A Straggler is a worker or a whole slice that lags.
type Straggler struct {
	Kind    StragglerKind `json:"kind"`
	Name    string        `json:"name"` // a worker "s0w3", or a whole slice "s1w[0-63]"
	Slice   int           `json:"slice"`
	Worker  int           `json:"worker"`       // -1: the whole slice
	Median  Number        `json:"step_seconds"` // its own median
	Others  Number        `json:"others_step_seconds"`
	Ratio   Number        `json:"ratio"` // Median divided by Others
	Last    int64         `json:"last_step"`
	Missing int64         `json:"steps_behind"`
	Text    string        `json:"text"` // one line for people
}

// A Stall is a time in which no worker completed a step.
type Stall struct {
	Began time.Time     `json:"began"` // when the last step line was read
	Seen  time.Time     `json:"seen"`  // when the limit had passed
	Limit time.Duration `json:"limit_ns"`
	// First names the workers that stopped first, folded. Step is the last step that they
	// printed.
	First string     `json:"first"`
	Step  int64      `json:"step"`
	Ended *time.Time `json:"ended,omitempty"` // when steps continued; nil while they have not
	Text  string     `json:"text"`
}

// BadLoss says where the loss was not a finite number for the first time.
type BadLoss struct {
	Step   int64  `json:"step"`
	Worker string `json:"worker"`
	Text   string `json:"text"` // "NaN", "Inf" or "-Inf"
}

// A Comparison compares a run with the published figures for the same model and generation.
type Comparison struct {
	Preset string `json:"preset"` // "v5e/32b"
	Model  string `json:"model"`
	Type   string `json:"accelerator_type"` // type of one slice
	Slices int    `json:"slices"`           // slices of the run
	Source string `json:"source"`

	// TFLOPs and MFU are the published figures for this number of slices, or unknown if
	// there are none.
	TFLOPs Number `json:"tflops_per_device"`
	MFU    Number `json:"mfu"`
	// Ratio is the run's median TFLOP/s/device divided by the published figure. It is also
	// unknown if the run is on another generation.
	Ratio Number `json:"ratio"`
	// RunEfficiency is the run's median TFLOP/s/device divided by the published figure for
	// a single slice.
	RunEfficiency Number `json:"run_scaling_efficiency"`
	// Rows holds all published figures, by number of slices.
	Rows []PublishedRow `json:"rows"`
	// Note names what else differs between run and figure, such as the slice size.
	Note string `json:"note,omitempty"`
}

// A PublishedRow is one published figure.
type PublishedRow struct {
	Slices int    `json:"slices"`
	TFLOPs Number `json:"tflops_per_device"`
	MFU    Number `json:"mfu"`
	// Efficiency is TFLOPs divided by the TFLOPs of one slice.
	Efficiency Number `json:"scaling_efficiency"`
	// Ratio is the run's median TFLOP/s/device divided by the figure of this row.
	Ratio Number `json:"ratio"`
	Here  bool   `json:"here"` // the row for the run's number of slices
}

// NewDocument returns a document without attempts. The zero Type means an unknown type.
func NewDocument(run string, kind tpu.Type, now time.Time) Document {
	d := Document{Version: DocumentVersion, Run: run, Generated: now.UTC(), PeakTFLOPs: Unknown, Attempts: []Attempt{},
		AcceleratorType: kind.Name, Generation: kind.Generation.Name}
	if p, ok := PeakOf(kind.Generation); ok {
		d.PeakTFLOPs, d.PeakSource = Number(p.PerDevice()), p.Source
	}
	return d
}

// Below says why the run is slower than limit allows, or returns "" if it is not. limit is
// a ratio of the published TFLOP/s. Compare must be set.
func (d *Document) Below(limit float64) string {
	switch ratio := d.Compare.Ratio; {
	case !ratio.Known():
		return fmt.Sprintf("the run cannot be compared with %s, and so is not at %g of it", d.Compare.Preset, limit)
	case float64(ratio) < limit-1e-9: // the margin makes 121.6 of 128 count as 0.95
		return fmt.Sprintf("the run is at %.3f of the published TFLOP/s of %s, below %g", float64(ratio), d.Compare.Preset, limit)
	}
	return ""
}
