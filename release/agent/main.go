// Command agent compiles multihost-agent for all kinds of workers, and writes the programs to
// the directory that multihost embeds. Run it in the source directory:
//
//	go run ./release/agent
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"multihost/internal/agent/program"
	"multihost/internal/agent/program/build"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := build.Into(ctx, ".", build.Folder, program.Archs()...); err != nil {
		fmt.Fprintf(os.Stderr, "agent: %v\n", err)
		os.Exit(1)
	}
}
