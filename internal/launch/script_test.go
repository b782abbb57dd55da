package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// The bootstrap of a kit compares a number of bytes with a number of characters, which are
// equal only in ASCII. A script that was cut must do nothing, so scripts do nothing before
// their last line.
func TestScriptsAreASCIIAndEndInOneCall(t *testing.T) {
	t.Parallel()
	scripts := map[string]string{"supervise": superviseText, "start": startText}
	for name, p := range map[string]*remote.Program{
		"arm": armScript, "release": releaseScript, "status": statusScript, "follow": followScript, "stop": stopScript,
		"free": freeScript, "list": listScript, "digest": digestScript, "dump": dumpScript, "exec": execScript,
		"verdict": verdictScript,
	} {
		scripts[name] = p.Text()
		if n := len(p.Cmd(nil).Whole().Line); n > 1250 {
			t.Errorf("%s: its command line has %d bytes", name, n)
		}
	}
	for name, text := range scripts {
		if i := strings.IndexFunc(text, func(r rune) bool { return r > 126 || r == 0 }); i >= 0 {
			t.Errorf("%s: not ASCII: %.20q", name, text[i:])
		}
		if !strings.HasSuffix(strings.TrimRight(text, "\n"), "\nmain \"$@\"") {
			t.Errorf("%s: does not end in the call of main", name)
		}
	}
}

func TestALoginShellNeedNotBeBash(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.sh = "/bin/sh"
	if out, exit := complete(t, l, spec("r", "echo $BASH; exit 5")); !strings.HasSuffix(out, "/bash\n") || exit.Code != 5 {
		t.Errorf("got %q, %+v", out, exit)
	}
}

func TestAnOOMKillIsTold(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, path, found := strings.Cut("\n"+string(cgroups), "\n0::")
	if !found {
		t.Skip("this kernel has no unified control groups")
	}
	path, _, _ = strings.Cut(path, "\n")
	events := filepath.Join("sys/fs/cgroup", path, "memory.events")
	l.write(events, "oom 3\noom_kill 3\noom_group_kill 0\n", 0o644)
	_, exit := complete(t, l, spec("r", "kill -KILL $$"))
	if exit.OOM || exit.Signal != "KILL" {
		t.Errorf("an ordinary kill: %+v", exit)
	}
	_, exit = complete(t, l, spec("child", "sed -i 's/oom_kill 3/oom_kill 4/' "+filepath.Join(l.root, events)+"; exit 137"))
	if !exit.OOM || exit.Signal != "" || !strings.Contains(exit.String(), "exit code 137") {
		t.Errorf("an OOM kill of a child: %+v", exit)
	}
	l.write(events, "oom_kill 3\n", 0o644)
	_, exit = complete(t, l, spec("s", "sed -i 's/oom_kill 3/oom_kill 4/' "+filepath.Join(l.root, events)+"; kill -KILL $$"))
	if !exit.OOM || !strings.Contains(exit.String(), "out of memory") {
		t.Errorf("an OOM kill: %+v", exit)
	}
}

// If the control group does not count kills, the kernel's log shows them.
func TestAnOOMKillIsFoundInTheKernelLog(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	const now = `$(cut -d. -f1 /proc/uptime)`
	for _, test := range []struct {
		record, end string
		oom         bool
	}{
		{"3,77," + now + "999999,-;Out of memory: Killed process $$ (bash) total-vm:1kB", "kill -KILL $$", true},
		{"3,77," + now + "999999,-;oom-kill:constraint=CONSTRAINT_NONE,task=bash,pid=$$,uid=0", "kill -KILL $$", true},
		{"3,77," + now + "999999,-;Out of memory: Killed process 1$$ (bash)", "kill -KILL $$", false},
		{"3,77,1,-;Out of memory: Killed process $$ (bash)", "kill -KILL $$", false}, // by an earlier process
		{"3,77," + now + "999999,-;Out of memory: Killed process $$ (bash)", "exec sh -c 'kill -TERM $$'", false},
	} {
		l.write("dev/kmsg", "6,1,0,-;Linux version 5.15\nnot a record\n SUBSYSTEM=x\n6,2\n", 0o644)
		name := fmt.Sprint("r", time.Now().UnixNano())
		_, exit := complete(t, l, spec(name, "echo \""+test.record+"\" >>"+l.root+"/dev/kmsg; "+test.end))
		if exit.OOM != test.oom || exit.Signal == "" {
			t.Errorf("%s; %s: %+v", test.record, test.end, exit)
		}
	}
}

// The kernel kills a command that needs more memory than its control group allows.
func TestTheKernelsOwnOOMKillIsTold(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	group, limit := memoryGroup(t)
	l := newLocal(t)
	for _, name := range []string{"DEV", "SYS"} {
		l.env = slices.DeleteFunc(l.env, func(v string) bool { return strings.HasPrefix(v, "MULTIHOST_ROOT_"+name+"=") })
	}
	_, exit := complete(t, l, spec("r", fmt.Sprintf(
		"echo 64M >%[1]s/%[2]s && echo $$ >%[1]s/cgroup.procs && exec python3 -c 'b = bytearray(256 << 20)'", group, limit)))
	if !exit.OOM || exit.Signal != "KILL" || exit.Code != 137 {
		t.Errorf("got %+v", exit)
	}
}

// memoryGroup makes a control group. It returns its directory and the file of its limit.
func memoryGroup(t *testing.T) (dir, limit string) {
	t.Helper()
	for parent, limit := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		dir := fmt.Sprintf("%s/multihost-test-%d", parent, os.Getpid())
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		if _, err := os.Stat(filepath.Join(dir, limit)); err == nil {
			return dir, limit
		}
	}
	testkit.Lacks(t, "no control group that limits memory can be made here")
	return "", ""
}

func TestAHomeThatCannotBeWrittenIsNamed(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("home/.multihost", "a file", 0o644)
	if _, err := Arm(t.Context(), l, spec("r", "true")); err == nil || !strings.Contains(err.Error(), "Not a directory") {
		t.Errorf("got %v", err)
	}
}

func TestWhatAWorkerSaysIsMadeHarmless(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain":                  "plain",
		"\x1b[2J\x07":            "\uFFFD[2J\uFFFD",
		"a\tb\nc":                "a b c",
		"\xff€":                  "\uFFFD€",
		"evil\u202etxt":          "evil\uFFFDtxt",
		strings.Repeat("x", 400): strings.Repeat("x", 300) + "…",
	} {
		if got := remote.Clean(in, 300); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("noise\nN run r 1\nN phase exited\nN exit code 7\nN exit signal KILL\nN started 1 2\nN holder 1 1 1 root - - 0 0 - x\n", uint8(3))
	f.Add("N run\nN exit\nN supervisor\nN log\nN disk 1 2\nN now\n", uint8(1))
	f.Fuzz(func(t *testing.T, text string, step uint8) {
		var raw strings.Builder
		s := &remote.Stream{Answer: remote.Answer{Nonce: "N"}, Raw: &raw}
		for rest := text; rest != ""; {
			n := min(int(step)+1, len(rest))
			if m, err := s.Write([]byte(rest[:n])); m != n || err != nil {
				t.Fatalf("write: %d, %v", m, err)
			}
			rest = rest[n:]
		}
		if !strings.HasSuffix(text, raw.String()) {
			t.Fatalf("raw bytes %q are not the end of %q", raw.String(), text)
		}
		records := s.Records()
		state := parseState(Ref{"r", 1}, records)
		if state.Exit != nil && (state.Exit.Code < 0 || state.Exit.Code > 255 || state.Exit.LogSize < 0) {
			t.Fatalf("exit: %+v", state.Exit)
		}
		for _, i := range parseInfos(records) {
			if i.check() != nil {
				t.Fatalf("info: %+v", i)
			}
			_ = (&BusyError{Info: i}).Error()
		}
		for _, r := range records {
			p := parseProcess(r)
			if p.PID < 0 || p.Age < 0 || strings.ContainsAny(p.Command+p.User, "\x1b\n") {
				t.Fatalf("process: %+v", p)
			}
			_ = (&HoldersError{Holders: []Process{p}}).Error()
		}
	})
}

func TestAnIdleSupervisorCostsNothing(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	begin(t, l, spec("r", "exec sleep 1000"))
	s, err := Status(t.Context(), l, Ref{"r", 1})
	if err != nil {
		t.Fatal(err)
	}
	// The supervisor may still take its last step before the wait.
	testkit.Eventually(t, "the supervisor uses no processor", func() bool {
		before := ticks(t, s.Supervisor)
		<-time.After(time.Second)
		return ticks(t, s.Supervisor) == before
	})
	stopped(t, l, Ref{"r", 1}, time.Second)
}

// ticks returns the user and system time of a process and its children.
func ticks(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Join(strings.Fields(rest)[11:15], " ")
}
