package worker

import (
	"io"
	"syscall"
)

// A Launcher is implemented by machines that can start programs without SSH, as a container
// runtime does.
type Launcher interface {
	// Launch starts a program as root of the machine. The program is the leader of its own
	// session. Only a signal or Stop ends it. If its streams are closed, it continues.
	Launch(p Program) (Launched, error)
}

// Rooted is implemented by machines whose files the caller can read and write.
type Rooted interface {
	// Root returns the directory that has the machine's files, while the machine runs.
	Root() string
}

// A Program is what Launch starts.
type Program struct {
	File     string   // a file of this machine that is Argv[0] on the worker; empty: the worker has Argv[0] itself
	Argv     []string // without File, Argv[0] is searched in the PATH of Env, or in that of the machine
	Env      []string // these variables take precedence over the machine's own
	Dir      string   // empty: the home of root; a relative path begins at that home
	Terminal bool     // stdin, stdout and stderr are the same terminal
}

// A Launched is a program that Launch has started. Its methods are safe for concurrent use.
type Launched interface {
	// Streams returns our ends of the program's streams. The caller closes them. With a
	// terminal, stderr is nil, and stdin and stdout are the same file.
	Streams() (stdin io.WriteCloser, stdout, stderr io.ReadCloser)

	// Wait returns how the program ended. The caller calls it once.
	Wait() syscall.WaitStatus

	// Signal sends a signal to the program itself, not to its children.
	Signal(sig syscall.Signal) error

	// Resize sets the size of the terminal.
	Resize(columns, rows uint16) error
}
