package sshfan

import (
	"fmt"

	"multihost/internal/event"
	"multihost/internal/fault"
)

// Every worker needs a socket and, while its log is followed, a log file. The rest of the
// program needs a few dozen files.
const (
	filesPerHost = 2
	filesBesides = 64
)

// DescriptorError reports that this machine allows too few open files.
type DescriptorError struct {
	Hosts, Need, Limit int
}

func (e *DescriptorError) Error() string {
	return fmt.Sprintf("%d workers need %d open files, %d are allowed", e.Hosts, e.Need, e.Limit)
}

// Fault returns fault.Unavailable.
func (e *DescriptorError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns what to type in the shell that starts multihost. Only root can raise the
// hard limit, which is too low.
func (e *DescriptorError) Hint() string {
	return fmt.Sprintf("sudo prlimit --pid $$ --nofile=%d", e.Need)
}

// RaiseFileLimit raises the soft limit of open files to what this many workers need, or as
// far as the hard limit allows. If that is not enough, the error is a *DescriptorError.
func RaiseFileLimit(hosts int) error {
	need := uint64(filesPerHost*hosts + filesBesides)
	limit, err := raiseFileLimit(need)
	if err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	if limit < need {
		return &DescriptorError{Hosts: hosts, Need: int(need), Limit: int(limit)}
	}
	return nil
}

// warnDescriptors raises the limit of open files, and warns if it is still too low.
// Connections beyond the limit fail, the others work.
func (f *Fleet) warnDescriptors(hosts int) {
	err := RaiseFileLimit(hosts)
	if err == nil {
		return
	}
	note := event.Note{Level: event.Warn, Text: err.Error()}
	if hinted, ok := err.(interface{ Hint() string }); ok {
		note.Hint = hinted.Hint()
	}
	f.cfg.Sink.Emit(note)
}

// manyHosts is the number of workers above which warnSlowKey warns. For this many workers, an
// RSA key costs a quarter of a second of CPU.
const manyHosts = 64

// warnSlowKey says once what an RSA key costs (RSA 3072: 3.4 to 4.7 ms a signature;
// ed25519: 0.03 ms). A signature covers the key exchange of one connection, so every worker
// needs one.
func (f *Fleet) warnSlowKey(hosts int) {
	if hosts <= manyHosts || !f.cfg.Identity.Slow() || f.toldSlow.Swap(true) {
		return
	}
	event.Notef(f.cfg.Sink, event.Info, "ssh-keygen -t ed25519 -f PATH, then --identity-file=PATH",
		"an RSA key costs 3-5 ms of CPU per worker, %.1f s for these %d; ed25519 a hundredth of that", float64(hosts)*0.004, hosts)
}
