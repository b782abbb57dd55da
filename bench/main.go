// Command bench compares multihost with the tools that people would use instead, and with
// the minimum that an SSH client can cost.
//
//	go run ./bench -binary bin/multihost -write docs/performance.md
//
// bench starts itself as a load server, which stands for up to 2048 workers on addresses of
// 127.0.0.0/8. It runs every client against that server as a separate process. The cost of a
// client is what the kernel charges to this process and to the children for which it has
// waited. The server's cost is counted separately. Clients to compare run in turn, round after
// round, and bench compares their medians. On a shared machine, the speed drifts by more than
// the differences between clients.
//
// If a figure misses its limit, bench names the limit and exits with status 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// start runs the benchmark, or with a program's name as the first argument, that program. The
// benchmark starts the programs as separate processes.
func start(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch program, rest := args[0], args[1:]; program {
		case "serve":
			return serve(ctx, rest)
		case "reference":
			return reference(ctx, rest)
		case "engine":
			return engine(ctx, rest)
		}
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.StringVar(&o.binary, "binary", "bin/multihost", "the multihost to measure")
	flags.StringVar(&o.write, "write", "", "file to write the report to; default: standard output")
	flags.StringVar(&o.only, "only", "", "sections to run, joined by commas: connect,idle,logs,command,processes,start,code,files,relay,agent,scale; default: all but scale")
	flags.IntVar(&o.most, "most", 2048, "the most workers of the load server")
	flags.StringVar(&o.relay, "relay", "", "test program of internal/codesync, which measures the relay; default: it is not measured")
	flags.StringVar(&o.deliver, "deliver", "", "test program of internal/agent/deliver, which measures how the agent gets to workers; default: it is not measured")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return bench(ctx, o)
}

type options struct {
	binary, write, only string
	relay, deliver      string
	most                int
}

func (o options) wants(section string) bool {
	return o.only == "" || strings.Contains(","+o.only+",", ","+section+",")
}

// sectionLimit is twice the time of the longest section.
const sectionLimit = 15 * time.Minute

// bench runs the sections and writes the report.
func bench(ctx context.Context, o options) error {
	begin := time.Now()
	l, err := openLab(ctx, o)
	if err != nil {
		return err
	}
	defer l.close()
	r := &report{}
	for _, s := range []struct {
		name string
		run  func(context.Context, *lab, *report) error
	}{
		{"connect", measureConnect},
		{"idle", measureIdle},
		{"logs", measureLogs},
		{"command", measureCommand},
		{"processes", measureProcesses},
		{"start", measureStart},
		{"code", measureCode},
		{"files", measureManyFiles},
		{"relay", measureRelay},
		{"agent", measureAgent},
		{"scale", measureScale},
	} {
		if !o.wants(s.name) || s.name == "scale" && o.only == "" {
			continue
		}
		from := time.Now()
		limited, stop := context.WithTimeout(ctx, sectionLimit)
		err := s.run(limited, l, r)
		if err != nil && limited.Err() != nil {
			err = fmt.Errorf("did not end within %s: %w", sectionLimit, err)
		}
		stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil { // the other sections can still run
			fmt.Fprintf(os.Stderr, "bench: measure %s: %v\n", s.name, err)
			r.broken(s.name, err)
		}
		r.took(s.name, time.Since(from))
	}
	if o.only == "" {
		r.most("time of the whole, with all that it starts", time.Since(begin).Minutes(), 20, "min")
	}
	if err := r.write(o.write, time.Since(begin)); err != nil {
		return err
	}
	if missed := r.missed(); len(missed) > 0 {
		return errors.New("missed: " + strings.Join(missed, "; "))
	}
	return nil
}
