//go:build unix

package detached

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Program is a program to run on the worker.
type Program struct {
	Args  []string
	Stdin io.Reader     // nil: empty
	Limit time.Duration // after this time the program gets TERM, and 10 s later KILL; 0: no limit
	Env   []string      // variables besides those of this process
	Merge bool          // stderr goes where stdout goes
}

// An Output is the result of a program that was started. Code is its exit code, or -1 if it
// was killed.
type Output struct {
	Out, Err []byte
	Code     int
}

// A System runs programs. Run returns an error if it cannot start the program. If the
// context or the limit ends the program, its code is -1.
type System interface {
	Run(ctx context.Context, p Program) (Output, error)
}

// Host is the System of the machine that this process runs on. It keeps a program's output
// in a file below Scratch while the program runs. A pipe would not do, because a background
// process of the program may hold it open for ever.
type Host struct{ Scratch string }

// killAfter is the time between TERM and KILL for a program that has reached its limit.
const killAfter = 10 * time.Second

// Run implements System. Run ends the whole process group, not only the program.
func (h Host) Run(ctx context.Context, p Program) (Output, error) {
	if p.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.Limit)
		defer cancel()
	}
	out, err := h.file()
	if err != nil {
		return Output{}, err
	}
	defer out.Close()
	errs := out
	if !p.Merge {
		if errs, err = h.file(); err != nil {
			return Output{}, err
		}
		defer errs.Close()
	}
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Env = append(cmd.Environ(), p.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.Stdin, out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = killAfter
	if err := cmd.Start(); err != nil {
		return Output{}, err
	}
	ended := make(chan struct{})
	killer := make(chan struct{})
	go func() {
		defer close(killer)
		kill(ctx, -cmd.Process.Pid, ended)
	}()
	_ = cmd.Wait() // the process state has the code
	close(ended)
	<-killer
	o := Output{Code: cmd.ProcessState.ExitCode()}
	if ctx.Err() != nil {
		o.Code = -1
	}
	o.Out, err = content(out)
	if !p.Merge && err == nil {
		o.Err, err = content(errs)
	}
	return o, err
}

// If the context ends first, kill ends a process group.
func kill(ctx context.Context, group int, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	_ = syscall.Kill(group, syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(killAfter):
	}
	_ = syscall.Kill(group, syscall.SIGKILL) // also members that outlive the first process
}

func (h Host) file() (*os.File, error) {
	f, err := os.CreateTemp(h.Scratch, "out.*")
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}

// outputLimit limits the bytes that are read of a program's output.
const outputLimit = 16 << 20

func content(f *os.File) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(f, 0, outputLimit))
}

// A user is the login that a command runs as.
type user struct {
	name     string
	rootHome string
}

// run runs a program as ssh would, without the variables of sudo and without our locale. It
// has a limit, because a home directory that hangs must not block the worker for ever.
func (u user) run(ctx context.Context, s System, p Program) (Output, error) {
	words := []string{"env", "-u", "LC_ALL"}
	if u.name == "root" {
		words = append(words, "HOME="+u.rootHome)
	} else {
		words = append(words, "sudo", "-n", "-H", "-u", u.name, "--", "env", "-u", "SUDO_COMMAND", "-u", "SUDO_USER", "-u", "SUDO_UID", "-u", "SUDO_GID")
	}
	p.Args = append(words, p.Args...)
	return s.Run(ctx, p)
}

// opLimit limits an operation of the supervisor's scripts, with the grace time added.
// Without the grace time, all operations except venv are short.
const (
	opLimit   = 120 * time.Second
	venvLimit = 1920 * time.Second
)

// An answer has the lines of an operation's output that begin with the nonce.
type answer struct {
	nonce string
	lines []string
	err   string // last line of stderr
}

// get returns the rest of the last line that begins with word.
func (a answer) get(word string) (rest string, ok bool) {
	for _, line := range a.lines {
		if r, found := strings.CutPrefix(line, a.nonce+" "+word); found && (r == "" || r[0] == ' ') {
			rest, ok = strings.TrimPrefix(r, " "), true
		}
	}
	return rest, ok
}

// op runs one operation of the supervisor's scripts as the login. stdin follows the script.
func (w *worker) op(ctx context.Context, limit time.Duration, stdin []byte, name string, args ...string) (answer, error) {
	script, ok := w.kit[name]
	if !ok {
		return answer{}, errors.New("the kit has no " + name)
	}
	nonce := "mhjob" + strconv.Itoa(os.Getpid())
	words := []string{"bash", "--norc", "--noprofile", "-p", "-c", string(w.kit["bootstrap"]), "multihost-" + name, strconv.Itoa(len(script)), nonce}
	out, err := w.user.run(ctx, w.cfg.System, Program{Args: append(words, args...), Stdin: io.MultiReader(bytes.NewReader(script), bytes.NewReader(stdin)), Limit: w.job.Grace.Truncate(time.Second) + limit})
	if err != nil {
		return answer{}, err
	}
	a := answer{nonce: nonce, lines: strings.Split(string(out.Out), "\n")}
	for line := range strings.Lines(string(out.Err)) {
		if !strings.HasPrefix(line, "mhjob") {
			a.err = strings.TrimRight(line, "\n")
		}
	}
	return a, nil
}

// The operation status itself records an end that nobody saw.
func (w *worker) status(ctx context.Context, attempt int) (life, error) {
	a, err := w.op(ctx, opLimit, nil, "status", w.job.Run, strconv.Itoa(attempt))
	if err != nil {
		return unknown, fmt.Errorf("the worker cannot be asked: %w", err)
	}
	if is, ok := a.get("phase"); ok {
		return life(is), nil
	}
	return unknown, fmt.Errorf("the worker cannot be asked: %s", a.err)
}

// stop stops the command. It returns the number of processes that it ended.
func (w *worker) stop(ctx context.Context, reason string) int {
	a, err := w.op(ctx, opLimit, nil, "stop", w.job.Run, strconv.Itoa(w.m.attempt), strconv.FormatInt(w.job.Grace.Milliseconds(), 10), reason)
	if err != nil {
		return 0
	}
	counts, _ := a.get("counts")
	first, _, _ := strings.Cut(counts, " ")
	n, _ := strconv.Atoi(first)
	return n
}
