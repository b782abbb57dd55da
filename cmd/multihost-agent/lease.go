//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"multihost/internal/agent"
	"multihost/internal/agent/watch"
)

// lease runs one operation on the lease of a job's slices:
//
//	boot [FD RUN]          from the startup script of the slices, which root runs at every
//	                       boot; the open file FD holds the lock of the watch of RUN
//	watch RUN              keeps a watch alive; its output is the log
//	kept boot|watch RUN    the watch that boot or watch starts; file 3 holds its lock
//	arm NONCE              from a runner; stdin has the terms and then the line "end"
//	adopt NONCE            as arm, but does not examine what this worker may do
//	renew NONCE RUN HOLD   from a runner that is alive, and may be silent for HOLD seconds
//	look NONCE RUN         only reports
//
// Each answer is a line that begins with NONCE.
func lease(ctx context.Context, args []string) int {
	thrifty()
	args = append(args, "", "", "")
	h := host()
	nonce := args[1]
	var err error
	switch args[0] {
	case "boot", "watch":
		err = begin(ctx, h, args[0], args[1], args[2])
		nonce = ""
	case "kept":
		err = kept(ctx, h, args[1], args[2])
		nonce = ""
	case "arm", "adopt":
		err = h.Arm(ctx, nonce, os.Stdin, args[0] == "adopt")
	case "renew":
		err = h.Renew(nonce, args[2], args[3])
	case "look":
		err = h.Tell(nonce, args[2])
	default:
		fmt.Fprintf(os.Stderr, "multihost-agent: unknown operation %q on a lease\n", args[0])
		return statusUsage
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, agent.ErrForeign): // the log has the error; another watch would get the same one
		return 0
	case nonce != "":
		fmt.Printf("%s error %s\n", nonce, strings.ReplaceAll(err.Error(), "\n", " "))
	default:
		h.Note(err.Error())
	}
	return 1
}

// thrifty keeps the program small. The program lives as long as the slices, beside a
// command that may need every byte and core of the worker.
func thrifty() {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(20)
}

// rest gives memory back to the kernel until the next look: freed objects, and cached pages
// of the program's own file.
func rest() {
	debug.FreeOSMemory()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n == 3 && mode[1] != 'w' && strings.HasSuffix(strings.TrimRight(line, "\n"), " "+self) {
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, from, to-from, syscall.MADV_DONTNEED) // only advice to the kernel
		}
	}
}

func host() *watch.Host {
	transport := agent.Transport()
	transport.DisableKeepAlives = true // hours may pass between two calls
	var carrier http.RoundTripper = transport
	metadata := &agent.Metadata{Host: os.Getenv("GCE_METADATA_HOST"), Transport: carrier}
	return &watch.Host{
		Tmp: os.Getenv("MULTIHOST_ROOT_TMP"), Home: cmp.Or(os.Getenv("HOME"), "/root"), Login: os.Getuid(),
		Metadata: metadata, Client: &agent.Client{Metadata: metadata, Transport: carrier},
		Out: os.Stdout, Uptime: watch.Uptime, Spawn: spawn, Idle: rest,
	}
}

// begin does the operations "boot [FD RUN]" and "watch RUN". With a RUN, this process becomes
// the keeper of a watch: it starts the watch as a child process.
func begin(ctx context.Context, h *watch.Host, op, first, second string) error {
	run, lock := first, (*os.File)(nil)
	switch {
	case op == "boot" && first == "":
		return h.Boot(ctx, "", nil)
	case op == "boot":
		n, err := strconv.Atoi(first)
		if err != nil || n < 3 {
			return fmt.Errorf("no open file is called %q", first)
		}
		syscall.CloseOnExec(n)
		run, lock = second, os.NewFile(uintptr(n), "lock")
	default:
		var err error
		if lock, err = h.Lock(ctx, run); lock == nil {
			return err
		}
	}
	defer lock.Close()
	return watch.Keep(ctx, func(ctx context.Context) error { return keep(ctx, op, run, lock) }, h.Note)
}

// keep runs a watch as a child process. It returns nil when nothing is left to watch. If
// this process dies, the child runs on.
func keep(ctx context.Context, op, run string, lock *os.File) error {
	// /proc/self/exe works even if somebody has removed the program's file.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "lease", "kept", op, run)
	cmd.Args[0] = os.Args[0]
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{lock}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	rest()
	return cmd.Wait()
}

// kept is the child process that keep starts: the watch itself.
func kept(ctx context.Context, h *watch.Host, op, run string) error {
	const fd = 3
	syscall.CloseOnExec(fd)
	h.Keeper = os.Getppid()
	lock := os.NewFile(fd, "lock")
	if op == "boot" {
		return h.Boot(ctx, run, lock)
	}
	return h.Watch(ctx, run, lock)
}

// spawn starts the keeper of a watch in a session of its own.
func spawn(run string, log *os.File) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "lease", "watch", run)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}
