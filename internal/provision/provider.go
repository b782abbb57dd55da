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
// hosts (package hosts) are providers. An ability of only some providers is an interface of
// its own: see [Explainer], [Previewer], [Catalog], [AttributeReader] and [As].
//
// All methods are safe for concurrent use. When ctx ends, they return its cause.
type Provider interface {
	// Get returns one resource with its slices. If there is none, the error is ErrNotFound.
	// If only the slices cannot be read, Get returns the resource without slices, and the
	// error.
	Get(ctx context.Context, id string) (Resource, error)

	// List returns all resources of the provider's place, sorted by ID.
	List(ctx context.Context) ([]Resource, error)

	// Create requests the slices, and does not wait for them. It may be repeated, even if
	// an earlier call has made only a part: it makes what is missing. If nothing was
	// missing, created is false. Create does not touch a resource that differs from r, and
	// returns a *ConflictError. If created is true, the resource exists. If there is also
	// an error, only a part of it may exist, and Get may not find it.
	Create(ctx context.Context, r Request) (res Resource, created bool, err error)

	// Restart reboots the VMs of all slices, and returns when the reboot is done.
	// [StepReset] needs it. The error is ErrFixed if the provider cannot do it.
	Restart(ctx context.Context, id string) error

	// Delete deletes all parts of a resource in the right order, and returns when the last
	// part is gone. If the resource does not exist, deleted is false and the error nil. A
	// *DeadlineError says that something is left.
	Delete(ctx context.Context, id string, o DeleteOptions) (deleted bool, err error)

	// Slices returns all slices of the place, whoever made them.
	Slices(ctx context.Context) ([]tpu.Slice, error)

	// HostKeys returns the SSH host keys of a worker, in the form of authorized_keys
	// without a comment, and the name of its VM. The error is ErrNoHostKeys if the
	// provider does not know them.
	HostKeys(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error)

	// Admit makes sure that the workers of s accept the login's key. It returns the login
	// to use, and whether anything was changed.
	Admit(ctx context.Context, s tpu.Slice, l Login) (user string, changed bool, err error)

	// Undoing says how to delete a resource of this name with these slices. The result has
	// no parts if slices is empty and workers would have to delete each slice separately.
	// It does no I/O.
	Undoing(id string, slices ...string) Undoing
}

// DeleteOptions say what may be deleted and how long it may take.
type DeleteOptions struct {
	// If OnlyRun is not "", Delete deletes only a resource with the label of this run. It
	// does not touch another one and returns an error.
	OnlyRun string
	Limit   time.Duration // 0: the provider's default
}

// A Login is a user's key and the name to log in with.
type Login struct {
	Name      string
	PublicKey string // "type base64", with or without a comment
	Account   string // the user's account at the provider; "": that of the credentials
}

// NotFound is the State of a resource that does not exist.
const NotFound = "NOT_FOUND"

var (
	// ErrNotFound says that there is no resource of the name.
	ErrNotFound = fault.New(fault.Unavailable, "it does not exist")

	// ErrFixed is the error of a provider with fixed slices, which it cannot make, restart
	// or delete.
	ErrFixed = fault.New(fault.Unavailable, "these machines are neither made nor deleted by multihost")

	// ErrNoHostKeys says that the provider does not give a worker's host keys.
	ErrNoHostKeys = fault.New(fault.Unavailable, "no host keys in guest attributes")
)

// An Undoing says how a person deletes a resource, and how its own workers delete it if
// nobody else does. The scripts on the workers know no API: they send the requests in Parts
// with the token of their machine.
type Undoing struct {
	Commands Commands

	// Parts are what a worker deletes, in this order. Afterwards nothing is left that costs
	// money.
	Parts []Part
	// Peers say how a worker learns whether the command runs on the other workers.
	Peers Peers
}

// Peers say how a worker reads the guest attribute multihost/lease of the others. In the
// addresses, {slice} and {vm} stand for names. The zero value says that workers cannot read
// it.
type Peers struct {
	// Read is the address at which a worker reads the attribute. With a List, the answer is
	// about one VM, otherwise about all workers of a slice. With Body, the worker sends a
	// POST, otherwise a GET. Told is the path of the attribute's values in the answer, as in
	// Field.
	Read, Body, Told string

	// List is an address to which the worker sends a POST for the names of a slice's VMs.
	// If List is "", Read shows all workers of a slice.
	List string
	// Names is the path of the VMs' names in the answer to List. It may lead to addresses
	// that end in the names. States is the path of the VMs' states. Idle lists states,
	// separated by spaces. No command runs in a VM without a state or with one of these.
	Names, States, Idle string
	// More is the path of a text that is in the answer to List only if the answer does not
	// name all VMs.
	More string
}

// A Part of a resource is what one request deletes.
type Part struct {
	// Look is the address at which a worker reads the part. Before the worker deletes the
	// part, it must find the Proof of the run in the answer.
	Look string
	// Labels is the path of the labels in the answer, as in Field. It is "" for a part
	// without labels, whose description is About, a space, and the label.
	Labels, About string
	// Going is in the answer while the part is being deleted.
	Going Field
	// Delete is the address to which the worker sends a DELETE for the part and all that
	// belongs to it.
	Delete string
	// Probe is the address of a part that does not exist. A DELETE there gets status 404 if
	// a worker may delete, otherwise a refusal.
	Probe string
}

// Proof returns the field and the value which prove that the part has a label and so
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
	Service string // what makes the slices, in words: "Compute Engine"
	Kind    string // the name of such a resource in messages: "queued resource"
	List    string // shows what exists
	Show    string // shows the resource
	Wait    string // waits until the resource can be used
	Gone    string // waits until a resource that is being deleted is gone
	Delete  string // deletes the resource with its slices
}

// NameOf returns the name of a resource in messages: "queued resource q7".
func NameOf(p Provider, id string) string {
	return strings.TrimSpace(p.Undoing(id).Commands.Kind + " " + id)
}

// QuotedNameOf is NameOf for errors, which quote the name: `queued resource "q7"`.
func QuotedNameOf(p Provider, id string) string {
	return strings.TrimSpace(fmt.Sprintf("%s %q", p.Undoing(id).Commands.Kind, id))
}

// A Partial is a Provider whose Slices may lack slices of a service that did not answer.
type Partial interface {
	// Unseen returns why the last call of Slices returned no slices of resources of this
	// kind, or nil if it returned all. kind is the word for them in messages.
	Unseen(kind string) error
}

// An Explanation says why a resource does not come up.
type Explanation struct {
	Reason string // the probable reason, in one sentence; "": unknown
	Hint   string // what to type, or ""
	Again  string // what to type after the resource is deleted, or ""
}

// An Explainer is a Provider that can say why a resource does not come up.
type Explainer interface {
	Explain(ctx context.Context, r Resource, waited time.Duration) Explanation
}

// A Previewer is a Provider that can show a request before it is sent.
type Previewer interface {
	// Preview returns the request as it would be sent, in JSON, and as a command of the
	// provider's own tool.
	Preview(r Request) (body []byte, command string)
}

// A Sweeper is a Provider whose resources have parts that stay when their slices are gone.
type Sweeper interface {
	// Sweep deletes the parts of a run's resource if it has no slices any more. It deletes
	// nothing if there are slices, or if the resource belongs to another run. over says that
	// the caller knows that the run is over. Without over, Sweep deletes nothing if a part
	// is younger than [MakingTime], because a command may be making the slices.
	Sweep(ctx context.Context, id, run string, over bool) error
}

// A Catalog is a Provider whose VMs have a machine type and a boot image. Either may be
// missing.
type Catalog interface {
	// Machine returns the machine type of slices of type t. If the place does not offer it,
	// Machine returns its name and an error of class gcp.NotFound. If t names no machine
	// type, the error is a *tpu.MachineError.
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

// An AttributeReader is a Provider that can read guest attributes, with which workers
// report something without SSH and without a bucket.
type AttributeReader interface {
	// Attributes returns the guest attributes multihost/KEY that workers of a slice have
	// set, in no order. An API does not say which worker set which value.
	Attributes(ctx context.Context, slice, key string) ([]string, error)
}

// A Numberer is a Provider that does not know which VM is which worker. Each VM must tell
// its number.
type Numberer interface {
	// Number returns a bash script with which a VM of the slice tells its number as a
	// worker. It exits with 0 once it has done so. Slice.Untold has the VMs that have not.
	Number(s tpu.Slice) string
}

// Leading returns the provider that makes new slices, without the providers that wrap it.
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
