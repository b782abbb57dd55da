package workers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// FoundRun is one run as the workers know it.
type FoundRun struct {
	Info     launch.Info // report of the most active worker, see rank
	Workers  []tpu.WorkerID
	Followed bool           // a command follows the output
	Verdict  string         // how the run ended on all workers; "" if no worker knows
	Stopped  launch.Stopped // the newest mark of a stop, by this machine's clock
	Well     int            // number of workers on which it ended by itself with 0
	Alive    int            // number of workers on which it is active
	Seen     bool           // a user has seen the end of the run and has its logs
	Broken   int            // number of workers on which it was stopped, or nobody saw its end
}

// add adds what one more worker knows about the run. offset is that of the worker's clock.
func (f *FoundRun) add(worker tpu.WorkerID, info launch.Info, offset time.Duration) {
	f.Workers = append(f.Workers, worker)
	f.Followed = f.Followed || info.Followers > 0
	f.Verdict = cmp.Or(f.Verdict, info.Verdict)
	f.Seen = f.Seen || info.Seen
	if info.Alive() {
		f.Alive++
	}
	if e := info.Exit; e != nil && e.Code == 0 && e.Reason == "" && !e.Lost {
		f.Well++
	}
	if s := info.Stopped; s.Reason != "" {
		s.At = s.At.Add(-offset)
		if s.At.After(f.Stopped.At) {
			f.Stopped = s
		}
	}
	if info.Phase == launch.Lost || info.Phase == launch.Aborted || info.Exit != nil && info.Exit.Reason != "" {
		f.Broken++
	}
}

// Ended returns how the run ended: the verdict of its runner, or else the exit on one
// worker.
func (f FoundRun) Ended() string {
	if f.Verdict != "" {
		return "failed: " + f.Verdict
	}
	return f.Info.Exit.String()
}

// Stoppable returns an error for a run of another login. This login may not end its
// processes, and the worker would not even report whether they have ended.
func (f FoundRun) Stoppable() error {
	if f.Info.Mine {
		return nil
	}
	return f.OfAnother(stage.Stopping, "stop it as that login: multihost stop "+f.Info.Run+" --user="+remote.Quote(f.Info.Login))
}

// OfAnother returns the error for a run that belongs to another login.
func (f FoundRun) OfAnother(during stage.Stage, advice string) error {
	does := "runs"
	if !f.Info.Alive() {
		does = "ran"
	}
	return &stage.Error{Stage: during, Text: fmt.Sprintf("run %q of %s %s as login %q", f.Info.Run, f.Info.Owner, does, f.Info.Login), Advice: advice}
}

// Runs asks every worker which runs it knows, and skips workers that are away. Different
// runs of the same name stay separate. The newest run comes first.
func (t *Connected) Runs(ctx context.Context) ([]FoundRun, []error) {
	list := launch.List
	if t.readOnly {
		list = launch.Look
	}
	lists := make([][]launch.Info, len(t.IDs))
	errs := t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) (err error) {
		if t.IsAway(i) {
			return t.Away[i]
		}
		return remote.Again(ctx, nil, func() error {
			lists[i], err = list(ctx, t.Conns[i])
			return err
		})
	})
	type identity struct {
		launch.Ref
		login, owner, command string

		minute int64
	}
	index := map[identity]int{}
	var found []FoundRun
	for i, list := range lists {
		for _, info := range list {
			// The workers of a run prepare its start within seconds of each other, but not at
			// exactly the same time.
			key := identity{info.Ref, info.Login, info.Owner, info.Command, info.Armed.Add(-t.Conns[i].ClockOffset()).Unix() / 120}
			at, ok := index[key]
			for _, side := range []int64{-1, 1} {
				if !ok { // another worker's time may be in the two minutes before or after
					beside := key
					beside.minute += side
					at, ok = index[beside]
				}
			}
			if !ok {
				at = len(found)
				found = append(found, FoundRun{Info: info})
			}
			index[key] = at
			if rank(info) > rank(found[at].Info) {
				found[at].Info = info
			}
			found[at].add(t.IDs[i], info, t.Conns[i].ClockOffset())
		}
	}
	slices.SortStableFunc(found, func(a, b FoundRun) int {
		return cmp.Or(b.Info.Armed.Compare(a.Info.Armed), cmp.Compare(a.Info.Run, b.Info.Run))
	})
	return found, errs
}

// rank orders the workers' reports about a run. The report of the most active worker ranks
// highest.
func rank(info launch.Info) int {
	switch {
	case info.Phase == launch.Running:
		return 2
	case info.Alive():
		return 1
	}
	return 0
}
