//go:build linux

package pod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"multihost/internal/agent"
)

// A Config says what Run starts, and where Run keeps its files.
type Config struct {
	Argv []string // the command
	Env  []string // variables of this process
	Dir  string   // folder of the container's files; Run makes it
	// Message is the file whose text the kubelet copies into the status of the container.
	Message string
	Out     *os.File         // the container's own output
	Signals <-chan os.Signal // signals for the command
	// Children gets SIGCHLD. It needs room for one signal only: Run may miss further ones.
	Children <-chan os.Signal
	// Preflight is the preflight's script, which runs before the command, or "".
	Preflight string
	Mode      string        // of the preflight: apply, require or check
	NUMA      string        // bind, preferred or off, as in --numa
	Sys       string        // "/sys"
	Wait      time.Duration // longest wait at the end for a follower that has begun to read
	Arrive    time.Duration // longest time from the start of Run until the first follower begins to read
	Drain     time.Duration // how long processes may live that the command leaves behind
}

// Names of files in the folder of a container.
const (
	logName      = "output.log"
	followedName = "followed"
	endName      = "end"
	ackName      = "ack"

	preflightName = "preflight"
)

// Exit statuses of commands that did not run. Shells use the same ones.
const (
	statusNotFound = 127
	statusNotRun   = 126

	statusPreflight = 76 // of multihost, if the preflight fails
)

// openFiles is the limit of open files of the command, if the hard limit allows it.
const openFiles = 100_000

// Run starts the command, waits until it has ended and a follower has its output, and
// returns its exit status. Call it once in a process: it waits for all children of the
// process, and adopts the processes that they leave behind.
func Run(ctx context.Context, cfg Config) (int, error) {
	begun := time.Now()
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return statusNotRun, err
	}
	out, err := newOutput(cfg)
	if err != nil {
		return statusNotRun, err
	}
	defer out.close()
	r := &runner{Config: cfg, out: out}
	end := r.command()
	end.Length, end.SHA256 = out.length, hex.EncodeToString(out.hash.Sum(nil))
	if out.err != nil {
		end.Failure = strings.TrimPrefix(end.Failure+"; "+out.err.Error(), "; ")
	}
	err = r.tell(end)
	r.await(ctx, begun, end)
	return end.Code, err
}

// A runner runs one command.
type runner struct {
	Config
	out *output
}

// command runs the preflight and the command. It does not set Length and SHA256 of the End.
func (r *runner) command() End {
	env, err := environment(r.Env)
	if err == nil {
		err = raiseLimit()
	}
	if err != nil {
		return r.failed(statusNotRun, err)
	}
	adopt()
	argv := r.Argv
	if r.Preflight != "" {
		if end, ok := r.preflight(env); !ok {
			return end
		}
	}
	if words := r.numa(); len(words) > 0 {
		switch end, ok := r.before(append(words, "true"), env); {
		case ok:
			argv = append(words, argv...)
		case end.Told != "":
			return end
		default:
			r.out.note("multihost: numactl does not work here, so the command runs on all NUMA nodes")
		}
	}
	return r.start(argv, env)
}

// preflight makes the settings of the worker. It returns false if the command must not
// start. The settings belong to the node, so the next container usually finds them in place.
func (r *runner) preflight(env []string) (End, bool) {
	if _, err := os.Stat(r.Preflight); err != nil {
		r.out.note("multihost: the image has no script of the preflight, so the worker's settings stay as they are")
		return End{}, true
	}
	answer := filepath.Join(r.Dir, preflightName)
	end := r.start([]string{"bash", "-c", `exec bash "$0" >"$1" 2>&1`, r.Preflight, answer}, env)
	if end.Told != "" || end.Failure != "" {
		return end, false
	}
	out, err := os.ReadFile(answer)
	if err != nil {
		return r.failed(statusPreflight, err), false
	}
	said := agent.ReadPreflight(out)
	for _, failed := range said.Failed {
		r.out.note("multihost: " + failed.String())
	}
	if err := said.Refusal(r.Mode); err != nil {
		return r.failed(statusPreflight, err), false
	}
	return end, true
}

// before runs a program before the command. It returns false if the program failed, or a
// signal to stop came.
func (r *runner) before(argv, env []string) (End, bool) {
	end := r.start(argv, env)
	return end, end.Code == 0
}

func (r *runner) failed(code int, err error) End {
	r.out.note("multihost: " + err.Error())
	return End{Code: code, Failure: err.Error(), Time: time.Now()}
}

// numa returns the words in front of a command that bind it to a NUMA node. It returns none
// if the machine has only one node, or has no numactl.
func (r *runner) numa() []string {
	nodes, _ := filepath.Glob(filepath.Join(r.Sys, "devices/system/node/node[0-9]*")) // the pattern is well-formed
	if r.NUMA != "bind" && r.NUMA != "preferred" || len(nodes) < 2 {
		return nil
	}
	if _, err := exec.LookPath("numactl"); err != nil {
		r.out.note("multihost: the image has no numactl, so the command runs on all NUMA nodes")
		return nil
	}
	memory := map[string]string{"bind": "--membind=0", "preferred": "--preferred=0"}[r.NUMA]
	return []string{"numactl", memory, "--cpunodebind=0"}
}

// start runs a program in its own process group. It returns when the program and all
// processes that it left behind have ended.
func (r *runner) start(argv, env []string) End {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return r.failed(statusNotFound, fmt.Errorf("start %q: %w", argv[0], errors.Unwrap(err)))
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return r.failed(statusNotRun, fmt.Errorf("start %q: %w", argv[0], err))
	}
	defer reader.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		writer.Close()
		return r.failed(statusNotRun, fmt.Errorf("start %q: %w", argv[0], err))
	}
	main, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env: env, Files: []uintptr{null.Fd(), writer.Fd(), writer.Fd()}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	null.Close()
	writer.Close()
	if err != nil {
		code := statusNotRun
		if errors.Is(err, os.ErrNotExist) { // the script's interpreter does not exist
			code = statusNotFound
		}
		return r.failed(code, fmt.Errorf("start %q: %w", argv[0], err))
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		r.out.copy(reader)
	}()
	end := r.wait(main)
	_ = reader.SetReadDeadline(time.Now().Add(r.Drain)) // a pipe has deadlines
	<-read
	return end
}

// wait passes signals on to a process group until all its processes have ended. If the
// first process has ended without a signal to stop, wait stops the other ones.
func (r *runner) wait(main int) End {
	var (
		end   End
		ended bool
		told  string
		limit <-chan time.Time
		kills = []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}
		again <-chan time.Time
	)
	for {
		if status, ok := reap(main); ok {
			ended, end = true, endOf(status)
			switch end.Told = told; {
			case told == "":
				limit = time.After(0)
			case end.Code == 0:
				end.Code = 128 + int(syscall.SIGTERM)
			}
		}
		if ended {
			if syscall.Kill(-main, 0) == syscall.ESRCH {
				return end // processes outside our groups end with this process
			}
			again = time.After(look) // some processes have another parent, so no signal reports their end
		}
		select {
		case <-r.Children:
		case <-again:
		case s := <-r.Signals:
			signal, ok := s.(syscall.Signal)
			if !ok {
				continue
			}
			if told == "" && stops(signal) {
				told = name(signal)
			}
			_ = syscall.Kill(-main, signal) // the group may just have ended
		case <-limit:
			if len(kills) == 0 {
				return end
			}
			_ = syscall.Kill(-main, kills[0]) // the group may just have ended
			kills, limit = kills[1:], time.After(r.Drain)
		}
	}
}

// stops reports whether a signal asks a program to end.
func stops(s syscall.Signal) bool {
	return s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// reap takes the status of every child that has ended. It returns the status of main, if
// main has ended.
func reap(main int) (of syscall.WaitStatus, ok bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil || pid == 0: // no child is left, or none has ended
			return of, ok
		case pid == main:
			of, ok = status, true
		}
	}
}

func endOf(status syscall.WaitStatus) End {
	e := End{Code: status.ExitStatus(), Time: time.Now()}
	if status.Signaled() {
		e.Code, e.Signal = 128+int(status.Signal()), name(status.Signal())
	}
	return e
}

// names has the names of the signals that end programs.
var names = map[syscall.Signal]string{
	syscall.SIGHUP: "SIGHUP", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGILL: "SIGILL", syscall.SIGTRAP: "SIGTRAP",
	syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE", syscall.SIGKILL: "SIGKILL", syscall.SIGUSR1: "SIGUSR1",
	syscall.SIGSEGV: "SIGSEGV", syscall.SIGUSR2: "SIGUSR2", syscall.SIGPIPE: "SIGPIPE", syscall.SIGALRM: "SIGALRM", syscall.SIGTERM: "SIGTERM",
	syscall.SIGXCPU: "SIGXCPU", syscall.SIGXFSZ: "SIGXFSZ", syscall.SIGSYS: "SIGSYS",
}

func name(s syscall.Signal) string {
	if n := names[s]; n != "" {
		return n
	}
	return fmt.Sprintf("signal %d", int(s))
}

// tell writes the End to the files that the follower and the kubelet read.
func (r *runner) tell(end End) error {
	data, err := json.Marshal(end)
	if err != nil {
		return err
	}
	if r.Message != "" {
		err = os.WriteFile(r.Message, []byte(end.Message()), 0o644)
	}
	// The kubelet's file is a mount, which a rename cannot replace.
	return errors.Join(err, agent.WriteFile(filepath.Join(r.Dir, endName), data, 0o644))
}

// look is the pause between two looks at files of another process.
const look = 100 * time.Millisecond

// await waits until a follower has all of the output. It gives up when both r.Wait and
// r.Arrive have passed, or if no follower has begun to read within r.Arrive.
func (r *runner) await(ctx context.Context, begun time.Time, end End) {
	ctx, cancel := context.WithTimeout(ctx, max(r.Wait, r.Arrive))
	defer cancel()
	for !r.acknowledged(end.Length) {
		if _, err := os.Stat(filepath.Join(r.Dir, followedName)); err != nil && time.Since(begun) >= r.Arrive {
			return
		}
		if agent.Sleep(ctx, look) != nil {
			return
		}
	}
}

func (r *runner) acknowledged(length int64) bool {
	text, err := os.ReadFile(filepath.Join(r.Dir, ackName))
	return err == nil && string(text) == strconv.FormatInt(length, 10)
}

// An output keeps what a command writes.
type output struct {
	file   *os.File
	own    *os.File // the container's output; nil: it takes no more bytes
	hash   hash.Hash
	length int64
	err    error // why the file lacks bytes
}

func newOutput(cfg Config) (*output, error) {
	f, err := os.OpenFile(filepath.Join(cfg.Dir, logName), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	return &output{file: f, own: cfg.Out, hash: sha256.New()}, nil
}

func (o *output) close() { o.file.Close() }

// copy keeps the bytes of r until its end or its deadline.
func (o *output) copy(r io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		o.write(buf[:n])
		if err != nil {
			return
		}
	}
}

// write keeps bytes. Once the disk has been full, the file gets no more bytes, so that it
// stays the beginning of the output. The command continues.
func (o *output) write(p []byte) {
	if o.err == nil {
		n, err := o.file.Write(p)
		o.hash.Write(p[:n])
		o.length += int64(n)
		if err != nil {
			o.err = fmt.Errorf("keep output: %w", err)
		}
	}
	if o.own != nil {
		if _, err := o.own.Write(p); err != nil {
			o.own = nil
		}
	}
}

// note adds a line of the agent's own.
func (o *output) note(line string) { o.write([]byte(line + "\n")) }

// environment returns the variables of the command: the container's own, and those that
// multihost sets on all kinds of workers. multihost derives its variables from the
// container's.
func environment(own []string) ([]string, error) {
	value := map[string]string{}
	for _, v := range own {
		name, text, _ := strings.Cut(v, "=")
		value[name] = text
	}
	env := make([]string, 0, len(own)+4)
	env = append(env, own...)
	if _, set := value["PYTHONUNBUFFERED"]; !set {
		env = append(env, "PYTHONUNBUFFERED=1")
	}
	if value["MULTIHOST_RUN"] == "" {
		return env, nil
	}
	number := map[string]int{}
	for _, name := range []string{"RESTARTS", "SLICE_ID", "NUM_SLICES", "WORKER_ID", "NUM_WORKERS", "LOCAL_ID", "NUM_LOCAL"} {
		n, err := strconv.Atoi(value["MULTIHOST_"+name])
		if err != nil || n < 0 {
			return nil, fmt.Errorf("the pod has no number in MULTIHOST_%s: %q", name, value["MULTIHOST_"+name])
		}
		number[name] = n
	}
	process := (number["SLICE_ID"]*number["NUM_WORKERS"]+number["WORKER_ID"])*number["NUM_LOCAL"] + number["LOCAL_ID"]
	return append(env,
		"MULTIHOST_ATTEMPT="+strconv.Itoa(number["RESTARTS"]+1),
		"MULTIHOST_PROCESS_ID="+strconv.Itoa(process),
		"MULTIHOST_NUM_PROCESSES="+strconv.Itoa(number["NUM_SLICES"]*number["NUM_WORKERS"]*number["NUM_LOCAL"]),
	), nil
}

func raiseLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	limit.Cur = min(openFiles, limit.Max)
	return os.NewSyscallError("setrlimit", syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
}

// adopt makes this process the parent of processes whose own parent has ended, even if it
// is not process 1.
func adopt() {
	const setChildSubreaper = 36                                             // PR_SET_CHILD_SUBREAPER
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0) // in Linux since 3.4
}
