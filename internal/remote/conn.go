// Package remote runs shell programs on workers and reads their answers.
//
// A Conn is a connection to a worker. Each kind of connection, such as SSH, implements Conn
// by starting command lines. A Shell adds what all kinds share: programs that the worker
// keeps, and the measurement of its clock. A Runner is the part of a Conn that runs
// commands; packages that need no more take a Runner. A Dialer opens the Conns of a run.
//
// # Decisions
//
//   - In this package, an operation is one command line. The line has a short bootstrap,
//     which takes the script from the worker's kit by its SHA-256, or the first time from
//     stdin. The payload follows on stdin. So a command line contains no part of a user's
//     command or of its environment.
//   - Workers keep the scripts. A run has ten operations: sending the scripts each time
//     would cost 150 kB per worker, which for 2048 workers is minutes of a laptop's uplink.
//     The runner compares the hashes when it connects. Each command checks the length of
//     the script that it runs. So a crash, a full disk or another version of multihost
//     never makes a worker run a damaged or wrong script. A hash at each use would cost
//     three processes per command. The check is not for security: a user who can write to
//     the login's home can change more than the kit.
//   - If a script is missing in a worker's kit, the worker says so before it does anything.
//     The runner then sends the script together with the same input, and again with each
//     later command of that connection.
//   - MeasureClock is the first command on a connection. It shows whether the login can run
//     anything, so that a start-up file that exits gives one clear error. The clock is
//     measured again when the run starts, because a VM sets its clock after its boot.
//   - Scripts run with an environment of their own (environment.sh). Only the user's
//     command gets the environment of the login.
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
	// Status and no error. An error means that nobody knows how the command ended. Its
	// kinds are:
	//
	//   - *ConnectError: the worker did not start the command.
	//   - ErrConnectionLost: the command may have started and may still run. If the Status
	//     is not zero, the command has ended, and only the rest of the output is missing.
	//   - The cause of ctx: the session was closed because ctx ended. The command may still
	//     run on the worker.
	//   - ErrNoStatus, or an error of Cmd's reader or writers.
	//
	// Run returns when the connection is lost, even if Cmd.Stdin never ends.
	Run(ctx context.Context, cmd Cmd) (Status, error)

	// ClockOffset is the worker's clock minus ours by the last MeasureClock, or 0 before
	// the first one.
	ClockOffset() time.Duration
}

// A Conn is the connection to one worker. It stays usable if the connection below it
// breaks: the next Run or Start connects again. Its methods are safe for concurrent use.
type Conn interface {
	Runner

	// Start starts a command, and returns when the worker has accepted it. When ctx ends,
	// the session is closed, as in Run. The caller calls Wait or Close.
	Start(ctx context.Context, cmd Cmd) (Session, error)

	// MeasureClock measures how far the worker's clock is ahead of ours. It returns the
	// result and keeps it for ClockOffset. It also proves that the login can run commands.
	// It fails as Run does.
	MeasureClock(ctx context.Context) (time.Duration, error)

	// Silence reports whether the worker has stopped sending. since is when it last sent
	// something, or zero if it was never reached.
	Silence() (since time.Time, silent bool)

	// User is the name of the user who runs the commands.
	User() string

	// HostKey is the host key of the worker's sshd in authorized_keys form, or "" if other
	// workers cannot log in to this one with Cmd.LoginTo.
	HostKey() string

	// Close closes the connection and ends its sessions with ErrConnectionLost. Later
	// commands fail with ErrClosed. Commands on the worker run on.
	Close()
}

// A Session is a running command. Its methods are safe for concurrent use.
type Session interface {
	// Stdin writes to the command's standard input. Its Close ends the input. It refuses
	// writes if Cmd.Stdin is set.
	Stdin() io.WriteCloser

	// Wait waits for the end of the command and returns what Runner.Run returns. All output
	// is written then, and nothing is written afterwards.
	Wait() (Status, error)

	// Close ends the session. It does not end the command on the worker, and does not wait
	// for an answer. Wait then returns ErrClosed, unless the command has ended before.
	Close() error
}

// A Cmd is a command to run on a worker.
type Cmd struct {
	// Line is the command line, exactly as the login shell gets it. Build it with Quote. ""
	// means the login shell itself. Program.Cmd makes the lines for scripts.
	Line string

	// Terminal gives the command a pty on the worker. Stdout receives the output of the
	// pty, and its keyboard is the command's input. Nil means no pty.
	Terminal *Terminal

	// AgentSocket is the socket of an ssh-agent here that the command may use, or "". While
	// the connection lasts, root of the worker can use it, too.
	AgentSocket string

	// Stdin is copied to the command's standard input, which is then closed. If Stdin is
	// nil, Run closes the input at once, and Start leaves it to Session.Stdin. A Read that
	// still blocks a second after the end of the command is abandoned.
	Stdin io.Reader

	// Stdout and Stderr receive the command's output. Output for a nil writer is dropped.
	// At most one goroutine at a time writes to each of them, or to both if they are equal.
	// Nothing is written after Run or Wait has returned. A slow writer delays only this
	// command: the worker stops it once the window is full (2 MiB with SSH). If a writer
	// fails, the session ends with its error.
	Stdout, Stderr io.Writer

	// LoginTo lets the command log in once to the worker of that Conn, as its user, with
	// the ssh of its own worker (OpenSSH 8.9 or later). The command fails at StageExec if
	// sshd does not allow agent forwarding. It has a connection of its own, which is closed
	// when the command ends. The permission to log in ends then, too.
	LoginTo Conn

	// ReadOnly says that the command changes nothing on the worker. A Shell with
	// ShellConfig.ReadOnly runs only such commands. On any other Shell, the worker may
	// still keep the script of a Program.
	ReadOnly bool

	program *programCall // in place of Line, or nil
}

// A Terminal describes the user's terminal, so that the command gets a similar one.
type Terminal struct {
	Type    string                     // TERM
	Size    func() (columns, rows int) // called at the start and after each value from Resized
	Resized <-chan struct{}            // may be nil
}

// A Status is how a command ended.
type Status struct {
	Code   int    // exit code; 128+n if signal n ended the command
	Signal string // signal that ended the command, such as "KILL", or ""; "UNKNOWN" for a signal without a name in SSH
}

// SignalStatus returns the Status that a shell reports for a command that the named signal
// ended. The name is "TERM", "SIGTERM" or, as SSH sends it (RFC 4254 §6.10),
// "SYS@openssh.com". "" stands for a signal without a name.
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
