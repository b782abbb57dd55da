//go:build linux

package worker

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// process is the command of a session, with the machine's ends of its pipes.
type process struct {
	proc   *os.Process
	pidfd  int
	stdin  *os.File
	output []*os.File // stdout and stderr, or a terminal
	tty    bool

	mu    sync.Mutex
	ended bool // the process id may belong to another process now
}

// startProcess runs a program in its own session, with pipes, or on the terminal tty if
// that is not nil.
//
// The pipes are the kernel's own. So the process and its children see the same events on
// them (closed, full, end of file) as with sshd. A wait for the process does not wait for
// its pipes.
func (m *machine) startProcess(file string, argv, env []string, dir string, tty *pty) (*process, error) {
	return startOn(m.start, file, argv, env, dir, tty)
}

// A starter starts a process as os.StartProcess does.
type starter func(file string, argv []string, attr *os.ProcAttr) (*os.Process, error)

// startOn is startProcess for any machine.
func startOn(start starter, file string, argv, env []string, dir string, tty *pty) (*process, error) {
	p := &process{pidfd: -1, tty: tty != nil}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if tty != nil {
		p.stdin, p.output = tty.master, []*os.File{tty.master}
		theirs = []*os.File{tty.slave, tty.slave, tty.slave}
	} else {
		for i := range 3 {
			r, w, err := pipe(i == 0)
			if err != nil {
				p.closePipes()
				return nil, err
			}
			if i == 0 {
				p.stdin = w
				theirs = append(theirs, r)
			} else {
				p.output = append(p.output, r)
				theirs = append(theirs, w)
			}
		}
	}
	attr := &os.ProcAttr{Dir: dir, Env: env, Files: theirs, Sys: &syscall.SysProcAttr{
		Setsid:  true,
		Setctty: p.tty,
		PidFD:   &p.pidfd,
	}}
	var err error
	if p.proc, err = start(file, argv, attr); err != nil {
		p.closePipes()
		return nil, err
	}
	return p, nil
}

// pipe makes a pipe. The machine's end never blocks a thread. The command's end blocks as
// usual.
func pipe(toCommand bool) (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	ours := fds[0]
	if toCommand {
		ours = fds[1]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// wait waits for the process and returns its status. It blocks no thread.
func (p *process) wait() syscall.WaitStatus {
	p.awaitExit()
	p.mu.Lock()
	defer p.mu.Unlock()
	st, err := p.proc.Wait()
	p.ended = true
	if err != nil {
		return syscall.WaitStatus(syscall.SIGKILL) // somebody else has collected the process
	}
	return st.Sys().(syscall.WaitStatus)
}

// awaitExit returns when the process has ended but is not collected yet, so that no other
// process can have its id. It waits in the poller of the runtime, or blocks a thread if the
// kernel lacks that.
func (p *process) awaitExit() {
	if p.pidfd >= 0 && unix.SetNonblock(p.pidfd, true) == nil {
		f := os.NewFile(uintptr(p.pidfd), "pidfd")
		defer f.Close()
		raw, err := f.SyscallConn()
		if err == nil {
			_ = raw.Read(func(fd uintptr) bool {
				poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, err := unix.Poll(poll, 0)
				return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
			})
		}
	}
	for {
		err := unix.Waitid(unix.P_PID, p.proc.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// signalGroup sends a signal to the command's process group, as sshd does for an ordinary
// user.
func (p *process) signalGroup(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return os.ErrProcessDone
	}
	return unix.Kill(-p.proc.Pid, sig)
}

// closePipes closes the machine's ends. The command then reads the end of its input and can
// no longer write. On a terminal it gets a hangup.
func (p *process) closePipes() {
	if p.stdin != nil {
		p.stdin.Close()
	}
	for _, f := range p.output {
		f.Close()
	}
}

// pty is a pseudo-terminal.
type pty struct {
	fd            int // descriptor of master
	master, slave *os.File
	name, term    string
}

func newPTY(payload []byte) (*pty, error) {
	var v struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if err := ssh.Unmarshal(payload, &v); err != nil {
		return nil, err
	}
	p, err := openPTY(v.Term)
	if err != nil {
		return nil, err
	}
	if err = setModes(p.fd, []byte(v.Modes)); err == nil {
		err = p.setSize(v.Columns, v.Rows)
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	return p, nil
}

// openPTY opens a new terminal.
func openPTY(term string) (*pty, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	p := &pty{fd: fd, master: os.NewFile(uintptr(fd), "ptmx"), term: term}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		p.name = fmt.Sprintf("/dev/pts/%d", n)
		p.slave, err = os.OpenFile(p.name, os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	return p, nil
}

func (p *pty) resize(payload []byte) error {
	var v struct{ Columns, Rows, Width, Height uint32 }
	if err := ssh.Unmarshal(payload, &v); err != nil {
		return err
	}
	return p.setSize(v.Columns, v.Rows)
}

func (p *pty) setSize(columns, rows uint32) error {
	raw, err := p.master.SyscallConn()
	if err != nil {
		return err
	}
	var sizeErr error
	err = raw.Control(func(fd uintptr) {
		sizeErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)})
	})
	return errors.Join(err, sizeErr)
}

func (p *pty) close() {
	p.master.Close()
	if p.slave != nil {
		p.slave.Close()
	}
}
