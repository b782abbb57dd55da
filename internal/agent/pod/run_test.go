//go:build linux

package pod

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// A container is a Run in this process. Run waits for all children of the process, so these
// tests cannot run at the same time.
type container struct {
	t       *testing.T
	cfg     Config
	signals chan os.Signal
	done    chan int
	err     error
	own     *os.File
}

// begin starts a command of bash.
func begin(t *testing.T, command string, change ...func(*Config)) *container {
	t.Helper()
	dir := t.TempDir()
	own, err := os.Create(filepath.Join(dir, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	c := &container{t: t, signals: make(chan os.Signal, 16), done: make(chan int, 1), own: own}
	c.cfg = Config{
		Argv: []string{"bash", "-c", command}, Env: os.Environ(), Dir: filepath.Join(dir, "0"), Message: filepath.Join(dir, "message"), Out: own,
		Signals: c.signals, Children: children, NUMA: "off", Wait: time.Minute, Drain: 100 * time.Millisecond,
	}
	for _, f := range change {
		f(&c.cfg)
	}
	go func() {
		var code int
		code, c.err = Run(t.Context(), c.cfg)
		c.done <- code
	}()
	t.Cleanup(func() {
		signal.Stop(children)
		own.Close()
	})
	return c
}

func (c *container) end() End {
	c.t.Helper()
	var code int
	select {
	case code = <-c.done:
	case <-time.After(time.Minute):
		c.t.Fatalf("the command did not end; its output: %q", c.log())
	}
	if c.err != nil {
		c.t.Error(c.err)
	}
	message, err := os.ReadFile(c.cfg.Message)
	if err != nil {
		c.t.Fatal(err)
	}
	e, ok := ParseEnd(string(message))
	if !ok || e.Code != code || time.Since(e.Time) > time.Minute {
		c.t.Errorf("exit status %d, message %q", code, message)
	}
	log := c.log()
	if sum := sha256.Sum256([]byte(log)); e.Length != int64(len(log)) || e.SHA256 != hex.EncodeToString(sum[:]) {
		c.t.Errorf("%+v does not describe %q", e, log)
	}
	if own, err := os.ReadFile(c.own.Name()); err != nil || string(own) != log {
		c.t.Errorf("the container printed %q, %v; kept is %q", own, err, log)
	}
	return e
}

func (c *container) log() string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.cfg.Dir, logName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	return string(text)
}

func (c *container) prints(text string) {
	c.t.Helper()
	testkit.Eventually(c.t, "the output "+text, func() bool { return strings.Contains(c.log(), text) })
}

func TestHowACommandEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		command string
		log     string
		want    End
	}{
		"well":                    {"echo fine", "fine\n", End{}},
		"with an exit code":       {`printf 'a\0\377'; printf b >&2; printf c; exit 3`, "a\x00\xffbc", End{Code: 3}},
		"by a signal":             {"kill -SEGV $$", "", End{Code: 139, Signal: "SIGSEGV"}},
		"not started":             {"exec /no/such/program", "bash: line 1: /no/such/program: No such file or directory\n", End{Code: 127}},
		"with 128+n itself":       {"exit 143", "", End{Code: 143}},
		"and empties /dev/stdout": {`echo one; echo two >/dev/stdout; echo three`, "one\ntwo\nthree\n", End{}},
		"and reads its input":     {"cat; echo read", "read\n", End{}},
	} {
		c := begin(t, tt.command)
		got := c.end()
		got.Time, got.Length, got.SHA256 = time.Time{}, 0, ""
		if got != tt.want || c.log() != tt.log {
			t.Errorf("%s: %+v, %q; want %+v, %q", name, got, c.log(), tt.want, tt.log)
		}
	}
}

func TestACommandThatIsNotThere(t *testing.T) {
	c := begin(t, "", func(c *Config) { c.Argv = []string{"no-such-program"} })
	if e := c.end(); e.Code != 127 || e.Failure != `start "no-such-program": executable file not found in $PATH` || c.log() != "multihost: "+e.Failure+"\n" {
		t.Errorf("%+v, %q", e, c.log())
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/no/such/shell\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c = begin(t, "", func(c *Config) { c.Argv = []string{script} })
	if e := c.end(); e.Code != 127 || !strings.Contains(e.Failure, "no such file") {
		t.Errorf("%+v", e)
	}
}

// A shell does not pass a signal on, and ends at once. The program below it gets time to
// write its last checkpoint.
func TestASignalReachesTheProgramBelowAShell(t *testing.T) {
	for _, form := range []string{"%s; true", "%s && true", "(%s)", "%s", "true | { %s; }"} {
		program := `bash -c 'trap "sleep 0.3; echo saved; exit 0" TERM; echo up; while :; do sleep 0.01 2>/dev/null; done 2>/dev/null'`
		c := begin(t, fmt.Sprintf(form, program))
		c.prints("up")
		c.signals <- syscall.SIGTERM
		if e := c.end(); e.Told != "SIGTERM" || e.Code != 143 || !strings.HasSuffix(c.log(), "saved\n") {
			t.Errorf("%s: %+v, %q", form, e, c.log())
		}
	}
}

func TestOtherSignalsDoNotMeanTheEnd(t *testing.T) {
	c := begin(t, `trap "echo usr1; exit 7" USR1; echo up; while :; do sleep 0.01 2>/dev/null; done 2>/dev/null`)
	c.prints("up")
	c.signals <- syscall.SIGUSR1
	if e := c.end(); e.Told != "" || e.Code != 7 || c.log() != "up\nusr1\n" {
		t.Errorf("%+v, %q", e, c.log())
	}
}

// Processes that the command leaves behind do not delay the end. Run keeps their output as
// long as they may live.
func TestWhatACommandLeavesBehind(t *testing.T) {
	for name, tt := range map[string]struct{ command, log string }{
		"it ends when it is asked": {`bash -c 'trap "echo bye; exit" TERM; echo up; while :; do sleep 0.01 2>/dev/null; done 2>/dev/null' & sleep 0.2`, "up\nbye\n"},
		"it does not listen":       {`(trap "" TERM; exec sleep 1000) & echo up`, "up\n"},
		"it has its own session":   {`setsid sleep 1000 & echo up`, "up\n"},
	} {
		c := begin(t, tt.command)
		if e := c.end(); e.Code != 0 || e.Told != "" || c.log() != tt.log {
			t.Errorf("%s: %+v, %q, want %q", name, e, c.log(), tt.log)
		}
		killChildren(t)
	}
}

// killChildren ends the processes that would end with process 1 of a real container.
func killChildren(t *testing.T) {
	t.Helper()
	for _, pid := range children(t, "") {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the process may just have ended
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}
}

// children returns the children of this process that are in a state ("": any).
func children(t *testing.T, state string) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))); f[1] == strconv.Itoa(os.Getpid()) && (state == "" || f[0] == state) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestOrphansDoNotStayAsZombies(t *testing.T) {
	c := begin(t, `for i in {1..20}; do (sleep 0.05 &); done; echo up; trap "exit 0" TERM; while :; do sleep 0.01 2>/dev/null; done 2>/dev/null`)
	c.prints("up")
	testkit.Eventually(t, "only the command", func() bool { return len(children(t, "")) == 1 })
	if dead := children(t, "Z"); len(dead) > 0 {
		t.Errorf("zombies: %v", dead)
	}
	c.signals <- syscall.SIGTERM
	c.end()
}

func TestAFollowerGetsEveryByte(t *testing.T) {
	c := begin(t, `for i in {1..2000}; do echo "line $i of some length"; done; sleep 0.1; printf end`)
	c.prints("line 2000 ")
	var got bytes.Buffer
	// The connection breaks after some bytes. The next one continues behind them.
	err := Tail(t.Context(), c.cfg.Dir, 0, &short{&got, 10_000})
	if !errors.Is(err, io.ErrShortWrite) || got.Len() != 10_000 {
		t.Fatalf("%d bytes, %v", got.Len(), err)
	}
	if err := Acknowledge(c.cfg.Dir, int64(got.Len())); !errors.Is(err, ErrIncomplete) {
		t.Errorf("%v", err)
	}
	if err := Tail(t.Context(), c.cfg.Dir, int64(got.Len()), &got); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.done:
		t.Fatal("it did not wait for the follower")
	default:
	}
	if err := Acknowledge(c.cfg.Dir, int64(got.Len())); err != nil {
		t.Fatal(err)
	}
	c.end()
	if got.String() != c.log() {
		t.Errorf("%d bytes, want %d", got.Len(), len(c.log()))
	}
	if err := Tail(t.Context(), c.cfg.Dir, int64(got.Len())+1, &got); err == nil {
		t.Error("it sends what is not there")
	}
}

// short takes some bytes and then fails, as a connection does.
type short struct {
	w    io.Writer
	left int
}

func (s *short) Write(p []byte) (int, error) {
	n := min(len(p), s.left)
	s.left -= n
	_, _ = s.w.Write(p[:n]) // into memory
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// A follower may hear of a pod only after the command has ended.
func TestAFollowerMayComeLate(t *testing.T) {
	c := begin(t, "echo up", func(c *Config) { c.Arrive = time.Minute })
	testkit.Eventually(t, "the end", func() bool { _, over, err := ReadEnd(c.cfg.Dir); return over && err == nil })
	var got bytes.Buffer
	if err := Tail(t.Context(), c.cfg.Dir, 0, &got); err != nil || got.String() != "up\n" {
		t.Errorf("%q, %v", got.String(), err)
	}
	testkit.Must(t, Acknowledge(c.cfg.Dir, 3))
	c.end()
	begun := time.Now()
	c = begin(t, "echo up", func(c *Config) { c.Arrive = 300 * time.Millisecond })
	c.end()
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("it waited %s for a first follower", took)
	}
}

func TestAFollowerMayComeBeforeTheCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "0")
	done := make(chan error, 1)
	var got bytes.Buffer
	go func() { done <- Tail(t.Context(), dir, 0, &got) }()
	testkit.Eventually(t, "the follower", func() bool { _, err := os.Stat(filepath.Join(dir, followedName)); return err == nil })
	c := begin(t, "echo up", func(c *Config) { c.Dir = dir })
	if err := <-done; err != nil || got.String() != "up\n" {
		t.Errorf("%q, %v", got.String(), err)
	}
	testkit.Must(t, Acknowledge(dir, 3))
	c.end()
}

func TestTheWaitForAFollowerEnds(t *testing.T) {
	c := begin(t, "echo up; sleep 0.2", func(c *Config) { c.Wait = 200 * time.Millisecond })
	c.prints("up")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Tail(ctx, c.cfg.Dir, 0, io.Discard); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	begun := time.Now()
	c.end()
	if took := time.Since(begun); took < 200*time.Millisecond {
		t.Errorf("it ended after %s without the follower", took)
	}
}

func TestThePreflightComesFirst(t *testing.T) {
	const (
		answer = "multihost-preflight "
		rto    = answer + "result rto_min\t5ms\t\t\tfailed\t\tno route\n"
		chips  = answer + "result tpu_devices\t4\t\t\tfailed\t\tnone found\n"
		end    = answer + "end\n"
	)
	script := filepath.Join(t.TempDir(), "preflight.sh")
	for name, tt := range map[string]struct {
		says, mode, log, failure string
		code                     int
	}{
		"all is well":        {end, "require", "command\n", "", 0},
		"a setting":          {rto + end, "apply", "multihost: preflight: rto_min is not 5ms: no route\ncommand\n", "", 0},
		"one is required":    {rto + end, "require", "multihost: preflight: rto_min is not 5ms: no route\nmultihost: preflight: rto_min: no route\n", "preflight: rto_min: no route", 76},
		"no TPU":             {chips + end, "apply", "multihost: preflight: tpu_devices is not 4: none found\nmultihost: preflight: tpu_devices: none found\n", "preflight: tpu_devices: none found", 76},
		"it does not end":    {"Bus error\n", "apply", "multihost: preflight did not end: Bus error\n", "preflight did not end: Bus error", 76},
		"it only checks":     {"Bus error\n", "check", "command\n", "", 0},
		"the script is away": {"", "apply", "multihost: the image has no script of the preflight, so the worker's settings stay as they are\ncommand\n", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.says != "" {
				testkit.Must(t, os.WriteFile(script, fmt.Appendf(nil, "printf %%b %q", tt.says), 0o600))
				t.Cleanup(func() { testkit.Must(t, os.Remove(script)) })
			}
			c := begin(t, "echo command", func(c *Config) { c.Preflight, c.Mode = script, tt.mode })
			if e := c.end(); e.Code != tt.code || c.log() != tt.log || e.Failure != tt.failure {
				t.Errorf("%+v, %q", e, c.log())
			}
		})
	}
	testkit.Must(t, os.WriteFile(script, []byte("trap 'exit 0' TERM; : >"+script+".up; while :; do sleep 0.01; done"), 0o600))
	c := begin(t, "echo command", func(c *Config) { c.Preflight, c.Mode = script, "apply" })
	testkit.Eventually(t, "the script", func() bool { _, err := os.Stat(script + ".up"); return err == nil })
	c.signals <- syscall.SIGTERM
	if e := c.end(); e.Code != 143 || e.Told != "SIGTERM" || e.Failure != "" || c.log() != "" {
		t.Errorf("%+v, %q", e, c.log())
	}
}

func TestTheCommandIsBoundToANUMANode(t *testing.T) {
	sys, bin := t.TempDir(), t.TempDir()
	for _, node := range []string{"node0", "node1"} {
		if err := os.MkdirAll(filepath.Join(sys, "devices/system/node", node), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", bin+":"+path)
	numactl := func(text string) {
		testkit.WriteProgram(t, filepath.Join(bin, "numactl"), "#!/bin/bash\n"+text+"\n")
	}
	run := func(numa string) string {
		c := begin(t, "echo command", func(c *Config) { c.NUMA, c.Sys = numa, sys })
		if e := c.end(); e.Code != 0 {
			t.Errorf("%+v", e)
		}
		return c.log()
	}
	numactl(`[[ $3 == true ]] || echo "$1 $2"; shift 2; exec "$@"`)
	for numa, want := range map[string]string{"bind": "--membind=0 --cpunodebind=0\ncommand\n", "preferred": "--preferred=0 --cpunodebind=0\ncommand\n", "off": "command\n"} {
		if got := run(numa); got != want {
			t.Errorf("%s: %q, want %q", numa, got, want)
		}
	}
	numactl("echo not permitted; exit 1")
	if got, want := run("bind"), "not permitted\nmultihost: numactl does not work here, so the command runs on all NUMA nodes\ncommand\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestVariablesOfTheCommand(t *testing.T) {
	own := []string{"HOME=/root", "MULTIHOST_RUN=w", "MULTIHOST_RESTARTS=1", "MULTIHOST_SLICE_ID=1", "MULTIHOST_NUM_SLICES=2", "MULTIHOST_WORKER_ID=3", "MULTIHOST_NUM_WORKERS=4", "MULTIHOST_LOCAL_ID=1", "MULTIHOST_NUM_LOCAL=2"}
	env, err := environment(own)
	want := append(slices.Clone(own), "PYTHONUNBUFFERED=1", "MULTIHOST_ATTEMPT=2", "MULTIHOST_PROCESS_ID=15", "MULTIHOST_NUM_PROCESSES=16")
	if err != nil || !slices.Equal(env, want) {
		t.Errorf("%q, %v", env, err)
	}
	if env, err := environment([]string{"PYTHONUNBUFFERED="}); err != nil || !slices.Equal(env, []string{"PYTHONUNBUFFERED="}) {
		t.Errorf("%q, %v", env, err)
	}
	if _, err := environment(own[:4]); err == nil || err.Error() != `the pod has no number in MULTIHOST_NUM_SLICES: ""` {
		t.Errorf("%v", err)
	}
	c := begin(t, `echo $PYTHONUNBUFFERED; (($(ulimit -n) >= 1024)) && echo many`)
	if c.end(); c.log() != "1\nmany\n" {
		t.Errorf("%q", c.log())
	}
}

// A full disk does not stop the command. The file keeps the beginning of the output.
func TestAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	own, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	o := &output{file: full, own: own, hash: sha256.New()}
	o.write([]byte("a"))
	o.write([]byte("b"))
	if o.length != 0 || !errors.Is(o.err, syscall.ENOSPC) {
		t.Errorf("%d bytes, %v", o.length, o.err)
	}
	if text, _ := os.ReadFile(own.Name()); string(text) != "ab" {
		t.Errorf("the container printed %q", text)
	}
}

func TestPlace(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "a"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Place(to, filepath.Join(from, "a"), filepath.Join(from, "none")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(to, "a"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
}
