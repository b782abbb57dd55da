//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"multihost/internal/agent/pod"
)

// inPod does one operation in a container of a workload:
//
//	run [FLAGS] -- COMMAND ARGUMENT...   is process 1 of the container
//	place DIR                            copies the agent into a folder for another container
//	tail OFFSET                          prints the output of the command from a byte on, to its end
//	end                                  prints how the command ended, as JSON
//	ack LENGTH                           notes that a follower has LENGTH bytes of the output
//
// All operations except place take --dir.
func inPod(ctx context.Context, args []string) int {
	if len(args) == 0 {
		args = []string{""}
	}
	set := flag.NewFlagSet("pod "+args[0], flag.ContinueOnError)
	cfg := pod.Config{Env: os.Environ(), Out: os.Stdout, Sys: os.Getenv("MULTIHOST_ROOT_SYS") + "/sys"}
	set.StringVar(&cfg.Dir, "dir", filepath.Join(os.Getenv("MULTIHOST_ROOT_TMP")+"/multihost", os.Getenv("MULTIHOST_LOCAL_ID")), "folder of the container's files")
	if args[0] == "run" {
		set.StringVar(&cfg.Message, "message", os.Getenv("MULTIHOST_ROOT_DEV")+"/dev/termination-log", "file of the termination message")
		set.StringVar(&cfg.Preflight, "preflight", "", "script of the preflight, to run first")
		set.StringVar(&cfg.Mode, "preflight-mode", "apply", "apply, require or check")
		set.StringVar(&cfg.NUMA, "numa", "off", "bind, preferred or off")
		set.DurationVar(&cfg.Drain, "drain", 5*time.Second, "how long processes may live that the command left behind")
		set.DurationVar(&cfg.Wait, "wait", 15*time.Second, "how long the end waits for a follower that has begun to read")
		set.DurationVar(&cfg.Arrive, "arrive", 10*time.Second, "how long after the start the end waits for the first follower")
	}
	if err := set.Parse(args[1:]); err != nil {
		return statusUsage
	}
	if cfg.Preflight != "" {
		cfg.Preflight = os.Getenv("MULTIHOST_ROOT_TMP") + cfg.Preflight
	}
	code, err := podOperation(ctx, args[0], set.Args(), cfg)
	if err != nil {
		fmt.Fprintf(os.Stderr, "multihost-agent: %v\n", err)
	}
	return code
}

func podOperation(ctx context.Context, op string, args []string, cfg pod.Config) (code int, err error) {
	switch {
	case op == "run" && len(args) > 0:
		return beProcessOne(cfg, args)
	case op == "end" && len(args) == 0:
		end, over, err := pod.ReadEnd(cfg.Dir)
		if err == nil && !over {
			err = errors.New("the command has not ended")
		}
		if err != nil {
			return 1, err
		}
		fmt.Println(end.Message())
		return 0, nil
	case len(args) != 1:
	case op == "place":
		self, err := os.Executable()
		if err == nil {
			err = pod.Place(args[0], self, filepath.Join(filepath.Dir(self), "multihost-preflight.sh"))
		}
		return failed(err), err
	case op == "tail" || op == "ack":
		n, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil || n < 0 {
			return statusUsage, fmt.Errorf("%q is no number of bytes", args[0])
		}
		if op == "ack" {
			err = pod.Acknowledge(cfg.Dir, n)
		} else {
			err = pod.Tail(ctx, cfg.Dir, n, os.Stdout)
		}
		return failed(err), err
	}
	return statusUsage, fmt.Errorf("unknown operation %q in a pod, or wrong arguments", op)
}

func failed(err error) int {
	if err != nil {
		return 1
	}
	return 0
}

// beProcessOne runs the command of a container. Signals are for the command, so they do not
// end the agent.
func beProcessOne(cfg pod.Config, argv []string) (int, error) {
	// Catch SIGPIPE and do not ignore it. Otherwise the command would ignore it, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals, children := make(chan os.Signal, 64), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	signal.Notify(children, syscall.SIGCHLD)
	cfg.Argv, cfg.Signals, cfg.Children = argv, signals, children
	return pod.Run(context.Background(), cfg)
}
