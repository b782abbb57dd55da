package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/config"
	"multihost/internal/remote"
	"multihost/internal/testkit"
)

func TestHowACommandEndsIsTold(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("home/plain", "not a program", 0o644)
	tests := []struct {
		name   string
		script string
		argv   []string
		code   int
		signal string
	}{
		{"zero", "exit 0", nil, 0, ""},
		{"one", "exit 1", nil, 1, ""},
		{"seven", "exit 7", nil, 7, ""},
		{"not executable", "", []string{"../plain"}, 126, ""},
		{"not found", "", []string{"no-such-program"}, 127, ""},
		{"no such file", "", []string{"./no-such-program"}, 127, ""},
		{"a directory", "", []string{"../.multihost"}, 126, ""},
		{"empty program name", "", []string{""}, 127, ""},
		{"exit 137", "exit 137", nil, 137, ""},
		{"exit 255", "exit 255", nil, 255, ""},
		{"killed", "kill -KILL $$", nil, 137, "KILL"},
		// Use sh: instead of dying by signal n, bash sometimes exits with 128+n.
		{"terminated", "exec sh -c 'kill -TERM $$'", nil, 143, "TERM"},
		{"segmentation fault", "ulimit -c 0; kill -SEGV $$", nil, 139, "SEGV"},
		{"interrupted", "exec sh -c 'kill -INT $$'", nil, 130, "INT"},
		{"hangup", "exec sh -c 'kill -HUP $$'", nil, 129, "HUP"},
		{"a child killed", "bash -c 'kill -KILL $$'; exit $?", nil, 137, ""},
	}
	said := map[string]string{
		"not executable": "multihost: ../plain: Permission denied\n",
		"not found":      "multihost: no-such-program: command not found\n",
		"no such file":   "multihost: ./no-such-program: No such file or directory\n",
		"a directory":    "multihost: ../.multihost: Is a directory\n",
	}
	for i, test := range testkit.Some(t, tests, 2) {
		t.Run(test.name, func(t *testing.T) {
			s := spec("end"+strconv.Itoa(i), test.script)
			s.Argv = test.argv
			out, exit := complete(t, l, s)
			if exit.Code != test.code || exit.Signal != test.signal || exit.Lost {
				t.Errorf("got code %d signal %q (%+v), want %d %q; output %q", exit.Code, exit.Signal, exit, test.code, test.signal, out)
			}
			if want, ok := said[test.name]; ok && out != want {
				t.Errorf("output: got %q, want %q", out, want)
			}
		})
	}
}

func TestArgumentsArriveByteForByte(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	want := []string{
		"", "-n", "--", "a b", `"`, `'`, "$HOME", "`id`", "\n", "two\nlines\n", ";", "&&", "|", "*", "~", "\\", "\\n", "!x", "#",
		"\xff\xfe\x01", "€", "\x1b[31m", strings.Repeat("x", 100_000), "=", "A=1", "",
	}
	// A loop prints each word. With printf alone, the first word would be the format.
	s := spec("argv", "")
	s.Argv = append([]string{"bash", "-c", `for a; do printf '%s\0' "$a"; done`, "name"}, want...)
	out, exit := complete(t, l, s)
	if exit.Code != 0 {
		t.Fatalf("exit: %+v: %q", exit, out)
	}
	if got := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00"); !slices.Equal(got, want) {
		t.Errorf("argv: got %q, want %q", got, want)
	}
}

func TestAnArgvMayBeginWithADash(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("home/bin/-odd", "#!/bin/bash\necho \"odd $1\"\n", 0o755)
	s := spec("dash", "")
	s.Argv = []string{"-odd", "$x"}
	s.Env = []EnvVar{{Name: "PATH", Value: filepath.Join(l.home(), "bin") + ":" + os.Getenv("PATH")}}
	if out, exit := complete(t, l, s); out != "odd $x\n" || exit.Code != 0 {
		t.Errorf("got %q, %+v", out, exit)
	}
}

func TestAScriptArrivesByteForByte(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	line := "true 'quoted \"$HOME\" `x` \\ \xff' # && ; |\n"
	text := strings.Repeat(line, 200_000/len(line)) + `cat "$0" | md5sum; cat "$0"`
	out, exit := complete(t, l, spec("script", text))
	_, rest, _ := strings.Cut(out, "\n")
	if exit.Code != 0 || rest != text {
		t.Errorf("exit %+v, script of %d bytes arrived as %d bytes", exit, len(text), len(rest))
	}
}

func TestTheEnvironmentIsAsGiven(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.env = append(l.env, "MEGASCALE_PORT=1", "KEPT=yes", "LC_ALL=C.UTF-8")
	s := spec("env", "")
	s.Argv = []string{"env", "-0"}
	s.Unset = []string{"MEGASCALE_PORT", "NEVER_SET"}
	values := map[string]string{
		"LINES_": "a\nb\n", "BYTES": "\xff\xfe", "EMPTY": "", "QUOTES": `'"$HOME` + "`id`", "LONG": strings.Repeat("y", 100_000),
		"SECONDS": "x", "RANDOM": "7", "IFS": ":", "dir": "d", "mh": "m", "LANG": "xx_YY", "BASH_ENV": "/nonexistent", "HOME": "/elsewhere", "EQUALS": "a=b=",
	}
	for name, value := range values {
		s.Env = append(s.Env, EnvVar{Name: name, Value: value})
	}
	out, exit := complete(t, l, s)
	if exit.Code != 0 {
		t.Fatalf("exit: %+v: %q", exit, out)
	}
	got := map[string]string{}
	for _, entry := range strings.Split(strings.TrimSuffix(out, "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		got[name] = value
	}
	values["KEPT"] = "yes"
	values["LC_ALL"] = "C.UTF-8"
	values["PYTHONUNBUFFERED"] = "1"
	values["MULTIHOST_RUN"] = "env"
	values["MULTIHOST_ATTEMPT"] = "1"
	values["MULTIHOST_RUN_DIR"] = l.dir(s.Ref())
	values["PATH"] = os.Getenv("PATH") + ":" + filepath.Join(l.home(), ".local/bin")
	values["PWD"] = filepath.Join(l.home(), "env")
	for name, value := range values {
		if g, ok := got[name]; !ok || g != value {
			t.Errorf("%s: got %.100q (%v), want %.100q", name, g, ok, value)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "mh_") || name == "MEGASCALE_PORT" {
			t.Errorf("%s is in the environment", name)
		}
	}
}

// Every variable that bash or our scripts know reaches the command unchanged, or the runner
// refuses it before the first request to a worker.
func TestEveryVariableOfBashArrivesOrIsRefused(t *testing.T) {
	t.Parallel()
	known, err := exec.Command("bash", "--norc", "-c", "compgen -v").Output()
	testkit.Must(t, err)
	names := append(strings.Fields(string(known)), strings.Fields(`
		BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_COMPAT BASH_ENV BASH_EXECUTION_STRING
		BASH_LINENO BASH_LOADABLES_PATH BASH_MONOSECONDS BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_TRAPSIG BASH_VERSINFO
		BASH_XTRACEFD CHILD_MAX COLUMNS COMPREPLY COMP_CWORD COMP_WORDBREAKS COPROC DIRSTACK EMACS ENV EPOCHREALTIME EPOCHSECONDS
		EUID EXECIGNORE FIGNORE FUNCNAME FUNCNEST GLOBIGNORE GLOBSORT GROUPS HISTCMD HISTFILE HISTSIZE HISTTIMEFORMAT HOSTFILE
		IFS IGNOREEOF INPUTRC INSIDE_EMACS LINENO LINES MAPFILE OPTARG OPTERR OPTIND PIPESTATUS POSIXLY_CORRECT PPID PROMPT_COMMAND
		PS0 PS3 PS4 RANDOM READLINE_LINE REPLY SECONDS SHELLOPTS SHLVL SRANDOM TIMEFORMAT TMOUT UID _ mh_words`)...)
	names = append(names, regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`).FindAllString(armScript.Text(), -1)...)
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "PATH" || name == "PWD" || name == "OLDPWD" })
	const value = "as given: 7"
	s := spec("env", "")
	s.Argv = []string{"/usr/bin/env", "-0"}
	refused := 0
	for _, name := range names {
		one := s
		one.Env = []EnvVar{{Name: name, Value: value}}
		var bad *InputError
		if err := one.Validate(); errors.As(err, &bad) {
			refused++
			continue
		}
		s.Env = append(s.Env, one.Env...)
	}
	out, exit := complete(t, newLocal(t), s)
	if exit.Code != 0 {
		t.Fatalf("exit %+v: %q", exit, out)
	}
	for _, v := range s.Env {
		if !strings.Contains("\x00"+out, "\x00"+v.Name+"="+value+"\x00") {
			t.Errorf("%s was not refused and did not arrive", v.Name)
		}
	}
	if refused == 0 || refused > 25 {
		t.Errorf("%d of %d names are refused", refused, len(names))
	}
}

// Every file name that contains the longest valid name of a run is short enough.
func TestTheLongestRunNameRuns(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec(strings.Repeat("r", config.MaxRunName), "echo it runs")
	s.Attempt = mostAttempts
	if out, exit := complete(t, l, s); exit.Code != 0 || !strings.Contains(out, "it runs") {
		t.Errorf("exit %+v: %q", exit, out)
	}
	infos, err := List(t.Context(), l)
	if err != nil || len(infos) != 1 || infos[0].Ref != s.Ref() {
		t.Errorf("list: %+v, %v", infos, err)
	}
	s.Run += "r"
	if _, err := Arm(t.Context(), l, s); err == nil || !strings.Contains(err.Error(), "230 bytes: at most 229") {
		t.Errorf("one more byte: %v", err)
	}
}

func TestAWorkerTellsHowManySlicesARunHas(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("many", "true")
	s.Slices = 3
	complete(t, l, s)
	complete(t, l, spec("untold", "true"))
	told := func(by *local) (all string) {
		infos, err := List(t.Context(), by)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range infos {
			all += fmt.Sprintf("%s %d ", i.Run, i.Slices)
		}
		return all
	}
	const want = "many 3 untold 0 "
	if got := told(l.login("other")); got != want {
		t.Errorf("another login reads %q, want %q", got, want)
	}
	if err := os.RemoveAll(filepath.Join(l.root, "tmp/.multihost")); err != nil {
		t.Fatal(err)
	}
	if got := told(l); got != want {
		t.Errorf("after a reboot: %q, want %q", got, want)
	}
}

func TestTheCommandRunsAsOverSSH(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("run-1", `pwd; umask; ulimit -Sn; readlink /proc/$$/fd/0
grep -E '^Sig(Ign|Blk)' /proc/self/status | tr -s '\t\n' ' '; echo; cut -d' ' -f6 /proc/$$/stat | grep -qx $$ && echo leader; [ -t 0 ] || echo "no tty $-"`)
	s.Env = []EnvVar{{Name: "PYTHONUNBUFFERED", Value: "0"}}
	out, _ := complete(t, l, s)
	lines := strings.Split(out, "\n")
	limit, _ := strconv.Atoi(lines[2])
	if limit < 1024 {
		t.Errorf("open files: %q", lines[2])
	}
	lines[2] = "limit"
	// Commands inherit blocked and ignored signals, even over ssh.
	signals, err := exec.Command("bash", "-c", `grep -E '^Sig(Ign|Blk)' /proc/self/status | tr -s '\t\n' ' '`).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(l.home(), "run-1") + "\n0022\nlimit\n/dev/null\n" + string(signals) + "\nleader\nno tty hB\n"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheCommandInheritsNoDescriptor(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "")
	s.Argv = []string{"bash", "-c", "echo loaded; sleep 1000; :"}
	started := begin(t, l, s)
	// Until the command prints, the loader may have libraries open.
	testkit.Eventually(t, "it is the command", func() bool {
		text, _ := os.ReadFile(filepath.Join(l.dir(s.Ref()), "output.log"))
		return string(text) == "loaded\n"
	})
	pipe := filepath.Join(l.dir(s.Ref()), "output") // removed soon after the start
	outputs := 0
	for _, to := range descriptors(started.PID) {
		switch strings.TrimSuffix(to, " (deleted)") {
		case pipe:
			outputs++
		case "/dev/null": // and the variables of the test's own environment
		default:
			t.Errorf("a descriptor leads to %q", to)
		}
	}
	if outputs != 2 {
		t.Errorf("%d descriptors lead to the output, want 2", outputs)
	}
	stopped(t, l, s.Ref(), time.Second)
}

func TestWrapAndWorkDir(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("wrapped", `echo "$X"; pwd`)
	s.Wrap = []string{"env", "X=a b"}
	s.WorkDir = "~/deep/it's\n a dir"
	out, exit := complete(t, l, s)
	if want := "a b\n" + filepath.Join(l.home(), "deep/it's\n a dir") + "\n"; out != want || exit.Code != 0 {
		t.Errorf("got %q, want %q (%+v)", out, want, exit)
	}
}

func TestAWorkDirThatCannotBeMadeStartsNothing(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("home/file", "", 0o644)
	s := spec("nodir", "echo x")
	s.WorkDir = "file/below"
	a, err := Arm(t.Context(), l, s)
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.ReleaseAt(t.Context(), time.Time{})
	var remote *RemoteError
	if !errors.As(err, &remote) || !strings.Contains(err.Error(), "file/below") || !strings.Contains(err.Error(), "Not a directory") {
		t.Errorf("got %v", err)
	}
	checkClean(t, l, s.Ref())
}

// checkClean checks that the worker is as it was before Arm.
func checkClean(t *testing.T, l *local, ref Ref) {
	t.Helper()
	testkit.Eventually(t, "nothing is left of "+ref.Run, func() bool {
		_, err := os.Stat(filepath.Dir(l.dir(ref)))
		index, _ := filepath.Glob(filepath.Join(l.root, "tmp/.multihost/*.run"))
		return os.IsNotExist(err) && len(index) == 0 && len(l.processes()) == 0
	})
	a, err := Arm(t.Context(), l, spec("probe", "true"))
	if err != nil {
		t.Fatalf("the lock is held: %v", err)
	}
	if err := a.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	for range 3 {
		a, err := Arm(t.Context(), l, spec("r", "touch ~/started"))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := Status(t.Context(), l, Ref{"r", 1}); err != nil || s.Phase != Starting {
			t.Fatalf("status: %+v, %v", s, err)
		}
		if err := a.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	checkClean(t, l, Ref{"r", 1})
	if _, err := os.Stat(filepath.Join(l.home(), "started")); err == nil {
		t.Error("the command was started")
	}
}

func TestALostConnectionBeforeTheReleaseLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	a, err := Arm(t.Context(), l, spec("r", "touch ~/started"))
	if err != nil {
		t.Fatal(err)
	}
	l.cutNow()
	checkClean(t, l, Ref{"r", 1})
	if _, err := a.ReleaseAt(t.Context(), time.Time{}); !errors.Is(err, ErrNotStarted) {
		t.Errorf("release: got %v, want ErrNotStarted", err)
	}
}

func TestStopOfAnArmedRunLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	a, err := Arm(t.Context(), l, spec("r", "touch ~/started"))
	if err != nil {
		t.Fatal(err)
	}
	if report := stopped(t, l, Ref{"r", 1}, time.Second); !report.Free() || report.Phase != Unknown {
		t.Errorf("stop: %+v", report)
	}
	if _, err := a.ReleaseAt(t.Context(), time.Time{}); !errors.Is(err, ErrNotStarted) {
		t.Errorf("release: got %v, want ErrNotStarted", err)
	}
	checkClean(t, l, Ref{"r", 1})
}

func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	begin(t, l, spec("first", "sleep 1000\nsecond line"))
	_, err := Arm(t.Context(), l, spec("second", "true"))
	var busy *BusyError
	if !errors.As(err, &busy) {
		t.Fatalf("got %v, want a *BusyError", err)
	}
	i := busy.Info
	if i.Run != "first" || i.Owner != "ann@laptop" || i.Command != "sleep 1000 …" || i.Age() <= 0 || i.Age() > patience || i.Login == "" {
		t.Errorf("busy: %+v", i)
	}
	// A second start is refused. During the run the worker is busy, and after the run the
	// attempt was started before.
	_, err = Arm(t.Context(), l, spec("first", "true"))
	if !errors.As(err, &busy) {
		t.Errorf("arm of the living run: %v", err)
	}
	stopped(t, l, Ref{"first", 1}, time.Second)
	if _, err = Arm(t.Context(), l, spec("first", "true")); !errors.Is(err, ErrAlreadyStarted) {
		t.Errorf("arm of the ended attempt: got %v, want ErrAlreadyStarted", err)
	}
	s := spec("first", "echo again")
	s.Attempt = 2
	if out, _ := complete(t, l, s); out != "again\n" {
		t.Errorf("second attempt: %q", out)
	}
}

// After this run's sync, another run of the same name may sync other code into the
// directory. That code is not started.
func TestOtherCodeIsNotStarted(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	mine, other := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	s := spec("r", "echo started")
	s.Synced = mine
	for there, says := range map[string]string{
		"":                        `s0w0: another run called "r" is bringing its code into ~/r`,
		other + " bob@pc\n":       `s0w0: another run called "r", of bob@pc, has brought its code into ~/r after this one`,
		other + "\n":              `s0w0: another run called "r", of somebody, has brought its code into ~/r after this one`,
		"x" + mine + " ann@pc\n":  `s0w0: another run called "r", of ann@pc, has brought its code into ~/r after this one`,
		other + " b\x1b[2Job\n\n": "s0w0: another run called \"r\", of b\uFFFD[2Job, has brought its code into ~/r after this one",
	} {
		if there != "" {
			l.write("home/.multihost/sync/r/digest", there, 0o600)
		}
		_, err := Arm(t.Context(), l, s)
		var code *CodeError
		if !errors.As(err, &code) || err.Error() != says {
			t.Errorf("with %q: got %v, want %s", there, err, says)
		}
		if _, err := os.Stat(l.dir(s.Ref())); !os.IsNotExist(err) { // otherwise the next run of this name would find an active run
			t.Errorf("with %q: the attempt is left: %v", there, err)
		}
		testkit.Eventually(t, "no process is left", func() bool { return len(l.processes()) == 0 })
		if err := os.RemoveAll(filepath.Join(l.home(), ".multihost/sync")); err != nil {
			t.Fatal(err)
		}
	}
	l.write("home/.multihost/sync/r/digest", mine+" ann@laptop\n", 0o600)
	if out, _ := complete(t, l, s); out != "started\n" {
		t.Errorf("with the code of this run: %q", out)
	}
}

func TestAnotherLoginsRunIsSeen(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	other := l.login("other")
	begin(t, l, spec("first", "sleep 1000"))
	_, err := Arm(t.Context(), other, spec("second", "true"))
	var busy *BusyError
	if !errors.As(err, &busy) || busy.Info.Run != "first" {
		t.Fatalf("got %v, want a *BusyError", err)
	}
	infos, err := List(t.Context(), other)
	if err != nil || len(infos) != 1 || infos[0].Run != "first" || infos[0].Phase != Running || infos[0].Mine {
		t.Errorf("list: %+v, %v", infos, err)
	}
	stopped(t, l, Ref{"first", 1}, patience)
	testkit.Eventually(t, "the other login sees the end", func() bool {
		infos, err = List(t.Context(), other)
		return err == nil && len(infos) == 1 && infos[0].Phase == Exited && infos[0].Exit.Code == 143
	})
}

func TestTwoArmsAtOnceMakeOneRun(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	const n = 4
	armed := make([]*Armed, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { armed[i], errs[i] = Arm(t.Context(), l, spec(fmt.Sprint("r", i%2), "true")) })
	}
	wg.Wait()
	won := 0
	for i, err := range errs {
		var busy *BusyError
		switch {
		case err == nil:
			won++
			if err := armed[i].Abort(t.Context()); err != nil {
				t.Error(err)
			}
		case !errors.As(err, &busy):
			t.Errorf("arm %d: %v", i, err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d were armed", won, n)
	}
}

func TestSecretsAreSeenByNobodyElse(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	const secret, word = "hunter2-secret", "in-the-script"
	s := spec("r", "export Y="+secret+" "+word+"; : $(cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' ' >~/ps); sleep 1000")
	s.Env = []EnvVar{{Name: "TOKEN", Value: secret, Secret: true}}
	a, err := Arm(t.Context(), l, s)
	if err != nil {
		t.Fatal(err)
	}
	look := func() {
		t.Helper()
		cmdlines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range cmdlines {
			if text, err := os.ReadFile(path); err == nil && (bytes.Contains(text, []byte(secret)) || bytes.Contains(text, []byte(word))) {
				t.Errorf("%s: %q", path, text)
			}
		}
		err := filepath.Walk(l.root, func(path string, info os.FileInfo, err error) error {
			if err != nil || !info.Mode().IsRegular() {
				return nil
			}
			text, err := os.ReadFile(path)
			if err == nil && bytes.Contains(text, []byte(secret)) && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		for _, line := range l.lines {
			if strings.Contains(line, secret) || strings.Contains(line, word) {
				t.Errorf("command line %q", line)
			}
		}
	}
	look()
	if _, err := a.ReleaseAt(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the environment is removed", func() bool {
		_, err := os.Stat(filepath.Join(l.dir(s.Ref()), "env"))
		return os.IsNotExist(err)
	})
	look()
	infos, err := List(t.Context(), l)
	if err != nil || len(infos) != 1 || strings.Contains(infos[0].Command, secret) || !strings.Contains(infos[0].Command, "***") {
		t.Errorf("list: %+v, %v", infos, err)
	}
	stopped(t, l, s.Ref(), time.Second)
}

func TestWorkersStartAtTheMomentThatTheyAreGiven(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	for _, test := range []struct {
		name  string
		ahead time.Duration
		waits bool
	}{
		{"soon", 700 * time.Millisecond, true},
		{"past", -time.Second, false},
		{"never by a clock that is right", time.Hour, false},
	} {
		s := spec("at"+strconv.Itoa(int(test.ahead.Milliseconds())), "sleep 1000")
		a, err := Arm(t.Context(), l, s)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(test.ahead)
		started, err := a.ReleaseAt(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		const tick = time.Millisecond
		if test.waits && started.At.Before(at.Add(-tick)) || !test.waits && test.ahead > 0 && started.At.After(at) {
			t.Errorf("%s: started %v after the moment", test.name, started.At.Sub(at))
		}
		stopped(t, l, s.Ref(), 0)
	}
}

func TestTheClockIsMeasuredWhileAStartWaits(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	for _, before := range []string{"release", "abort"} {
		s := spec(before, "sleep 1000")
		a, err := Arm(t.Context(), l, s)
		if err != nil {
			t.Fatal(err)
		}
		a.offset = time.Hour
		begin := time.Now()
		a.MeasureClock(t.Context())
		if took := time.Since(begin); a.ClockOffset().Abs() > took {
			t.Errorf("the clock of this machine is off by %v, as measured in %v", a.ClockOffset(), took)
		}
		if before == "abort" {
			err = a.Abort(t.Context())
		} else {
			_, err = a.ReleaseAt(t.Context(), time.Time{})
			stopped(t, l, s.Ref(), 0)
		}
		if err != nil {
			t.Errorf("%s: %v", before, err)
		}
	}
}

// The stop may come before or after the start, depending on the speed of the machine. In
// both cases nothing is left.
func TestAStopBeforeTheMomentOfTheStart(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	s := spec("r", "sleep 1000")
	a, err := Arm(t.Context(), l, s)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() {
		_, err := a.ReleaseAt(t.Context(), time.Now().Add(4*time.Second))
		released <- err
	}()
	report := stopped(t, l, s.Ref(), 0)
	switch err := <-released; {
	case err == nil:
		if report.Exit == nil || !report.Free() {
			t.Errorf("it was started, and the stop tells %+v", report)
		}
	case !errors.Is(err, ErrNotStarted):
		t.Error(err)
	default:
		if state, err := Status(t.Context(), l, s.Ref()); err != nil || state.PID != 0 {
			t.Errorf("it was not started, and the worker tells %+v, %v", state, err)
		}
	}
}

func TestTheSessionEndsAtTheStart(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	begin := time.Now()
	a, err := Arm(t.Context(), l, spec("r", "sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	started, err := a.ReleaseAt(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.done:
	default:
		t.Error("the session is still there")
	}
	if started.PID < 2 || started.At.Before(begin) || started.At.After(time.Now()) {
		t.Errorf("started: %+v", started)
	}
	l.cutNow()
	s, err := Status(t.Context(), l, Ref{"r", 1})
	if err != nil || s.Phase != Running || s.PID != started.PID || !s.Started.Equal(started.At) || !s.Supervised {
		t.Errorf("status: %+v, %v", s, err)
	}
	// None of our processes holds a descriptor of the session. The supervisor has a pipe
	// from the process that waits for the command. That pipe ends with the process.
	shared := descriptors(parent(t, s.PID))
	for _, pid := range []int{s.Supervisor, s.PID} {
		for _, to := range descriptors(pid) {
			if strings.HasPrefix(to, "pipe:") && (pid == s.PID || !slices.Contains(shared, to)) {
				t.Errorf("process %d holds %s", pid, to)
			}
		}
	}
	stopped(t, l, Ref{"r", 1}, time.Second)
}

func TestALostAnswerNeverStartsTwice(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	for i := range 8 {
		s := spec(fmt.Sprint("lost", i), "echo x >>~/count-$MULTIHOST_RUN; sleep 1000")
		first := true
		l.mu.Lock()
		l.cutAfterOut = func() int {
			defer func() { first = false }()
			if first {
				return 60 + 14*i // between the end of "armed" and "started"
			}
			return -1
		}
		l.mu.Unlock()
		a, err := Arm(t.Context(), l, s)
		if err != nil {
			checkClean(t, l, s.Ref())
			continue
		}
		_, err = a.ReleaseAt(t.Context(), time.Time{})
		text, _ := os.ReadFile(filepath.Join(l.home(), "count-"+s.Run))
		if err != nil {
			if !errors.Is(err, ErrNotStarted) {
				t.Errorf("cut %d: %v", i, err)
			}
		} else {
			testkit.Eventually(t, "it runs", func() bool {
				text, _ = os.ReadFile(filepath.Join(l.home(), "count-"+s.Run))
				return len(text) > 0
			})
			if string(text) != "x\n" {
				t.Errorf("cut %d: started %d times", i, len(text)/2)
			}
		}
		stopped(t, l, s.Ref(), time.Second)
	}
}

func TestReleaseAsksAgainUntilTheWorkerAnswers(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	// The connection stays, but the answer is lost.
	a, err := Arm(t.Context(), l, spec("r", "sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	fails := 3
	l.mu.Lock()
	l.refuse = func() error {
		if fails--; fails >= 0 {
			return &remote.ConnectError{Host: "s0w0", Err: errors.New("connection refused")}
		}
		return nil
	}
	l.mu.Unlock()
	started, err := a.ask(t.Context())
	if err != nil || started.PID == 0 {
		t.Errorf("got %+v, %v", started, err)
	}
	if again, err := a.ReleaseAt(t.Context(), time.Time{}); err != nil || again != started {
		t.Errorf("release: got %+v, %v, want %+v", again, err, started)
	}
	stopped(t, l, Ref{"r", 1}, time.Second)
}

func TestBadSpecsAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Spec){
		"a run that leaves the directory": func(s *Spec) { s.Run = "../x" },
		"attempt zero":                    func(s *Spec) { s.Attempt = 0 },
		"argv and script":                 func(s *Spec) { s.Argv = []string{"true"} },
		"neither":                         func(s *Spec) { s.Script = "" },
		"NUL in an argument":              func(s *Spec) { s.Script, s.Argv = "", []string{"a\x00b"} },
		"NUL in a value":                  func(s *Spec) { s.Env = []EnvVar{{Name: "A", Value: "\x00"}} },
		"a name that no shell exports":    func(s *Spec) { s.Env = []EnvVar{{Name: "A-B"}} },
		"NUL in a script":                 func(s *Spec) { s.Script = "true\x00" },
		"an argument beyond 128 KiB":      func(s *Spec) { s.Script, s.Argv = "", []string{strings.Repeat("a", LongestWord)} },
		"a value beyond 128 KiB":          func(s *Spec) { s.Env = []EnvVar{{Name: "A", Value: strings.Repeat("a", LongestWord-3+1)}} },
		"more than Linux takes": func(s *Spec) {
			s.Script, s.Argv = "", slices.Repeat([]string{strings.Repeat("a", 100_000)}, 70)
		},
		"a name that bash owns": func(s *Spec) { s.Unset = []string{"UID"} },
		"a name that we own":    func(s *Spec) { s.Env = []EnvVar{{Name: "MULTIHOST_RUN_DIR"}} },
	} {
		s := spec("r", "true")
		change(&s)
		var bad *InputError
		if _, err := Arm(context.Background(), nil, s); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
