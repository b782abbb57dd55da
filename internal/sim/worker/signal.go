package worker

import "syscall"

// signals are those that an SSH client may send to a command and that have a
// name on the wire (RFC 4254 §6.10); OpenSSH takes no others. Workers are Linux,
// and the last two have no name on Windows: there are their numbers.
var signals = map[string]syscall.Signal{
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

// signalName is the wire name of a signal that ended a command.
func signalName(sig syscall.Signal) string {
	for name, s := range signals {
		if s == sig {
			return name
		}
	}
	return "SIG@openssh.com"
}
