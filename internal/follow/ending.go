package follow

import (
	"errors"
	"slices"
	"time"

	"multihost/internal/launch"
	"multihost/internal/tpu"
)

// Ending says how the command ended on one worker.
type Ending struct {
	Known  bool
	Exit   launch.Exit
	Err    error     // why the end is not known
	tail   bool      // the result of leaves for this end
	behind int       // processes that the command left behind, all killed
	part   *PartLog  // set if this machine has only a part of the log
	at     time.Time // worker's time of the end, corrected to the runner's clock
}

// fate returns the fate of a worker that nobody follows any more.
func (e Ending) fate() fate {
	if !e.Known {
		return fateRetry
	}
	return fateOf(evidence{recorded: e.Err == nil, gone: errors.Is(e.Err, ErrSliceGone), trouble: strange}, 0)
}

func (e Ending) failed() bool { return e.Err != nil || e.Exit.Code != 0 || e.Exit.Lost }

// stopped reports whether multihost stopped the command.
func (e Ending) stopped() bool { return e.Exit.Reason != "" && !e.Exit.Lost }

// LostCode is the exit status of an unknown end: EX_UNAVAILABLE of sysexits.
const LostCode = 69

func (e Ending) code() int {
	if e.Err != nil || e.Exit.Lost {
		return LostCode
	}
	return e.Exit.Code
}

// Text says how the command ended, or why that is not known.
func (e Ending) Text() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return e.Exit.String()
}

// Endings are the ends on all workers of a run, in the workers' order.
type Endings []Ending

// on folds the names of the workers whose ends fulfil the condition is.
func (all Endings) on(ids []tpu.WorkerID, is func(Ending) bool) string {
	var names []tpu.WorkerID
	for i, e := range all {
		if is(e) {
			names = append(names, ids[i])
		}
	}
	return tpu.Fold(names)
}

func unknown(e Ending) bool { return !e.Known }

// mayRun reports whether the command may still be running.
func mayRun(e Ending) bool { return e.fate() != fateEnded }

// known counts the known ends.
func (all Endings) known() (n int) {
	for _, e := range all {
		if e.Known {
			n++
		}
	}
	return n
}

// cutOff reports whether workers could not be reached and no failure of the command is
// known. The command may still be running there.
func (all Endings) cutOff() bool {
	away := false
	for _, e := range all {
		if e.fate() == fateEnded && e.failed() {
			return false
		}
		away = away || e.Err != nil
	}
	return away
}

// settled reports whether nothing more can be found out about how the command ended. The
// parameter bucket says that the run has a bucket, which may know the end even when the
// slices are gone.
func (all Endings) settled(bucket bool) bool {
	return !slices.ContainsFunc(all, func(e Ending) bool {
		return !e.Known || e.Err != nil && (bucket || !errors.Is(e.Err, ErrSliceGone))
	})
}

// verdict returns the exit status of the run, and the index of the first worker to fail, or
// -1. A worker that multihost stopped has not failed.
//
// The status is 0 only if every worker ended with 0 or is excused. A failure is excused
// only without strict, if nobody was stopped and every end is known.
func (all Endings) verdict(strict bool) (code, first int) {
	excuse := !strict && !slices.ContainsFunc(all, Ending.stopped) && !slices.ContainsFunc(all, unknown)
	bad := func(e Ending) bool { return e.failed() && !(excuse && excused(e, all[0])) }
	for _, i := range all.order() {
		if e := all[i]; bad(e) && e.Known && !e.stopped() {
			return e.code(), i
		}
	}
	for i, e := range all {
		if bad(e) {
			return e.code(), i
		}
	}
	return 0, -1
}

// order lists the workers by the time of their command's end.
func (all Endings) order() []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return all[a].at.Compare(all[b].at) })
	return order
}

// leftBehind counts the processes that the command left in the background when it ended by
// itself. It also returns their workers.
func (all Endings) leftBehind(ids []tpu.WorkerID) (n int, on []tpu.WorkerID) {
	for i, e := range all {
		if e.behind > 0 && e.Exit.Reason == "" {
			n, on = n+e.behind, append(on, ids[i])
		}
	}
	return n, on
}

// dropped returns the workers whose logs lack output of the command. The result most is the
// largest number of bytes that one log lacks.
func (all Endings) dropped(ids []tpu.WorkerID) (most int64, on []tpu.WorkerID) {
	for i, e := range all {
		if e.Known && e.Exit.Dropped > 0 {
			most, on = max(most, e.Exit.Dropped), append(on, ids[i])
		}
	}
	return most, on
}

func (all Endings) partly() (parts Parts) {
	for _, e := range all {
		if e.part != nil {
			parts = append(parts, e.part)
		}
	}
	return parts
}
