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

// leastHeap is the size of an allocation that counts as heap. Nothing ever touches it, so
// it uses no memory. With it, the heap of a run of a few hundred workers grows to twice
// this size before the garbage collector runs. Without it, garbage collection takes a
// seventh of the CPU time of such a run.
const leastHeap = 48 << 20

// mainStatus does what main does, but returns the exit status. So tests can run the program
// as one of their commands.
func mainStatus() int { return ownProcess().run(os.Args[1:]) }

// ownProcess returns the streams and environment of this process.
func ownProcess() process {
	p := process{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		lookup: lookupEnv, home: homeDir(),
		leave: make(chan struct{}),
	}
	p.dir, _ = os.Getwd() // fails if the directory was deleted
	return p
}

// run carries out a command line and returns the exit status.
func (p process) run(argv []string) int {
	// A write to a closed pipe must be an error that we handle. It must not end the
	// program, because the reader of the output may go away while the run continues. We
	// catch SIGPIPE and do not ignore it, because the programs that we start would inherit
	// an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	c := &call{process: p}
	c.signals.Leave = p.leave
	ctx, stop := c.signals.Start(context.Background(), func() { os.Exit(exitInterrupt) })
	defer stop()
	return c.run(ctx, argv)
}

// homeDir returns the user's home directory, even if the environment has no HOME, as in
// cron and containers. It returns "" if there is none.
func homeDir() string {
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return home
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		return u.HomeDir
	}
	return ""
}

// lookupEnv is os.LookupEnv with one exception: if USER is not set, as in cron and
// containers, it is the current user's name.
func lookupEnv(key string) (string, bool) {
	v, ok := os.LookupEnv(key)
	if key == "USER" && v == "" {
		if u, err := user.Current(); err == nil {
			return u.Username, true
		}
	}
	return v, ok
}
