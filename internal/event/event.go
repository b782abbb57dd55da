// Package event defines the events that multihost's logic reports. Packages emit Events to
// a Sink and print nothing. internal/ui renders them for a terminal, a pipe or a JSON
// reader.
//
// Every event is a plain value. A Sink must be safe for concurrent use. A slow reader must not
// block the caller of Emit for longer than it takes to buffer the event: the engine calls Emit
// while 2048 workers stream.
package event

import "time"

// An Event is one of the concrete types of this package.
type Event interface {
	// Kind returns the stable name of the event in JSON output.
	Kind() string
}

// A Sink receives events. Emit is safe for concurrent use. After Emit, the sink keeps no
// reference to byte slices in the event. Emit never fails: a sink drops bytes that it
// cannot write.
type Sink interface {
	Emit(Event)
}

// SinkFunc adapts a function to a Sink.
type SinkFunc func(Event)

// Emit calls f.
func (f SinkFunc) Emit(e Event) { f(e) }

// Discard drops every event.
var Discard Sink = SinkFunc(func(Event) {})

// Tee returns a sink that emits every event to all sinks, in order.
func Tee(sinks ...Sink) Sink {
	return SinkFunc(func(e Event) {
		for _, s := range sinks {
			s.Emit(e)
		}
	})
}

// Level is the importance of a Note.
type Level string

const (
	Info  Level = "info"
	Warn  Level = "warning"
	Debug Level = "debug" // only with --debug
)

// Note is one sentence to the user, with an optional hint that ends with the command to
// type.
type Note struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Hint  string `json:"hint,omitempty"`
}

// PhaseState is the state of a phase.
type PhaseState string

const (
	Started PhaseState = "started"
	Done    PhaseState = "done"
	Failed  PhaseState = "failed"
)

// Phase marks the beginning or the end of a step of a command: discover, connect, sync,
// preflight, free, start, run, stop, teardown, queue, provision, …
type Phase struct {
	Name    string        `json:"name"`
	State   PhaseState    `json:"state"`
	Detail  string        `json:"detail,omitempty"` // one line: "8/8 workers connected"
	Elapsed time.Duration `json:"elapsed_ns,omitempty"`
}

// Progress is a step within a phase. It replaces the last Progress of the phase. A renderer
// that does not redraw lines shows it after a change, and at most every 30 s.
type Progress struct {
	Phase   string        `json:"phase"`
	Done    int           `json:"done"`
	Total   int           `json:"total"`
	Waiting string        `json:"waiting,omitempty"` // folded workers or a resource: "s0w[2-3]"
	Detail  string        `json:"detail,omitempty"`  // "PROVISIONING", "1.2 MB of 4.0 MB"
	Elapsed time.Duration `json:"elapsed_ns,omitempty"`
	Limit   time.Duration `json:"limit_ns,omitempty"` // time limit of the whole phase; 0: none
	Bytes   int64         `json:"bytes,omitempty"`    // copied so far, of All
	All     int64         `json:"all_bytes,omitempty"`

	// Silent names, folded, the workers that do not answer any more, not even keepalives.
	// It is "any worker" if all workers of the phase are silent.
	Silent      string     `json:"silent,omitempty"`
	SilentSince *time.Time `json:"silent_since,omitempty"` // last answer of one of them
}

// Training is the newest step of a training run. It replaces the Training before it. 0 means
// that a figure is not known. TFLOP/s and tokens/s are per device. MFU is a fraction.
type Training struct {
	Step        int64   `json:"step"`
	StepSeconds float64 `json:"step_seconds,omitempty"`
	TFLOPs      float64 `json:"tflops_per_device,omitempty"`
	MFU         float64 `json:"mfu,omitempty"`
	Tokens      float64 `json:"tokens_per_second_per_device,omitempty"`
	Loss        string  `json:"loss,omitempty"` // "3.21", or "NaN", "Inf", "-Inf"
}

// Stall reports that the workers of a training run make no more steps, or make steps again.
type Stall struct {
	Attempt int           `json:"attempt"`
	Began   time.Time     `json:"began"` // time of the last step line
	Seen    time.Time     `json:"seen"`
	Limit   time.Duration `json:"limit_ns"`
	First   string        `json:"first"` // workers that stopped first, folded
	Step    int64         `json:"step"`  // their last step
	Ended   *time.Time    `json:"ended,omitempty"`
	Text    string        `json:"text"`
	Hint    string        `json:"hint,omitempty"`
}

// Request says what a command will request from the cloud. The command emits it before the
// first request, and not again for a repeated request.
type Request struct {
	Resource    string        `json:"queued_resource"`
	Slices      int           `json:"slices"`
	Type        string        `json:"accelerator_type"`
	Workers     int           `json:"workers"` // of all slices
	Chips       int           `json:"chips"`   // of all slices
	Tier        string        `json:"tier"`    // on-demand, spot, best-effort, …
	Reservation string        `json:"reservation,omitempty"`
	Zone        string        `json:"zone"`
	Network     string        `json:"network"`              // in words: "network mtu9k"
	MTU         int           `json:"mtu,omitempty"`        // MTU of the network; absent: not known
	Hourly      *float64      `json:"usd_per_hour"`         // list price of all slices; null: no price for this tier and zone
	PriceDate   string        `json:"price_date"`           // day on which the price list was read
	Until       string        `json:"billed_until"`         // what ends the bill, in words
	MaxRun      time.Duration `json:"max_run_ns,omitempty"` // the provider takes the slices away after this time; 0: never
	DryRun      bool          `json:"dry_run,omitempty"`
	Text        string        `json:"text"` // the line for people
}

// State reports a new state of a cloud resource.
type State struct {
	Resource string        `json:"resource"` // "queued resource", "node", "network", "firewall"
	Name     string        `json:"name"`
	State    string        `json:"state"` // the API's word
	Detail   string        `json:"detail,omitempty"`
	Elapsed  time.Duration `json:"elapsed_ns,omitempty"`
}

// Attempt says to which attempt of a run the next events belong.
type Attempt struct {
	Run     string    `json:"run"`
	Attempt int       `json:"attempt"`
	Command string    `json:"command"` // secrets masked
	Begin   time.Time `json:"begin"`   // start of the attempt by the runner's clock
	Slices  []string  `json:"slices"`
	Workers int       `json:"workers"`
	LogDir  string    `json:"log_dir"`
}

// Release reports when the command started on all workers.
type Release struct {
	Attempt int          `json:"attempt"`
	First   time.Time    `json:"first"` // worker clock, corrected by the measured offset
	Workers []ReleasedOn `json:"workers"`
}

// ReleasedOn says when the command started on one worker.
type ReleasedOn struct {
	Slice  int           `json:"slice"`
	Worker int           `json:"worker"`
	After  time.Duration `json:"after_ns"` // time after the first worker's start, by corrected clocks
}

// Output is bytes that a worker's command wrote, in order and not split at lines. Data is
// valid only during Emit.
type Output struct {
	Slice  int    `json:"slice"`
	Worker int    `json:"worker"`
	Data   []byte `json:"data"`
}

// WorkerDone reports how the command ended on one worker.
type WorkerDone struct {
	Slice  int       `json:"slice"`
	Worker int       `json:"worker"`
	Code   int       `json:"code"`             // exit code; 128+n for signal n
	Signal string    `json:"signal,omitempty"` // "KILL" after a death by that signal
	Reason string    `json:"reason,omitempty"` // why we stopped it: "fail-fast", "interrupt", …
	Error  string    `json:"error,omitempty"`  // why the end is not known; Code is then 69
	End    time.Time `json:"end"`              // worker clock, corrected by the measured offset
}

// AttemptEnd reports how an attempt ended, and what follows. An attempt whose command never
// started has no AttemptEnd.
type AttemptEnd struct {
	Run     string        `json:"run"`
	Attempt int           `json:"attempt"`
	OK      bool          `json:"ok"`              // every worker ended with 0
	Cause   string        `json:"cause,omitempty"` // kind of failure: preempted, maintenance, application, stall, …
	Why     string        `json:"why,omitempty"`   // one clause: "slice t-1 is PREEMPTED"
	Code    int           `json:"code,omitempty"`  // exit code of the first worker to fail
	Elapsed time.Duration `json:"elapsed_ns"`      // how long the command ran
	Again   bool          `json:"again"`           // another attempt follows
	Next    string        `json:"next,omitempty"`  // what comes next, or why nothing does
}

// Result is the answer of a list or show command. Text is for people, and Data is the value
// for --output=json.
type Result struct {
	Name string `json:"name"` // "queued_resources", "runs", "preflight", …
	Text string `json:"-"`
	Data any    `json:"data"`
}

// Summary reports the end of a run.
type Summary struct {
	Run         string        `json:"run"`
	Attempt     int           `json:"attempt"`
	OK          bool          `json:"ok"`
	ExitCode    int           `json:"exit_code"`    // multihost's exit status
	CommandCode int           `json:"command_code"` // exit code of the first worker to fail, else 0
	Text        string        `json:"text"`         // one or several lines for people
	FirstFail   string        `json:"first_failure,omitempty"`
	LastLines   []string      `json:"last_lines,omitempty"`  // last 20 lines of the first worker to fail
	LeftBehind  int           `json:"left_behind,omitempty"` // background processes that were ended after the command
	LogDir      string        `json:"log_dir"`
	Training    []string      `json:"training,omitempty"` // how fast it was and which workers were slow, one line each
	Next        string        `json:"next,omitempty"`     // command to type next; "": a failure shows a default
	Phases      []PhaseTime   `json:"phases"`
	Skew        time.Duration `json:"start_skew_ns"`
}

// PhaseTime is the duration of one phase of a run.
type PhaseTime struct {
	Name    string        `json:"name"`
	Elapsed time.Duration `json:"elapsed_ns"`
}

// Kind implements Event.
func (Note) Kind() string { return "note" }

// Kind implements Event.
func (Phase) Kind() string { return "phase" }

// Kind implements Event.
func (Progress) Kind() string { return "progress" }

// Kind implements Event.
func (Training) Kind() string { return "training" }

// Kind implements Event.
func (Stall) Kind() string { return "stall" }

// Kind implements Event.
func (Request) Kind() string { return "request" }

// Kind implements Event.
func (State) Kind() string { return "state" }

// Kind implements Event.
func (Attempt) Kind() string { return "attempt" }

// Kind implements Event.
func (Release) Kind() string { return "release" }

// Kind implements Event.
func (Output) Kind() string { return "output" }

// Kind implements Event.
func (WorkerDone) Kind() string { return "worker_done" }

// Kind implements Event.
func (AttemptEnd) Kind() string { return "attempt_end" }

// Kind implements Event.
func (Result) Kind() string { return "result" }

// Kind implements Event.
func (Summary) Kind() string { return "summary" }
