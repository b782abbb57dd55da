package qr

import (
	"errors"
	"fmt"
	"strings"

	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provision"
)

// NotFound is the state of a StateError for a resource that does not exist.
const NotFound = provision.NotFound

// Errors that every provider of slices has.
type (
	ConflictError = provision.ConflictError
	StateError    = provision.StateError
	DeadlineError = provision.DeadlineError
)

// Missing returns the error for a queued resource that does not exist.
func Missing(id string) error {
	return &StateError{Commands: commands(id), ID: id, Life: provision.Absent, State: NotFound}
}

// starved reports whether the API's text about a failure names capacity or quota as the
// reason.
func starved(failure string) bool {
	class := gcp.ClassOf(&gcp.OperationError{Code: 8, Message: failure}) // RESOURCE_EXHAUSTED if the text has that code
	lower := strings.ToLower(failure)
	return (class == gcp.Capacity || class == gcp.Quota) && (strings.Contains(lower, "capacity") || strings.Contains(lower, "quota"))
}

// An InvalidError lists everything that is wrong with a Request.
type InvalidError struct {
	ID       string
	Problems []*FlagError
}

// IDFlag stands in a FlagError for the ID of a request, which no flag sets.
const IDFlag = "id"

// A FlagError says what is wrong with some flags of a createflags.Reader, or with the
// values that they set in a Request. Another value of one of the flags may remove the
// error.
type FlagError struct {
	Flags []string // without dashes; may include IDFlag
	Err   error
}

func (e *FlagError) Error() string { return e.Err.Error() }

// Fault returns fault.Usage.
func (e *FlagError) Fault() fault.Kind { return fault.Usage }

// Unwrap returns the error without the flags.
func (e *FlagError) Unwrap() error { return e.Err }

func wrongf(flags, format string, args ...any) *FlagError {
	return &FlagError{strings.Fields(flags), fmt.Errorf(format, args...)}
}

func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = p.Error()
	}
	return fmt.Sprintf("check queued resource %q: %s", e.ID, strings.Join(texts, "; "))
}

// Fault returns fault.Usage.
func (e *InvalidError) Fault() fault.Kind { return fault.Usage }

// Unwrap returns all problems.
func (e *InvalidError) Unwrap() []error {
	all := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		all[i] = p
	}
	return all
}

// Hint returns the first hint among the problems.
func (e *InvalidError) Hint() string {
	for _, p := range e.Problems {
		var h interface{ Hint() string }
		if errors.As(p, &h) && h.Hint() != "" {
			return h.Hint()
		}
	}
	return ""
}

// A TakenError says that a slice of the request has the name of an existing slice.
type TakenError struct {
	Slice string
	Err   error // the API's refusal
}

// takenSlice returns the error for a refusal that names a node, or nil for another one.
func takenSlice(refusal error) *TakenError {
	_, name, named := strings.Cut(refusal.Error(), "/nodes/")
	if end := strings.IndexFunc(name, func(r rune) bool { return !(r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z') }); end >= 0 {
		name = name[:end]
	}
	if !named || name == "" {
		return nil
	}
	return &TakenError{name, refusal}
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("slice %q exists already, and the request would make one of that name: %v", e.Slice, e.Err)
}

// Unwrap returns the API's refusal.
func (e *TakenError) Unwrap() error { return e.Err }

// Fault returns fault.Unavailable.
func (e *TakenError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns what to type.
func (e *TakenError) Hint() string {
	return "give the new slices another name: a job with --run-name, several slices with --node-prefix, a single one with another ID; multihost slices list shows what is there"
}

// An OwnerError says that a queued resource was not deleted because it belongs
// to another run.
type OwnerError struct {
	ID, Owner, Want string
}

func (e *OwnerError) Error() string {
	return fmt.Sprintf("delete queued resource %q: it belongs to %s, not to run %s", e.ID, e.Owner, e.Want)
}

// Fault returns fault.Unavailable.
func (e *OwnerError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns the command to type.
func (e *OwnerError) Hint() string {
	return fmt.Sprintf("if it is to go all the same, type: multihost qr delete %s --force", e.ID)
}

// A QuotaError says that the API refused a queued resource because of a quota.
type QuotaError struct {
	Diagnosis string // the quota with its limit, the requested amount, and who uses some of the quota
	Err       error  // the API's refusal

	command string
}

func (e *QuotaError) Error() string { return e.Err.Error() + "; " + e.Diagnosis }

// Unwrap returns the API's refusal.
func (e *QuotaError) Unwrap() error { return e.Err }

// Fault returns the kind of the API's refusal.
func (e *QuotaError) Fault() fault.Kind { return gcp.FaultOf(e.Err) }

// Hint returns what to type.
func (e *QuotaError) Hint() string { return e.command }

// A NodesError says that a queued resource was not deleted because it has slices, or may
// get some, and Force was not set.
type NodesError struct {
	ID    string
	State string
	Nodes []string
	Err   error // the API's refusal; nil if the API did not refuse
}

func (e *NodesError) Error() string {
	text := fmt.Sprintf("delete queued resource %q: it is %s", e.ID, e.State)
	if len(e.Nodes) > 0 {
		text += " and has slices: " + joinNames(e.Nodes)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Fault returns fault.Unavailable.
func (e *NodesError) Fault() fault.Kind { return fault.Unavailable }

// Unwrap returns the API's refusal.
func (e *NodesError) Unwrap() error { return e.Err }

// Hint returns the command to type.
func (e *NodesError) Hint() string {
	return fmt.Sprintf("delete its slices with it: multihost qr delete %s --force", e.ID)
}

// A LeftoverError says that slices exist, and are billed, although their queued resource is
// gone.
type LeftoverError struct {
	ID     string
	Slices []string

	zone string
}

func (e *LeftoverError) Error() string {
	return fmt.Sprintf("queued resource %q is gone, but slices of it still exist and are billed: %s", e.ID, strings.Join(e.Slices, ", "))
}

// Fault returns fault.Unavailable.
func (e *LeftoverError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns the command that deletes the first of them.
func (e *LeftoverError) Hint() string {
	return "gcloud compute tpus tpu-vm delete " + e.Slices[0] + " --zone=" + e.zone
}
