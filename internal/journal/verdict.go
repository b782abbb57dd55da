package journal

import (
	"fmt"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

// RunState is the state of a run, in the word that people read first.
type RunState string

const (
	Unknown   RunState = "unknown"
	Starting  RunState = "starting"
	Running   RunState = "running"
	Detached  RunState = "detached" // the command runs, but no multihost command on this machine follows it
	Left      RunState = "left"     // multihost has failed after the start; the command may still run
	Succeeded RunState = "succeeded"
	Failed    RunState = "failed"
	Stopped   RunState = "stopped" // the user stopped it
)

// Live reports whether a multihost command follows the run.
func (s RunState) Live() bool { return s == Starting || s == Running }

// A Verdict says how a run ended, or how far it has come.
type Verdict struct {
	State RunState
	Text  string
	Also  string // what else failed, for example a teardown
}

// A Known is what this machine's logs of a run say about its end.
type Known struct {
	Logs  bool // there are logs
	Ended bool
	Code  int
}

// KnownOf returns what the logs of an attempt show. a is nil without logs.
func KnownOf(a *metrics.Attempt) (k Known) {
	if a == nil {
		return k
	}
	k.Logs, k.Ended = true, a.Ended
	if a.ExitCode != nil {
		k.Code = *a.ExitCode
	}
	return k
}

// Verdict says how the newest attempt ended, or how far it is. It takes facts that the
// story lacks from known.
func (s *Story) Verdict(known Known, now time.Time) Verdict {
	a := s.Newest()
	if a == nil {
		return known.verdict()
	}
	v := a.verdict(known, now)
	if a.Summary != nil && a.End != nil && a.End.Error != "" && !strings.Contains(a.Summary.Text, a.End.Error) {
		v.Also = a.End.Error
	}
	return v
}

func (a *Attempt) verdict(known Known, now time.Time) Verdict {
	switch s := a.Summary; {
	case s != nil && s.OK:
		return Verdict{State: Succeeded, Text: s.Text}
	case s != nil && s.ExitCode >= 128 && s.FirstFail == "":
		return Verdict{State: Stopped, Text: s.Text}
	case s != nil:
		return Verdict{State: Failed, Text: s.Text}
	case a.End != nil && a.End.Error != "" && a.Release != nil:
		return Verdict{State: Left, Text: a.End.Error}
	case a.End != nil && a.End.Error != "":
		return Verdict{State: Failed, Text: a.End.Error}
	case known.Ended:
		return known.verdict()
	case a.Outcome != nil && a.Outcome.Again:
		return Verdict{State: Starting, Text: strings.TrimSuffix(fmt.Sprintf("attempt %d ended: %s; %s; %s", a.Number(), a.Outcome.Reason(), a.Outcome.Next, a.doing(now)), "; ")}
	case a.End != nil && a.End.Detached:
		return Verdict{State: Detached, Text: "it goes on without this machine, which saw it last at " + a.Ended.UTC().Format("2006-01-02 15:04:05 UTC")}
	case a.Release == nil:
		return Verdict{State: Starting, Text: a.doing(now)}
	}
	return Verdict{State: Running, Text: a.doing(now)}
}

// doing names the phase of the commands that follow the run.
func (a *Attempt) doing(now time.Time) string {
	text := ""
	for _, p := range a.Phases {
		if p.State == event.Started {
			text = fmt.Sprintf("%s for %s", p.Name, event.Age(now.Sub(p.Begin)))
		}
	}
	return text
}

func (k Known) verdict() Verdict {
	switch {
	case !k.Logs:
		return Verdict{State: Unknown, Text: "this machine has neither logs nor a journal of the run"}
	case !k.Ended:
		return Verdict{State: Running, Text: "as far as this machine knows; its logs have no end yet"}
	case k.Code != 0:
		return Verdict{State: Failed, Text: fmt.Sprintf("exit status %d", k.Code)}
	}
	return Verdict{State: Succeeded, Text: "on all workers"}
}

// Ending returns how the command ended on a worker. It returns false if that is not known.
func (a *Attempt) Ending(id tpu.WorkerID) (Ending, bool) {
	e, ok := a.Ends[id]
	switch {
	case !ok:
		return Ending{}, false
	case e.Error != "":
		return Ending{Failed, "lost: " + e.Error}, true
	case e.Reason != "":
		return Ending{Stopped, "stopped"}, true
	case e.Signal != "":
		return Ending{Failed, "killed by " + e.Signal}, true
	case e.Code != 0:
		return Ending{Failed, fmt.Sprintf("exit code %d", e.Code)}, true
	}
	return Ending{Succeeded, "ended well"}, true
}

// An Ending is Succeeded, Failed or Stopped.
type Ending struct {
	State RunState
	Text  string
}
