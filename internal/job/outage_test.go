package job

import (
	"testing"

	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// An attempt that only could not be reached is followed on when it can be again;
// one of which anything is gone is replaced.
func TestAnAttemptThatWentOnIsFollowedOn(t *testing.T) {
	info := func(phase launch.Phase) launch.Info {
		return launch.Info{Ref: launch.Ref{Run: "r", Attempt: 2}, Phase: phase, Mine: true, Command: "train"}
	}
	for _, tt := range []struct {
		story    string
		found    workers.FoundRun
		known    bool // how it ended, or what else became of it
		followed bool
		evicted  bool
	}{
		{"it runs on all workers", workers.FoundRun{Info: info(launch.Running), Workers: testkit.WorkerIDs(2, 1)}, false, true, false},
		{"it has ended there meanwhile", workers.FoundRun{Info: info(launch.Exited), Workers: testkit.WorkerIDs(2, 1)}, false, true, false},
		{"a worker was rebooted", workers.FoundRun{Info: info(launch.Running), Workers: testkit.WorkerIDs(2, 1), Broken: 1}, false, false, true},
		{"a slice was made again", workers.FoundRun{Info: info(launch.Running), Workers: testkit.WorkerIDs(1, 1)}, false, false, true},
		{"it was lost for another reason", workers.FoundRun{Info: info(launch.Running), Workers: testkit.WorkerIDs(2, 1)}, true, false, true},
	} {
		for _, adopts := range []bool{true, false} {
			d := &workers.Deps{
				Reach:  &workers.Reach{},
				Keeper: &record.Keeper{StateDir: t.TempDir()},
			}
			if err := (&record.Record{Run: "r", Attempt: 2}).Save(d.StateDir); err != nil {
				t.Fatal(err)
			}
			r := &Runner{Deps: d, O: RunOptions{Run: "r", Script: "train"}, workers: &workers.Connected{IDs: testkit.WorkerIDs(2, 1)}, adopts: adopts, tried: 1, begunLast: 2, cutOff: !tt.known}
			in := &Decision{attempt: 3}
			if err := r.settleWith(in, []workers.FoundRun{tt.found}); err != nil || (in.living != nil) != tt.followed || (len(in.evict) > 0) != tt.evicted {
				t.Errorf("%s: followed %v, %d stopped, %v", tt.story, in.living != nil, len(in.evict), err)
			}
		}
	}
}

// An attempt on slices that were made since this runner began its last one is another
// runner's, even if its number is the same: it is taken over, and nothing is stopped.
func TestAnAttemptOfAnotherRunnerIsKnownByItsSlices(t *testing.T) {
	found := workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}, Phase: launch.Running, Mine: true, Command: "train"}, Workers: testkit.WorkerIDs(2, 1)}
	slices := func(uids ...string) (all []tpu.Slice) {
		for _, uid := range uids {
			all = append(all, tpu.Slice{Name: "r-" + uid, UID: uid})
		}
		return all
	}
	for _, tt := range []struct {
		story    string
		begunOn  []string
		now      []tpu.Slice
		followed bool
	}{
		{"other slices", []string{"1", "2"}, slices("3", "4"), true},
		{"the same slices", []string{"1", "2"}, slices("1", "2"), false},
		{"one of two was made again", []string{"1", "2"}, slices("1", "4"), false},
		{"hosts that no cloud knows", nil, slices("", ""), false},
	} {
		r := &Runner{Deps: &workers.Deps{
			Reach:  &workers.Reach{},
			Keeper: &record.Keeper{StateDir: t.TempDir()},
		}, O: RunOptions{Run: "r", Script: "train"}, workers: &workers.Connected{IDs: testkit.WorkerIDs(2, 1), Slices: tt.now},
			adopts: true, tried: 1, begunLast: 1, begunOn: tt.begunOn}
		in := &Decision{attempt: 2}
		if err := r.settleWith(in, []workers.FoundRun{found}); err != nil || (in.living != nil) != tt.followed || (len(in.evict) > 0) == tt.followed {
			t.Errorf("%s: followed %v, %d stopped, %v", tt.story, in.living != nil, len(in.evict), err)
		}
	}
}
