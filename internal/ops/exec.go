// Package ops runs a command, copies files, opens a shell or dumps the stacks of a run on
// chosen workers.
//
// # Decisions
//
//   - Its commands use the numbers of the slices as they are, whatever state the slices are
//     in. A run gives slices new numbers, but a user who logs in to s1w3 because of a
//     problem there must not get another worker.
package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// ExecOptions describe a quick command on workers.
type ExecOptions struct {
	workers.Workers
	Argv    []string
	Sudo    bool
	Grace   time.Duration // time between TERM and KILL when the command is stopped
	Timeout time.Duration // 0: no limit
	LogDir  string        // where to keep each worker's complete output; "": nowhere

	// Stdout and Stderr receive the output of a single worker as it arrives. If they are
	// nil, Exec shows the output at the end, as for several workers.
	Stdout, Stderr io.Writer
}

// An ExecResult says how the command ended on one worker.
type ExecResult struct {
	Worker  string        `json:"worker"`
	Code    int           `json:"code"` // exit code; 128+n for signal n; meaningless beside an error
	Error   string        `json:"error,omitempty"`
	Stdout  ExecOutput    `json:"stdout"`
	Stderr  ExecOutput    `json:"stderr"`
	Elapsed time.Duration `json:"elapsed_ns"`
}

// An ExecSummary groups workers with equal output or equal endings.
type ExecSummary struct {
	Workers string       `json:"workers"`
	Failed  int          `json:"failed"` // workers with an error or an exit code other than 0
	Stdout  []ExecFolded `json:"stdout"` // most workers first
	Stderr  []ExecFolded `json:"stderr"`
	Endings []ExecFolded `json:"endings"`
}

// ExecFolded is a group of workers with something equal.
type ExecFolded struct {
	Workers string `json:"workers"` // names of the workers, folded
	Count   int    `json:"count"`
	What    string `json:"what"` // "exit code 3"; for output, its size
}

// Deps holds what the package works with.
type Deps struct {
	*workers.Reach
	*record.Keeper
}

// executed is one worker's part of an Exec.
type executed struct {
	id        tpu.WorkerID
	end       launch.ExecEnd
	err       error
	over      time.Time // when it ended; zero until then
	elapsed   time.Duration
	out, err2 *capture // what came on stdout and stderr
	log       *os.File
	logErr    error
}

// execMemory limits how much output of all workers together is kept, and execMost that of
// one worker.
const (
	execMemory = 128 << 20
	execMost   = 4 << 20
)

// Exec runs a command on all workers that o selects, at once. The command ends with the
// call: when ctx ends, no process of it is left on any worker. If that is uncertain for a
// worker, the error names the worker. Exec shows equal outputs once. If the command fails,
// the Outcome has the status of the worker that failed first. A worker that could not be
// reached counts as the first.
func Exec(ctx context.Context, d Deps, o ExecOptions) (stage.Outcome, error) {
	watch := stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	t, failed, err := d.Call(ctx, &watch, o.Workers)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer t.Close()
	unreached := workers.Failures(stage.Connect, slices.Concat(t.IDs, stage.Missing(failed)), failed)
	if unreached != nil {
		event.Notef(d.Sink, event.Warn, "", "%v; going on without them", unreached)
	}
	all, err := openExec(d, t.IDs, o)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer closeExec(all)

	running := ctx
	if o.Timeout > 0 {
		late := &stage.Error{Stage: stage.Timeout, Text: fmt.Sprintf("the command was stopped after %s (--timeout)", event.Duration(o.Timeout)), Err: context.DeadlineExceeded}
		limited, cancel := context.WithTimeoutCause(ctx, o.Timeout, late)
		defer cancel()
		running = limited
	}
	if len(all) == 1 && o.Stdout != nil && len(failed) == 0 {
		execOn(running, d, t, 0, all[0], o, all[0].tee(o.Stdout, nil), all[0].tee(o.Stderr, nil))
	} else {
		_ = watch.Phase("exec", func() (string, error) {
			execAll(running, d, t, all, o)
			return endingsText(all), nil
		})
		showExec(d, all)
	}
	return judgeExec(ctx, d, all, unreached)
}

// openExec makes the receivers of each worker's output.
func openExec(d Deps, ids []tpu.WorkerID, o ExecOptions) ([]*executed, error) {
	limit := min(execMost, max(execMemory/len(ids), 32<<10))
	all := make([]*executed, len(ids))
	for i, id := range ids {
		all[i] = &executed{id: id, out: newCapture(limit * 3 / 4), err2: newCapture(limit / 4)}
	}
	if o.LogDir == "" {
		return all, nil
	}
	if err := d.MakeLogs("exec", o.LogDir, func() error { return os.MkdirAll(o.LogDir, 0o700) }); err != nil {
		return nil, &stage.Error{Stage: stage.Local, Err: err}
	}
	for _, e := range all {
		var err error
		if e.log, err = os.OpenFile(record.LogPath(o.LogDir, e.id), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			closeExec(all)
			return nil, &stage.Error{Stage: stage.Local, Err: err, Advice: "logs are never written over: name another --log-dir"}
		}
	}
	return all, nil
}

func closeExec(all []*executed) {
	for _, e := range all {
		if e.log != nil {
			_ = e.log.Close() // write errors were reported before
		}
	}
}

// tee returns a writer to w, to the capture and to the log file. w may be nil. Errors of the
// log file do not end the command.
func (e *executed) tee(w io.Writer, c *capture) io.Writer {
	return stage.WriterFunc(func(p []byte) (int, error) {
		if c != nil {
			c.Write(p)
		}
		if e.log != nil && e.logErr == nil {
			_, e.logErr = e.log.Write(p)
		}
		if w == nil {
			return len(p), nil
		}
		return w.Write(p)
	})
}

// execAll runs the command on every worker at once.
func execAll(ctx context.Context, d Deps, t *workers.Connected, all []*executed, o ExecOptions) {
	show := workers.NewWaiting(d.Invocation, "exec", t.IDs)
	defer t.Listen(show.Heard)()
	t.Each(ctx, d.Sink, "", func(ctx context.Context, i int) error {
		e := all[i]
		execOn(ctx, d, t, i, e, o, e.tee(nil, e.out), e.tee(nil, e.err2))
		d.Sink.Emit(event.Result{Name: "exec", Data: e.result()})
		show.Done(i)
		return nil
	})
}

func execOn(ctx context.Context, d Deps, t *workers.Connected, i int, e *executed, o ExecOptions, stdout, stderr io.Writer) {
	begin := d.Clock.Now()
	// Stdout and stderr write to one log file.
	var turn sync.Mutex
	locked := func(w io.Writer) io.Writer {
		return stage.WriterFunc(func(p []byte) (int, error) {
			turn.Lock()
			defer turn.Unlock()
			return w.Write(p)
		})
	}
	spec := launch.ExecSpec{Argv: o.Argv, Sudo: o.Sudo, Grace: o.Grace, Leave: d.Leave}
	e.end, e.err = launch.Exec(ctx, t.Conns[i], spec, locked(stdout), locked(stderr))
	e.over = d.Clock.Now()
	e.elapsed = e.over.Sub(begin)
}

// ending describes how the command ended. Equal endings have equal texts.
func (e *executed) ending() string {
	switch {
	case e.err != nil && e.end.Stopped:
		return "stopped"
	case e.err != nil:
		return stage.CauseText(e.err, e.id)
	}
	return fmt.Sprintf("exit code %d", e.end.Code)
}

func (e *executed) failed() bool { return e.err != nil || e.end.Code != 0 }

func (e *executed) result() ExecResult {
	r := ExecResult{Worker: e.id.String(), Code: e.end.Code, Stdout: e.out.output(), Stderr: e.err2.output(), Elapsed: e.elapsed}
	if e.err != nil {
		r.Error = e.ending()
	}
	return r
}

// judgeExec derives the outcome of Exec from the workers' results.
func judgeExec(ctx context.Context, d Deps, all []*executed, unreached error) (stage.Outcome, error) {
	ids, errs := make([]tpu.WorkerID, len(all)), make([]error, len(all))
	held := []tpu.WorkerID{}
	for i, e := range all {
		ids[i] = e.id
		if e.err != nil && !e.end.Stopped {
			errs[i] = e.err
		}
		if e.end.Held {
			held = append(held, e.id)
		}
		if e.logErr != nil {
			event.Notef(d.Sink, event.Warn, "", "the log of %s is not whole: %v", e.id, e.logErr)
		}
	}
	if len(held) > 0 {
		event.Notef(d.Sink, event.Warn, "give it an output of its own: >/dev/null 2>&1",
			"%s: a process that the command left behind holds its output; multihost does not wait for the rest", tpu.Fold(held))
	}
	broken := stage.WorkersError(stage.Exec, ids, errs)
	if ctx.Err() != nil {
		return stage.Outcome{}, errors.Join(context.Cause(ctx), broken)
	}
	if unreached != nil {
		return stage.Outcome{}, unreached
	}
	first := slices.MinFunc(all, func(a, b *executed) int {
		return cmp.Or(-compareBool(a.failed(), b.failed()), a.over.Compare(b.over), a.id.Compare(b.id))
	})
	switch {
	case broken != nil && first.err != nil:
		return stage.Outcome{}, broken
	case first.err != nil:
		return stage.Outcome{}, first.err
	case broken != nil:
		event.Notef(d.Sink, event.Warn, "", "%v", broken)
	}
	return stage.Outcome{Code: first.end.Code, Started: true}, nil
}

// showExec shows the workers' answers, equal ones once: stdout as the result, stderr and
// the endings as separate messages.
func showExec(d Deps, all []*executed) {
	outs := foldExec(all, func(e *executed) string { return e.out.key() })
	errs := foldExec(all, func(e *executed) string { return e.err2.key() })
	ends := foldExec(all, (*executed).ending)
	sum := ExecSummary{Workers: tpu.Fold(idsOf(all)), Stdout: folded(outs, outSize), Stderr: folded(errs, errSize), Endings: folded(ends, (*executed).ending)}
	for _, e := range all {
		if e.failed() {
			sum.Failed++
		}
	}
	d.Sink.Emit(event.Result{Name: "exec_summary", Text: outText(outs, func(e *executed) *capture { return e.out }), Data: sum})
	for _, g := range errs {
		if g[0].err2.size == 0 {
			continue
		}
		level := event.Info
		if slices.ContainsFunc(g, (*executed).failed) {
			level = event.Warn
		}
		event.Notef(d.Sink, level, "", "%s, stderr: %s", headOf(g), strings.TrimRight(g[0].err2.tailText(), "\n"))
	}
	for _, g := range ends {
		if g[0].failed() && (g[0].err == nil || g[0].end.Stopped) {
			event.Notef(d.Sink, event.Warn, "", "%s: %s", headOf(g), g[0].ending())
		}
	}
}

func outSize(e *executed) string { return event.Bytes(e.out.size) }
func errSize(e *executed) string { return event.Bytes(e.err2.size) }

// foldExec groups workers with equal keys, the largest group first.
func foldExec(all []*executed, key func(*executed) string) (groups [][]*executed) {
	index := map[string]int{}
	for _, e := range all {
		k := key(e)
		at, ok := index[k]
		if !ok {
			at = len(groups)
			index[k] = at
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], e)
	}
	slices.SortStableFunc(groups, func(a, b []*executed) int { return len(b) - len(a) })
	return groups
}

func idsOf(all []*executed) []tpu.WorkerID {
	ids := make([]tpu.WorkerID, len(all))
	for i, e := range all {
		ids[i] = e.id
	}
	return ids
}

func folded(groups [][]*executed, what func(*executed) string) []ExecFolded {
	all := make([]ExecFolded, len(groups))
	for i, g := range groups {
		all[i] = ExecFolded{Workers: tpu.Fold(idsOf(g)), Count: len(g), What: what(g[0])}
	}
	return all
}

// headOf names the workers of a group: s[0-1]w[0-3] (8).
func headOf(group []*executed) string {
	text := tpu.Fold(idsOf(group))
	if len(group) > 1 {
		text += fmt.Sprintf(" (%d)", len(group))
	}
	return text
}

// endingsText describes how the command ended on all workers.
func endingsText(all []*executed) string {
	var parts []string
	for _, g := range foldExec(all, (*executed).ending) {
		parts = append(parts, g[0].ending()+" on "+headOf(g))
	}
	if len(parts) > 4 {
		parts = append(parts[:3], fmt.Sprintf("and %d other endings", len(parts)-3))
	}
	return strings.Join(parts, "; ")
}

// outText formats the outputs for people. The output of most workers comes first. For another
// output it shows only the differences from the first one, if these are shorter.
func outText(groups [][]*executed, of func(*executed) *capture) string {
	if len(groups) == 1 && of(groups[0][0]).size == 0 {
		return ""
	}
	var b strings.Builder
	reference := of(groups[0][0])
	for i, g := range groups {
		c := of(g[0])
		b.WriteString(headOf(g))
		if changes := c.changes(reference); i > 0 && changes != nil {
			fmt.Fprintf(&b, ", as %s but\n", tpu.Fold(idsOf(groups[0])))
			for _, line := range changes {
				b.WriteString("  " + line + "\n")
			}
			continue
		}
		text := strings.TrimSuffix(c.text(), "\n")
		switch {
		case c.size == 0:
			b.WriteString(": no output\n")
		case !strings.Contains(text, "\n"):
			b.WriteString(": " + text + "\n")
		default:
			b.WriteString(":\n")
			for line := range strings.SplitSeq(text, "\n") {
				b.WriteString("  " + line + "\n")
			}
		}
	}
	return b.String()
}

// tailText returns the part of stderr to show: its end, which says most.
func (c *capture) tailText() string {
	const most = 16 << 10
	text := c.text()
	if len(text) <= most {
		return text
	}
	text = text[len(text)-most:]
	if i := strings.IndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return fmt.Sprintf("(the last of %s)\n%s", event.Bytes(c.size), text)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
