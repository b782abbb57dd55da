package workloadrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workload"
	"multihost/internal/workloads"
)

// following is the state of one Follow. Until workloads.Follow has ended, only its
// goroutine uses the fields below workload.
type following struct {
	Deps
	Options
	copies   bool // this command copies the logs and keeps the record
	ids      []tpu.WorkerID
	base     string        // directory for the logs of the first attempt
	begin    time.Time     // when Follow began
	opened   chan struct{} // gets a token when an output is opened
	workload *workloads.Workload

	rec     *record.Record
	begun   time.Time         // when the command was first seen to run; zero: never
	numbers map[int]int       // our attempt number, by the number that workloads.Follow uses
	reads   []tpu.WorkerID    // workers of the present attempt whose output was opened
	first   map[string]string // first container of each log
	broken  []tpu.WorkerID    // workers whose logs cannot be written here
}

// do follows the run to its end and reports how it ended.
func (f *following) do(ctx context.Context) (stage.Outcome, error) {
	run := f.rec.Run
	f.Of.SetStatus(func(st *stage.Status) {
		st.Run, st.Ours, st.Running = run, f.Ours, "pods of the cluster, or waits for them"
	})
	defer f.Of.SetStatus(func(st *stage.Status) { *st = stage.Status{} })
	f.Of.Sink.Emit(event.Phase{Name: "queue", State: event.Started})
	seeing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var out workloads.Outcome
	var err error
	ended := make(chan struct{})
	go func() { // the caller waits for ended
		defer close(ended)
		out, err = f.Cluster.Follow(seeing, run, workloads.FollowOptions{Output: f.output, Ended: f.attemptEnded})
	}()
	var why error
	if f.Stop != "" {
		why = &stopped{f.Stop}
	} else {
		select {
		case <-ended:
			return f.conclude(out, err, nil)
		case <-ctx.Done():
			why = context.Cause(ctx)
		}
	}
	if f.Stop == "" && leaves(why, f.Ours) {
		cancel()
		<-ended
		return f.leave(why)
	}
	event.Notef(f.Of.Sink, event.Info, "", "stopping run %s (%v): the cluster deletes its pods", run, why)
	stopping, over := f.untilLeave(context.WithoutCancel(ctx))
	defer over()
	f.await(stopping)
	if failed := workloads.Stop(stopping, f.Cluster, f.workload, f.stopper(why)); failed != nil {
		cancel()
		<-ended
		return stage.Outcome{Started: true}, &stage.Error{Stage: stage.Stopping, Err: failed, Text: "run " + run + " may still be running", Advice: "type again: multihost stop " + run + " " + f.Cluster.Flags}
	}
	<-ended
	return f.conclude(out, err, why)
}

// stopper returns the text that tells others who stops the run.
func (f *following) stopper(why error) string {
	if f.Stop != "" {
		return f.Stop
	}
	return why.Error() + " of the command of " + f.Owner
}

// A stopped error says that a command of the user has stopped the run. by describes the command.
type stopped struct{ by string }

func (e *stopped) Error() string { return e.by }

// untilLeave returns a context that ends when the user wants to leave at once.
func (f *following) untilLeave(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() { // ends when the caller calls the returned function
		select {
		case <-f.Of.Leave:
			cancel(errors.New("left at once"))
		case <-done:
		}
	}()
	return ctx, func() { close(done); cancel(nil) }
}

// connectLimit is how long a stop waits for the connections to the pods.
const connectLimit = 5 * time.Second

// connectPause is longer than it usually takes to connect to a pod.
const connectPause = time.Second

// await waits, for connectLimit at most, until Follow reads the output of all running pods. A
// deletion before that would lose output.
func (f *following) await(ctx context.Context) {
	s, err := f.Cluster.Status(ctx, f.rec.Run)
	if err != nil || len(s.Attempts) == 0 {
		return
	}
	running := 0
	for _, p := range s.Attempts[len(s.Attempts)-1].Pods {
		if p.Started != nil && p.Ended == nil {
			running++
		}
	}
	limit := f.Of.Clock.After(connectLimit)
	for range running {
		select {
		case <-f.opened:
		case <-limit:
			return
		case <-ctx.Done():
			return
		}
	}
	select { // the connection follows soon after the opening
	case <-f.Of.Clock.After(connectPause):
	case <-ctx.Done():
	}
}

// leave reports that the run goes on without this command, and returns why.
func (f *following) leave(why error) (stage.Outcome, error) {
	f.Of.Sink.Emit(event.Phase{Name: f.phase(), State: event.Done, Detail: "left running"})
	event.Notef(f.Of.Sink, event.Info, f.later(), "left run %s: the cluster goes on with it", f.rec.Run)
	return stage.Outcome{Started: true}, why
}

// later returns a hint: the commands that follow or stop a run that goes on.
func (f *following) later() string {
	return "follow it with: multihost attach " + f.rec.Run + "; end it with: multihost stop " + f.rec.Run
}

func (f *following) phase() string {
	if f.begun.IsZero() {
		return "queue"
	}
	return "run"
}

// output opens the receiver of the output of a pod's container.
func (f *following) output(attempt int, p workload.Pod, container string) (io.WriteCloser, error) {
	if f.begun.IsZero() {
		f.begun = f.Of.Clock.Now()
		f.Of.Sink.Emit(event.Phase{Name: "queue", State: event.Done, Elapsed: f.begun.Sub(f.begin)})
		f.Of.Sink.Emit(event.Phase{Name: "run", State: event.Started, Detail: f.rec.Command})
		f.Of.SetStatus(func(st *stage.Status) { st.Running = tpu.FoldShort(f.ids) })
	}
	number, ok := f.numbers[attempt]
	if !ok {
		number = numberOf(f.rec.Attempts, f.workload.UID, p, slices.Collect(maps.Values(f.numbers)))
		f.numbers[attempt] = number
		f.attemptBegins(number, p.Restart)
	}
	select {
	case f.opened <- struct{}{}:
	default: // the channel is full; await has enough tokens
	}
	f.reads = append(f.reads, p.Worker)
	out := &receiver{f: f, id: p.Worker}
	if f.copies {
		f.open(out, number, container, f.remember(number, p), p.UID)
	}
	return out, nil
}

// open opens the file of a receiver. If that fails, the output is only shown. known says that an
// earlier command may have begun the log of this pod.
func (f *following) open(out *receiver, number int, container string, known bool, pod string) {
	dir := f.dirOf(number)
	path := record.LogPath(dir, out.id)
	if info, err := os.Stat(path); err == nil && info.Size() > 0 && !known { // the cluster has replaced the pod of this log
		path = strings.TrimSuffix(path, ".txt") + "_pod_" + pod + ".txt"
		event.Notef(f.Of.Sink, event.Warn, "", "%s has another pod now: its log is %s", out.id, path)
	}
	switch first, ok := f.first[path]; {
	case !ok:
		f.first[path] = container
		if path == record.LogPath(dir, out.id) {
			out.arrivals = &record.ArrivalWriter{Path: record.ArrivalsPath(dir, out.id), Now: f.Of.Clock.Now}
		}
	case first != container: // further containers of a worker have files of their own
		path = strings.TrimSuffix(path, ".txt") + "_" + container + ".txt"
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		out.file = file
		return
	}
	f.broken = append(f.broken, out.id)
	event.Notef(f.Of.Sink, event.Warn, "", "the log of %s cannot be kept here: %v; the run goes on", out.id, err)
}

// dirOf returns the directory for the logs of an attempt.
func (f *following) dirOf(number int) string {
	for _, a := range f.rec.Attempts {
		if a.Attempt == number {
			return a.LogDir
		}
	}
	return record.AttemptDir(f.base, number)
}

// attemptBegins records and shows an attempt, unless an earlier command has recorded it.
func (f *following) attemptBegins(number, restart int) {
	dir := f.dirOf(number)
	f.reads = nil
	f.rec.Attempt, f.rec.LogDir, f.rec.Ended, f.rec.Cut = number, dir, false, false
	if f.copies {
		if err := f.MakeLogs("job", dir, func() error { return os.MkdirAll(dir, 0o700) }); err != nil {
			event.Notef(f.Of.Sink, event.Warn, "", "no logs can be kept here: %v; the run goes on", err)
		}
		f.rec.BeginAttempt(f.Of.Clock.Now())
		if a := &f.rec.Attempts[len(f.rec.Attempts)-1]; a.Pods == nil {
			a.Workload, a.Restart, a.Pods = f.workload.UID, restart, map[string]string{}
		}
		f.save()
	}
	if number > 1 {
		event.Notef(f.Of.Sink, event.Info, "", "run %s, attempt %d: logs in %s", f.rec.Run, number, dir)
	}
	f.Of.Sink.Emit(event.Attempt{Run: f.rec.Run, Attempt: number, Command: f.rec.Command, Begin: f.Of.Clock.Now(), Slices: f.slices(), Workers: len(f.ids), LogDir: dir})
}

func (f *following) slices() (names []string) {
	for _, s := range f.rec.Slices {
		names = append(names, s.Name)
	}
	return names
}

// remember records that a pod belongs to an attempt. It reports whether an earlier call, or
// an earlier command, has recorded it.
func (f *following) remember(number int, p workload.Pod) (known bool) {
	worker := p.Worker.String()
	for i := range f.rec.Attempts {
		a := &f.rec.Attempts[i]
		if a.Attempt != number || a.Workload != f.workload.UID {
			continue
		}
		if known = a.Pods[worker] == p.UID; a.Pods[worker] == "" {
			a.Pods[worker] = p.UID
			f.save()
		}
	}
	return known
}

func (f *following) save() {
	if err := f.rec.Save(f.StateDir); err != nil {
		event.Notef(f.Of.Sink, event.Warn, "", "the run goes on, but its record cannot be kept: %v", err)
	}
}

// attemptEnded records and shows the end of an attempt that another one has followed.
func (f *following) attemptEnded(a workload.Attempt) {
	number, ok := f.numbers[a.Number]
	if !ok { // this command has opened no output of the attempt
		return
	}
	e := endOf(a)
	e.Run, e.Attempt, e.Again, e.Next = f.rec.Run, number, true, "the cluster starts the command again"
	f.endAttempt(e)
}

// endAttempt shows and records the end of an attempt.
func (f *following) endAttempt(e event.AttemptEnd) {
	f.Of.Sink.Emit(e)
	if n := len(f.rec.Attempts); f.copies && n > 0 && f.rec.Attempts[n-1].Attempt == e.Attempt {
		f.rec.EndAttempt(e, f.Of.Clock.Now())
		f.save()
	}
}

// endOf says how an attempt ended.
func endOf(a workload.Attempt) event.AttemptEnd {
	e := event.AttemptEnd{OK: true}
	var begin, end time.Time
	for _, p := range a.Pods {
		e.OK = e.OK && p.Succeeded()
		if begin.IsZero() || !p.Started.IsZero() && p.Started.Before(begin) {
			begin = p.Started
		}
		if p.Ended.After(end) {
			end = p.Ended
		}
	}
	if !begin.IsZero() && end.After(begin) {
		e.Elapsed = end.Sub(begin)
	}
	failure, ok := a.FirstFailure()
	if !ok {
		return e
	}
	e.Cause, e.Why, e.Code = string(causeOf(failure.Pod.Exit.Cause)), failure.String(), failure.Pod.Exit.Code
	return e
}

// causeOf returns the cause of a failed attempt.
func causeOf(c workload.Cause) stage.Cause {
	switch c {
	case workload.Disrupted:
		return stage.Preempted
	case workload.Evicted, workload.Lost:
		return stage.Infrastructure
	}
	return stage.Application
}

// conclude records and shows the end of the run. If this command has stopped the run, why is the
// cause.
func (f *following) conclude(out workloads.Outcome, err, why error) (stage.Outcome, error) {
	elapsed := f.Of.Clock.Now().Sub(cmp.Or(f.begun, f.begin))
	if err != nil {
		f.Of.Sink.Emit(event.Phase{Name: f.phase(), State: event.Failed, Elapsed: elapsed})
		return stage.Outcome{Started: true}, err
	}
	f.Of.Sink.Emit(event.Phase{Name: f.phase(), State: event.Done, Elapsed: elapsed})
	end := judge(f.rec.Run, len(f.ids), out, why)
	sum := event.Summary{Run: f.rec.Run, Attempt: f.rec.Attempt, OK: end.code == 0, CommandCode: end.code, ExitCode: end.code, Text: end.text, LogDir: f.rec.LogDir}
	missing := unread(f.ids, f.reads, out)
	if len(missing) > 0 {
		event.Notef(f.Of.Sink, event.Warn, "", "the log of %s is not whole here: its pod is gone", tpu.FoldShort(missing))
	}
	done := stage.Outcome{Code: end.code, Started: true, PartLogs: len(out.OfLast())+len(f.broken)+len(missing) > 0}
	for _, gap := range out.Incomplete {
		event.Notef(f.Of.Sink, event.Warn, "while its pods are there, bring the rest with: multihost attach "+f.rec.Run+" "+f.Cluster.Flags, "the log is not complete: %s", gap)
	}
	if n := len(out.Attempts); n > 0 {
		last := out.Attempts[n-1]
		f.workersDone(last)
		e := endOf(last)
		e.Run, e.Attempt, e.OK = f.rec.Run, f.rec.Attempt, end.code == 0
		if !e.OK {
			e.Code = end.code
		}
		f.endAttempt(e)
	}
	if out.Failure != nil && end.code != 0 {
		id := out.Failure.Pod.Worker
		sum.FirstFail = id.String()
		sum.LastLines = follow.LastLines(record.LogPath(f.rec.LogDir, id), 20, nil)
	}
	if !f.begun.IsZero() {
		sum.Phases = []event.PhaseTime{{Name: "queue", Elapsed: f.begun.Sub(f.begin)}, {Name: "run", Elapsed: elapsed}}
	}
	sum.ExitCode = done.Status()
	var interrupted *stage.Interrupted
	if errors.As(why, &interrupted) && f.ExitStatus != nil {
		sum.ExitCode = f.ExitStatus(why)
	}
	if f.copies {
		f.rec.Ended, f.rec.Code, f.rec.Cut = true, sum.ExitCode, done.PartLogs
		f.save()
	}
	f.Of.Sink.Emit(sum)
	if interrupted != nil {
		return done, why
	}
	if f.Stop != "" {
		done.Code = 0 // the command that stops the run has succeeded
	}
	return done, nil
}

// unread returns the workers of the last attempt whose output was never opened. After a stop it
// returns nil, because some workers may never have had a pod.
func unread(ids, reads []tpu.WorkerID, out workloads.Outcome) (missing []tpu.WorkerID) {
	if out.State == workload.Leaving {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id tpu.WorkerID) bool { return slices.Contains(reads, id) })
}

// workersDone shows how the command ended on each worker.
func (f *following) workersDone(a workload.Attempt) {
	for _, p := range a.Pods {
		done := event.WorkerDone{Slice: p.Worker.Slice, Worker: p.Worker.Worker, Code: p.Exit.Code, End: p.Ended}
		if p.Exit.Agent != nil {
			done.Signal, done.Reason = strings.TrimPrefix(p.Exit.Agent.Signal, "SIG"), p.Exit.Agent.Told
		}
		switch {
		case p.Exit.Known:
		case p.Exit.Cause == workload.Lost:
			done.Code, done.Error = follow.LostCode, p.Exit.String()
		default:
			done.Code, done.Error = follow.LostCode, "the cluster does not say how it ended"
		}
		f.Of.Sink.Emit(done)
	}
}

// A verdict is how a run ended.
type verdict struct {
	code int
	text string
}

// judge says how a run on a number of workers ended. If this command has stopped the run, why is
// the cause.
func judge(run string, workers int, out workloads.Outcome, why error) verdict {
	switch {
	case out.State == workload.Succeeded:
		return verdict{0, fmt.Sprintf("run %s succeeded on %s", run, follow.OnAll(workers))}
	case out.State == workload.Leaving && why != nil:
		return verdict{StoppedCode, fmt.Sprintf("run %s was stopped: %v", run, why)}
	case out.State == workload.Leaving && out.Stopped != "":
		return verdict{StoppedCode, fmt.Sprintf("run %s was stopped: %s", run, out.Stopped)}
	case out.State == workload.Leaving:
		return verdict{StoppedCode, fmt.Sprintf("run %s was stopped: somebody has deleted its workload", run)}
	}
	return verdict{out.Code(), fmt.Sprintf("run %s %s", run, out)}
}

// A receiver gets the output of one container. Its file begins with what earlier commands
// have copied.
type receiver struct {
	f        *following
	id       tpu.WorkerID
	file     *os.File // nil: the output is only shown
	size     int64
	goesOn   bool                  // the output continues the file
	arrivals *record.ArrivalWriter // nil: the times are not stored
}

// Held implements workloads.Holder.
func (r *receiver) Held() (io.ReadCloser, error) {
	if r.file == nil {
		return io.NopCloser(strings.NewReader("")), nil
	}
	size, err := r.file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	r.size, r.goesOn = size, true
	return io.NopCloser(io.NewSectionReader(r.file, 0, size)), nil
}

// Write stores and shows output. An error ends the copy, so that nothing is shown that the file
// lacks.
func (r *receiver) Write(p []byte) (n int, err error) {
	n = len(p)
	if r.file != nil {
		if !r.goesOn && r.size == 0 { // the node sends the output from its beginning
			if err := r.file.Truncate(0); err != nil {
				return 0, err
			}
		}
		r.arrivals.Mark(r.size)
		n, err = r.file.Write(p)
		r.size += int64(n)
	}
	if r.f.Stop == "" { // a command that stops a run shows no output
		r.f.Of.Sink.Emit(event.Output{Slice: r.id.Slice, Worker: r.id.Worker, Data: p[:n]})
	}
	return n, err
}

func (r *receiver) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
