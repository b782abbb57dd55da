package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/testkit"
)

func several(run string, n int, grace time.Duration, script string) Spec {
	s := shell(run, script)
	s.Processes, s.FirstProcess, s.Grace = n, 4, grace
	return s
}

func TestProcessesAreNumberedAndAddNothingToTheLog(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "perl")
	logins := testkit.HostileLogins()
	for _, login := range []testkit.HostileLogin{{}, logins[0], logins[slices.IndexFunc(logins, func(l testkit.HostileLogin) bool { return l.Name == "TMOUT" })]} {
		t.Run("login "+login.Name, func(t *testing.T) {
			t.Parallel()
			l := hostile(t, login.Lines)
			quiet := float64(testkit.HostileTMOUT) + 0.5
			s := several("r", 3, time.Second, fmt.Sprintf("sleep %.1f; echo $MULTIHOST_LOCAL_ID $MULTIHOST_PROCESS_ID $JAX_PROCESS_ID $BYTES. $PWD", quiet))
			s.Env = []EnvVar{{Name: "BYTES", Value: "\xff="}}
			out, exit := complete(t, l, s)
			var got []string
			for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
				if !strings.HasPrefix(line, "ERROR: ld.so") { // the command's own programs print such warnings
					got = append(got, line)
				}
			}
			slices.Sort(got)
			pwd := l.home() + "/r"
			want := []string{"0 4 4 \xff=. " + pwd, "1 5 5 \xff=. " + pwd, "2 6 6 \xff=. " + pwd}
			if !slices.Equal(got, want) || exit.Code != 0 || exit.Signal != "" || exit.Process != "" || exit.Lost {
				t.Errorf("got %q, %+v", out, exit)
			}
		})
	}
}

func TestHowTheFirstOfSeveralProcessesFailsIsTold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		end    string
		code   int
		signal string
	}{{"exit 3", 3, ""}, {"exit 137", 137, ""}, {"kill -9 $$", 137, "KILL"}, {"kill -ABRT $$", 134, "ABRT"}} {
		t.Run(test.end, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t)
			out, exit := complete(t, l, several("r", 3, patience, "[ $MULTIHOST_LOCAL_ID = 1 ] || exec sleep 600; echo out; "+test.end))
			if out != "out\n" || exit.Code != test.code || exit.Signal != test.signal || exit.Process != "1" || !strings.Contains(exit.String(), "in process 1") {
				t.Errorf("got %q, %+v", out, exit)
			}
			testkit.Eventually(t, "nothing of the run is left", func() bool { return len(l.processes()) == 0 })
		})
	}
}

// A process that has just been forked gets TERM too. On one processor, the first process
// has failed before the last one runs.
func TestTheFirstFailureEndsAProcessThatIsJustStarting(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "perl", "taskset")
	program, err := filepath.Abs("processes.pl")
	testkit.Must(t, err)
	dir := t.TempDir()
	env := filepath.Join(dir, "env")
	testkit.Must(t, os.WriteFile(env, []byte("MULTIHOST_RUN_DIR="+dir+"\x00PATH="+os.Getenv("PATH")), 0o600))
	const grace = 20 * time.Second
	const first = `[ $MULTIHOST_LOCAL_ID = 0 ] || exec sleep 600; exit 3`
	const line = `exec taskset -c 0 perl "$1" 24 0 "$2" sh -c "$3" 8<"$4" 6>/dev/null`
	for range 10 {
		began := time.Now()
		err := exec.CommandContext(t.Context(), "bash", "-c", line, "bash", program, fmt.Sprint(grace.Milliseconds()), first, env).Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Fatalf("want exit code 3, got %v", err)
		}
		if took := time.Since(began); took >= grace {
			t.Fatalf("the last process has ended after %s, by KILL", took)
		}
	}
}

// A process may hang before its exec, for example on a file system that does not answer.
// The other processes still end.
func TestTheFirstFailureIsNotHeldUpByAnExecThatHangs(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "perl")
	program, err := filepath.Abs("processes.pl")
	testkit.Must(t, err)
	dir := t.TempDir()
	env := filepath.Join(dir, "env")
	testkit.Must(t, os.WriteFile(env, []byte("MULTIHOST_RUN_DIR="+dir+"\x00PATH="+os.Getenv("PATH")), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "Hang.pm"), []byte(`package Hang;
my ($parent, $made) = ($$, 0);
*CORE::GLOBAL::setpgrp = sub { my $ok = CORE::setpgrp($_[0], $_[1]); if ($$ == $parent) { $made++ } elsif ($made == 1) { sleep 60 } $ok };
1;
`), 0o600))
	const line = `exec perl -I "$1" -MHang "$2" 3 0 20000 sh -c '[ $MULTIHOST_LOCAL_ID = 0 ] || exec sleep 600; exit 3' 8<"$3" 6>/dev/null`
	began := time.Now()
	err = exec.CommandContext(t.Context(), "bash", "-c", line, "bash", dir, program, env).Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("want exit code 3, got %v", err)
	}
	if took := time.Since(began); took < 4*time.Second || took > 40*time.Second {
		t.Errorf("the processes have ended after %s", took)
	}
}

// A process may write a checkpoint for longer than any fixed time.
func TestTheOtherProcessesHaveTheGraceTime(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	const others = "exec 2>&-; trap 'echo asked; sleep 6; echo saved; exit 0' TERM; touch ~/ready$MULTIHOST_LOCAL_ID; while :; do sleep 0.05; done"
	const first = "[ $MULTIHOST_LOCAL_ID = 1 ] || { " + others + "; }; while [ ! -e ~/ready0 ]; do sleep 0.05; done; exit 3"
	if out, exit := complete(t, l, several("patient", 2, patience, first)); out != "asked\nsaved\n" || exit.Code != 3 {
		t.Errorf("got %q, %+v", out, exit)
	}
	if err := os.Remove(filepath.Join(l.home(), "ready0")); err != nil {
		t.Fatal(err)
	}
	if out, exit := complete(t, l, several("hasty", 2, 3*time.Second, strings.Replace(first, "sleep 6", "sleep 600", 1))); out != "asked\n" || exit.Code != 3 {
		t.Errorf("got %q, %+v", out, exit)
	}
}

// The last output of the stopped processes is in the log before the end is reported.
func TestSeveralProcessesAreStoppedAsOne(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := several("r", 2, time.Second, "exec 2>&-; trap 'echo bye; sleep 1; echo saved; exit 7' TERM; touch ~/ready$MULTIHOST_LOCAL_ID; while :; do sleep 0.05; done")
	begin(t, l, s)
	for i := range 2 {
		testkit.Eventually(t, "a process is ready", func() bool {
			_, err := os.Stat(filepath.Join(l.home(), fmt.Sprint("ready", i)))
			return err == nil
		})
	}
	report := stopped(t, l, s.Ref(), patience)
	if !report.Free() || report.Killed != 0 || report.Exit == nil || report.Exit.Code != 7 || report.Exit.Reason == "" {
		t.Errorf("stop: %+v, exit %+v", report, report.Exit)
	}
	var out bytes.Buffer
	if _, err := Follow(t.Context(), l, s.Ref(), 0, &out, FollowOptions{}); err != nil || strings.Count(out.String(), "bye\n") != 2 || strings.Count(out.String(), "saved\n") != 2 || out.Len() != 20 {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestSeveralProcessesNeedPerl(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.without("perl")
	if _, err := Arm(t.Context(), l, several("r", 2, time.Second, "true")); err == nil || !strings.Contains(err.Error(), "perl is not installed") {
		t.Errorf("got %v", err)
	}
	if out, exit := complete(t, l, shell("one", "echo fine")); out != "fine\n" || exit.Code != 0 {
		t.Errorf("got %q, %+v", out, exit)
	}
}

func (l *local) without(prefix string) {
	l.t.Helper()
	programs := filepath.Join(l.root, "programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		l.t.Fatal(err)
	}
	for _, dir := range []string{"/usr/bin", "/bin"} {
		files, _ := filepath.Glob(dir + "/*")
		for _, file := range files {
			if name := filepath.Base(file); !strings.HasPrefix(name, prefix) {
				_ = os.Symlink(file, filepath.Join(programs, name)) // the first one of this name
			}
		}
	}
	l.env = append(l.env, "PATH="+programs)
}
