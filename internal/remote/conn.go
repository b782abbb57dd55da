// Package remote runs shell programs on workers and reads their answers.
//
// A Conn is a connection to a worker. Each kind of connection, such as SSH, implements Conn
// by starting command lines. A Shell adds what all kinds share: programs that the worker
// keeps, and the measurement of the worker's clock. Packages that only run commands on a
// worker take a Runner. That is the part of a Conn that runs commands. A Dialer opens the
// Conns of a run.
//
// # Decisions
//
//   - In this package, an operation is one command line. The line has a short bootstrap,
//     which takes the script from the worker's kit by its SHA-256. The first time, the
//     bootstrap takes it from stdin. The payload follows on stdin. So a command line
//     contains no part of a user's command or of its environment.
//   - Workers keep the scripts. A run has ten operations. To send the scripts with each
//     would cost 150 kB for each worker. For 2048 workers that is minutes of a laptop's
//     uplink. The runner compares the hashes when it connects. Each command checks the
//     length of the script that it runs. So a crash, a full disk or another version of
//     multihost never makes a worker run a damaged or wrong script. To compute a hash at
//     each use would cost three processes for each command. The check is not for security:
//     a user who can write to the login's home can change more than the kit.
//   - If a script is missing in a worker's kit, the worker says so before it does anything.
//     The runner then sends the script together with the same input. It does so again with
//     each later command of that connection.
//   - MeasureClock is the first command on a connection. It also shows that the login can
//     run anything. So a start-up file that exits gives one clear error. The clock is
//     measured again when the run starts, because a VM sets its clock after it has booted.
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

	// Run runs a command and waits until the command ends. If the command fails, Run
	// returns its Status and no error. An error means that nobody knows how the command
	// ended. Its kinds are:
	//
	//   - *ConnectError: the worker did not start the command.
	//   - ErrConnectionLost: the command may have started and may still run. If the Status
	//     is not zero, the command has ended. Then only the rest of the output is missing.
	//   - The cause of ctx: the session was closed because ctx ended. The command on the
	//     worker may then still run.
	//   - ErrNoStatus, or an error of Cmd's reader or writers.
	//
	// Run returns when the connection is lost, even if Cmd.Stdin never ends.
	Run(ctx context.Context, cmd Cmd) (Status, error)

	// ClockOffset is the worker's clock minus ours, as MeasureClock last found it. It is 0
	// before the first measurement.
	ClockOffset() time.Duration
}

// A Conn is the connection to one worker. If the connection below it breaks, a Conn stays
// usable: the next Run or Start connects again. Its methods are safe for concurrent use.
type Conn interface {
	Runner

	// Start starts a command. It returns when the worker has accepted the command. When ctx
	// ends, the session is closed, as in Run. The caller calls Wait or Close.
	Start(ctx context.Context, cmd Cmd) (Session, error)

	// MeasureClock measures the difference between the worker's clock and ours. It keeps
	// the result for ClockOffset and returns it. It also proves that the login can run
	// commands. It fails as Run does.
	MeasureClock(ctx context.Context) (time.Duration, error)

	// Silence reports whether the worker has stopped sending anything. since is when it
	// last sent something, or the zero time if the worker was never reached.
	Silence() (since time.Time, silent bool)

	// User is the name with which commands run.
	User() string

	// HostKey is the host key of the worker's sshd in authorized_keys form. It is "" if
	// other workers cannot log in to this one with Cmd.LoginTo.
	HostKey() string

	// Close closes the connection and ends its sessions with ErrConnectionLost. Later
	// commands fail with ErrClosed. It does not stop commands on the worker.
	Close()
}

// A Session is a running command. Its methods are safe for concurrent use.
type Session interface {
	// Stdin writes to the command's standard input. Closing it ends the input. If Cmd.Stdin
	// is set, it refuses writes.
	Stdin() io.WriteCloser

	// Wait waits for the end of the command. It returns what Runner.Run returns. When Wait
	// returns, all output has been written. Nothing is written afterwards.
	Wait() (Status, error)

	// Close ends the session. It does not end the command on the worker and does not wait
	// for the worker's answer. Wait then returns ErrClosed, unless the command has ended
	// before.
	Close() error
}

// A Cmd is a command to run on a worker.
type Cmd struct {
	// Line is the command line, exactly as the login shell gets it. Build it with Quote.
	// Empty means the login shell itself. Program.Cmd makes the lines of commands that are
	// scripts.
	Line string

	// Terminal gives the command a pty on the worker. Stdout receives the output of the
	// pty, and the pty's keyboard is the command's input. Nil means no pty.
	Terminal *Terminal

	// AgentSocket is the socket of an ssh-agent here that the command may use. While the
	// connection lasts, root of the worker can use it, too. Empty means that there is no
	// agent.
	AgentSocket string

	// Stdin is copied to the command's standard input. After that, the input is closed. If
	// Stdin is nil, Run closes the input at once. Start leaves the input to Session.Stdin.
	// A Read that still blocks a second after the end of the command is abandoned.
	Stdin io.Reader

	// Stdout and Stderr receive the command's output. Output for a nil writer is dropped.
	// Only one goroutine at a time writes to each of them. If both are equal, only one
	// goroutine writes to both. Nothing is written after Run or Wait has returned. A slow
	// writer delays only this command: the worker stops the command once the window is full
	// (2 MiB with SSH). If a writer fails, the session ends with the writer's error.
	Stdout, Stderr io.Writer

	// LoginTo lets the command log in once to the worker of that Conn, as its user. The
	// command uses the ssh of the worker that it runs on (OpenSSH 8.9 or later). It fails
	// at StageExec if sshd does not allow agent forwarding. Such a command has a connection
	// of its own. When the command ends, the connection is closed. Then the command's
	// permission to log in ends, too.
	LoginTo Conn

	// ReadOnly says that the command changes nothing on the worker. A Shell with
	// ShellConfig.ReadOnly runs only such commands. On any other Shell, the worker may
	// still keep the script of a Program that is ReadOnly.
	ReadOnly bool

	program *programCall // instead of Line, or nil
}

// A Terminal describes the user's terminal, so that the command gets a similar one.
type Terminal struct {
	Type    string                     // TERM
	Size    func() (columns, rows int) // called at the start and for each value from Resized
	Resized <-chan struct{}            // may be nil
}

// A Status is how a command ended.
type Status struct {
	Code   int    // exit code; 128+n if signal n ended the command
	Signal string // signal that ended the command, such as "KILL"; otherwise empty; "UNKNOWN" for a signal without a name in SSH
}

// SignalStatus returns the Status that a shell reports if the named signal ended the
// command. The name is "TERM", "SIGTERM" or, as SSH sends it (RFC 4254 §6.10),
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
