package provision

import (
	"context"
	"fmt"
	"strings"
	"time"

	"multihost/internal/fault"
	"multihost/internal/tpu"
)

// A Provider makes slices and says what exists. Queued resources (package qr) and fixed
// hosts (package hosts) are providers. An ability that only some providers have is an
// interface of its own, see [Explainer], [Previewer], [Catalog], [AttributeReader] and
// [As].
//
// All methods are safe for concurrent use. When ctx ends, they return its cause.
type Provider interface {
	// Get returns one resource with its slices. If there is none, the error is ErrNotFound.
	// If only the slices cannot be read, Get returns the resource without slices, and the
	// error.
	Get(ctx context.Context, id string) (Resource, error)

	// List returns all resources of the provider's place, sorted by ID.
	List(ctx context.Context) ([]Resource, error)

	// Create requests the slices. It does not wait for them. A caller may repeat Create,
	// even after an earlier call has made only a part. It makes what is missing. If nothing
	// was missing, created is false. Create does not touch a resource that differs from r.
	// The error is then a *ConflictError. If created is true, the resource exists. If err
	// is set, too, it is possible that only a part of the resource exists, and that Get
	// does not find it.
	Create(ctx context.Context, r Request) (res Resource, created bool, err error)

	// Restart reboots the VMs of all slices. It returns when the reboot is done.
	// [StepReset] is the step that needs it. The error is ErrFixed if the provider cannot
	// do it.
	Restart(ctx context.Context, id string) error

	// Delete deletes all parts of a resource in the right order. It returns when the last
	// part is gone. If the resource does not exist, deleted is false and there is no error.
	// A *DeadlineError says that something is left.
	Delete(ctx context.Context, id string, o DeleteOptions) (deleted bool, err error)

	// Slices returns all slices of the place, whoever made them.
	Slices(ctx context.Context) ([]tpu.Slice, error)

	// HostKeys returns the SSH host keys of a worker, in the form of authorized_keys
	// without a comment, and the name of its VM. The error is ErrNoHostKeys if the
	// provider does not know them.
	HostKeys(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error)

	// Admit makes sure that the workers of s accept the login's key. It returns the login
	// to use, and whether it changed anything.
	Admit(ctx context.Context, s tpu.Slice, l Login) (user string, changed bool, err error)

	// Undoing says how to delete a resource of this name with these slices. If slices is
	// empty and the workers would have to delete each slice separately, the result has no
	// parts. It does no I/O.
	Undoing(id string, slices ...string) Undoing
}

// DeleteOptions say what may be deleted and how long it may take.
type DeleteOptions struct {
	// If OnlyRun is not empty, Delete deletes only a resource with the label of this run.
	// It does not touch any other resource and returns an error.
	OnlyRun string
	Limit   time.Duration // 0: the provider's default
}

// A Login is a user's key, and the name to log in with.
type Login struct {
	Name      string
	PublicKey string // "type base64", with or without a comment
	Account   string // account of the user at the provider; "": that of the credentials
}

// NotFound is the State of a resource that does not exist.
const NotFound = "NOT_FOUND"

var (
	// ErrNotFound says that no resource has the name.
	ErrNotFound = fault.New(fault.Unavailable, "it does not exist")

	// ErrFixed is the error of a provider with fixed slices. Such a provider cannot make,
	// restart or delete slices.
	ErrFixed = fault.New(fault.Unavailable, "these machines are neither made nor deleted by multihost")

	// ErrNoHostKeys says that the provider does not give a worker's host keys.
	ErrNoHostKeys = fault.New(fault.Unavailable, "no host keys in guest attributes")
)

// An Undoing says how a person deletes a resource. It also says how its own workers delete
// it if nobody else does. The scripts on the workers know no API. They send the requests in
// Parts, with the token of their machine.
type Undoing struct {
	Commands Commands

	// Parts are what a worker deletes, in this order. After that, nothing is left that
	// costs money.
	Parts []Part
	// Peers say how a worker learns whether the command runs on the other workers.
	Peers Peers
}

// Peers say how a worker reads the guest attribute multihost/lease of the other workers. In
// the addresses, {slice} and {vm} stand for names. The zero value says that workers cannot
// read it.
type Peers struct {
	// Read is the address that shows the attribute. Without List, it shows the attribute of
	// all workers of a slice. With List, it shows the attribute of one VM. If Body is set,
	// the worker sends a POST with Body. Otherwise it sends a GET. Told is the path of the
	// attribute's values in the answer, as in Field.
	Read, Body, Told string

	// List is an address to which the worker sends a POST. The answer names the VMs of a
	// slice. If List is "", Read shows all workers of a slice.
	List string
	// Names is the path of the names of VMs in that answer. An address may stand in place
	// of a name. The name is then the end of the address. States is the path of the states
	// of the VMs. Idle lists states, separated by spaces. No command runs in a VM that has
	// one of these states or no state.
	Names, States, Idle string
	// More is the path of a text that is in the answer only if the answer does not name all
	// VMs.
	More string
}

// A Part of a resource is something that one request deletes.
type Part struct {
	// Look is the address at which a worker reads the part. Before a worker deletes the
	// part, it must find the Proof of the run in the answer.
	Look string
	// Labels is the path of the labels in the answer, as in Field. If the part has no
	// labels, Labels is "". Then the description of the part is About, a space, and the
	// label.
	Labels, About string
	// Going is in the answer if the part is already being deleted.
	Going Field
	// Delete is the address to which the worker sends a DELETE for the part and all that
	// belongs to it.
	Delete string
	// Probe is the address of a part that does not exist. If a worker may delete, a DELETE
	// there gets status 404. Otherwise the API refuses it.
	Probe string
}

// Proof returns the field and the value that show that the part has a label. Then the part
// belongs to the run.
func (p Part) Proof(label, value string) Field {
	if p.Labels == "" {
		return Field{Path: "/description", Value: p.About + " " + label + "=" + value}
	}
	return Field{Path: p.Labels + "/" + label, Value: value}
}

// A Field is a text in an answer in JSON.
type Field struct {
	Path  string // names from the root, each after a slash; * stands for all elements of a list
	Value string
}

// Commands are what a person types about a resource.
type Commands struct {
	Service string // who makes the slices, in words: "Compute Engine"
	Kind    string // what messages call a resource: "queued resource"
	List    string // shows what exists
	Show    string // shows the resource
	Wait    string // waits until the resource can be used
	Gone    string // waits until the resource is gone, if it is being deleted
	Delete  string // deletes the resource with its slices
}

// NameOf returns what messages call a resource: "queued resource q7".
func NameOf(p Provider, id string) string {
	return strings.TrimSpace(p.Undoing(id).Commands.Kind + " " + id)
}

// QuotedNameOf is NameOf for errors, which quote the name: `queued resource "q7"`.
func QuotedNameOf(p Provider, id string) string {
	return strings.TrimSpace(fmt.Sprintf("%s %q", p.Undoing(id).Commands.Kind, id))
}

// A Partial is a Provider whose Slices may lack some slices, because the service that has
// them did not answer.
type Partial interface {
	// Unseen is about resources that messages call kind. It says why the last Slices has
	// none of their slices, or returns nil if it has all of them.
	Unseen(kind string) error
}

// An Explanation says why a resource does not come up.
type Explanation struct {
	Reason string // the probable reason, in one sentence; "": unknown
	Hint   string // what to type; ""
	Again  string // what to type after the resource is deleted, or empty
}

// An Explainer is a Provider that can say why a resource does not come up.
type Explainer interface {
	Explain(ctx context.Context, r Resource, waited time.Duration) Explanation
}

// A Previewer is a Provider that can show a request before it is sent.
type Previewer interface {
	// Preview returns the request as JSON, as it would be sent. It also returns it as a
	// command of the provider's own tool.
	Preview(r Request) (body []byte, command string)
}

// A Sweeper is a Provider whose resources have parts that remain when their slices are
// gone.
type Sweeper interface {
	// Sweep deletes the parts of a run's resource if the resource has no slices any more.
	// If it has some, or belongs to another run, Sweep deletes nothing. If a part is
	// younger than [MakingTime], a command may be making the slices. Sweep then deletes
	// nothing, unless the caller knows that the run is over.
	Sweep(ctx context.Context, id, run string, over bool) error
}

// A Catalog is a Provider whose VMs have a machine type and boot an image. The image may be
// missing.
type Catalog interface {
	// Machine returns the machine type of slices of type t. If the place does not offer it,
	// Machine returns its name and an error of class gcp.NotFound. The error is a
	// *tpu.MachineError if t names no machine type.
	Machine(ctx context.Context, t tpu.Type) (string, error)

	// Image returns the boot image for slices of type t.
	Image(ctx context.Context, t tpu.Type) (string, error)
}

// A Doorkeeper is a Provider that can say what Admit would find and do, without doing it.
type Doorkeeper interface {
	Door(ctx context.Context, s tpu.Slice, l Login) (Door, error)
}

// A Door is the present access of a key to the workers of a slice.
type Door struct {
	Login string // user to log in as
	Open  bool   // the workers accept the key
	Place string // where the key is, or where Admit would put it, in words
}

// An AttributeReader is a Provider that can read guest attributes. Workers use these to
// report something without SSH and without a bucket.
type AttributeReader interface {
	// Attributes returns the guest attributes multihost/KEY that workers of a slice have
	// set. They have no order: an API does not say which worker set them.
	Attributes(ctx context.Context, slice, key string) ([]string, error)
}

// A Numberer is a Provider that does not know which VM is which worker. The VMs must tell
// it.
type Numberer interface {
	// Number returns a bash script with which a VM of the slice tells its number as a
	// worker. The script exits with 0 once it has told the number. The VMs that have not
	// told their number are in Slice.Untold.
	Number(s tpu.Slice) string
}

// Leading returns the provider that makes new slices. It removes the providers that wrap
// this one.
func Leading(p Provider) Provider {
	for {
		outer, wraps := p.(interface{ Unwrap() Provider })
		if !wraps {
			return p
		}
		p = outer.Unwrap()
	}
}

// As returns p, or a provider that p wraps, as a T. A provider that wraps another one has
// a method Unwrap() Provider.
func As[T any](p Provider) (t T, ok bool) {
	for p != nil {
		if t, ok = p.(T); ok {
			return t, true
		}
		outer, wraps := p.(interface{ Unwrap() Provider })
		if !wraps {
			break
		}
		p = outer.Unwrap()
	}
	return t, false
}
