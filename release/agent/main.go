// Command agent compiles multihost-agent for all workers, and puts the programs where
// multihost embeds them from. Run it in the directory of the source:
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
