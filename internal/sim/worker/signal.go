package worker

import "syscall"

// Signals are the signals that an SSH client may send to a command, by their names in the
// protocol (RFC 4254 §6.10). OpenSSH accepts no others. The last two are numbers: workers
// run Linux, but Windows has no names for them.
var Signals = map[string]syscall.Signal{
	"ABRT": syscall.SIGABRT,
	"ALRM": syscall.SIGALRM,
	"FPE":  syscall.SIGFPE,
	"HUP":  syscall.SIGHUP,
	"ILL":  syscall.SIGILL,
	"INT":  syscall.SIGINT,
	"KILL": syscall.SIGKILL,
	"PIPE": syscall.SIGPIPE,
	"QUIT": syscall.SIGQUIT,
	"SEGV": syscall.SIGSEGV,
	"TERM": syscall.SIGTERM,
	"USR1": syscall.Signal(10),
	"USR2": syscall.Signal(12),
}

// signalName returns the protocol's name for a signal that ended a command.
func signalName(sig syscall.Signal) string {
	for name, s := range Signals {
		if s == sig {
			return name
		}
	}
	return "SIG@openssh.com"
}
