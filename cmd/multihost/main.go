// Command multihost makes Google Cloud TPU slices, runs a training job on every worker
// and brings the logs back.
package main

import (
	"context"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"runtime"
	"syscall"

	"multihost/internal/sim/netns"
)

func main() {
	if netns.MaybeInit(os.Args) {
		return
	}
	ballast := make([]byte, leastHeap)
	status := mainStatus()
	runtime.KeepAlive(ballast)
	os.Exit(status)
}

// leastHeap is the size of an allocation that counts as heap. Nothing touches it, so it
// uses no memory. It makes the garbage collector run less often. In a run of a few hundred
// workers, the collector then runs only when the heap is twice this size. Without leastHeap,
// garbage collection takes a seventh of the CPU time of such a run.
const leastHeap = 48 << 20

// mainStatus does the work of main but returns the exit status, so that tests can run the
// program as one of their commands.
func mainStatus() int { return ownProcess().run(os.Args[1:]) }

// ownProcess returns the streams and environment of this process.
func ownProcess() process {
	p := process{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		lookup: lookupEnv, home: homeDir(),
		leave: make(chan struct{}),
	}
	p.dir, _ = os.Getwd() // fails if somebody has deleted the directory
	return p
}

// run carries out a command line and returns the exit status.
func (p process) run(argv []string) int {
	// The reader of the output may go away while the run continues. A write to a closed
	// pipe must then return an error and must not end the program. We catch SIGPIPE and do
	// not ignore it, because the programs that we start would ignore it, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	c := &call{process: p}
	c.signals.Leave = p.leave
	ctx, stop := c.signals.Start(context.Background(), func() { os.Exit(exitInterrupt) })
	defer stop()
	return c.run(ctx, argv)
}

// homeDir returns the user's home directory even without HOME, as in cron and containers.
// It returns "" if there is none.
func homeDir() string {
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return home
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		return u.HomeDir
	}
	return ""
}

// lookupEnv is os.LookupEnv, except that USER always has a value: the current user's name
// if it is not set, as in cron and containers.
func lookupEnv(key string) (string, bool) {
	v, ok := os.LookupEnv(key)
	if key == "USER" && v == "" {
		if u, err := user.Current(); err == nil {
			return u.Username, true
		}
	}
	return v, ok
}
