//go:build linux

// Command multihost-agent runs on workers. It does the work of a runner where there is
// none. multihost copies it to the workers and starts it there.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// Whoever reads the agent's output may end before the agent.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// statusUsage is the exit status for a wrong command line.
const statusUsage = 64

func run(ctx context.Context, args []string) int {
	if len(args) == 0 {
		args = []string{""}
	}
	switch args[0] {
	case "check": // succeeds if this machine can run the program
		return 0
	case "job":
		return job(ctx, args[1:])
	case "lease":
		return lease(ctx, args[1:])
	case "pod":
		return inPod(ctx, args[1:])
	}
	fmt.Fprintf(os.Stderr, "multihost-agent: unknown command %q; multihost starts this program on workers\n", args[0])
	return statusUsage
}
