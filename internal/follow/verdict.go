package follow

import (
	"errors"
	"fmt"
	"slices"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/tpu"
)

// An account has all facts for the summary of a run.
type account struct {
	run   string
	ids   []tpu.WorkerID
	ends  Endings
	stop  *stopping // nil: nobody stopped the run
	code  int       // exit status of the run
	first int
}

// summary says how the run ended. The result lines says that the summary should have the
// last lines of the first failure. The text is "" if failures were excused; see SayExcused.
func (a account) summary() (sum event.Summary, lines bool) {
	sum = event.Summary{Run: a.run, OK: a.code == 0, ExitCode: a.code, CommandCode: a.code}
	var end Ending
	id := ""
	if a.first >= 0 {
		end, id = a.ends[a.first], a.ids[a.first].String()
	}
	if a.first >= 0 && a.code != 0 {
		sum.Next, sum.FirstFail, lines = "multihost logs "+a.run+" --worker="+id, id+": "+end.Text(), true
	}
	switch {
	case a.stop != nil && a.stop.err != nil:
		sum.OK = false
		if !a.ends[max(a.first, 0)].Known { // this command stopped following the worker, which has not failed
			sum.FirstFail, lines = "", false
		}
		sum.Text = fmt.Sprintf("run %s: %s", a.run, a.stop.err)
		sum.Next = "multihost stop " + a.run
	case a.stop != nil && a.stop.cause != nil:
		sum.OK = false
		sum.FirstFail, lines = "", false
		sum.Text = fmt.Sprintf("run %s was stopped on %s: %s; no process of it is left", a.run, OnAll(len(a.ids)), a.stop.reason)
	case a.first >= 0 && end.stopped():
		sum.FirstFail, sum.Next, lines = "", "", false
		sum.Text = fmt.Sprintf("run %s was stopped: %s", a.run, end.Exit.Reason)
	case a.first >= 0 && end.fate() == fateLost:
		sum.Text = fmt.Sprintf("run %s: %s is lost, %s; the command was not touched and may go on on %s", a.run, id, end.Text(), a.ends.on(a.ids, mayRun))
		sum.Next = "follow it again with: multihost attach " + a.run + "; end it with: multihost stop " + a.run
	case a.first >= 0:
		sum.Text = fmt.Sprintf("run %s failed: %s", a.run, a.blame())
	case a.ends.on(a.ids, Ending.failed) == "":
		sum.Text = fmt.Sprintf("run %s succeeded on %s", a.run, OnAll(len(a.ids)))
	}
	return sum, lines
}

// blame says what decided the end of the run: the end of a slice or of a worker.
func (a account) blame() string {
	e := a.ends[a.first]
	if errors.Is(e.Err, ErrSliceGone) {
		return e.Text()
	}
	return fmt.Sprintf("%s was first, %s", a.ids[a.first], e.Text())
}

// toKeep reports whether to store the verdict on the workers. Without it, a command that
// sees only some of the workers could name another first failure.
func (a account) toKeep() bool {
	return a.first >= 0 && a.ends[a.first].Known && a.ends[a.first].Exit.Reason == "" && len(a.ends) > 1
}

// outOfBoundMemory reports whether the kernel killed the command for lack of memory while
// the command was bound to one NUMA node. It could not use the rest of the memory. wrap has
// the words before the command.
func outOfBoundMemory(exit launch.Exit, wrap []string) bool {
	return exit.OOM && slices.Contains(wrap, "--membind=0")
}

// Advice for a command that leaves its work in the background.
const (
	backgroundCure         = foregroundCure + "; to leave a run going without this machine, use --detach"
	foregroundCure         = "keep the training in the foreground, without nohup, & and tmux new -d"
	BackgroundCureDetached = foregroundCure + ": the job goes on without this machine"
)

// SayExcused makes the summary of a successful run name the workers whose failure was
// excused.
func SayExcused(sink event.Sink, sum *event.Summary, workers string) {
	sum.Text = fmt.Sprintf("run %s completed; unclean exit on %s after worker 0 had succeeded", sum.Run, workers)
	event.Notef(sink, event.Warn, "to make it a failure: --strict-exit",
		"%s failed within a minute after worker 0 had succeeded, by SIGABRT or with words of the distributed runtime: excused as the training's tail", workers)
}

// SayLeftBehind warns of processes that the command left in the background. If the run
// succeeded, the warning also becomes the headline of the summary.
func SayLeftBehind(sink event.Sink, sum *event.Summary, processes int, ids []tpu.WorkerID, cure string) {
	if processes == 0 {
		return
	}
	sum.LeftBehind = processes
	text := fmt.Sprintf("the command ended and left %s in the background, which ended with it, on %s", event.Count(processes, "process"), tpu.Fold(ids))
	event.Notef(sink, event.Warn, cure, "%s", text)
	if sum.OK {
		sum.Text = fmt.Sprintf("warning: run %s: %s; its own status was 0", sum.Run, text)
		sum.Next = cure
	}
}

// OnAll returns words for all workers of a run.
func OnAll(workers int) string {
	if workers == 1 {
		return "its worker"
	}
	return fmt.Sprintf("all %d workers", workers)
}

// SliceGone reports whether the end is because of a worker whose slice is gone.
func (f *Following) SliceGone() bool {
	_, first := f.Verdict()
	return first >= 0 && errors.Is(f.Ends[first].Err, ErrSliceGone)
}
