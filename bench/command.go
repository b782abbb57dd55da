package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// commandWorkers is the number of the simulator's workers: 4 slices of 64.
const commandWorkers = 256

// measureCommand measures a whole `multihost run` and its start skew. The workers are processes
// of this machine.
func measureCommand(ctx context.Context, l *lab, r *report) error {
	r.section("`multihost run`", fmt.Sprintf(`
The whole command: discovery, host keys, sync of nothing new, preflight, start, following, exit. The %d workers are processes
of the simulator on the same cores and cost more than anything else here, so the CPU of the runner is what counts. Wall time
and CPU are those of one run of `+"`true`"+` with nothing new. An earlier run prints one line: the time until the first line, and
the times of the steps, are from that run. The steps are the phases on workers (connect, sync, preflight, free, start); each takes as
long as its slowest worker. The skew is that of a detached command in an existing folder, without preflight: each worker
writes down its start, by the one clock of this machine. It is the median of %d starts. Bare processes are shells that wait
for a line, get it by one write each, note the time and become the same command; their skew is the median of %[2]d releases.
`+"`exec`"+` is one command on every worker, without a run.`, commandWorkers, skewRounds))
	rows := [][]string{{"workers", "wall s", "runner's CPU ms/worker", "steps s", "until the first line s", "start skew ms", "bare skew ms", "`exec`: CPU ms/worker"}}
	for _, size := range []struct{ slices, workers int }{{1, 16}, {4, commandWorkers}} {
		s, err := l.simulate(ctx, fmt.Sprintf("%dxv5litepod-%d", size.slices, size.workers/size.slices*4))
		if err != nil {
			return err
		}
		one, err := s.wholeCommand(ctx, size.workers)
		if err == nil && size.workers != commandWorkers {
			err = s.gcloud(ctx, r, size.workers)
		}
		s.close()
		if err != nil {
			return err
		}
		bare, err := l.bareSkew(ctx, size.workers)
		if err != nil {
			return err
		}
		rows = append(rows, []string{
			fmt.Sprint(size.workers), seconds(one.wall), perWorker(one.cpu, size.workers), seconds(one.steps), seconds(one.firstLine),
			milliseconds(one.skew), milliseconds(bare), perWorker(one.exec, size.workers),
		})
		if size.workers == commandWorkers {
			r.most(fmt.Sprintf("runner's CPU per worker of `multihost run` on %d workers", size.workers), one.cpu.Seconds()*1000/float64(size.workers), 10, "ms")
			r.most("time from Enter to the first line, ÷ the time of the steps of the slowest worker", one.firstLine.Seconds()/one.steps.Seconds(), 2, "")
			r.most(fmt.Sprintf("start skew of %d workers, × bare processes", size.workers), one.skew.Seconds()/bare.Seconds(), 3, "")
		} else {
			r.most(fmt.Sprintf("start skew of %d workers", size.workers), one.skew.Seconds()*1000, 100, "ms")
		}
	}
	r.table(rows)
	return l.countProcesses(ctx, r)
}

// countProcesses counts the processes that a run of `true` with nothing new to sync starts on a
// worker with OpenSSH and sudo. It compares process ids, which such a worker gives out in
// order. Two equal commands show how many processes the command that reads the process id needs
// itself.
func (l *lab) countProcesses(ctx context.Context, r *report) error {
	if os.Geteuid() != 0 {
		r.note("The processes of a run on a worker were not counted: workers with OpenSSH need root.")
		return nil
	}
	s, err := l.simulate(ctx, "2xv5litepod-4", "--backend=netns")
	if err != nil {
		return err
	}
	defer s.close()
	var numbers []int
	for _, step := range []string{"run", "ask", "ask", "run", "ask"} {
		if step == "run" {
			if _, err := s.l.measure(s.multihost(ctx, "run", "--run-name=few", "--tpu-prefix=b", "--command=true")); err != nil {
				return err
			}
			continue
		}
		out, err := s.multihost(ctx, "exec", "--tpu-prefix=b", "--workers=s1w0", "--", "sh", "-c", "echo $$").Output()
		if err != nil {
			return fmt.Errorf("ask for the number of a process: %w", err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			return fmt.Errorf("number of a process: %w", err)
		}
		numbers = append(numbers, n)
	}
	count := numbers[2] - 2*numbers[1] + numbers[0]
	r.note(fmt.Sprintf("A run of `true` with nothing new starts %d processes on a worker, those of OpenSSH and sudo included.", count))
	r.most("processes that `multihost run` with nothing new starts on a worker", float64(count), 40, "")
	return nil
}

// skewRounds is how often each skew is measured, to get the median.
const skewRounds = 3 // a start of 256 processes takes half a minute here

type wholeCost struct {
	cost
	steps     time.Duration // sum of all phases before the command; each counts as long as on its slowest worker
	firstLine time.Duration
	skew      time.Duration
	exec      time.Duration // CPU of `multihost exec`
}

// wholeCommand measures a run of `true` with nothing new to sync, the time to the first line of
// another run, `multihost exec`, and the median start skew.
func (s *simulation) wholeCommand(ctx context.Context, workers int) (c wholeCost, err error) {
	first, err := s.run(ctx, "ends", "--tpu-prefix=b", "--command=echo first line")
	if err != nil {
		return c, err
	}
	if first.firstLine == 0 || first.steps == 0 {
		return c, errors.New("the run's events lack the line of output, or the phases")
	}
	c.cost, err = s.l.measure(s.multihost(ctx, "run", "--run-name=ends", "--tpu-prefix=b", "--command=true"))
	if err != nil {
		return c, err
	}
	fmt.Fprintf(os.Stderr, "bench: multihost run of true %6.2f s, %6.2f s of CPU\n", c.wall.Seconds(), c.cpu.Seconds())
	names := make([]string, skewRounds)
	for i := range names {
		names[i] = fmt.Sprintf("starts%d", i)
	}
	exec, err := s.l.measure(s.multihost(ctx, "exec", "--tpu-prefix=b", "--command=mkdir "+strings.Join(names, " ")))
	if err != nil {
		return c, err
	}
	fmt.Fprintf(os.Stderr, "bench: multihost exec %6.2f s, %6.2f s of CPU\n", exec.wall.Seconds(), exec.cpu.Seconds())
	var starts []cost
	for _, name := range names {
		one, err := s.skewOf(ctx, name, workers)
		if err != nil {
			return c, err
		}
		fmt.Fprintf(os.Stderr, "bench: start skew %v\n", one)
		starts = append(starts, cost{wall: one})
	}
	c.steps, c.firstLine, c.exec = first.steps, first.firstLine, exec.cpu
	c.skew = median(starts, func(c cost) time.Duration { return c.wall })
	return c, nil
}

// skewOf starts a command and waits until it has ended on every worker. It returns the time
// between the first and the last start.
func (s *simulation) skewOf(ctx context.Context, name string, workers int) (time.Duration, error) {
	_, err := s.run(ctx, name, "--tpu-prefix=b", "--use-existing-folder", "--preflight=off", "--numa=off", "--skew=off", "--detach", "--", "sleep", "1")
	if err != nil {
		return 0, err
	}
	files := func(file string) (found []string) {
		found, _ = filepath.Glob(filepath.Join(s.dir, "sim", "workers", "*", "home", "*", ".multihost", "runs", name, "1", file)) // the pattern is valid
		return found
	}
	limit := time.After(2 * time.Minute)
	for len(files("exit")) < workers {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-limit:
			return 0, fmt.Errorf("run %s has ended on %d of %d workers", name, len(files("exit")), workers)
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	var earliest, latest int64
	for _, path := range files("started") {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		var pid, start, at int64
		if _, err := fmt.Sscan(string(text), &pid, &start, &at); err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		if earliest == 0 || at < earliest {
			earliest = at
		}
		latest = max(latest, at)
	}
	return time.Duration(latest - earliest), nil
}

// gcloud measures two ways to use gcloud. MaxText's runner starts one gcloud for each worker.
// `gcloud --worker=all` is one process for all workers of a slice. Many gcloud processes take
// minutes and gigabytes, so gcloud measures the CPU time per worker with few workers.
func (s *simulation) gcloud(ctx context.Context, r *report, workers int) error {
	if _, err := exec.LookPath("gcloud"); err != nil {
		r.note("gcloud is not installed here: it was not measured.")
		return nil
	}
	ssh := func(worker string) func() (cost, error) {
		return func() (cost, error) {
			return s.l.client(ctx, s.env, "gcloud", "compute", "tpus", "tpu-vm", "ssh", "multihost@b", "--worker="+worker,
				"--internal-ip", "--command=true", "--ssh-flag=-p "+s.variable("MULTIHOST_FLAG_SSH_PORT"))
		}
	}
	if _, err := ssh("0")(); err != nil { // gcloud makes its key here and registers it
		r.note(fmt.Sprintf("gcloud was not measured: %.200s", err))
		return nil
	}
	medians, err := inTurn(ctx, peerRounds, contestant{"gcloud, a worker", ssh("0")}, contestant{"gcloud --worker=all", ssh("all")})
	if err != nil {
		return err
	}
	one, all := medians["gcloud, a worker"], medians["gcloud --worker=all"]
	r.table([][]string{
		{"gcloud compute tpus tpu-vm ssh --command=true", "wall s", "CPU ms/worker", "peak MiB of one process"},
		{"a call for each worker, as MaxText's runner makes", seconds(one.wall), perWorker(one.cpu, 1), mebibytes(one.resident)},
		{fmt.Sprintf("`--worker=all` on a slice of %d", workers), seconds(all.wall), perWorker(all.cpu, workers), mebibytes(all.resident)},
	})
	return nil
}

// timed runs and measures a multihost command that prints JSON lines.
func timed(cmd *exec.Cmd) (wholeCost, error) {
	var c wholeCost
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return c, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return c, err
	}
	read := readEvents(out, begin, &c)
	err = cmd.Wait()
	c.wall = time.Since(begin)
	c.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err != nil {
		return c, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, lastOf(stderr.Bytes()))
	}
	return c, read
}

func readEvents(out io.Reader, begin time.Time, c *wholeCost) error {
	in := bufio.NewScanner(out)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e struct {
			Kind   string `json:"kind"`
			Phases []struct {
				Name    string
				Elapsed int64 `json:"elapsed_ns"`
			}
		}
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			return fmt.Errorf("read %q: %w", in.Bytes(), err)
		}
		switch e.Kind {
		case "output":
			if c.firstLine == 0 {
				c.firstLine = time.Since(begin)
			}
		case "summary":
			for _, p := range e.Phases {
				if p.Name != "discover" && p.Name != "run" {
					c.steps += time.Duration(p.Elapsed)
				}
			}
		}
	}
	return in.Err()
}

// bareSkew sends one line to each of n waiting processes, skewRounds times. It returns the
// median of the times between the first and the last arrival.
func (l *lab) bareSkew(ctx context.Context, n int) (time.Duration, error) {
	var spreads []cost
	for range skewRounds {
		spread, err := l.releaseBare(ctx, n)
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(os.Stderr, "bench: bare skew %v\n", spread)
		spreads = append(spreads, cost{wall: spread})
	}
	return median(spreads, func(c cost) time.Duration { return c.wall }), nil
}

func (l *lab) releaseBare(ctx context.Context, n int) (spread time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ins []io.WriteCloser
	var outs []*bufio.Reader
	var all []*exec.Cmd
	defer func() {
		for i, cmd := range all {
			ins[i].Close()
			err = errors.Join(err, cmd.Wait())
		}
	}()
	for range n {
		cmd := exec.CommandContext(ctx, "bash", "-c", waiter)
		in, err := cmd.StdinPipe()
		if err != nil {
			return 0, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return 0, err
		}
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		ins, outs, all = append(ins, in), append(outs, bufio.NewReader(out)), append(all, cmd)
	}
	for _, out := range outs {
		if _, err := out.ReadString('\n'); err != nil {
			return 0, fmt.Errorf("wait for waiter: %w", err)
		}
	}
	for _, in := range ins {
		if _, err := in.Write([]byte("\n")); err != nil {
			return 0, err
		}
	}
	var first, last int64
	for _, out := range outs {
		text, err := out.ReadString('\n')
		if err != nil {
			return 0, err
		}
		at, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			return 0, err
		}
		if first == 0 || at < first {
			first = at
		}
		last = max(last, at)
	}
	return time.Duration(last-first) * time.Microsecond, nil
}

// waiter is a shell script. It prints "ready", waits for a line, and prints the time of its
// arrival in microseconds. Then it becomes the command that skewOf starts.
const waiter = `echo ready; read -r; LC_ALL=C; echo "${EPOCHREALTIME/./}"; exec sleep 1`

// measureStart measures commands that use no API, to show what starting the program costs.
func measureStart(ctx context.Context, l *lab, r *report) error {
	r.section("The program itself", "The time from start to end of commands that need only local files.")
	rows := [][]string{{"command", "wall ms", "CPU ms", "peak MiB"}}
	env := []string{"HOME=" + l.dir, "XDG_STATE_HOME=" + l.dir}
	for _, args := range [][]string{{"version"}, {"xla", "presets"}} {
		c, err := inTurn(ctx, rounds, contestant{args[0], func() (cost, error) { return l.client(ctx, env, append([]string{l.binary}, args...)...) }})
		if err != nil {
			return err
		}
		one := c[args[0]]
		line := "multihost " + strings.Join(args, " ")
		rows = append(rows, []string{"`" + line + "`", fmt.Sprintf("%.0f", one.wall.Seconds()*1000), fmt.Sprintf("%.0f", one.cpu.Seconds()*1000), mebibytes(one.resident)})
		r.most("CPU of `"+line+"`", one.cpu.Seconds()*1000, 50, "ms")
	}
	info, err := os.Stat(l.binary)
	if err != nil {
		return err
	}
	r.most("size of the binary", float64(info.Size())/1e6, 55, "MB")
	r.table(rows)
	return nil
}
