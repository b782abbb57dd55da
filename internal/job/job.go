// Package job combines the other packages into what a user asks for. Run starts a
// command on every worker of slices that exist. Job creates the slices first and
// deletes them afterwards. Preflight, List, Logs, Attach and Stop work on runs and
// slices that exist.
//
// Two rules hold everywhere in it. All or none: the command starts on no worker before
// every worker is connected, synced, tuned and armed. The workers and the cloud hold
// the truth: local files (the run's record and its logs) only save requests.
package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"multihost/internal/agent/program"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/journal"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// Networks creates the network of a job. *network.Client implements it.
type Networks interface {
	Plan(ctx context.Context, o network.Options) (network.Plan, error)
	Apply(ctx context.Context, p network.Plan) error
	Show(ctx context.Context, name string) (network.Info, error)
}

// Deps holds what the package works with.
type Deps struct {
	Cloud    provision.Provider // of slices
	Networks Networks
	Project  string
	Zone     string
	Access   Access
	Dialer   remote.Dialer // reaches the workers
	Sink     event.Sink
	Journal  *journal.Journal // part of Sink; whatever starts or follows a run opens it; nil: no journal is kept
	Clock    gcp.Clock
	StateDir string // holds runs/<run>/run.json and, by default, the logs
	Owner    string // "user@machine" of the runner, written into every run

	// ReadOnly forbids every change: Cloud and Networks refuse a change with a
	// *gcp.ReadOnlyError, and so do the connections to workers and the files below
	// StateDir. For PlanRun, PlanJob and PlanDetach.
	ReadOnly bool

	// ExitStatus returns the exit status of the program for an error, for the summary
	// of a run.
	ExitStatus func(error) int

	// CtrlC is what an interrupt does, for the message that says so. Empty: like
	// Interrupted without an Answer.
	CtrlC Answer

	// Confirm asks the user, who has been shown line, whether slices are to be requested.
	// An error means no. Nil: nobody is asked.
	Confirm func(ctx context.Context, line string) error

	Roots  gcp.Roots   // of the APIs that workers call themselves
	Agents program.Set // what runs on workers where no runner does

	// OpenBucket opens the bucket of jobs without a runner. Bucket and BucketDir are
	// where the user says that the named run is. Empty: where this machine's record of
	// the run says.
	OpenBucket        func(ctx context.Context, bucket, dir string) (*detach.Bucket, error)
	Bucket, BucketDir string

	stand   stand
	tier    string    // of the slices that this command asks for; empty: it asks for none
	present *presence // nil: this command copies no logs

	// Checked is called before the first request, after all checks that need none. It
	// may be nil.
	Checked func()

	// Leave is closed when the user wants to leave at once: nothing more is waited for,
	// and what may still be running or exist is reported.
	Leave <-chan struct{}
}

// Interrupted is the cause of a context that was ended by a signal.
type Interrupted struct {
	Signal os.Signal
	Answer Answer // what happens to whatever is running
}

// An Answer says what an interrupt means.
type Answer string

// The answers. Without one, SIGHUP detaches, and so does every signal to a command that
// did not start the run itself. The other signals stop the run.
const (
	Ask      Answer = "ask"      // never in an Interrupted: the user is asked first
	Continue Answer = "continue" // never in an Interrupted: nothing happens
	Stop     Answer = "stop"     // stop the command on all workers and delete what was created for it
	Detach   Answer = "detach"   // leave the command running, and what was created for it
)

// detaches reports whether the run is to be left running. ours says that this command
// started it.
func (e *Interrupted) detaches(ours bool) bool {
	if e.Answer != "" {
		return e.Answer == Detach
	}
	return !ours || e.Signal == syscall.SIGHUP
}

// whatCtrlCDoes says what an interrupt will do to a run that is going on.
func (d *Deps) whatCtrlCDoes(ours bool) string {
	switch {
	case d.CtrlC == Ask:
		return "Ctrl-C asks whether to stop it or to leave it running"
	case (&Interrupted{Answer: d.CtrlC}).detaches(ours):
		return "Ctrl-C leaves it running"
	}
	return "Ctrl-C stops it on every worker"
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
	StageInput     Stage = "input"
	StageScan      Stage = "read files"
	StageDiscover  Stage = "discover"
	StageSurvey    Stage = "ask the slices"
	StageConnect   Stage = "connect"
	StageBusy      Stage = "check"
	StageSync      Stage = "sync"
	StageFolder    Stage = "use existing folder"
	StagePreflight Stage = "preflight"
	StageSettings  Stage = "preflight settings" // it was done, but the settings are not as required
	StageVenv      Stage = "virtual environment"
	StageFree      Stage = "free the TPU"
	StageSkew      Stage = "skew" // workers differ
	StageStart     Stage = "start"
	StageFollow    Stage = "run"
	StageStop      Stage = "stop"
	StageTimeout   Stage = "timeout"
	StageStall     Stage = "stall"
	StageLocal     Stage = "local files"
	StageVerify    Stage = "verify"
	StageExec      Stage = "exec"
	StageCopy      Stage = "copy"
	StageDump      Stage = "dump"
	StageTeardown  Stage = "teardown"
)

// Error says in which stage a run failed and for which workers.
type Error struct {
	Stage  Stage
	Text   string // what happened, without the stage
	Err    error  // the cause, or the first worker's
	Advice string

	each []error // errors of the workers that failed
	lost bool    // workers are unreachable or gone, whatever Err says
}

func (e *Error) Error() string {
	text := e.Text
	if text == "" && e.Err != nil {
		text = e.Err.Error()
	}
	if e.Stage == StageInput { // the text is about what was typed
		return text
	}
	return string(e.Stage) + ": " + text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fault returns the kind of the error. What is wrong with the command line or a setting
// counts more than the stage at which it is found; a stage without a kind of its own has
// that of the cause.
func (e *Error) Fault() fault.Kind {
	cause := gcp.FaultOf(e.Err)
	if cause == fault.Usage || cause == fault.Configuration {
		return cause
	}
	switch e.Stage {
	case StageSettings, StageSkew, StageVenv:
		return fault.Preflight
	case StageTimeout, StageStall:
		return fault.Temporary
	case StageLocal, StageScan:
		return fault.IO
	case StageInput:
		return fault.Usage
	}
	return known(cause)
}

// known returns kind, or fault.Unavailable if kind does not say what failed: what a run
// does, it does with workers and APIs.
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

// settled is an error whose advice no longer holds: the slices that it is about have
// been deleted since.
type settled struct{ error }

func (e settled) Unwrap() error { return e.error }

// Hint hides the hints of the wrapped error, except one that holds without the slices.
func (e settled) Hint() string {
	var hinted interface{ HintWhenGone() string }
	if errors.As(e.error, &hinted) {
		return hinted.HintWhenGone()
	}
	return ""
}

// workersError combines the failures of single workers into one error of a stage.
// Workers with equal causes share one clause; the first worker's cause comes first. Its
// length does not grow with the number of workers. errs is aligned with ids; nil entries
// are successes.
func workersError(stage Stage, ids []tpu.WorkerID, errs []error) error {
	each := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(each) == 0 {
		return nil
	}
	groups := groupErrors(ids, errs)
	parts := make([]string, len(groups))
	advice := ""
	for i, g := range groups {
		parts[i] = tpu.FoldShort(g.workers) + ": " + g.String()
		if advice == "" {
			advice = cure(g.cause)
		}
	}
	return &Error{
		Stage:  stage,
		Text:   fmt.Sprintf("%d of %d workers failed: %s", len(each), len(ids), strings.Join(parts, "; ")),
		Err:    groups[0].first,
		each:   each,
		Advice: advice,
	}
}

// failureGroup holds the workers that failed for one cause. If there are many causes,
// the last group holds the rest, and its cause says so.
type failureGroup struct {
	cause   string
	first   error
	workers []tpu.WorkerID
}

// String returns the cause. For a single worker it includes what is known only about
// that worker, such as its address.
func (g failureGroup) String() string {
	if len(g.workers) == 1 {
		return strings.TrimPrefix(g.first.Error(), g.workers[0].String()+": ")
	}
	return g.cause
}

// groupErrors groups the workers by the cause of their failure, causes in order of
// appearance. It returns few groups, however many causes there are: see tpu.GroupAlike.
func groupErrors(ids []tpu.WorkerID, errs []error) []failureGroup {
	causes := make([]string, len(errs))
	for i, err := range errs {
		if err != nil {
			causes[i] = causeText(err, ids[i])
		}
	}
	alike := tpu.GroupAlike(causes)
	groups := make([]failureGroup, len(alike))
	for i, a := range alike {
		groups[i] = failureGroup{cause: a.Text, first: errs[a.At[0]]}
		for _, at := range a.At {
			groups[i].workers = append(groups[i].workers, ids[at])
		}
	}
	return groups
}

// JoinNamed combines the failures of named things other than workers, such as runs or
// leftovers. Things with equal causes share one clause. errs is aligned with names; nil
// entries are successes. A single failure stays as it is.
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

// A manyError is what several named things failed with.
type manyError struct {
	text string
	each []error
}

func (e *manyError) Error() string   { return e.text }
func (e *manyError) Unwrap() []error { return e.each }

// causeText returns the error without the parts that differ between workers, so that
// equal causes have equal texts. An error with more such parts than the worker's name
// has a method Cause() string that returns its text without them.
func causeText(err error, id tpu.WorkerID) string {
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

// withoutName replaces a worker's name, where it is a word of the text.
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

// diskCure is the advice about a worker's disk that is full or nearly full.
const diskCure = "free some space on the worker: df -h ~ /tmp shows where, and df -i ~ /tmp if there are too many files; what multihost keeps to send less may go: rm -rf ~/.multihost/store"

// readOnlyCure is the advice about a place that cannot be written. Only the worker knows
// whether it was mounted like that.
const readOnlyCure = "on the worker, findmnt -T ~ shows how it is mounted; if the kernel made it read-only because of errors of the disk (sudo dmesg | grep -iE 'i/o error|remounting'), reboot the worker or recreate the slice"

// cure returns advice about problems of a worker's system that may occur in any stage.
// It recognizes them by the system's own words, whichever script reported them. It
// returns "" for all others.
func cure(text string) string {
	const mend = "let the login use sudo without a password on the worker, as members of google-sudoers may on a TPU VM, or use one that may: --user=NAME"
	if strings.Contains(text, "(a container may write there only") { // it is said already
		return ""
	}
	for _, c := range []struct{ words, cure string }{
		{"No space left on device", diskCure},
		{"Disk quota exceeded", diskCure},
		{"Read-only file system", readOnlyCure},
		{"a password is required", mend},
		{errRebooted.Error(), "give the same command again; a worker that reboots by itself is seen in: sudo journalctl --list-boots"},
		{"sudo is not installed", "install it as root on the worker: apt-get install sudo"},
		{"sudo is refused", mend},
	} {
		if strings.Contains(text, c.words) {
			return c.cure
		}
	}
	return ""
}

// stopwatch emits the phases of a command and records their times.
type stopwatch struct {
	sink  event.Sink
	clock gcp.Clock
	times []event.PhaseTime
}

// span runs f, which emits its own phases, and records its time.
func (w *stopwatch) span(name string, f func() error) error {
	begin := w.clock.Now()
	err := f()
	w.add(name, w.clock.Now().Sub(begin))
	return err
}

// add adds to the time of a phase, because several attempts go through the same phases.
func (w *stopwatch) add(name string, elapsed time.Duration) {
	for i := range w.times {
		if w.times[i].Name == name {
			w.times[i].Elapsed += elapsed
			return
		}
	}
	w.times = append(w.times, event.PhaseTime{Name: name, Elapsed: elapsed})
}

// phase runs f as one phase. f returns the line that describes its success.
func (w *stopwatch) phase(name string, f func() (string, error)) error {
	begin := w.clock.Now()
	w.sink.Emit(event.Phase{Name: name, State: event.Started})
	detail, err := f()
	elapsed := w.clock.Now().Sub(begin)
	w.add(name, elapsed)
	if err != nil {
		w.sink.Emit(event.Phase{Name: name, State: event.Failed, Elapsed: elapsed})
		return err
	}
	w.sink.Emit(event.Phase{Name: name, State: event.Done, Detail: detail, Elapsed: elapsed})
	return nil
}

// detached returns a context for work that must continue although ctx has ended, such
// as stopping the workers and deleting slices. It ends after limit, or when the user
// wants to leave at once.
func (d *Deps) detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	base, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-d.Leave:
			cancel()
		case <-stop:
		}
	}()
	return base, func() {
		close(stop)
		<-finished
		cancel()
	}
}
