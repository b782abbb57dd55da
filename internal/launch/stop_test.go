package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// ready waits until the command has made the file "ready" in its directory.
func ready(t testing.TB, l *local, run string) {
	t.Helper()
	testkit.Eventually(t, run+" is ready", func() bool {
		_, err := os.Stat(filepath.Join(l.home(), run, "ready"))
		return err == nil
	})
}

func TestStopEndsEveryProcessOfTheRun(t *testing.T) {
	t.Parallel()
	type way struct{ name, script string }
	for _, row := range testkit.Some(t, []way{
		{"ignores-TERM", "trap '' TERM; touch ready; while :; do sleep 0.1; done"},
		{"a-plain-command", "touch ready; exec sleep 1000"},
		{"double-fork", "(setsid --fork bash -c 'trap \"\" TERM; touch ready; while :; do sleep 0.1; done'); sleep 1000"},
		{"children", "sleep 1000 & (sleep 1000 & sleep 1000) & touch ready; wait"},
		{"stopped", "sleep 1000 & kill -STOP $!; touch ready; kill -STOP $$; wait"},
		{"setsid", "setsid sleep 1000 & touch ready; wait"},
		{"hidden-orphan", "(setsid --fork env -i bash -c 'echo $$ >pid; touch ready; exec sleep 1000'); sleep 1000"},
		{"environment-is-hidden", "env -i sleep 1000 & touch ready; wait"},
		{"leader-gone", "trap '' TERM; sleep 1000 & env -i sleep 1000 & touch ready"},
		{"hidden-and-setsid", "setsid env -i sleep 1000 & touch ready; wait"},
		{"respawns", "trap 'bash -c \"trap : TERM; sleep 1000\" &' TERM; touch ready; while :; do sleep 0.1; done"},
	}, 2) {
		name, script := row.name, row.script
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t)
			s := spec(name, script)
			begin(t, l, s)
			ready(t, l, name)
			report := stopped(t, l, s.Ref(), 500*time.Millisecond)
			if !report.Free() || !report.Phase.Ended() || report.Found == 0 || report.Exit == nil {
				t.Errorf("report: %+v", report)
			}
			if pids := l.processes(); len(pids) > 0 {
				testkit.Eventually(t, "the supervisor ended", func() bool { return len(l.processes()) == 0 })
			}
			if name != "leader-gone" && report.Exit.Reason != "test by ann" {
				t.Errorf("exit: %+v", report.Exit)
			}
			if name == "hidden-orphan" && alive(t, filepath.Join(l.home(), name, "pid")) {
				t.Error("the process without environment, session and parent lives")
			}
			again := stopped(t, l, s.Ref(), 500*time.Millisecond)
			if !again.Free() || again.Found != 0 || *again.Exit != *report.Exit {
				t.Errorf("second stop: %+v, want the exit %+v", again, report.Exit)
			}
		})
	}
}

func TestStopsAtOnceAreOneStop(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "touch ready; exec sleep 1000")
	begin(t, l, s)
	ready(t, l, "r")
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if report := stopped(t, l, s.Ref(), patience); !report.Free() || report.Exit == nil || report.Exit.Signal != "TERM" {
				t.Errorf("%+v", report)
			}
		})
	}
	wg.Wait()
}

// Only the control group of the process shows its run. Its environment, session, parent and
// output do not.
func TestStopFindsWhatIsHiddenByItsControlGroup(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.cgroup = controlGroup(t, fmt.Sprintf("session-mh%d.scope", os.Getpid()))
	s := spec("r", "(setsid --fork env -i bash -c 'exec >/dev/null 2>&1; echo $$ >pid; touch ready; exec sleep 1000'); exit 3")
	_, exit := complete(t, l, s)
	ready(t, l, "r")
	pid := filepath.Join(l.home(), "r/pid")
	if exit.Code != 3 || !alive(t, pid) {
		t.Fatalf("exit %+v", exit)
	}
	// While another run is active, the process might belong to that run.
	begin(t, l, spec("other", "exec sleep 1000"))
	if report := stopped(t, l, s.Ref(), time.Second); report.Found != 0 || !alive(t, pid) {
		t.Errorf("beside another run: %+v", report)
	}
	stopped(t, l, Ref{"other", 1}, time.Second)
	report, err := Sweep(t.Context(), l, s.Ref(), StopOptions{Grace: time.Second})
	if err != nil || report.Found > 1 || alive(t, pid) {
		t.Errorf("sweep: %+v, %v", report, err)
	}
}

// The watch of package lease may have started in the session of the run. It must outlive
// the run.
func TestTheWatchOfALeaseIsNotSweptAway(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.cgroup = controlGroup(t, fmt.Sprintf("session-mh-watch%d.scope", os.Getpid()))
	s := spec("r", "for name in watch keeper orphan; do (setsid --fork env -i bash -c 'exec >/dev/null 2>&1; echo $$ >$0; exec sleep 1000' $name); done; until [ -s watch ] && [ -s keeper ] && [ -s orphan ]; do sleep 0.02; done")
	if _, exit := complete(t, l, s); exit.Code != 0 {
		t.Fatalf("exit %+v", exit)
	}
	watch, keeper, orphan := filepath.Join(l.home(), "r/watch"), filepath.Join(l.home(), "r/keeper"), filepath.Join(l.home(), "r/orphan")
	line := func(name string) string {
		pid, err := os.ReadFile(name)
		testkit.Must(t, err)
		stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
		testkit.Must(t, err)
		_, rest, _ := strings.Cut(string(stat), ") ")
		return fmt.Sprintf("%s %s 1\n", strings.TrimSpace(string(pid)), strings.Fields(rest)[19])
	}
	entry := fmt.Sprintf("tmp/.multihost/r.watch.%d", os.Getuid())
	l.write(entry, line(keeper)+line(watch), 0o644)
	report, err := Sweep(t.Context(), l, s.Ref(), StopOptions{Grace: time.Second})
	if err != nil || report.Found != 1 || !alive(t, watch) || !alive(t, keeper) || alive(t, orphan) {
		t.Errorf("swept: %+v, %v; the watch lives: %v, its keeper: %v, the orphan: %v", report, err, alive(t, watch), alive(t, keeper), alive(t, orphan))
	}
	// An entry about earlier processes with these numbers does not protect the present
	// ones.
	pid, _, _ := strings.Cut(line(watch), " ")
	l.write(entry, pid+" 1 1\n", 0o644)
	if _, err := Sweep(t.Context(), l, s.Ref(), StopOptions{}); err != nil || alive(t, watch) || alive(t, keeper) {
		t.Errorf("swept: %v; lives: %v", err, alive(t, watch))
	}
}

// Without a grace time, a stop does not wait for a command that ignores TERM.
func TestNoGraceIsNone(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	var took [2]time.Duration
	for i, script := range []string{"touch ready; exec sleep 1000", "trap '' TERM; touch ready; while :; do sleep 0.1; done"} {
		run := fmt.Sprint("r", i)
		begin(t, l, spec(run, script))
		ready(t, l, run)
		began := time.Now()
		report := stopped(t, l, Ref{run, 1}, 0)
		took[i] = time.Since(began)
		if !report.Free() || i == 1 && report.Killed == 0 {
			t.Errorf("after %v: %+v", took[i], report)
		}
	}
	if limit := 8*time.Second + 10*took[0]; took[1] > limit {
		t.Errorf("it took %v, want less than %v", took[1], limit)
	}
}

func TestSweepEndsWhatTheCommandLeftBehind(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("dev/accel0", "", 0o666)
	s := spec("r", "(exec 3<"+l.root+"/dev/accel0; trap '' TERM; touch ready; while :; do sleep 0.1; done) & while [ ! -e go ]; do sleep 0.05; done")
	begin(t, l, s)
	ready(t, l, "r")
	if _, err := Sweep(t.Context(), l, s.Ref(), StopOptions{}); !errors.Is(err, ErrStillRuns) {
		t.Errorf("of a living run: %v", err)
	}
	l.write("home/r/go", "", 0o644)
	exit, err := Follow(t.Context(), l, s.Ref(), 0, &strings.Builder{}, FollowOptions{})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	report, err := Sweep(t.Context(), l, s.Ref(), StopOptions{Grace: 200 * time.Millisecond})
	if err != nil || !report.Free() || report.Found == 0 || report.Killed == 0 || len(report.Devices) != 0 || *report.Exit != exit || exit.Reason != "" {
		t.Errorf("%+v, %v", report, err)
	}
	report, err = Sweep(t.Context(), l, s.Ref(), StopOptions{})
	if err != nil || report.Found != 0 || report.Phase != Exited {
		t.Errorf("again: %+v, %v", report, err)
	}
	if report, err := Sweep(t.Context(), l, Ref{"none", 1}, StopOptions{}); err != nil || report.Phase != Unknown {
		t.Errorf("unknown: %+v, %v", report, err)
	}
}

func TestStopLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	stranger := exec.Command("sleep", "1000")
	stranger.Env = append(os.Environ(), "MULTIHOST_RUN_DIR="+l.dir(Ref{"r", 1})+"0") // attempt 10
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	begin(t, l, spec("r", "sleep 1000"))
	stopped(t, l, Ref{"r", 1}, time.Second)
	if !lives(stranger) {
		t.Error("the stranger was ended")
	}
}

func TestStopAfterARebootLeavesTheNewOwnerOfThePIDAlone(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	stranger := exec.Command("sleep", "1000")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	for i, boot := range []string{"boot-0", "boot-1"} {
		dir := fmt.Sprintf("home/.multihost/runs/past%d/1/", i)
		l.write(dir+"supervisor", "1 1 "+boot+" 5\n", 0o600)
		l.write(dir+"started", fmt.Sprintf("%d 2 3 4\n", stranger.Process.Pid), 0o600)
		l.write(dir+"output.log", "", 0o600)
		report := stopped(t, l, Ref{fmt.Sprint("past", i), 1}, time.Second)
		if report.Found != 0 || report.Phase != Lost || !lives(stranger) {
			t.Errorf("%s: %+v", boot, report)
		}
	}
}

func TestAKilledSupervisorIsALostRun(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "echo out; touch ready; exec sleep 1000")
	begin(t, l, s)
	ready(t, l, "r")
	state, err := Status(t.Context(), l, s.Ref())
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(state.Supervisor, syscall.SIGKILL)
	testkit.Eventually(t, "the supervisor is dead", func() bool {
		state, err = Status(t.Context(), l, s.Ref())
		return err == nil && !state.Supervised
	})
	if state.Phase != Running {
		t.Errorf("the command lives: %+v", state)
	}
	// The run still holds the worker.
	var busy *BusyError
	if _, err := Arm(t.Context(), l, spec("other", "true")); !errors.As(err, &busy) || busy.Info.Run != "r" {
		t.Errorf("arm: %v", err)
	}
	report := stopped(t, l, s.Ref(), time.Second)
	if !report.Free() || report.Phase != Lost || !report.Exit.Lost || !strings.Contains(report.Exit.Reason, "supervisor was killed; test by ann") || report.Exit.LogSize != 4 {
		t.Errorf("report: %+v %+v", report, report.Exit)
	}
	out := &strings.Builder{}
	if exit, err := Follow(t.Context(), l, s.Ref(), 0, out, FollowOptions{}); err != nil || !exit.Lost || out.String() != "out\n" {
		t.Errorf("follow: %q, %+v, %v", out, exit, err)
	}
	if out, _ := complete(t, l, spec("other", "echo free")); out != "free\n" {
		t.Errorf("got %q", out)
	}
}

func TestAKilledWaiterIsALostExit(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "touch ready; while [ ! -e over ]; do sleep 0.05; done; exit 3")
	begin(t, l, s)
	ready(t, l, "r")
	text, err := os.ReadFile(filepath.Join(l.dir(s.Ref()), "started"))
	if err != nil {
		t.Fatal(err)
	}
	var pid, start, at, waiter int
	fmt.Sscan(string(text), &pid, &start, &at, &waiter)
	syscall.Kill(waiter, syscall.SIGKILL)
	if state, err := Status(t.Context(), l, s.Ref()); err != nil || state.Phase != Running {
		t.Errorf("status: %+v, %v", state, err)
	}
	l.write("home/r/over", "", 0o644)
	exit, err := Follow(t.Context(), l, s.Ref(), 0, &strings.Builder{}, FollowOptions{})
	if err != nil || !exit.Lost {
		t.Errorf("follow: %+v, %v", exit, err)
	}
}

func TestARebootIsALostRun(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "echo out; touch ready; exec sleep 1000")
	begin(t, l, s)
	testkit.Eventually(t, "the output is on the disk", func() bool {
		state, err := Status(t.Context(), l, s.Ref())
		return err == nil && state.LogSize == 4
	})
	l.killAll()
	if err := os.RemoveAll(filepath.Join(l.root, "tmp/.multihost")); err != nil {
		t.Fatal(err)
	}
	l.setBoot("boot-2")
	looked := FollowOptions{Look: true}
	seen := &strings.Builder{}
	if exit, err := Follow(t.Context(), l, s.Ref(), 0, seen, looked); err != nil || !exit.Lost || seen.String() != "out\n" {
		t.Errorf("follow that looks: %q, %+v, %v", seen, exit, err)
	}
	if n, exit, err := Peek(t.Context(), l, s.Ref(), 1, seen); err != nil || n != 3 || exit == nil || !exit.Lost {
		t.Errorf("peek: %d, %+v, %v", n, exit, err)
	}
	if _, err := os.Stat(filepath.Join(l.dir(s.Ref()), "exit")); err == nil {
		t.Error("who only looks has recorded an end")
	}
	infos, err := List(t.Context(), l)
	if err != nil || len(infos) != 1 || infos[0].Phase != Lost || infos[0].Owner != "ann@laptop" || !infos[0].Mine {
		t.Errorf("list: %+v, %v", infos, err)
	}
	out := &strings.Builder{}
	exit, err := Follow(t.Context(), l, s.Ref(), 0, out, FollowOptions{})
	if err != nil || !exit.Lost || !strings.Contains(exit.Reason, "reboot") || out.String() != "out\n" {
		t.Errorf("follow: %q, %+v, %v", out, exit, err)
	}
	if out, _ := complete(t, l, spec("next", "echo free")); out != "free\n" {
		t.Errorf("got %q", out)
	}
}

func TestListAndPruning(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.disk("echo 90000000 100000000 4096")
	old := time.Now().Add(-31 * 24 * time.Hour).UnixNano()
	recent := time.Now().Add(-24 * time.Hour).UnixNano()
	for i := range 25 {
		dir := fmt.Sprintf("home/.multihost/runs/past%02d/1/", i)
		at := recent + int64(i)
		if i == 24 {
			at = old
		}
		l.write(dir+"supervisor", fmt.Sprintf("1 1 boot-0 %d\n", at), 0o600)
		l.write(dir+"started", "2 2 3 4\n", 0o600)
		l.write(dir+"exit", "code=0\nend=5\n", 0o600)
	}
	complete(t, l, spec("now", "true"))
	testkit.Eventually(t, "19 recent ones and this one are left", func() bool {
		infos, err := List(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		return len(infos) == 20 && infos[0].Run == "past05" && infos[18].Run == "past23" && infos[19].Run == "now"
	})
}

func TestStatusTellsTheProcessorTime(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "(while :; do :; done) & touch ready; wait")
	begin(t, l, s)
	ready(t, l, "r")
	testkit.Eventually(t, "the run has used 100 ms", func() bool {
		state, err := Status(t.Context(), l, s.Ref())
		return err == nil && state.Left == 2 && state.CPU >= 100*time.Millisecond
	})
	stopped(t, l, s.Ref(), time.Second)
}

func TestStatusOfAWorkerWithoutRuns(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	if infos, err := List(t.Context(), l); err != nil || len(infos) != 0 {
		t.Errorf("%+v, %v", infos, err)
	}
	if report := stopped(t, l, Ref{"none", 1}, time.Second); !report.Free() || report.Phase != Unknown {
		t.Errorf("%+v", report)
	}
}

// Every later look and the next Arm see the mark of a stop, even if the command had already
// ended.
func TestAStopIsMarked(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	complete(t, l, spec("r", "exit 3"))
	ref := Ref{Run: "r", Attempt: 1}
	for _, mark := range []bool{false, true} {
		before := time.Now()
		if _, err := Stop(t.Context(), l, ref, StopOptions{Reason: "by ann", Mark: mark}); err != nil {
			t.Fatal(err)
		}
		infos, err := List(t.Context(), l)
		if err != nil || len(infos) != 1 {
			t.Fatalf("%+v, %v", infos, err)
		}
		next := spec("r", "exit 0")
		next.Attempt = 2
		armed, err := Arm(t.Context(), l, next)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range []Stopped{infos[0].Stopped, armed.Stopped()} {
			if mark && (got.Reason != "by ann" || got.At.Before(before)) || !mark && got != (Stopped{}) {
				t.Errorf("mark %v: %+v", mark, got)
			}
		}
		testkit.Must(t, armed.Abort(t.Context()))
	}
}

// Only the runner knows how the whole run ended. A worker reports that after the runner has
// told it.
func TestAVerdictIsKept(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	ref := Ref{Run: "r", Attempt: 1}
	if err := KeepVerdict(t.Context(), l, ref, "too early"); !errors.Is(err, ErrUnknownRun) {
		t.Errorf("of a run that is not there: %v", err)
	}
	if _, exit := complete(t, l, spec("r", "exit 3")); exit.Code != 3 {
		t.Fatalf("%+v", exit)
	}
	for _, text := range []string{"one", "s1w2 was first, exit code 1"} {
		testkit.Must(t, KeepVerdict(t.Context(), l, ref, text))
	}
	infos, err := List(t.Context(), l)
	if err != nil || len(infos) != 1 || infos[0].Seen {
		t.Errorf("%+v, %v", infos, err)
	}
	testkit.Must(t, KeepSeen(t.Context(), l, ref, "ann@laptop"))
	infos, err = List(t.Context(), l)
	if err != nil || len(infos) != 1 || !infos[0].Seen || infos[0].Verdict != "s1w2 was first, exit code 1" {
		t.Errorf("%+v, %v", infos, err)
	}
}

// A command of root may continue as another user.
func TestARunOfRootHasProcessesOfOtherUsers(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t)
	testkit.Need(t, "setpriv")
	for name, script := range map[string]string{
		"by-environment": "setsid --fork setpriv --reuid=65534 --clear-groups sleep 1000 >/dev/null 2>&1",
		"by-output":      "setsid --fork setpriv --reuid=65534 --clear-groups env -i /bin/sleep 1000",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t)
			s := shell(name, script)
			begin(t, l, s)
			testkit.Eventually(t, "only that process is left", func() bool {
				state, err := Status(t.Context(), l, s.Ref())
				if err != nil {
					t.Fatal(err)
				}
				return state.Exit != nil && state.Left == 1
			})
			if report, err := Sweep(t.Context(), l, s.Ref(), StopOptions{Grace: time.Second}); err != nil || !report.Free() || report.Found != 1 {
				t.Errorf("sweep: %+v, %v", report, err)
			}
		})
	}
}
