package sshfan

import (
	"errors"
	"fmt"
	"net"

	"multihost/internal/fault"
	"multihost/internal/iap"
	"multihost/internal/remote"
)

var (
	// Host.Keys returns ErrNoHostKeys if the API knows no host keys of a worker. Then the
	// worker's pin counts. Without a pin, the first key is trusted.
	ErrNoHostKeys = fault.New(fault.Unavailable, "host keys unknown to the API")

	// ErrLoginRefused reports a worker that knows our key but refuses the login.
	ErrLoginRefused = fault.New(fault.Permission, "login refused, though the key is known")

	// ErrTooManySessions reports that sshd refused a further session on the
	// connection (MaxSessions) for several seconds.
	ErrTooManySessions = fault.New(fault.Unavailable, "worker refuses further sessions (MaxSessions of its sshd)")

	// ErrNoAgent reports an sshd that does not forward agents (AllowAgentForwarding).
	// Cmd.LoginTo and Cmd.AgentSocket need a forwarded agent.
	ErrNoAgent = fault.New(fault.Unavailable, "sshd forwards no agent for this login")
)

// unresolved returns a *remote.NameError if the dial err failed because a name could not be
// resolved. limit is our reason if we stopped the lookup, otherwise nil. If only the relay
// of Identity-Aware Proxy needs the name, unresolved leaves err alone.
func unresolved(err, limit error) (_ error, is bool) {
	var dns *net.DNSError
	var relay *iap.Error
	var late noAnswerError
	if !errors.As(err, &dns) || dns.Name == "" || errors.As(err, &relay) || limit != nil && !errors.As(limit, &late) {
		return err, false
	}
	why := dns.Err
	if limit != nil {
		why = late.Error() + " from the name server"
	}
	return &remote.NameError{Name: dns.Name, Why: why, Err: err, Final: dns.IsNotFound}, true
}

// KnownHostsError reports a known hosts file that cannot be read. Without the file, any
// machine would be trusted in place of a known worker.
type KnownHostsError struct {
	Path string
	Line int // 0: the error is about the whole file
	Err  error
}

func (e *KnownHostsError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("read known hosts %q: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("read known hosts %q: line %d: %v", e.Path, e.Line, e.Err)
}

// Fault returns fault.Configuration.
func (e *KnownHostsError) Fault() fault.Kind { return fault.Configuration }

func (e *KnownHostsError) Unwrap() error { return e.Err }

// Hint says what to type, or is empty.
func (e *KnownHostsError) Hint() string {
	if e.Line == 0 {
		return ""
	}
	return fmt.Sprintf("sed -i %dd %s removes the line; its worker is then verified as a new one", e.Line, remote.Quote(e.Path))
}
