package worker

import (
	"io"
	"syscall"
)

// A Launcher is a machine that can start programs without SSH, as a container runtime does.
type Launcher interface {
	// Launch starts a program as root of the machine, as the leader of its own session.
	// Only a signal or Stop ends the program. It continues if its streams are closed.
	Launch(p Program) (Launched, error)
}

// Rooted is a machine whose files the caller can read and write.
type Rooted interface {
	// Root returns the directory of the machine's files. It holds while the machine runs.
	Root() string
}

// A Program is what Launch starts.
type Program struct {
	File     string   // a file of this machine to run as Argv[0]; "": the worker has Argv[0] itself
	Argv     []string // without File, Argv[0] is searched in the PATH of Env, or else of the machine
	Env      []string // goes before the machine's own variables
	Dir      string   // "": the home of root; a relative path begins at that home
	Terminal bool     // stdin, stdout and stderr are the same terminal
}

// A Launched is a program that Launch has started. Its methods are safe for concurrent use.
type Launched interface {
	// Streams returns our ends of the program's streams. The caller closes them. With a
	// terminal, stderr is nil, and stdin and stdout are the same file.
	Streams() (stdin io.WriteCloser, stdout, stderr io.ReadCloser)

	// Wait returns how the program ended. Call it once.
	Wait() syscall.WaitStatus

	// Signal sends a signal to the program, not to its children.
	Signal(sig syscall.Signal) error

	// Resize sets the size of the terminal.
	Resize(columns, rows uint16) error
}
