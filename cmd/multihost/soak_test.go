package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// TestSoak runs a command that writes numbered lines on 32 workers, while connections are
// cut, stalled, refused and slowed at random, with a fixed seed. Then it counts the lines.
// None may be missing, doubled or altered, and no process, goroutine or descriptor may be
// left.
//
// SOAK_FAULTS sets the number of faults (default 200), SOAK_SEED the seed (default 1).
func TestSoak(t *testing.T) {
	testkit.OnlyInAll(t, "the stories run_cut_and_resume and unreachable")
	faults, seed := number(t, "SOAK_FAULTS", 200), number(t, "SOAK_SEED", 1)
	pause := 60 * time.Millisecond
	lines := int(time.Duration(faults)*pause/(20*time.Millisecond)) + 100

	dir, err := os.MkdirTemp(memoryDir(), "multihost-soak-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := sim.Start(context.Background(), sim.Config{Dir: filepath.Join(dir, "sim"), Step: 10 * time.Millisecond,
		Slices: []sim.SliceSpec{{Name: "t", Count: 8, Type: "v5litepod-16"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	env := server.Env()
	env["HOME"], env["USER"] = dir, "ann"
	code := filepath.Join(dir, "code")
	if err := os.MkdirAll(code, 0o755); err != nil {
		t.Fatal(err)
	}
	writer := fmt.Sprintf("import os, time\nfor i in range(%d):\n  print('line', i, 'of process', os.environ['MULTIHOST_PROCESS_ID'], 'x' * (i %% 97), flush=True)\n  time.sleep(0.02)\n", lines)
	if err := os.WriteFile(filepath.Join(code, "write.py"), []byte(writer), 0o644); err != nil {
		t.Fatal(err)
	}
	goroutines, descriptors := runtime.NumGoroutine(), openFiles(t)

	var stderr bytes.Buffer
	p := process{stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &stderr, home: dir, leave: make(chan struct{}),
		lookup: func(key string) (string, bool) { v, ok := env[key]; return v, ok }}
	started := make(chan struct{})
	status := make(chan int, 1)
	go func() {
		status <- p.run([]string{"run", "--tpu-prefix=t", "--run-name=soak", "--script-dir=" + code, "--log-dir=" + dir + "/logs",
			"--stream=none", "--connect-timeout=30s", "--", "python3", "write.py"})
	}()
	go func() { // no fault before the first line: other tests cover a refused start
		defer close(started)
		for range 6000 {
			if data, _ := os.ReadFile(filepath.Join(dir, "logs", "output_slice_0000_worker_0000.txt")); len(data) > 0 {
				return
			}
			time.Sleep(50 * time.Millisecond) // the condition looks at a file that another goroutine writes
		}
	}()
	<-started

	random := rand.New(rand.NewSource(int64(seed)))
	for range faults {
		text := randomFault(random)
		f, err := sim.ParseFault(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Inject(f); err != nil {
			t.Fatalf("inject %q: %v", text, err)
		}
		time.Sleep(pause) // the pace of the faults, on which the test depends
	}
	if _, err := server.Clear("all"); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-status:
		if code != 0 {
			t.Fatalf("run ended with %d:\n%s", code, stderr.String())
		}
	case <-time.After(5 * time.Minute):
		t.Fatalf("run has not ended:\n%s", stderr.String())
	}
	for process := range 32 {
		checkLines(t, filepath.Join(dir, "logs", fmt.Sprintf("output_slice_%04d_worker_%04d.txt", process/4, process%4)), process, lines)
	}
	testkit.Eventually(t, "no process is left", func() bool { return len(processesBelow(dir, "write.py")) == 0 })
	backTo(t, "goroutines", goroutines, runtime.NumGoroutine)
	backTo(t, "descriptors", descriptors, func() int { return openFiles(t) })
	t.Logf("%d faults over %d lines on each of 32 workers", faults, lines)
}

func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, text, err)
	}
	return n
}

// randomFault returns a random fault of the connection to a worker.
func randomFault(r *rand.Rand) string {
	where := fmt.Sprintf("node=t-%d worker=%d", r.Intn(8), r.Intn(4))
	switch r.Intn(6) {
	case 0, 1:
		return fmt.Sprintf("worker-cut %s mode=out bytes=%d n=1", where, 1+r.Intn(20000))
	case 2:
		return fmt.Sprintf("worker-cut %s mode=in bytes=%d n=1", where, 1+r.Intn(5000))
	case 3:
		return fmt.Sprintf("worker-unreachable %s mode=refuse duration=%dms", where, 50+r.Intn(500))
	case 4:
		return fmt.Sprintf("worker-freeze %s duration=%dms", where, 50+r.Intn(800))
	}
	return fmt.Sprintf("worker-unreachable %s mode=hang duration=%dms", where, 50+r.Intn(500))
}

func checkLines(t *testing.T, path string, process, lines int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	got := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for i := range max(len(got), lines) {
		want, have := "", ""
		if i < lines {
			want = strings.TrimRight(fmt.Sprintf("line %d of process %d %s", i, process, strings.Repeat("x", i%97)), "\n")
		}
		if i < len(got) {
			have = got[i]
		}
		if have != want {
			t.Errorf("process %d, line %d is %q, want %q (%d lines)", process, i, have, want, len(got))
			return
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("no /proc here: %v", err)
	}
	return len(list)
}

// backTo waits until a count is at most what it was before. The simulator needs a moment to
// end cut connections.
func backTo(t *testing.T, what string, before int, count func() int) {
	t.Helper()
	deadline := time.After(scriptWait)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		now := count()
		if now <= before+2 { // the ticker and the deadline of this test count, too
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Errorf("%s: %d before, %d after", what, before, now)
			return
		}
	}
}
