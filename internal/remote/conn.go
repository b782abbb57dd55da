// Package remote runs shell programs on workers and reads their answers.
//
// A Conn is how a worker is reached. Each kind of connection, such as SSH, implements it by
// starting command lines. A Shell adds what all kinds share: programs that the worker
// keeps, and the worker's clock. Packages that only run commands on a worker take a Runner,
// which is the part of a Conn that does this. A Dialer opens the Conns of a run.
//
// # Decisions
//
//   - An operation is one command line. It has a short bootstrap, which takes the
//     script from the worker's kit by its SHA-256, or from stdin the first time. The
//     payload follows on stdin, so no part of a command or its environment stands on a
//     command line.
//   - Workers keep the scripts, because sending them with each of ten operations costs 150
//     kB a worker and run: minutes of a laptop's uplink for 2048 workers. The runner
//     compares the hashes when it connects, and each command checks the length of what it
//     runs. So a crash, a full disk or another version changes nothing of what runs. A hash
//     at each use would cost three processes a command. A user who can write to the login's
//     home can change more than the kit.
//   - A worker whose kit has lost a script says so before it does anything. The runner then
//     sends the script with the same input, and sends it again with each later command of
//     that connection.
//   - MeasureClock is the first command on a connection. It also shows that the login
//     can run anything, so a start-up file that exits gives one clear error. The clock
//     is measured again at the start, because a VM sets its clock after it has booted.
//   - Scripts run with an environment of their own (environment.sh). The environment
//     of the login is for the user's command only.
//   - Scripts reach /proc/sys, /sys, /dev and /tmp through the variables
//     MULTIHOST_ROOT_*, which are empty on real machines. The simulator sets them for
//     each worker.
package remote

import (
	"context"
	"io"
	"strings"
	"time"
)

// A Runner runs commands on one worker. Its methods are safe for concurrent use.
type Runner interface {
	// Name is the name of the worker in errors and events: "s0w3".
	Name() string

	// Run runs a command and waits for its end. If the command fails, Run returns its
	// Status and no error. An error means that the end of the command is not known.
	//
	//   - *ConnectError: the command was not started.
	//   - ErrConnectionLost: the command may have been started and may still run. If the
	//     Status is not zero, the command has ended, and only the rest of the output is
	//     missing.
	//   - The cause of ctx: the session was closed because ctx ended. That does not end
	//     the command on the worker.
	//   - ErrNoStatus, or an error of Cmd's reader or writers.
	//
	// Run returns when the connection is lost, even if Cmd.Stdin never ends.
	Run(ctx context.Context, cmd Cmd) (Status, error)

	// ClockOffset is the worker's clock minus ours as MeasureClock last found it, and 0
	// before.
	ClockOffset() time.Duration
}

// A Conn is the connection to one worker. It outlives a broken connection below it: the
// next Run or Start connects anew. Its methods are safe for concurrent use.
type Conn interface {
	Runner

	// Start starts a command and returns when the worker has accepted it. The end of ctx
	// closes the session, as in Run. The caller calls Wait or Close.
	Start(ctx context.Context, cmd Cmd) (Session, error)

	// MeasureClock measures the worker's clock against ours, keeps the result for
	// ClockOffset and returns it. It also proves that the login can run commands. It
	// fails as Run does.
	MeasureClock(ctx context.Context) (time.Duration, error)

	// Silence reports whether nothing comes from the worker any more, and when something
	// last did. since is the zero time if the worker was never reached.
	Silence() (since time.Time, silent bool)

	// User is the name that commands run as.
	User() string

	// HostKey is the host key of the worker's sshd in authorized_keys form, if other
	// workers can log in to this one there with Cmd.LoginTo, else "".
	HostKey() string

	// Close closes the connection and ends its sessions with ErrConnectionLost. Later
	// commands fail with ErrClosed. It does not stop commands on the worker.
	Close()
}

// A Session is a running command. Its methods are safe for concurrent use.
type Session interface {
	// Stdin writes to the command's standard input; closing it ends the input. If
	// Cmd.Stdin is set, it refuses writes.
	Stdin() io.WriteCloser

	// Wait waits for the end of the command; see Runner.Run for what it returns. All
	// output has been written when it returns, and nothing is written afterwards.
	Wait() (Status, error)

	// Close ends the session, not the command on the worker, and does not wait for the
	// worker's answer. Wait then returns ErrClosed, unless the command has ended before.
	Close() error
}

// A Cmd is a command to run on a worker.
type Cmd struct {
	// Line is the command line, exactly as the login shell gets it. Build it with Quote.
	// Empty means the login shell itself. Program.Cmd makes the commands that are
	// scripts.
	Line string

	// Terminal gives the command a pty on the worker: Stdout receives its output, and
	// its input is the keyboard. Nil: none.
	Terminal *Terminal

	// AgentSocket is the socket of an ssh-agent here that the command may use. root of
	// the worker can use it, too, as long as the connection lasts. Empty: none.
	AgentSocket string

	// Stdin is copied to the command's standard input, which is then closed. Nil: Run
	// closes the input at once, Start leaves it to Session.Stdin. A Read that blocks
	// past the end of the command is abandoned after a second.
	Stdin io.Reader

	// Stdout and Stderr receive the command's output; nil drops it. Only one goroutine
	// at a time writes to each of them, and to both if they are equal. Nothing is
	// written after Run or Wait has returned. A slow writer delays only this command
	// (the worker stops it once the window, 2 MiB with SSH, is full). A writer that fails ends the
	// session with its error.
	Stdout, Stderr io.Writer

	// LoginTo lets the command log in to that worker once, as its user. The command uses
	// the ssh of the worker that it runs on (OpenSSH 8.9 or later). It fails at
	// StageExec if sshd does not forward agents. Such a command has a connection of its
	// own. When the command ends, the connection is closed, and the permission to log in
	// ends.
	LoginTo Conn

	// ReadOnly says that the command changes nothing on the worker. A Shell with
	// ShellConfig.ReadOnly runs only such commands. On any other Shell, the worker may
	// still keep the script of a Program that is ReadOnly.
	ReadOnly bool

	program *programCall // instead of Line, or nil
}

// A Terminal describes the user's terminal, so that the command gets one like it.
type Terminal struct {
	Type    string                     // TERM
	Size    func() (columns, rows int) // called at the start and for each value from Resized
	Resized <-chan struct{}            // may be nil
}

// A Status is how a command ended.
type Status struct {
	Code   int    // exit code; 128+n for a death by signal n
	Signal string // signal that ended the command, such as "KILL", else empty; "UNKNOWN" for a signal for which SSH has no name
}

// SignalStatus returns the Status that a shell reports for a death by the named signal. The
// name is "TERM", "SIGTERM" or, as SSH sends it (RFC 4254 §6.10), "SYS@openssh.com". ""
// stands for a signal without a name.
func SignalStatus(name string) Status {
	name, _, _ = strings.Cut(name, "@")
	name = strings.TrimPrefix(name, "SIG")
	numbers := map[string]int{
		"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8,
		"KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
		"XCPU": 24, "XFSZ": 25, "SYS": 31,
	}
	if name == "" {
		name = "UNKNOWN" // sshd sends "SIG@openssh.com" for a signal without a name
	}
	return Status{Code: 128 + numbers[name], Signal: name}
}
