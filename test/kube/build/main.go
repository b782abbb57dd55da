// Command build builds the programs of the control plane that the tests of this module use:
//
//	go run ./build
//
// It prints what it builds and how long that took. It does not build programs that exist.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"

	"multihost/test/kube/parts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	dir, err := parts.Dir()
	if err != nil {
		return err
	}
	flag.StringVar(&dir, "dir", dir, "directory that keeps the programs")
	atOnce := flag.Int("p", 0, "packages that are compiled at once (0: one a processor)")
	tidy := flag.Bool("tidy", false, "write the go.mod and go.sum of the parts anew, in ./parts; build nothing")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: go run ./build [flags] [PART...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	b := parts.Builder{Dir: dir, Log: os.Stderr, AtOnce: *atOnce}
	var chosen []parts.Part
	for _, p := range parts.All() {
		if flag.NArg() == 0 || slices.Contains(flag.Args(), p.Name) {
			chosen = append(chosen, p)
		}
	}
	if *tidy {
		for _, p := range chosen {
			if err := b.Tidy(ctx, p, "parts"); err != nil {
				return err
			}
		}
		return nil
	}
	programs, err := b.Build(ctx, chosen...)
	if err != nil {
		return err
	}
	for _, p := range chosen {
		for _, name := range p.Programs() {
			fmt.Println(programs[name])
		}
	}
	return nil
}
