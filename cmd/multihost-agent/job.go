//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"multihost/internal/agent"
	"multihost/internal/agent/detached"
)

// Exit statuses of the command job, in addition to 0.
const statusFailed = 1

// job does this worker's part of a job without runner. It runs from the boot on; with
// --going, it runs while the machine shuts down. A further argument names a file that
// describes the job, in place of the metadata server.
func job(ctx context.Context, args []string) int {
	// Catch SIGPIPE and do not ignore it. Otherwise the commands that this program starts
	// would ignore it, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	syscall.Umask(0o022)
	transport := agent.Transport()
	cfg := detached.Config{
		Home: os.Getenv("HOME"), Root: os.Getenv("MULTIHOST_ROOT_TMP"), Proc: os.Getenv("MULTIHOST_ROOT_PROC"),
		Metadata: &agent.Metadata{Host: os.Getenv("GCE_METADATA_HOST"), Transport: transport}, Transport: transport, Out: os.Stdout,
	}
	if cfg.Home == "" {
		cfg.Home = "/root"
	}
	run := detached.Run
	if len(args) > 0 && args[0] == "--going" {
		run, args = detached.Going, args[1:]
	}
	if len(args) > 0 {
		cfg.File = args[0]
	}
	if err := run(ctx, cfg); err != nil {
		fmt.Fprintf(os.Stderr, "multihost: %v\n", err)
		return statusFailed
	}
	return 0
}
