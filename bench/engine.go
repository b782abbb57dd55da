package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/metrics"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/tpu"
	"multihost/internal/ui"
)

// engine runs multihost's SSH engine against the load server, as internal/job does. It starts
// no workers, because their cost would hide the engine's.
func engine(ctx context.Context, args []string) (err error) {
	var c clientFlags
	flags := c.set("engine")
	rounds := flags.Int("rounds", 0, "further commands on the open connections")
	idle := flags.Duration("idle", 0, "time to stay connected without a command")
	logBytes := flags.Int64("log-bytes", 1<<20, "bytes of output of each worker, with -logs")
	rate := flags.Int("rate", 0, "lines that a worker prints in a second; 0 is as fast as they are read")
	dials := flags.Int("max-dials", 0, "handshakes at once; 0 is the engine's own bound")
	if err := flags.Parse(args); err != nil {
		return err
	}
	before := self()
	id, err := sshkey.Load(c.key, nil)
	if err != nil {
		return err
	}
	fleet, err := sshfan.New(sshfan.Config{Identity: id, MaxDials: *dials})
	if err != nil {
		return err
	}
	defer fleet.Close()
	hosts := make([]sshfan.Host, c.workers)
	for i := range hosts {
		hosts[i] = sshfan.Host{
			Name: name(i), User: "tester", Pin: strconv.Itoa(i),
			Addr: func(context.Context) (string, error) { return fmt.Sprintf("%s:%d", address(i), c.port), nil },
			Keys: func(context.Context) ([]string, error) { return []string{c.hostKey}, nil },
		}
	}
	conns, errs := fleet.Connect(ctx, hosts)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	cost := engineCost{Workers: c.workers}
	if c.logs != "" {
		err = follow(ctx, &c, conns, *rate, *logBytes, c.view)
	} else {
		err = everywhere(conns, func(conn *sshfan.Conn) error { return runTrue(ctx, conn, c.command) })
	}
	if err != nil {
		return err
	}
	connected := self()
	for range *rounds {
		if err := everywhere(conns, func(conn *sshfan.Conn) error { return runTrue(ctx, conn, c.command) }); err != nil {
			return err
		}
	}
	if *rounds > 0 {
		cost.Exec = (self().cpu - connected.cpu) / time.Duration(*rounds*c.workers)
	}
	if *idle > 0 {
		runtime.GC() // do not count the memory that only connecting needed
		quiet := self()
		select {
		case <-time.After(*idle):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now := self()
		cost.IdleShare = float64(now.cpu-quiet.cpu) / float64(*idle)
		cost.ResidentBytes = (now.resident - before.resident) / int64(c.workers)
		cost.Goroutines = float64(now.goroutines-before.goroutines) / float64(c.workers)
	}
	return json.NewEncoder(os.Stderr).Encode(cost)
}

// engineCost is what the engine reports about itself on standard error.
type engineCost struct {
	Workers       int
	Exec          time.Duration // CPU of one further command on an open connection
	IdleShare     float64       // share of one core
	ResidentBytes int64         // per idle worker
	Goroutines    float64       // per idle worker
}

func name(i int) string { return fmt.Sprintf("s%dw%d", i/64, i%64) }

func runTrue(ctx context.Context, conn *sshfan.Conn, command string) error {
	status, err := conn.Run(ctx, remote.Cmd{Line: command})
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("%s: exit %d", conn.Name(), status.Code)
	}
	return err
}

func everywhere(conns []*sshfan.Conn, do func(*sshfan.Conn) error) error {
	errs := make([]error, len(conns))
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() { errs[i] = do(conns[i]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// followWindow is the same as in internal/job.
const followWindow = 128 << 20

// leastHeap is the same as in cmd/multihost, because engine stands for the whole command.
const leastHeap = 48 << 20

// follow copies the output of all workers to files. With view, it also shows the output in the
// default view.
func follow(ctx context.Context, c *clientFlags, conns []*sshfan.Conn, rate int, logBytes int64, view bool) error {
	ballast := make([]byte, leastHeap)
	defer runtime.KeepAlive(ballast)
	ids := make([]tpu.WorkerID, len(conns))
	for i := range ids {
		ids[i] = tpu.WorkerID{Slice: i / 64, Worker: i % 64}
	}
	steps := metrics.NewCollector(metrics.Options{Workers: ids, Now: time.Now})
	var sink event.Sink = event.Discard
	if view {
		r := ui.New(ui.Options{Mode: ui.Plain, Stdout: os.Stdout, Stderr: io.Discard})
		defer r.Close()
		sink = r
	}
	ref := launch.Ref{Run: fmt.Sprintf("bench-%d", logBytes), Attempt: 1}
	if rate > 0 {
		ref.Run = fmt.Sprintf("paced%d-%d", rate, logBytes)
	}
	window := launch.NewWindow(followWindow, len(conns))
	errs := make([]error, len(conns))
	var wg sync.WaitGroup
	for i, conn := range conns {
		wg.Go(func() {
			file, err := os.Create(filepath.Join(c.logs, strconv.Itoa(i)))
			if err != nil {
				errs[i] = err
				return
			}
			w := &logWriter{file, steps.Stream(i), sink, event.Output{Slice: ids[i].Slice, Worker: ids[i].Worker}}
			_, err = launch.Follow(ctx, conn, ref, 0, w, launch.FollowOptions{Window: window})
			errs[i] = errors.Join(err, file.Close())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// logWriter handles output in the order of a run: it writes the file, then reads training
// steps, then updates the view.
type logWriter struct {
	file  *os.File
	steps *metrics.Stream
	sink  event.Sink
	out   event.Output
}

func (l *logWriter) Write(p []byte) (int, error) {
	n, err := l.file.Write(p)
	_, _ = l.steps.Write(p) // never fails
	l.out.Data = p
	l.sink.Emit(l.out)
	return n, err
}

// usage is the cost of this process so far. resident is in bytes.
type usage struct {
	cpu        time.Duration
	resident   int64
	goroutines int
}

func self() usage {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err) // cannot happen: the arguments are constants
	}
	u := usage{cpu: time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), goroutines: runtime.NumGoroutine()}
	if data, err := os.ReadFile("/proc/self/statm"); err == nil {
		var size, resident int64
		if _, err := fmt.Sscan(string(data), &size, &resident); err == nil {
			u.resident = resident * int64(os.Getpagesize())
		}
	}
	return u
}
