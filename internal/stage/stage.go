// Package stage names the steps of a command and measures their time. Its errors say in which
// step one or many workers have failed. It also has the causes that end a command early, such
// as a failed attempt or an interrupt by the user.
package stage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/tpu"
)

// Interrupted is the cause of a context that a signal has ended.
type Interrupted struct {
	Signal os.Signal
	Answer Answer // what happens to whatever is running
}

// An Answer says what an interrupt means.
type Answer string

// The answers. Without an answer, SIGHUP detaches, and so does every signal to a command that
// has not started the run itself. Other signals stop the run.
const (
	Ask      Answer = "ask"      // never in an Interrupted: the user is asked first
	Continue Answer = "continue" // never in an Interrupted: nothing happens
	Stop     Answer = "stop"     // stop the command on all workers, and delete what was created for it
	Detach   Answer = "detach"   // leave the command running, with what was created for it
)

// Detaches reports whether to leave the run running. ours says whether this command has started
// the run.
func (e *Interrupted) Detaches(ours bool) bool {
	if e.Answer != "" {
		return e.Answer == Detach
	}
	return !ours || e.Signal == syscall.SIGHUP
}

func (e *Interrupted) Error() string {
	if e.Answer == Detach && e.Signal != syscall.SIGHUP {
		return "detached"
	}
	switch e.Signal {
	case syscall.SIGINT:
		return "interrupted (SIGINT)"
	case syscall.SIGTERM:
		return "terminated (SIGTERM)"
	case syscall.SIGHUP:
		return "the terminal is gone (SIGHUP)"
	}
	return "ended by signal " + e.Signal.String()
}

// Fault returns fault.Interrupted.
func (e *Interrupted) Fault() fault.Kind { return fault.Interrupted }

// Stage names the step of a run in which workers failed.
type Stage string

// The stages of a run.
const (
	Input     Stage = "input"
	Scan      Stage = "read files"
	Discover  Stage = "discover"
	Survey    Stage = "ask the slices"
	Connect   Stage = "connect"
	Busy      Stage = "check"
	Sync      Stage = "sync"
	Folder    Stage = "use existing folder"
	Preflight Stage = "preflight"
	Settings  Stage = "preflight settings" // the preflight was done, but settings are not as required
	Venv      Stage = "virtual environment"
	Free      Stage = "free the TPU"
	Skew      Stage = "skew" // workers differ
	Start     Stage = "start"
	Follow    Stage = "run"
	Stopping  Stage = "stop"
	Timeout   Stage = "timeout"
	Stalled   Stage = "stall"
	Local     Stage = "local files"
	Verify    Stage = "verify"
	Exec      Stage = "exec"
	Copy      Stage = "copy"
	Dump      Stage = "dump"
	Teardown  Stage = "teardown"
)

// Error says in which stage a run failed and for which workers.
type Error struct {
	Stage  Stage
	Text   string // what happened, without the stage
	Err    error  // the cause, or that of the first worker
	Advice string

	Each []error // errors of the workers that failed
	Lost bool    // workers are unreachable or gone, whatever Err says
}

func (e *Error) Error() string {
	text := e.Text
	if text == "" && e.Err != nil {
		text = e.Err.Error()
	}
	if e.Stage == Input { // the text is about the typed command line
		return text
	}
	return string(e.Stage) + ": " + text
}

// NoRun returns the error about a run that does not exist where the command looked for it,
// or has no logs there. All commands then end with the status of fault.Unavailable: the
// name is well-formed, and the run may exist elsewhere.
func NoRun(text, advice string) *Error { return &Error{Stage: Discover, Text: text, Advice: advice} }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fault returns the kind of the error. An error of the command line or of a setting keeps its
// kind in any stage. Otherwise the stage decides, or the cause if the stage has no kind.
func (e *Error) Fault() fault.Kind {
	cause := gcp.FaultOf(e.Err)
	if cause == fault.Usage || cause == fault.Configuration {
		return cause
	}
	switch e.Stage {
	case Settings, Skew, Venv:
		return fault.Preflight
	case Timeout, Stalled:
		return fault.Temporary
	case Local, Scan:
		return fault.IO
	case Input:
		return fault.Usage
	}
	return known(cause)
}

// known returns kind, or fault.Unavailable if kind says nothing about the failure.
func known(kind fault.Kind) fault.Kind {
	if kind == fault.Unknown || kind == fault.Internal {
		return fault.Unavailable
	}
	return kind
}

// Hint says what to do next.
func (e *Error) Hint() string {
	if e.Advice != "" {
		return e.Advice
	}
	var hinted interface{ Hint() string }
	if errors.As(e.Err, &hinted) {
		return hinted.Hint()
	}
	return ""
}

// settled is an error whose advice no longer holds, because the slices have been deleted since.
type settled struct{ error }

// WithoutSlices returns err without advice that needs the slices. Use it after the slices have
// been deleted.
func WithoutSlices(err error) error { return settled{err} }

func (e settled) Unwrap() error { return e.error }

// Hint hides the hints of the wrapped error, except one that holds without the slices.
func (e settled) Hint() string {
	var hinted interface{ HintWhenGone() string }
	if errors.As(e.error, &hinted) {
		return hinted.HintWhenGone()
	}
	return ""
}

// WorkersError combines the failures of single workers into one error of a stage. Workers
// with equal causes share a clause. The first worker's cause comes first. The length does
// not grow with the number of workers. errs[i] is the error of ids[i], or nil for a
// success.
func WorkersError(stage Stage, ids []tpu.WorkerID, errs []error) error {
	each := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(each) == 0 {
		return nil
	}
	groups := GroupErrors(ids, errs)
	parts := make([]string, len(groups))
	advice := ""
	for i, g := range groups {
		parts[i] = tpu.FoldShort(g.Workers) + ": " + g.String()
		if advice == "" {
			advice = Cure(g.Cause)
		}
	}
	return &Error{
		Stage:  stage,
		Text:   fmt.Sprintf("%d of %d workers failed: %s", len(each), len(ids), strings.Join(parts, "; ")),
		Err:    groups[0].First,
		Each:   each,
		Advice: advice,
	}
}

// failureGroup holds workers that failed with the same cause. If there are many causes, the
// last group holds all other workers, and its cause says this.
type failureGroup struct {
	Cause   string
	First   error
	Workers []tpu.WorkerID
}

// String returns the cause. For a single worker, it includes details of this worker, such as
// the address.
func (g failureGroup) String() string {
	if len(g.Workers) == 1 {
		return strings.TrimPrefix(g.First.Error(), g.Workers[0].String()+": ")
	}
	return g.Cause
}

// GroupErrors groups the workers by the cause of their failure, in the order in which the
// causes first occur. The number of groups is limited (see tpu.GroupAlike).
func GroupErrors(ids []tpu.WorkerID, errs []error) []failureGroup {
	causes := make([]string, len(errs))
	for i, err := range errs {
		if err != nil {
			causes[i] = CauseText(err, ids[i])
		}
	}
	alike := tpu.GroupAlike(causes)
	groups := make([]failureGroup, len(alike))
	for i, a := range alike {
		groups[i] = failureGroup{Cause: a.Text, First: errs[a.At[0]]}
		for _, at := range a.At {
			groups[i].Workers = append(groups[i].Workers, ids[at])
		}
	}
	return groups
}

// JoinNamed combines the failures of named things other than workers, such as runs or
// leftovers. Things with equal causes share a clause. errs[i] is the error of names[i], or
// nil for a success. A single failure stays as it is.
func JoinNamed(names []string, errs []error) error {
	causes := make([]string, len(errs))
	var failed []error
	for i, err := range errs {
		if err != nil {
			failed = append(failed, err)
			causes[i] = strings.ReplaceAll(err.Error(), strconv.Quote(names[i]), "…")
		}
	}
	if len(failed) < 2 {
		return errors.Join(failed...)
	}
	return &manyError{text: tpu.FoldTexts(names, causes), each: failed}
}

// A manyError holds the errors of several named things.
type manyError struct {
	text string
	each []error
}

func (e *manyError) Error() string { return e.text }

func (e *manyError) Unwrap() []error { return e.each }

// CauseText returns the text of err without the worker's name, so that equal causes have equal
// texts. If other details differ between workers too, the error has a method Cause() string
// that returns the text without them.
func CauseText(err error, id tpu.WorkerID) string {
	text := err.Error()
	var cause interface {
		error
		Cause() string
	}
	if errors.As(err, &cause) {
		text = strings.ReplaceAll(text, cause.Error(), cause.Cause())
	}
	text = strings.TrimPrefix(text, id.String()+": ")
	return withoutName(strings.ReplaceAll(text, " on "+id.String()+":", ":"), id.String())
}

// withoutName replaces a worker's name if it is a word of the text.
func withoutName(text, name string) string {
	var b strings.Builder
	for {
		at := strings.Index(text, name)
		if at < 0 {
			b.WriteString(text)
			return b.String()
		}
		end := at + len(name)
		inWord := func(i int) bool {
			return i >= 0 && i < len(text) && (text[i] == '-' || text[i] == '_' || text[i] == '.' && i < at || unicode.IsLetter(rune(text[i])) || unicode.IsDigit(rune(text[i])))
		}
		b.WriteString(text[:at])
		if inWord(at-1) || inWord(end) {
			b.WriteString(name)
		} else {
			b.WriteString("the worker")
		}
		text = text[end:]
	}
}

// DiskCure is the advice about a worker whose disk is full or almost full.
const DiskCure = "free some space on the worker: df -h ~ /tmp shows where, and df -i ~ /tmp if there are too many files; what multihost keeps to send less may go: rm -rf ~/.multihost/store"

// readOnlyCure is the advice about a place to which nobody can write. Only the worker knows
// whether it was mounted read-only.
const readOnlyCure = "on the worker, findmnt -T ~ shows how it is mounted; if the kernel made it read-only because of errors of the disk (sudo dmesg | grep -iE 'i/o error|remounting'), reboot the worker or recreate the slice"

// Cure returns advice about a problem of a worker's system that may occur in any stage, or "".
// It recognizes the problem by the system's error text.
func Cure(text string) string {
	const mend = "let the login use sudo without a password on the worker, as members of google-sudoers may on a TPU VM, or use one that may: --user=NAME"
	if strings.Contains(text, "(a container may write there only") { // the text has this advice already
		return ""
	}
	for _, c := range []struct{ words, cure string }{
		{"No space left on device", DiskCure},
		{"Disk quota exceeded", DiskCure},
		{"Read-only file system", readOnlyCure},
		{"a password is required", mend},
		{ErrRebooted.Error(), "give the same command again; a worker that reboots by itself is seen in: sudo journalctl --list-boots"},
		{"sudo is not installed", "install it as root on the worker: apt-get install sudo"},
		{"sudo is refused", mend},
	} {
		if strings.Contains(text, c.words) {
			return c.cure
		}
	}
	return ""
}

// Stopwatch emits the phases of a command and records their times.
type Stopwatch struct {
	Sink  event.Sink
	Clock gcp.Clock
	Times []event.PhaseTime
}

// Span runs f, which emits phases of its own, and records the time.
func (w *Stopwatch) Span(name string, f func() error) error {
	begin := w.Clock.Now()
	err := f()
	w.Add(name, w.Clock.Now().Sub(begin))
	return err
}

// Add adds elapsed to the time of a phase. Several attempts run the same phases.
func (w *Stopwatch) Add(name string, elapsed time.Duration) {
	for i := range w.Times {
		if w.Times[i].Name == name {
			w.Times[i].Elapsed += elapsed
			return
		}
	}
	w.Times = append(w.Times, event.PhaseTime{Name: name, Elapsed: elapsed})
}

// Phase runs f as one phase. f returns a line about its success.
func (w *Stopwatch) Phase(name string, f func() (string, error)) error {
	begin := w.Clock.Now()
	w.Sink.Emit(event.Phase{Name: name, State: event.Started})
	detail, err := f()
	elapsed := w.Clock.Now().Sub(begin)
	w.Add(name, elapsed)
	if err != nil {
		w.Sink.Emit(event.Phase{Name: name, State: event.Failed, Elapsed: elapsed})
		return err
	}
	w.Sink.Emit(event.Phase{Name: name, State: event.Done, Detail: detail, Elapsed: elapsed})
	return nil
}

// Sleep waits for d. If ctx ends before, it returns the cause.
func Sleep(ctx context.Context, clock gcp.Clock, d time.Duration) error {
	if d > 0 {
		select {
		case <-clock.After(d):
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// Is reports whether err is or wraps an Error of that stage.
func Is(err error, stage Stage) bool {
	var e *Error
	return errors.As(err, &e) && e.Stage == stage
}

// ErrStarting says that another runner of the job is starting the command at this moment.
var ErrStarting = fault.New(fault.Unavailable, "another runner starts it at this moment")

// InterruptedOr returns the cause of ctx if ctx has ended, and otherwise err.
func InterruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Missing returns the workers that failed, sorted.
func Missing(failed map[tpu.WorkerID]error) []tpu.WorkerID {
	return slices.SortedFunc(maps.Keys(failed), tpu.CompareWorkers)
}

// A WriterFunc turns a function into an io.Writer.
type WriterFunc func(p []byte) (int, error)

func (f WriterFunc) Write(p []byte) (int, error) { return f(p) }

// ErrExpired is the cause of a context that has ended with the slices' time to live.
var ErrExpired = fault.New(fault.Unavailable, "the time to live of the slices is over")

// AsTyped formats a time limit as people type it: 30m, 2h, 1h30m.
func AsTyped(d time.Duration) string {
	text := d.String()
	for _, end := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, end) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Outcome says how a run ended, if its command was started.
type Outcome struct {
	Code     int // exit code of the command
	Started  bool
	Detached bool
	PartLogs bool // some logs on this machine are not complete
	KeepLogs bool // workers have the rest of these logs, and the user has not agreed to delete it
}

// Status returns the exit status of this process.
func (o Outcome) Status() int {
	if o.Code == 0 && o.PartLogs {
		return PartLogCode
	}
	return o.Code
}

// ErrRebooted is the error of a worker that lost the settings of the preflight.
var ErrRebooted = fault.New(fault.Unavailable, "it was rebooted after the preflight, and its settings are the defaults again; nothing was started")

// PartLogCode is the exit code if the command has succeeded but its logs are not whole on
// this machine. Its value is that of EX_IOERR.
const PartLogCode = 74
