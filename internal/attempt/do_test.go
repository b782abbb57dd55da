package attempt

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/plan"
	"multihost/internal/preflight"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/onworkers"
	"multihost/internal/tpu"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

// onMachines returns a run and its slices. Its two workers are processes of this machine.
func onMachines(t *testing.T, o Options) (*Run, tpu.Selection, *testkit.Recorder) {
	t.Helper()
	code, fleet := t.TempDir(), localworker.Fleet{}
	testkit.Must(t, os.WriteFile(filepath.Join(code, "words"), []byte("from the laptop\n"), 0o600))
	slice := fleet.Slice(t, "t", 2)
	slice.Zone = "us-central2-b"
	d, said := onworkers.Deps(t, fleet, &testkit.FixedSlices{All: []tpu.Slice{slice}})
	o.Prefix, o.Run, o.Dir, o.NUMA = "t", "r", code, preflight.NUMAOff
	o.Preflight, o.FailFast, o.Grace, o.SyncTimeout, o.StartLimit = "off", true, 100*time.Millisecond, time.Minute, time.Minute
	o.KillStale, o.Patience, o.Watch = launch.FreeOrphans, follow.Patience{Lost: time.Minute, Log: time.Minute}, follow.WatchOptions{StallTimeout: -1}
	r := &Run{O: o, Watch: &stage.Stopwatch{Sink: said, Clock: d.Clock}, Deps: Deps{Reach: d.Reach, Keeper: d.Keeper}}
	testkit.Must(t, r.Check(t.Context(), ""))
	t.Cleanup(r.Close)
	return r, tpu.Selection{Slices: []tpu.Slice{slice}}, said
}

// do makes an attempt on new connections.
func do(t *testing.T, r *Run, h *History, sel tpu.Selection) (*Attempt, stage.Outcome, error) {
	t.Helper()
	team, err := r.ConnectPhase(t.Context(), r.Watch, sel, nil)
	testkit.Must(t, err)
	t.Cleanup(team.Close)
	held := false
	a := &Attempt{Run: r, History: h, Workers: team, Hold: func(ctx context.Context) (context.Context, func(), error) {
		held = true
		return ctx, func() { held = false }, nil
	}}
	out, err := a.Do(t.Context())
	if held {
		t.Error("what was held for the attempt is held after it")
	}
	return a, out, err
}

func logs(r *Run) (all []string) {
	paths, _ := filepath.Glob(filepath.Join(r.StateDir, "runs", r.O.Run, "output_*.txt"))
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		all = append(all, string(text))
	}
	return all
}

func TestAnAttemptDoesWhatItsPlanSays(t *testing.T) {
	t.Parallel()
	r, sel, said := onMachines(t, Options{Script: "cat words; echo $MULTIHOST_PROCESS_ID"})
	p := r.NewPlan("run")
	testkit.Must(t, r.Foresee(t.Context(), &History{}, &p, sel, ""))
	if !p.Asked || p.Attempt != 1 || p.Files.Count != 1 || len(p.Workers) != 2 || *p.Workers[0].Files != 1 || p.Workers[1].Env["MULTIHOST_PROCESS_ID"] != "1" || p.Cost.Hourly == nil || *p.Cost.Hourly == 0 {
		t.Errorf("plan %+v", p)
	}
	if text := p.String(); !strings.Contains(text, "run r, attempt 1") || !strings.Contains(text, "cat words") {
		t.Errorf("the plan says\n%s", text)
	}
	h := &History{Since: time.Now()}
	a, out, err := do(t, r, h, sel)
	if err != nil || out.Code != 0 || !out.Started || !a.Begun() || a.Number != 1 || h.Tried != 1 || h.Last != 1 || !h.HasBegunOn("t") {
		t.Errorf("%+v, %v; %+v", out, err, h)
	}
	if got := strings.Join(logs(r), ""); got != "from the laptop\n0\nfrom the laptop\n1\n" {
		t.Errorf("logs %q", got)
	}
	a.End(nil, false, "")
	ends := 0
	for _, e := range said.Events() {
		if end, ok := e.(event.AttemptEnd); ok && end.OK && end.Attempt == 1 {
			ends++
		}
	}
	if ends != 1 {
		t.Errorf("%d ends of the attempt", ends)
	}
	// A runner has seen the end, so a new attempt follows.
	a, out, err = do(t, r, h, sel)
	if err != nil || out.Code != 0 || a.Number != 2 {
		t.Errorf("attempt %d: %+v, %v", a.Number, out, err)
	}
}

// A repeated job takes over a command that --detach left running. Because of that command,
// a run is refused before any change.
func TestACommandThatLives(t *testing.T) {
	t.Parallel()
	r, sel, said := onMachines(t, Options{Script: "echo begun\n" + localworker.UntilAllowed + "exit 3", Detach: true})
	_, out, err := do(t, r, &History{}, sel)
	if err != nil || !out.Detached || !said.Said(event.Info, "run r goes on without this machine on s0w[0-1]") {
		t.Fatalf("%+v, %v", out, err)
	}
	r.O.Detach = false
	if _, _, err := do(t, r, &History{}, sel); !stage.Is(err, stage.Busy) {
		t.Errorf("a run beside it: %v", err)
	}
	p := plan.Plan{}
	r.Job = true
	testkit.Must(t, r.Foresee(t.Context(), &History{}, &p, sel, ""))
	if p.TakesOver == nil || p.TakesOver.Workers != "s0w[0-1]" {
		t.Errorf("plan %+v", p.TakesOver)
	}
	team, err := r.Connect(t.Context(), sel, nil)
	testkit.Must(t, err)
	defer team.Close()
	_, err = team.Conns[0].Run(t.Context(), remote.Cmd{Line: "touch ~/go"})
	testkit.Must(t, err)
	h := &History{}
	a, out, err := do(t, r, h, sel)
	if err != nil || out.Code != 3 || a.Number != 1 || h.Tried != 1 || a.Regained {
		t.Errorf("attempt %d: %+v, %v", a.Number, out, err)
	}
	if !said.Said(event.Info, "run r, attempt 1, was started") {
		t.Errorf("said %v", said.Notes())
	}
}

func TestAllOrNone(t *testing.T) {
	t.Parallel()
	r, sel, _ := onMachines(t, Options{Script: "true"})
	r.O.UseExisting = true
	team, err := r.Connect(t.Context(), sel, nil)
	testkit.Must(t, err)
	defer team.Close()
	_, err = team.Conns[0].Run(t.Context(), remote.Cmd{Line: "mkdir r"})
	testkit.Must(t, err)
	h := &History{}
	a, out, err := do(t, r, h, sel)
	if !stage.Is(err, stage.Folder) || out.Started || a.Begun() || h.Tried != 0 || !strings.Contains(err.Error(), "s0w1: there is no folder ~/r") {
		t.Errorf("%+v, %v", out, err)
	}
}

// Another command may delete the slices while the workers are prepared. Then nothing starts.
func TestNothingStartsOnSlicesThatAreBeingDeleted(t *testing.T) {
	t.Parallel()
	r, sel, _ := onMachines(t, Options{Script: "true"})
	leaving := sel.Slices[0]
	leaving.State, leaving.Condition = "DELETING", tpu.Leaving
	r.Cloud.(*testkit.FixedSlices).All = []tpu.Slice{leaving}
	a, out, err := do(t, r, &History{}, sel)
	if !stage.Is(err, stage.Start) || !strings.Contains(fmt.Sprint(err), `slice "t" is DELETING`) || out.Started || a.Begun() {
		t.Errorf("%+v, %v", out, err)
	}
}
