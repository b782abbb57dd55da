package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// burstMemory limits the resident memory of the runner. The runner needs two thirds of it.
// A runner that kept all output until somebody reads it would need more.
const burstMemory = 176 << 20

// Eight workers print 100 MB at once, with every kind of byte, and the reader of the view
// is slow. The log files must have every byte, up to the last one, and the memory of the
// runner must stay bounded.
func TestABurstFromEveryWorkerOverASlowReader(t *testing.T) {
	testkit.OnlyInAll(t, "TestOverSSHStalledReadersHoldNoMemory of package launch")
	t.Parallel()
	dir, err := os.MkdirTemp(memoryDir(), "multihost-burst-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := sim.Start(context.Background(), sim.Config{Dir: filepath.Join(dir, "sim"), Step: 10 * time.Millisecond,
		Slices: []sim.SliceSpec{{Name: "t", Count: 2, Type: "v5litepod-16"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	code := filepath.Join(dir, "code")
	if err := os.MkdirAll(code, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(code, "burst.py"), []byte(burst), 0o644); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	multihost := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Args[0] = "multihost" // TestMain makes the test binary act as multihost if it has this name
		cmd.Env = []string{"HOME=" + dir, "USER=ann", "PATH=" + os.Getenv("PATH")}
		for k, v := range server.Env() {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		return cmd
	}
	run := multihost("run", "--tpu-prefix=t", "--run-name=b", "--script-dir="+code, "--log-dir="+dir+"/logs",
		"--stream=all", "--preflight=off", "--", "python3", "burst.py")
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	run.Stderr = stderr
	stdout, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	peak, shown := readSlowly(t, stdout, run.Process.Pid, stderr.Name())
	err = run.Wait()
	said, readErr := os.ReadFile(stderr.Name())
	if err != nil || readErr != nil {
		t.Fatalf("run: %v, %v\n%s", err, readErr, said)
	}
	if peak == 0 || peak > burstMemory && !testkit.RaceDetector {
		t.Errorf("the runner held %d bytes at its peak, want at most %d", peak, burstMemory)
	}
	if bytes.ContainsAny(shown, "\x00\x1b") {
		t.Error("the view has NUL or escape characters")
	}
	checkBurst(t, dir)
	out, err := multihost("logs", "--verify", "b").CombinedOutput()
	if equal := bytes.Count(out, []byte(" equal\n")); err != nil || equal != 8 {
		t.Errorf("logs --verify: %v\n%s", err, out)
	}
	t.Logf("peak %d MB, %d bytes shown", peak>>20, len(shown))
}

// readSlowly reads 16 KiB every 2 ms until the run has reported its end. Then it reads the
// rest. peak is the peak of the process's resident memory.
func readSlowly(t *testing.T, r io.Reader, pid int, stderr string) (peak int64, shown []byte) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	buf := make([]byte, 16<<10)
	ended := false
	for n := 0; ; n++ {
		if n%100 == 0 && !ended {
			said, _ := os.ReadFile(stderr)
			ended = bytes.Contains(said, []byte("multihost: run b "))
		}
		if n%10 == 0 || ended {
			peak = max(peak, peakMemory(pid))
		}
		if !ended {
			<-tick.C
		}
		got, err := r.Read(buf)
		shown = append(shown, buf[:got]...)
		if err != nil {
			return peak, shown
		}
	}
}

var peakLine = regexp.MustCompile(`(?m)^VmHWM:\s*(\d+) kB$`)

// peakMemory returns the most resident bytes that a process has had so far, or 0 if the
// process has ended. The figure that wait returns for a child would include the parent's
// memory.
func peakMemory(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	m := peakLine.FindSubmatch(status)
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return n << 10
}

// checkBurst compares the logs with the digests that the commands made of their own output.
func checkBurst(t *testing.T, dir string) {
	t.Helper()
	var want, got []string
	sums, err := filepath.Glob(filepath.Join(dir, "sim/workers/*/home/ann/sum-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range sums {
		sum, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, string(sum))
	}
	for process := range 8 {
		data, err := os.ReadFile(filepath.Join(dir, "logs", fmt.Sprintf("output_slice_%04d_worker_%04d.txt", process/4, process%4)))
		if err != nil {
			t.Fatal(err)
		}
		if last := fmt.Sprintf("\nthe last line of process %d", process); !strings.HasSuffix(string(data), last) {
			t.Errorf("the log of process %d has no last line", process)
		}
		sum := sha256.Sum256(data)
		got = append(got, fmt.Sprintf("%d %d %s", process, len(data), hex.EncodeToString(sum[:])))
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the logs are\n%s\nprinted was\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// burst prints 12.5 MB as fast as it can and writes down the digest of its output.
const burst = `import hashlib, os, random
me = os.environ['MULTIHOST_PROCESS_ID']
r = random.Random(int(me))
noise = r.randbytes(1 << 20)
parts, size = [b'L' * (1 << 20) + b'\n'], 1 << 20
kinds = [
    lambda n: noise[n:n + r.randrange(4000)] + b'\n',
    lambda n: b'step %d of %s\n' % (n, me.encode()),
    lambda n: b'\r %3d%% |#####     |' % (n % 101),
    lambda n: b'\x00\x00nul\x00\n',
    lambda n: b'\xe2\x82\n\xf0\x9f\x98',
    lambda n: b'\x1b[2J\x1b]0;title\x07\x9b31m\n',
    lambda n: b'line ' + b'y' * r.randrange(3000) + b'\n',
]
while size < 12_500_000:
    p = r.choice(kinds)(r.randrange(1 << 19))
    parts.append(p)
    size += len(p)
parts.append(b'\nthe last line of process ' + me.encode())
out = b''.join(parts)
with open(os.path.expanduser('~/sum-' + me), 'w') as f:
    f.write('%s %d %s' % (me, len(out), hashlib.sha256(out).hexdigest()))
at = 0
while at < len(out):
    at += os.write(1, out[at:at + r.randrange(1, 1 << 17)])
os._exit(0)
`
