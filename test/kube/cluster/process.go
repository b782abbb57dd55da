package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A process is a running part of the control plane.
type process struct {
	name string
	log  string
	pid  int
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; read it after done
}

// start starts a program. Its output is appended to a file. The system kills the process if
// this process dies.
func start(logs, name, program string, env []string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(logs, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	// In a process group of its own, the part does not get Ctrl-C. Close ends the parts in
	// order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that started the process ends, so keep the thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = log.Close() // this process writes nothing into it
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// pollEvery is the time between two checks whether a part is ready.
const pollEvery = 25 * time.Millisecond

// readyLimit limits the time from the start of a part until it is ready.
const readyLimit = 2 * time.Minute

// await waits until ready returns nil.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("start %s: it has ended: %w; %s ends with:\n%s", p.name, p.err, p.log, tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("start %s: it is not ready: %w; %s ends with:\n%s", p.name, err, p.log, tail(p.log))
		}
	}
}

// tail returns the last lines of a file.
func tail(file string) string {
	text, _ := os.ReadFile(file) // without the file there is nothing to show
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// grace is the time that a part gets to end.
const grace = 3 * time.Second

// stop ends a process and waits for its end.
func (p *process) stop() {
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
	}
}

// kill ends a process without a warning and waits for its end.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.done: // its number may belong to another process by now
	default:
		_ = syscall.Kill(p.pid, s) // it may have ended in this moment
	}
}
