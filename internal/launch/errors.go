package launch

import (
	"fmt"
	"strings"
	"time"

	"multihost/internal/fault"
)

var (
	// ErrAlreadyStarted is the error of Arm if this attempt of the run was started before.
	ErrAlreadyStarted = fault.New(fault.Unavailable, "was started before")
	// ErrNotStarted is the error of ReleaseAt if the command was not started and never will
	// be.
	ErrNotStarted = fault.New(fault.Unavailable, "was not started")
	// ErrUnknownRun says that the worker knows no such run.
	ErrUnknownRun = fault.New(fault.Unavailable, "no such run on this worker")
	// ErrStillRuns is the error of Sweep if the run has not ended.
	ErrStillRuns = fault.New(fault.Unavailable, "still runs")
	// ErrTruncated matches every *TruncatedError in errors.Is.
	ErrTruncated = fault.New(fault.Unavailable, "output on the worker is shorter than what was already received")
)

// BusyError says that another run is active on the worker.
type BusyError struct {
	Worker string
	Info   Info // the other run; zero if it is not known
}

// Error implements error.
func (e *BusyError) Error() string {
	if e.Info.Run == "" {
		return fmt.Sprintf("start on %s: another run holds the worker", e.Worker)
	}
	who := e.Info.Owner
	if who == "" {
		who = e.Info.Login
	}
	return fmt.Sprintf("start on %s: run %q of %s (login %s) has been on the worker for %s",
		e.Worker, e.Info.Run, who, e.Info.Login, e.Info.Age().Round(time.Second))
}

// Fault returns fault.Unavailable.
func (e *BusyError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns the command to type.
func (e *BusyError) Hint() string {
	if e.Info.Run == "" {
		return "multihost ps shows who runs there"
	}
	return "multihost stop " + e.Info.Run + ", or --replace to stop it first"
}

// startedError is an ErrAlreadyStarted with the command to type.
type startedError struct {
	ref    Ref
	worker string
}

func (e *startedError) Error() string {
	return fmt.Sprintf("start %q on %s: %v", e.ref.Label(), e.worker, ErrAlreadyStarted)
}

func (e *startedError) Unwrap() error { return ErrAlreadyStarted }

// Hint returns the command to type.
func (e *startedError) Hint() string {
	return "another run of that name was faster: multihost attach " + e.ref.Run + " follows it; to start this one beside it, in a directory of its own: --run-name=NAME"
}

// CodeError says that another run of the same name has synced other code into this run's
// directory after this run's sync. Nothing was started.
type CodeError struct {
	Worker, Run string
	Owner       string // owner of the other run; "" during its sync
}

// Error implements error.
func (e *CodeError) Error() string { return e.Worker + ": " + e.Cause() }

// Fault returns fault.Unavailable.
func (e *CodeError) Fault() fault.Kind { return fault.Unavailable }

// Cause returns the error without the worker's name.
func (e *CodeError) Cause() string {
	if e.Owner == "" {
		return fmt.Sprintf("another run called %q is bringing its code into ~/%s", e.Run, e.Run)
	}
	return fmt.Sprintf("another run called %q, of %s, has brought its code into ~/%s after this one", e.Run, e.Owner, e.Run)
}

// Hint returns the command to type.
func (e *CodeError) Hint() string {
	return "multihost ps shows whether it lives; to start this one beside it, in a directory of its own: --run-name=NAME"
}

// TruncatedError says that the worker's output file is shorter than the bytes received from
// it. A crash lost bytes that were not yet on the disk, or somebody cut the file. The
// received bytes stay valid.
type TruncatedError struct {
	Worker       string
	Offset, Size int64 // bytes received, and bytes on the worker; Size -1: not known
}

// Error implements error.
func (e *TruncatedError) Error() string {
	if e.Size < 0 {
		return fmt.Sprintf("follow output on %s: %v", e.Worker, ErrTruncated)
	}
	return fmt.Sprintf("follow output on %s: %v: %d bytes there, %d here", e.Worker, ErrTruncated, e.Size, e.Offset)
}

// Fault returns fault.Unavailable.
func (e *TruncatedError) Fault() fault.Kind { return fault.Unavailable }

// Is makes errors.Is(err, ErrTruncated) true.
func (e *TruncatedError) Is(target error) bool { return target == ErrTruncated }

// RemoteError is a worker's report that it could not do an operation.
type RemoteError struct {
	Worker, Op, Text string
	Silent           bool // no usable answer: the login's shell ended, not our script
}

// Error implements error.
func (e *RemoteError) Error() string {
	return fmt.Sprintf("%s on %s: %s", e.Op, e.Worker, e.Text)
}

// Fault returns fault.Unavailable.
func (e *RemoteError) Fault() fault.Kind { return fault.Unavailable }

// Cause returns the error without the worker's name.
func (e *RemoteError) Cause() string { return e.Op + ": " + e.Text }

// SecretError says that a worker could not read a secret. Nothing was started.
type SecretError struct {
	Worker  string
	Secret  StoredSecret // zero if the failure came before the first secret
	Status  int          // HTTP status; 0: no usable answer
	Account string       // service account of the worker; "" if not known
	Text    string
}

// Error implements error.
func (e *SecretError) Error() string { return e.Worker + ": " + e.Cause() }

// Cause returns the error without the worker's name.
func (e *SecretError) Cause() string {
	what := "secrets"
	if e.Secret.Name != "" {
		what = fmt.Sprintf("secret %s (sm://%s/%s/%s)", e.Secret.Name, e.Secret.Project, e.Secret.ID, e.Secret.Version)
	}
	if e.Status == 0 {
		return fmt.Sprintf("read %s: %s", what, e.Text)
	}
	return fmt.Sprintf("read %s: HTTP status %d: %s", what, e.Status, e.Text)
}

// Fault returns fault.Permission if the worker may not read the secret, otherwise
// fault.Unavailable.
func (e *SecretError) Fault() fault.Kind {
	if e.Status == 403 {
		return fault.Permission
	}
	return fault.Unavailable
}

// Hint returns the command to type; "" when there is none.
func (e *SecretError) Hint() string {
	s := e.Secret
	switch {
	case e.Status == 403 && (strings.Contains(e.Text, "SCOPE") || strings.Contains(e.Text, "scopes")):
		return "make the slices with the scope cloud-platform: --scopes=cloud-platform"
	case e.Status == 403:
		account := e.Account
		if account == "" {
			account = "ACCOUNT"
		}
		return fmt.Sprintf("gcloud secrets add-iam-policy-binding %s --project=%s --member=serviceAccount:%s --role=roles/secretmanager.secretAccessor", s.ID, s.Project, account)
	case e.Status == 404:
		return fmt.Sprintf("see what there is with: gcloud secrets versions list %s --project=%s", s.ID, s.Project)
	case s.Name == "":
		return "only machines of Google Cloud with a service account can read Secret Manager; elsewhere take the value from this machine: --secret-env=NAME"
	}
	return ""
}

// HoldersError names the processes that hold the TPU of a worker and that nobody stopped.
type HoldersError struct {
	Worker  string
	Holders []Process
}

// Error implements error.
func (e *HoldersError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "free TPU on %s: in use", e.Worker)
	for i, p := range e.Holders {
		sep := ", "
		if i == 0 {
			sep = " by "
		}
		fmt.Fprintf(&b, "%spid %d of %s for %s (%s)", sep, p.PID, p.User, p.Age.Round(time.Second), p.Command)
		if p.Run.Run != "" {
			fmt.Fprintf(&b, " in run %q", p.Run.Run)
		}
		if p.Container != "" {
			fmt.Fprintf(&b, " in container %s (%s)", short(p.Container), p.containerStop())
		}
	}
	return b.String()
}

// Fault returns fault.Unavailable.
func (e *HoldersError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns the command to type.
func (e *HoldersError) Hint() string {
	for _, p := range e.Holders {
		switch {
		case p.RunAlive:
			return "multihost stop " + p.Run.Run
		case p.Container != "":
			return p.containerStop() + " on the worker, or --kill-stale=all"
		}
	}
	return "--kill-stale=all stops them"
}

// containerStop returns the command line that stops the container of the process.
func (p Process) containerStop() string {
	switch p.Engine {
	case "libpod":
		return "sudo podman stop " + short(p.Container)
	case "containerd", "crio":
		return "sudo crictl stop " + short(p.Container)
	}
	return "sudo docker stop " + short(p.Container)
}

func short(container string) string {
	if len(container) > 12 {
		return container[:12]
	}
	return container
}
