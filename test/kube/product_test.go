package kube_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/testkit"
	"multihost/test/kube/engine"
)

// A user types multihost's commands for the cluster of the tests.
type user struct {
	*testing.T
	program string
	dir     string // directory in which commands run
	env     []string
}

// newUser returns a user with a home and a source directory of their own.
func newUser(t *testing.T, e *engine.Engine, name string) *user {
	t.Helper()
	program := os.Getenv("MULTIHOST")
	if program == "" {
		program = "../../bin/multihost"
	}
	program, err := filepath.Abs(program)
	testkit.Must(t, err)
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v; make it with: make build", err)
	}
	home := t.TempDir()
	u := &user{T: t, program: program, dir: filepath.Join(home, "src"), env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "USER=" + name, "KUBECONFIG=" + e.Kubeconfig(), "TMPDIR=" + os.TempDir(),
		"CLOUDSDK_CONFIG=" + filepath.Join(home, "gcloud"), "MULTIHOST_FLAG_SKEW=off",
	}}
	testkit.Must(t, os.Mkdir(u.dir, 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(u.dir, "data"), []byte("here\n"), 0o644))
	return u
}

func (u *user) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, u.program, args...)
	cmd.Dir, cmd.Env = u.dir, u.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// patience limits how long a command may take.
const patience = 4 * time.Minute

// types runs a command, requires its exit status and returns what it has written.
func (u *user) types(status int, args ...string) (stdout, stderr string) {
	u.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.Context()), patience) // a cleanup has commands, too
	defer cancel()
	cmd := u.command(ctx, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != status {
		u.Fatalf("multihost %s: %v, want exit status %d\n%s%s", strings.Join(args, " "), err, status, out.String(), errOut.String())
	}
	return out.String(), errOut.String()
}

// sees fails the test unless text matches pattern.
func (u *user) sees(text, pattern string) {
	u.Helper()
	if !regexp.MustCompile("(?m)" + pattern).MatchString(text) {
		u.Errorf("no match of %q in:\n%s", pattern, text)
	}
}

// A background is a command that runs in the background.
type background struct {
	*exec.Cmd
	out, err testkit.Buffer
}

// begins starts a command.
func (u *user) begins(args ...string) *background {
	u.Helper()
	b := &background{Cmd: u.command(u.Context(), args...)}
	b.Stdout, b.Stderr = &b.out, &b.err
	testkit.Must(u, b.Start())
	return b
}

// until waits until a command has written a text.
func (u *user) until(b *background, text string) {
	u.Helper()
	if !testkit.Await(2*time.Minute, func() bool { return strings.Contains(b.out.String()+b.err.String(), text) }) {
		u.Fatalf("%s does not write %q:\n%s%s", b.Args, text, b.out.String(), b.err.String())
	}
}

// TestHeldSlices holds two slices and runs commands on them. It checks the logs, failures, and
// a run whose runner is killed.
func TestHeldSlices(t *testing.T) {
	u := newUser(t, cluster(t), "ann")
	u.types(0, "slices", "create", "train", "--context=test", "--tpu-type=v5litepod-16", "--node-count=2", "--wait")
	t.Cleanup(func() { u.types(0, "slices", "delete", "train", "--context=test") })
	out, _ := u.types(0, "slices", "list", "--context=test")
	u.sees(out, `^train +held slices +Running +v5litepod-16 .* 2/2 `)

	on := []string{"--context=test", "--tpu-prefix=train", "--stream=all"}
	run := func(name, command string) []string {
		return append([]string{"run", "--run-name=" + name, "--command=" + command}, on...)
	}
	out, _ = u.types(0, run("r", `cat data; echo $MULTIHOST_SLICE_ID $MULTIHOST_WORKER_ID $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES`)...)
	u.sees(out, `s1w3.*1 3 3 train-slice-1-0.train,train-slice-1-1.train`)
	out, _ = u.types(0, "exec", "--context=test", "--tpu-prefix=train", "--", "cat", "r/data")
	u.sees(out, `^s\[0-1\]w\[0-3\] \(8\): here$`)
	out, _ = u.types(0, "logs", "r", "--worker=s1w2")
	u.sees(out, `^1 2 2 train-slice-1-0`)
	_, text := u.types(7, run("bad", `if [ $MULTIHOST_PROCESS_ID = 5 ]; then exit 7; fi; sleep 100`)...)
	u.sees(text, `s1w1 .*7`)

	// The runner is killed, and the run continues.
	first := u.begins(run("long", `for i in $(seq 1000000); do echo line $i; [ -e ~/end ] && exit 0; sleep 0.1; done`)...)
	u.until(first, "line 10")
	testkit.Must(t, first.Process.Kill())
	_ = first.Wait() // it was killed
	second := u.begins("attach", "long", "--stream=all")
	u.until(second, "connect: 8/8")
	u.types(0, "exec", "--context=test", "--tpu-prefix=train", "--command=touch ~/end")
	if err := second.Wait(); err != nil {
		t.Errorf("attach: %v\n%s", err, second.err.String())
	}
	out, _ = u.types(0, "logs", "long", "--worker=s0w3")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if lines[0] != "line 1" || len(lines) < 10 || strings.TrimPrefix(lines[9], "line ") != "10" {
		t.Errorf("the log begins with %q", lines[0])
	}
}

// TestAwayWhileFollowed kills the API server while a run is followed.
func TestAwayWhileFollowed(t *testing.T) {
	e := cluster(t)
	u := newUser(t, e, "ann")
	u.types(0, "slices", "create", "away", "--context=test", "--tpu-type=v5litepod-16", "--wait")
	t.Cleanup(func() { u.types(0, "slices", "delete", "away", "--context=test") })
	b := u.begins("run", "--context=test", "--tpu-prefix=away", "--run-name=away", "--stream=all", "--command=for i in $(seq 200); do echo line $i; sleep 0.1; done")
	u.until(b, "line 20")
	e.KillAPI()
	testkit.Must(t, e.StartAPI(t.Context()))
	if err := b.Wait(); err != nil {
		t.Errorf("run: %v\n%s", err, b.err.String())
	}
	var want strings.Builder
	for i := range 200 {
		want.WriteString("line " + strconv.Itoa(i+1) + "\n")
	}
	for _, worker := range []string{"s0w0", "s0w3"} {
		if out, _ := u.types(0, "logs", "away", "--worker="+worker); out != want.String() {
			t.Errorf("the log of %s has %d bytes, want %d", worker, len(out), want.Len())
		}
	}
}
