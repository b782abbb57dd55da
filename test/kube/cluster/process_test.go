package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"multihost/internal/testkit"
)

const parent = "CLUSTER_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parent) != "" {
		p, err := start(os.TempDir(), "multihost-orphan", "sleep", nil, "1000")
		if err != nil {
			panic(err)
		}
		fmt.Println(p.pid)
		<-p.done
		return
	}
	os.Exit(m.Run())
}

// TestNoOrphans: a part is killed when the process that started it dies.
func TestNoOrphans(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), parent+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	testkit.Must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	testkit.Must(t, err)
	testkit.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	testkit.Eventually(t, "the end of the part", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || strings.Contains(string(text), ") Z ")
	})
}

// TestPartThatEnds: if a part ends before it is ready, the error has the end of its output.
func TestPartThatEnds(t *testing.T) {
	p, err := start(t.TempDir(), "etcd", "sh", nil, "-c", "echo port is taken >&2; exit 3")
	testkit.Must(t, err)
	err = p.await(t.Context(), func(context.Context) error { return errors.New("no answer") })
	if err == nil || !strings.Contains(err.Error(), "start etcd: it has ended: exit status 3") || !strings.HasSuffix(err.Error(), "port is taken") {
		t.Errorf("error is %v", err)
	}
	p.stop() // this must not signal a new process with the same id
}
