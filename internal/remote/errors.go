package remote

import (
	"errors"
	"fmt"
	"strings"

	"multihost/internal/fault"
)

var (
	// ErrConnectionLost reports that the connection ended while a command was running. The
	// command may still run: ask the worker, and do not start it again. If the error is
	// also a *ConnectError, the worker did not start the command.
	ErrConnectionLost = fault.New(fault.Unavailable, "connection lost")

	// ErrNoStatus reports that the worker closed the session of a command without an exit
	// status, while the connection still works. sshd does so if it never started the login
	// shell.
	ErrNoStatus = fault.New(fault.Unavailable, "worker sent no exit status")

	// ErrSilent is the reason for giving up a connection whose worker answers no keepalive.
	ErrSilent = fault.New(fault.Unavailable, "worker does not answer keepalives")

	// ErrKeyRefused reports that a worker was reached and verified, but refuses our key for
	// the login name. A booting VM does so for some seconds.
	ErrKeyRefused = fault.New(fault.Permission, "key refused")

	// ErrBooting reports a worker that is up but so far accepts only root.
	ErrBooting = fault.New(fault.Unavailable, "VM is still booting")

	// ErrReadOnly reports that a Shell with ShellConfig.ReadOnly got a command that may
	// change the worker. The command was not sent.
	ErrReadOnly = fault.New(fault.Internal, "it may change the worker, and this is a dry run")

	// ErrClosed reports that a connection was used after it was closed.
	ErrClosed = fault.New(fault.Unavailable, "connection closed by us")
)

// A Stage is a step of connecting to a worker or of starting a command there.
type Stage string

// The stages, in order.
const (
	StageJump      Stage = "jump"      // connecting and logging in to a bastion
	StageDial      Stage = "dial"      // address lookup and TCP connect
	StageHandshake Stage = "handshake" // version and key exchange
	StageHostKey   Stage = "hostkey"   // verifying the worker
	StageAuth      Stage = "auth"      // our login
	StageExec      Stage = "exec"      // opening a session and starting a command
	StageShell     Stage = "shell"     // running the command in the login shell
)

// Answered reports whether an error of a connection came from the worker's SSH server.
func Answered(err error) bool {
	var key *HostKeyError
	return errors.As(err, &key) || errors.Is(err, ErrKeyRefused)
}

// ConnectError reports that a worker could not be reached, or refused to start a command.
// Nothing was started on the worker.
type ConnectError struct {
	Host  string // Conn.Name: "s0w3"
	User  string
	Stage Stage
	Addr  string // last address tried, or ""
	Tries int    // number of attempts to connect
	Err   error

	Advice string // the result of Hint
}

// Cause returns the text of the error without what differs between workers: name, address
// and number of tries.
func (e *ConnectError) Cause() string {
	told := *e
	told.Host, told.Addr, told.Tries = "", "", 0
	text := told.Error()
	var inner interface {
		error
		Cause() string
	}
	if errors.As(e.Err, &inner) {
		text = strings.Replace(text, inner.Error(), inner.Cause(), 1)
	}
	return text
}

func (e *ConnectError) Error() string {
	name := func(preposition string) string {
		if e.Host == "" {
			return ""
		}
		return " " + preposition + " " + e.Host
	}
	var b strings.Builder
	switch e.Stage {
	case StageJump, StageDial:
		b.WriteString("connect" + name("to"))
	case StageHandshake:
		b.WriteString("ssh handshake" + name("with"))
	case StageHostKey:
		b.WriteString("verify host key" + name("of"))
	case StageAuth:
		fmt.Fprintf(&b, "log in%s as %q", name("to"), e.User)
	case StageShell:
		fmt.Fprintf(&b, "run a command%s as %q", name("on"), e.User)
	default:
		b.WriteString("start command" + name("on"))
	}
	if e.Addr != "" {
		fmt.Fprintf(&b, " (%s)", e.Addr)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Tries > 1 {
		fmt.Fprintf(&b, " (after %d tries)", e.Tries)
	}
	return b.String()
}

func (e *ConnectError) Unwrap() error { return e.Err }

// Fault returns fault.Permission if the worker refuses our login or has another host key,
// otherwise fault.Unavailable.
func (e *ConnectError) Fault() fault.Kind { return e.Stage.Fault(e.Err) }

// Fault returns the kind of an error that ended connecting at the stage.
func (s Stage) Fault(err error) fault.Kind {
	var changed *HostKeyError
	if s == StageAuth || errors.As(err, &changed) {
		return fault.Permission
	}
	return fault.Unavailable
}

// Hint returns the likely cause and what to type, or "".
func (e *ConnectError) Hint() string {
	return e.Advice
}

// SourceAPI is the HostKeyError.Source of keys from the cloud's API.
const SourceAPI = "the cloud's API"

// HostKeyError reports that a machine may not be the expected one: its host key is not the
// known one.
type HostKeyError struct {
	Host    string   // Conn.Name
	Pin     string   // the machine to which the keys belong
	Source  string   // where the known keys come from: SourceAPI, a file or a connection
	Known   []string // "ssh-ed25519 SHA256:…"
	Offered string   // the offered key, in the same form
	Accept  string   // command with which the user accepts the new key, or ""

	Confirmed    bool // the API knows the offered key
	Contradicted bool // the API knows only other keys
}

func (e *HostKeyError) Error() string {
	verb := "changed"
	if e.Source == SourceAPI {
		verb = "is not the right one"
	}
	return fmt.Sprintf("host key of %s %s: %s has %s, the machine offers %s",
		e.Host, verb, e.Source, strings.Join(e.Known, ", "), e.Offered)
}

// Fault returns fault.Permission.
func (e *HostKeyError) Fault() fault.Kind { return fault.Permission }

// Cause returns the text of the error without the worker's name and keys.
func (e *HostKeyError) Cause() string {
	if e.Source == SourceAPI {
		return "the host key is not the right one: " + e.Source + " has another one than the machine offers"
	}
	return "the host key changed: " + e.Source + " has another one than the machine offers"
}

// Hint says what may have happened, and names the one command that accepts the new key.
func (e *HostKeyError) Hint() string {
	switch {
	case e.Contradicted:
		return "the cloud's API names another key of this machine, so this one cannot be accepted: somebody may answer in its place; if its keys were made anew by hand, publish them from the machine (guest attribute hostkeys/ssh-ed25519) or recreate it"
	case e.Accept == "":
		return "either the keys of this machine were made anew or somebody answers in its place"
	case e.Confirmed:
		return "the cloud's API names the new key, too: the keys of this machine were made anew; to accept it: " + e.Accept
	default:
		return "either the keys of this machine were made anew or somebody answers in its place; if the new key is right: " + e.Accept
	}
}

// NameError reports that this machine has no address for the name of a host.
type NameError struct {
	Name string
	Why  string // "no such host"
	Err  error

	Final bool // the name server says that the name does not exist
}

func (e *NameError) Error() string {
	return fmt.Sprintf("the name %q has no address here: %s", e.Name, e.Why)
}

func (e *NameError) Unwrap() error { return e.Err }

// Fault returns fault.Unavailable.
func (e *NameError) Fault() fault.Kind { return fault.Unavailable }

// Cause returns the text of the error without the name.
func (e *NameError) Cause() string { return "its name has no address here: " + e.Why }

// Permanent reports whether another try would also fail.
func (e *NameError) Permanent() bool { return e.Final }

// Hint says what to type.
func (e *NameError) Hint() string {
	if !e.Final {
		return "the name server of this machine gives no answer; ask it with: getent hosts " + Quote(e.Name)
	}
	return "check how the name is written, and HostName in ssh's configuration; ask for it with: getent hosts " + Quote(e.Name)
}
