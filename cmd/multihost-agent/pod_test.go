//go:build linux

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"multihost/internal/agent/pod"
	"multihost/internal/testkit"
)

// agentIn returns a command that runs this program for a container with its files in dir.
func agentIn(dir, op string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{"pod", op, "--dir=" + dir}, args...)...)
	cmd.Env = append(os.Environ(), "BE_THE_AGENT=yes")
	cmd.Stderr = os.Stderr
	return cmd
}

// The test plays the whole life of a container. The agent is placed and runs the command.
// After SIGTERM, the agent waits until a follower has all of the output.
func TestAPodFromBeginToEnd(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), filepath.Join(t.TempDir(), "0")
	place := exec.Command(os.Args[0], "pod", "place", dir)
	place.Env = append(os.Environ(), "BE_THE_AGENT=yes")
	if out, err := place.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	message := filepath.Join(dir, "message")
	cmd := agentIn(files, "run", "--message="+message, "--wait=1m", "--", "bash", "-c", `trap 'printf "saved $1"; exit 9' TERM; echo up; while :; do sleep 0.01 2>/dev/null; done 2>/dev/null`, "bash", "$(x) 'y'")
	cmd.Path = filepath.Join(dir, filepath.Base(os.Args[0]))
	var own bytes.Buffer
	cmd.Stdout = &own
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := func() string {
		text, _ := os.ReadFile(filepath.Join(files, "output.log")) // the file may not exist yet
		return string(text)
	}
	testkit.Eventually(t, "the command", func() bool { return log() == "up\n" })
	if err := agentIn(files, "ack", "3").Run(); err == nil {
		t.Error("a running command has all of its output")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	tail, err := agentIn(files, "tail", "3").Output()
	if want := "saved $(x) 'y'"; err != nil || string(tail) != want {
		t.Errorf("tail %q, %v, want %q", tail, err, want)
	}
	printed, err := agentIn(files, "end").Output()
	if err != nil {
		t.Fatal(err)
	}
	end, ok := pod.ParseEnd(strings.TrimSpace(string(printed)))
	if !ok || end.Code != 9 || end.Told != "SIGTERM" || end.Length != int64(len(log())) {
		t.Errorf("%q", printed)
	}
	if err := agentIn(files, "ack", strconv.FormatInt(end.Length, 10)).Run(); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 9 || own.String() != log() {
		t.Errorf("%v; it printed %q", err, own.String())
	}
	told, err := os.ReadFile(message)
	if err != nil || string(told) != strings.TrimSpace(string(printed)) {
		t.Errorf("message %q, %v", told, err)
	}
}

func TestCommandsOfTheAgentHaveDefaultSignals(t *testing.T) {
	t.Parallel()
	cmd := agentIn(t.TempDir(), "run", "--message=", "--arrive=0", "--", "bash", "-c", `grep SigIgn /proc/$$/status`)
	out, err := cmd.Output()
	testkit.Must(t, err)
	ignored, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(string(out), "SigIgn:")), 16, 64)
	testkit.Must(t, err)
	const glibcs = 1<<31 | 1<<32 // signals 32 and 33, which glibc ignores in programs that posix_spawn starts
	if ignored&^glibcs != 0 {
		t.Errorf("ignored signals: %x", ignored)
	}
}

func TestWrongCommandLinesInAPod(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"pod"}, {"pod", "fly"}, {"pod", "run"}, {"pod", "run", "--no-such"}, {"pod", "tail"}, {"pod", "tail", "-1"}, {"pod", "ack", "x"}, {"pod", "place"}} {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), "BE_THE_AGENT=yes")
		var exit *exec.ExitError
		if out, err := cmd.CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != statusUsage {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}
