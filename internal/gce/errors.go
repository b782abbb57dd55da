package gce

import (
	"fmt"
	"strings"

	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provision"
)

// An InvalidError says what is wrong with a request, before any call.
type InvalidError struct {
	ID       string
	Problems []string // each is a clause
	hint     string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("request slices %q: %s", e.ID, strings.Join(e.Problems, "; "))
}

// Fault returns fault.Usage.
func (e *InvalidError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type.
func (e *InvalidError) Hint() string { return e.hint }

// A MachineError says that a zone does not have a machine type.
type MachineError struct {
	Machine, Zone string
	Err           error // error of the API
}

func (e *MachineError) Error() string {
	return fmt.Sprintf("read machine type %q: zone %q does not offer it", e.Machine, e.Zone)
}

func (e *MachineError) Unwrap() error { return e.Err }

func (e *MachineError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns the command to type.
func (e *MachineError) Hint() string {
	return "see which zones offer it with: gcloud compute machine-types list --filter=name=" + e.Machine
}

// An OwnerError says that a resource belongs to another run.
type OwnerError struct {
	ID, Owner, Want string
}

func (e *OwnerError) Error() string {
	return fmt.Sprintf("delete slices %q: they belong to %s, not to run %s", e.ID, e.Owner, e.Want)
}

// Fault returns fault.Permission.
func (e *OwnerError) Fault() fault.Kind { return fault.Permission }

// A TakenError says that another resource has a name that the request needs.
type TakenError struct {
	Kind, Name string // "group", "m-0"
	Of         string // its description
}

func (e *TakenError) Error() string {
	of := "it was not made by multihost"
	if e.Of != "" {
		of = fmt.Sprintf("its description is %q", e.Of)
	}
	return fmt.Sprintf("create %s %q: one of this name exists, and %s", e.Kind, e.Name, of)
}

func (e *TakenError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns what to do.
func (e *TakenError) Hint() string { return "choose another name" }

// missing is the error for a resource without parts.
type missing struct{ id string }

func (m missing) Error() string { return fmt.Sprintf("read slices %q: they do not exist", m.id) }

// Is reports whether target is provision.ErrNotFound.
func (m missing) Is(target error) bool { return target == provision.ErrNotFound }

func (m missing) Class() gcp.Class { return gcp.NotFound }

func (m missing) Fault() fault.Kind { return fault.Unavailable }

// Hint returns the command to type.
func (m missing) Hint() string { return "see what exists with: multihost slices list" }
