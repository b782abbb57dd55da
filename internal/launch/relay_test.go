package launch

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// readers returns the processes that read the output pipe of the run.
func (l *local) readers(ref Ref) []int {
	var pids []int
	for _, pid := range l.processes() {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid))
		if err == nil && to == filepath.Join(l.dir(ref), "output (deleted)") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// reads reports whether only the relay and the program head of the relay read the pipe.
func (l *local) reads(ref Ref) bool {
	var programs []string
	for _, pid := range l.readers(ref) {
		programs = append(programs, program(pid))
	}
	slices.Sort(programs)
	return slices.Equal(programs, []string{"bash", "head"})
}

// program returns the name of the program that a process runs: "bash" for the relay itself.
func program(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(text))
}

func TestACommandMayOpenItsOutput(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	out, exit := complete(t, l, spec("r", `echo a; echo b >/dev/stderr; echo c >/dev/stdout; echo d >&2; echo e | tee /dev/stderr; echo f >/proc/self/fd/1
[ -p /dev/stdout ] && [ -p /dev/stderr ] && echo pipes; echo g >&2`))
	if out != "a\nb\nc\nd\ne\ne\nf\npipes\ng\n" || exit.LogSize != int64(len(out)) {
		t.Errorf("got %q, %+v", out, exit)
	}
}

func TestALargeBurstArrives(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	exit := quiet(t, l, spec("r", "head -c 100000000 /dev/zero; echo end >&2"))
	if exit.LogSize != 100_000_004 || exit.Dropped != 0 {
		t.Errorf("%+v", exit)
	}
	info, err := os.Stat(filepath.Join(l.dir(Ref{"r", 1}), "output.log"))
	if err != nil || info.Sys().(*syscall.Stat_t).Blocks*512 > 100_000_004+65536 {
		t.Errorf("the log takes more of the disk than its size: %+v, %v", info.Sys(), err)
	}
}

// A background process may hold the pipe open. The end waits only until the earlier output
// is in the log.
func TestAProcessInTheBackgroundDoesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	for name, background := range map[string]string{
		"silent":  "sleep 1000",
		"talks":   "while :; do echo more; sleep 0.02; done",
		"babbles": "yes more",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t)
			s := spec(name, background+" & head -c 300000 /dev/zero; echo last words; touch ended")
			s.MaxLog = 50_000_000
			var out strings.Builder
			begin(t, l, s)
			ended := filepath.Join(l.home(), name, "ended")
			testkit.Eventually(t, "the command has ended", func() bool { _, err := os.Stat(ended); return err == nil })
			testkit.Eventually(t, "its end is recorded", func() bool {
				_, err := os.Stat(filepath.Join(l.dir(s.Ref()), "exit"))
				return err == nil
			})
			state, err := Status(t.Context(), l, s.Ref())
			if err != nil || state.Exit == nil {
				t.Fatalf("%+v, %v", state, err)
			}
			if _, err := ReadLog(t.Context(), l, s.Ref(), 0, &out); err != nil || !strings.Contains(out.String()[:state.Exit.LogSize], "last words\n") {
				t.Errorf("%d bytes, %+v, %v", out.Len(), state.Exit, err)
			}
			if report, err := Sweep(t.Context(), l, s.Ref(), StopOptions{Grace: time.Second}); err != nil || !report.Free() || report.Found == 0 {
				t.Errorf("sweep: %+v, %v", report, err)
			}
			testkit.Eventually(t, "the relay has ended", func() bool { return len(l.processes()) == 0 })
		})
	}
}

func TestWhatIsWrittenAfterTheEndIsLogged(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "(while [ ! -e go ]; do sleep 0.02; done; echo later) & echo out")
	out, exit := complete(t, l, s)
	if out != "out\n" || exit.LogSize != 4 {
		t.Errorf("%q, %+v", out, exit)
	}
	if out, _ := complete(t, l, spec("next", "echo next")); out != "next\n" {
		t.Errorf("%q", out)
	}
	l.write("home/r/go", "", 0o644)
	testkit.Eventually(t, "it is in the log", func() bool {
		var out strings.Builder
		_, err := ReadLog(t.Context(), l, s.Ref(), 0, &out)
		return err == nil && out.String() == "out\nlater\n"
	})
}

func TestSignalsDoNotEndTheRelay(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "echo first; touch ready; while [ ! -e go ]; do sleep 0.02; done; echo last")
	begin(t, l, s)
	ready(t, l, "r")
	testkit.Eventually(t, "the relay reads", func() bool { return l.reads(s.Ref()) })
	before := l.readers(s.Ref())
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1} {
		for _, pid := range before {
			syscall.Kill(pid, sig)
		}
	}
	if after := l.readers(s.Ref()); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("relay: %v, then %v", before, after)
	}
	l.write("home/r/go", "", 0o644)
	var out strings.Builder
	if _, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{}); err != nil || out.String() != "first\nlast\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// The killed relays were idle, so no line is lost, and all lines are in order.
func TestAKilledRelayIsReplaced(t *testing.T) {
	t.Parallel()
	type killed struct {
		name   string
		victim func(string) bool
	}
	for _, row := range testkit.Some(t, []killed{
		{"both", func(string) bool { return true }},
		{"the-shell", func(s string) bool { return s == "bash" }},
		{"its-child", func(s string) bool { return s != "bash" }},
	}, 3) {
		name, victim := row.name, row.victim
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t)
			s := spec(name, "set -e; seq 10; while [ ! -e go ]; do sleep 0.02; done; seq 11 100000")
			begin(t, l, s)
			testkit.Eventually(t, "the relay has read all", func() bool {
				info, err := os.Stat(filepath.Join(l.dir(s.Ref()), "output.log"))
				return err == nil && info.Size() == 21 && l.reads(s.Ref())
			})
			for _, pid := range l.readers(s.Ref()) {
				if victim(program(pid)) {
					syscall.Kill(pid, syscall.SIGKILL)
					testkit.Eventually(t, "it is dead", func() bool { return !slices.Contains(l.readers(s.Ref()), pid) })
				}
			}
			l.write(filepath.Join("home", name, "go"), "", 0o644)
			var out, want strings.Builder
			for i := range 100_000 {
				fmt.Fprintln(&want, i+1)
			}
			exit, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{})
			if err != nil || exit.Code != 0 || exit.Signal != "" || out.String() != want.String() {
				t.Errorf("%d bytes of %d, %+v, %v", out.Len(), want.Len(), exit, err)
			}
		})
	}
}

func TestTheRelayOutlivesTheSupervisor(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.cgroup = controlGroup(t, fmt.Sprintf("session-mh-relay%d.scope", os.Getpid()))
	s := spec("r", "trap 'echo bye; seq 100000; echo last; exit 7' TERM; echo first; touch ready; while :; do sleep 0.02; done")
	begin(t, l, s)
	ready(t, l, "r")
	state, err := Status(t.Context(), l, s.Ref())
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(state.Supervisor, syscall.SIGKILL)
	var out strings.Builder
	var wg sync.WaitGroup
	wg.Go(func() {
		if exit, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{}); err != nil || !exit.Lost || exit.LogSize != int64(out.Len()) {
			t.Errorf("%+v, %v", exit, err)
		}
	})
	if report := stopped(t, l, s.Ref(), patience); !report.Free() || report.Phase != Lost || report.Killed != 0 {
		t.Errorf("%+v", report)
	}
	wg.Wait()
	// The shell may print that TERM ended its sleep.
	if text := strings.Replace(out.String(), "Terminated\n", "", 1); !strings.HasPrefix(text, "first\nbye\n") || !strings.HasSuffix(text, "\n100000\nlast\n") {
		t.Errorf("%d bytes", len(text))
	}
	testkit.Eventually(t, "the relay has ended", func() bool { return len(l.processes()) == 0 })
}

// Only the first relay uses the free space that arm measured.
func TestFreeSpaceIsMeasuredAnew(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.disk(`if [[ ! -e $HOME/full ]]; then echo 90000000 100000000 4096; exit; fi
echo "${@: -1}" >>"$HOME/measured"
echo 9000000 100000000 4096`)
	for i := range 4 {
		complete(t, l, shell(fmt.Sprint("old", i), "true"))
	}
	s := spec("r", "touch ready; while [ ! -e go ]; do sleep 0.02; done")
	begin(t, l, s)
	ready(t, l, "r")
	testkit.Eventually(t, "the relay reads", func() bool { return l.reads(s.Ref()) })
	l.write("home/full", "", 0o644)
	before := l.readers(s.Ref())
	for _, pid := range before {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	testkit.Eventually(t, "another relay reads", func() bool {
		return l.reads(s.Ref()) && !slices.ContainsFunc(l.readers(s.Ref()), func(pid int) bool { return slices.Contains(before, pid) })
	})
	testkit.Eventually(t, "the other relay has measured", func() bool {
		text, _ := os.ReadFile(filepath.Join(l.home(), "measured"))
		return strings.HasPrefix(string(text), l.dir(s.Ref())+"\n") // each killed relay has measured too
	})
	l.write("home/r/go", "", 0o644)
	if _, err := Follow(t.Context(), l, s.Ref(), 0, io.Discard, FollowOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "nothing of the run is left", func() bool { return len(l.processes()) == 0 })
	left, err := filepath.Glob(filepath.Join(l.home(), ".multihost/runs/*"))
	if err != nil || len(left) != 3 {
		t.Errorf("kept on a full disk: %q", left)
	}
}
