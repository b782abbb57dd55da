// Package train holds an example for workers, written in Python. The Go code only tests it.
package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// python returns the path of Python 3.8 or newer, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	path := testkit.Need(t, "python3")
	if out, err := exec.Command(path, "-c", "import sys; assert sys.version_info >= (3, 8), sys.version").CombinedOutput(); err != nil {
		testkit.Lacks(t, "python3 is older than 3.8: %s", out)
	}
	return path
}

type process struct {
	out  bytes.Buffer
	code int
	took time.Duration
}

var places atomic.Int32

// place returns three numbers of a loopback address, such as 127.131.7, that no other test
// uses, and a port that is free at .1.
func place(t *testing.T) (subnet string, port int) {
	t.Helper()
	subnet = fmt.Sprintf("127.%d.%d", 130+places.Add(1)%100, os.Getpid()%250)
	listener, err := net.Listen("tcp", subnet+".1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return subnet, listener.Addr().(*net.TCPAddr).Port
}

// run starts n processes as the launcher would, each on its own loopback address. It waits for
// all of them.
func run(t *testing.T, n int, args ...string) []*process {
	t.Helper()
	py := python(t)
	subnet, port := place(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	all := make([]*process, n)
	var wg sync.WaitGroup
	for i := range all {
		p := new(process)
		all[i] = p
		wg.Go(func() {
			cmd := exec.CommandContext(ctx, py, append([]string{"train.py", "--port", strconv.Itoa(port)}, args...)...)
			cmd.Env = []string{
				"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
				"MULTIHOST_RUN=test", "MULTIHOST_ATTEMPT=1",
				fmt.Sprintf("MULTIHOST_NUM_PROCESSES=%d", n),
				fmt.Sprintf("MULTIHOST_PROCESS_ID=%d", i),
				"MULTIHOST_COORDINATOR_IP=" + subnet + ".1",
				fmt.Sprintf("MULTIHOST_WORKER_IP=%s.%d", subnet, i+1),
			}
			cmd.Stdout, cmd.Stderr = &p.out, &p.out
			begin := time.Now()
			err := cmd.Run()
			p.took = time.Since(begin)
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Errorf("process %d: %v", i, err)
			}
			p.code = cmd.ProcessState.ExitCode()
		})
	}
	wg.Wait()
	return all
}

var stepLine = regexp.MustCompile(`(?m)^completed step: (\d+), seconds: \d+\.\d{3}, TFLOP/s/device: \d+\.\d{3}, ` +
	`Tokens/s/device: \d+\.\d{3}, total_weights: (\d+), (loss: (\d+\.\d{3}), lm_loss: \d+\.\d{3}, perplexity: \d+\.\d{3})$`)

var lastLine = regexp.MustCompile(`(?m)^process \d+: \d+ steps, [0-9.]+ MFLOP/s, (loss [0-9.]+, weights sha256:[0-9a-f]{64})$`)

func losses(t *testing.T, p *process) (values []float64) {
	t.Helper()
	for i, m := range stepLine.FindAllStringSubmatch(p.out.String(), -1) {
		if m[1] != strconv.Itoa(i) {
			t.Errorf("step %s, want %d", m[1], i)
		}
		v, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, v)
	}
	return values
}

func TestFourProcesses(t *testing.T) {
	t.Parallel()
	all := run(t, 4, "--steps=12", "--batch=32")
	end := ""
	for i, p := range all {
		if p.code != 0 {
			t.Fatalf("process %d: exit code %d:\n%s", i, p.code, &p.out)
		}
		v := losses(t, p)
		if len(v) != 12 || v[11] > v[0]-0.5 {
			t.Errorf("process %d: the loss does not fall: %v", i, v)
		}
		for k, x := range losses(t, all[0]) {
			if v[k] != x {
				t.Errorf("step %d: loss %v in process %d, %v in process 0", k, v[k], i, x)
			}
		}
		m := lastLine.FindStringSubmatch(p.out.String())
		if m == nil {
			t.Fatalf("process %d: no last line:\n%s", i, &p.out)
		}
		if end == "" {
			end = m[1]
		}
		if m[1] != end {
			t.Errorf("process %d ends with %s, process 0 with %s", i, m[1], end)
		}
		if !strings.Contains(p.out.String(), "total_weights: 128, ") {
			t.Errorf("process %d: total_weights is not 4 × 32:\n%s", i, &p.out)
		}
	}
}

func TestOneFails(t *testing.T) {
	t.Parallel()
	for i, p := range run(t, 4, "--steps=1000", "--batch=16", "--fail-at-step=2", "--fail-process=2", "--fail-code=9", "--timeout=1000") {
		want, text := 1, "error: lost process "
		if i == 2 {
			want, text = 9, "error: process 2 fails at step 2"
		}
		if p.code != want || !strings.Contains(p.out.String(), text) {
			t.Errorf("process %d: exit code %d, want %d and %q:\n%s", i, p.code, want, text, &p.out)
		}
		if p.took > 2*time.Minute {
			t.Errorf("process %d ended after %v", i, p.took)
		}
	}
}

// A training that is interrupted and started again continues to count its steps. It ends with
// the weights of an uninterrupted training. Only process 0 has the checkpoint.
func TestGoesOnFromTheCheckpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := run(t, 3, "--steps=7", "--batch=8", "--checkpoint-dir", t.TempDir())
	args := []string{"--steps=7", "--batch=8", "--checkpoint-every=2", "--checkpoint-dir", dir}
	for i, p := range run(t, 3, append(args, "--fail-at-step=5", "--fail-process=1")...) {
		if p.code == 0 {
			t.Errorf("process %d: exit code 0 although process 1 failed", i)
		}
	}
	for i, p := range run(t, 3, args...) {
		out := p.out.String()
		var steps []string
		for _, m := range stepLine.FindAllStringSubmatch(out, -1) {
			steps = append(steps, m[1])
		}
		if p.code != 0 || strings.Join(steps, " ") != "4 5 6" || !strings.Contains(out, fmt.Sprintf("process %d goes on from step 4 of its checkpoint", i)) {
			t.Errorf("process %d: exit code %d, steps %v:\n%s", i, p.code, steps, out)
		}
		got, want := lastLine.FindStringSubmatch(out), lastLine.FindStringSubmatch(whole[i].out.String())
		if got == nil || want == nil || got[1] != want[1] {
			t.Errorf("process %d ends with %q, without the interruption with %q", i, got, want)
		}
	}
	for _, p := range run(t, 1, append(args, "--seed=2")...) {
		if p.code != 2 || !strings.Contains(p.out.String(), "is of another training") {
			t.Errorf("a checkpoint of another training: exit code %d:\n%s", p.code, &p.out)
		}
	}
}

func TestNeverComes(t *testing.T) {
	t.Parallel()
	py := python(t)
	for _, tc := range []struct {
		process, want string
	}{
		{"0", "error: process 1, 2 did not connect to "},
		{"1", "error: connect to process 0 at "},
	} {
		subnet, port := place(t)
		cmd := exec.CommandContext(t.Context(), py, "train.py", "--connect-timeout=0.3", "--port", strconv.Itoa(port))
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
			"MULTIHOST_NUM_PROCESSES=3", "MULTIHOST_PROCESS_ID=" + tc.process,
			"MULTIHOST_COORDINATOR_IP=" + subnet + ".1",
		}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), fmt.Sprintf("%s%s.1 port ", tc.want, subnet)) {
			t.Errorf("process %s: %v, want %q:\n%s", tc.process, err, tc.want, out)
		}
	}
}

func TestAlone(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), python(t), "train.py", "--steps=3", "--batch=8")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	out, err := cmd.CombinedOutput()
	if err != nil || len(stepLine.FindAll(out, -1)) != 3 {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	py := python(t)
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"process out of range", []string{"MULTIHOST_NUM_PROCESSES=2", "MULTIHOST_PROCESS_ID=2"}, nil, "error: MULTIHOST_PROCESS_ID=2 is not below"},
		{"no number", []string{"MULTIHOST_NUM_PROCESSES=two"}, nil, "error: MULTIHOST_NUM_PROCESSES='two' is not a number"},
		{"no coordinator", []string{"MULTIHOST_NUM_PROCESSES=2"}, nil, "needs MULTIHOST_COORDINATOR_IP"},
		{"no text", nil, []string{"--text=missing.txt"}, "error: [Errno 2] No such file or directory: 'missing.txt'"},
		{"no steps", nil, []string{"--steps=0"}, "--steps, --batch and --checkpoint-every must be at least 1"},
	} {
		cmd := exec.CommandContext(t.Context(), py, append([]string{"train.py"}, tc.args...)...)
		cmd.Env = append(tc.env, "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"))
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s: %v, want exit code 2 and %q:\n%s", tc.name, err, tc.want, out)
		}
	}
}
