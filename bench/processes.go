package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mostProcesses is how many processes a run may start on a worker.
const mostProcesses = 40

// measureProcesses counts the processes that a run starts on a worker.
func measureProcesses(ctx context.Context, l *lab, r *report) error {
	r.section("Processes on a worker", `
The processes that a run of `+"`true`"+` with nothing new starts on a worker, those of sshd and sudo included. The worker has OpenSSH
and numbers its processes itself.`)
	if os.Geteuid() != 0 {
		r.note("Not measured: only root can start such workers.")
		return nil
	}
	s, err := l.simulate(ctx, "1xv5litepod-4", "--backend=netns")
	if err != nil {
		return err
	}
	defer s.close()
	n, err := s.processesOfRun(ctx)
	if err != nil {
		return err
	}
	r.table([][]string{{"command", "processes"}, {"`multihost run -- true`", fmt.Sprint(n)}})
	r.most("processes on a worker of a run with nothing new", float64(n), mostProcesses, "")
	return nil
}

// processesOfRun runs `true` twice and returns how many processes the second run has
// started on the worker.
func (s *simulation) processesOfRun(ctx context.Context) (int, error) {
	run := func() error {
		out, err := s.multihost(ctx, "run", "--tpu-prefix=b", "--run-name=few", "--", "true").CombinedOutput()
		if err != nil {
			return fmt.Errorf("multihost run: %w: %s", err, lastOf(out))
		}
		return nil
	}
	// newest returns the id of the newest process on the worker. The difference between two
	// calls in a row is the number of processes that one call starts.
	newest := func() (int, error) {
		out, err := s.multihost(ctx, "exec", "--tpu-prefix=b", "--workers=s0w0", "--", "sh", "-c", "echo $$").Output()
		if err != nil {
			return 0, fmt.Errorf("multihost exec: %w: %s", err, lastOf(out))
		}
		return strconv.Atoi(strings.TrimSpace(string(out)))
	}
	if err := run(); err != nil {
		return 0, err
	}
	first, err := newest()
	if err != nil {
		return 0, err
	}
	second, err := newest()
	if err != nil {
		return 0, err
	}
	if err := run(); err != nil {
		return 0, err
	}
	third, err := newest()
	return third - 2*second + first, err
}
