package launch

import (
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/testkit"
)

// dump returns the stacks of a run, by the name of the process's script.
func dump(t *testing.T, l *local, ref Ref) map[string]Stack {
	t.Helper()
	stacks, phase, err := Dump(t.Context(), l, ref, DumpOptions{Wait: patience})
	if err != nil || phase != Running {
		t.Fatalf("dump: phase %v, %v", phase, err)
	}
	by := map[string]Stack{}
	for _, s := range stacks {
		for _, name := range []string{"asked.py", "deaf.py", "sleep"} {
			if strings.Contains(s.Command, name) {
				by[name] = s
			}
		}
	}
	return by
}

const (
	askedProgram = `cat >asked.py <<'END'
import faulthandler, signal, time
faulthandler.register(signal.SIGUSR1)
def waits_for_peers():
    open("ready", "w").close()
    time.sleep(1000)
waits_for_peers()
END
`
	deafProgram = `cat >deaf.py <<'END'
import time
time.sleep(1000)
END
`
)

// SIGUSR1 kills a process that does not catch it, and a dump must not end the run.
func TestDumpAsksOnlyWhoCatchesTheSignal(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	if _, err := exec.LookPath("py-spy"); err == nil {
		testkit.Lacks(t, "py-spy is installed, and would be used")
	}
	l := newLocal(t)
	s := spec("r", askedProgram+deafProgram+"python3 deaf.py & sleep 998.25 & python3 asked.py")
	begin(t, l, s)
	ready(t, l, "r")
	for range 2 { // the second dump shows that the first one ended no process
		by := dump(t, l, s.Ref())
		asked := by["asked.py"]
		if asked.Method != BySignal || !slices.ContainsFunc(asked.Lines, func(line string) bool { return strings.HasSuffix(line, "in waits_for_peers") }) {
			t.Errorf("who catches the signal: %+v", asked)
		}
		for _, name := range []string{"deaf.py", "sleep"} {
			if got := by[name]; got.Method != ByKernel || len(got.Lines) != 1 || !strings.Contains(got.Lines[0], "state S, waits in ") {
				t.Errorf("%s: %+v", name, got)
			}
		}
		for _, line := range asked.Lines {
			if strings.Contains(line, l.home()) {
				t.Errorf("%q has the home, which differs between workers", line)
			}
		}
	}
	if report := stopped(t, l, s.Ref(), time.Second); report.Exit == nil || report.Exit.Reason == "" {
		t.Errorf("exit %+v, want the one of the stop", report.Exit)
	}
	stacks, phase, err := Dump(t.Context(), l, s.Ref(), DumpOptions{})
	if err != nil || len(stacks) > 0 || !phase.Ended() {
		t.Errorf("after the end: %d stacks, %v, %v", len(stacks), phase, err)
	}
}

// Dump uses py-spy if the login has it, and the signal if py-spy fails.
func TestDumpPrefersPySpy(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	l := newLocal(t)
	l.write("home/.local/bin/py-spy", "#!/bin/bash\n[[ $1 == dump && $2 == --pid ]] || exit 2\nif [[ -e ~/broken ]]; then echo no >&2; exit 1; fi\n"+
		"printf 'Process %s: python3 asked.py\\n\\nThread %s (idle): \"MainThread\"\\n    step (train.py:7)\\n' \"$3\" \"$3\"\n", 0o755)
	s := spec("r", askedProgram+"exec python3 asked.py")
	begin(t, l, s)
	ready(t, l, "r")
	got := dump(t, l, s.Ref())["asked.py"]
	if got.Method != BySpy || len(got.Lines) != 4 || got.Lines[3] != "    step (train.py:7)" {
		t.Errorf("with py-spy: %+v", got)
	}
	l.write("home/broken", "", 0o644)
	if got := dump(t, l, s.Ref())["asked.py"]; got.Method != BySignal {
		t.Errorf("with a py-spy that fails: %+v", got)
	}
	if err := syscall.Kill(got.PID, 0); err != nil {
		t.Errorf("process %d: %v", got.PID, err)
	}
}

func TestFoldStacksPutsTheOddOneFirst(t *testing.T) {
	t.Parallel()
	fault := func(thread, function string) Stack {
		return Stack{Method: BySignal, Lines: []string{
			"a line of the log", "Current thread 0x" + thread + " (most recent call first):", `  File "~/r/train.py", line 7 in ` + function, ""}}
	}
	spy := Stack{Method: BySpy, Lines: []string{"Process 77: python3 train.py", "", `Thread 77 (idle): "MainThread"`, "    step (train.py:7)", `Thread 78 (idle): "loader-3"`, "    wait (queue.py:1)"}}
	spy2 := Stack{Method: BySpy, Lines: []string{"Process 99: python3 train.py", "", `Thread 99 (active+gil): "MainThread"`, "    step (train.py:7)", `Thread 5 (idle): "loader-12"`, "    wait (queue.py:1)"}}
	kernel := Stack{Method: ByKernel, Lines: []string{"      3 thread worker/7: state S, waits in futex_wait"}}
	kernel2 := Stack{Method: ByKernel, Lines: []string{"     12 thread worker/1: state S, waits in futex_wait"}}
	got := FoldStacks([][]Stack{
		{fault("00007f6050607040", "wait")}, {fault("00007f4f36d63040", "wait"), kernel}, {fault("00007f49f6963040", "stuck")},
		{spy, spy2}, {spy}, {kernel2}, nil,
	})
	want := []FoldedStack{
		{Workers: []int{2}, Threads: 1, Lines: []string{"Thread 0x… (most recent call first):", `  File "~/r/train.py", line 7 in stuck`}},
		{Workers: []int{0, 1}, Threads: 2, Lines: []string{"Thread 0x… (most recent call first):", `  File "~/r/train.py", line 7 in wait`}},
		{Workers: []int{1, 5}, Threads: 15, Lines: []string{"thread worker/…: state S, waits in futex_wait"}},
		{Workers: []int{3, 4}, Threads: 3, Lines: []string{`Thread …: "MainThread"`, "    step (train.py:7)"}},
		{Workers: []int{3, 4}, Threads: 3, Lines: []string{`Thread …: "loader-…"`, "    wait (queue.py:1)"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTellApart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, stack, printed string }{
		"faulthandler amid steps": {
			text: `step 4 loss 0.2
half a lineThread 0x00007f6050607040 (most recent call first):
  File "~/r/train.py", line 3 in <lambda>
step 5 loss 0.1
  File "/usr/lib/python3.10/threading.py", line 953 in run

Current thread 0x00007f4f36d63040 (most recent call first):
  <no Python frame>
  ...
  File the step in another file
step 6`,
			stack: `Thread 0x00007f6050607040 (most recent call first):
  File "~/r/train.py", line 3 in <lambda>
  File "/usr/lib/python3.10/threading.py", line 953 in run
Current thread 0x00007f4f36d63040 (most recent call first):
  <no Python frame>
  ...`,
			printed: `step 4 loss 0.2
half a line
step 5 loss 0.1
  File the step in another file
step 6`,
		},
		"thread names and C frames of Python 3.14": {
			text: `Thread 0x00007f6050607040 [loader-1] (most recent call first):
  File "a.py", line ??? in run
Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x4d [0x5f]
step`,
			stack: `Thread 0x00007f6050607040 [loader-1] (most recent call first):
  File "a.py", line ??? in run
Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x4d [0x5f]`,
			printed: "step",
		},
		"traceback.print_stack": {
			text: `step 1
  File "~/r/train.py", line 3, in <module>
    wait()
    indented output
step 2`,
			stack: `  File "~/r/train.py", line 3, in <module>
    wait()`,
			printed: `step 1
    indented output
step 2`,
		},
		"a form that is not known": {
			text:  "goroutine 1 [running]:\nmain.main()",
			stack: "goroutine 1 [running]:\nmain.main()",
		},
	} {
		stack, printed := tellApart(strings.Split(c.text, "\n"))
		if diff := cmp.Diff(c.stack, strings.Join(stack, "\n")); diff != "" {
			t.Errorf("%s: stack (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.printed, strings.Join(printed, "\n")); diff != "" {
			t.Errorf("%s: printed (-want +got):\n%s", name, diff)
		}
	}
}
