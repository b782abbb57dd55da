package provision

import (
	"context"
	"fmt"
	"slices"

	"multihost/internal/tpu"
)

// A Permission is a right in the project that commands need.
type Permission struct {
	Name     string // "compute.instances.list"
	Use      string // the commands that need it, or what they need it for
	Required bool   // without it, no command works on slices of the provider
}

// A Permitted is a Provider that names the rights for its calls.
type Permitted interface {
	// Permissions returns the rights. A name may occur several times, with different uses.
	Permissions() []Permission
}

// A ConsoleReader is a Provider that can read what VMs write to their serial consoles, even
// before they answer SSH.
type ConsoleReader interface {
	// Consoles returns the ends of the consoles of those VMs of a slice whose names are in
	// vms. If vms is empty, it chooses VMs that have not told which worker they are, or
	// else any VMs. It reads at most [MaxConsoles]. If consoles cannot be read, it returns
	// the others, and the first error.
	Consoles(ctx context.Context, s tpu.Slice, vms []string) ([]Console, error)
}

// MaxConsoles limits how many consoles are read at once. VMs of one slice that do not boot
// usually have the same reason.
const MaxConsoles = 4

// A Console is the end of what a VM has written to its serial console since its last boot.
type Console struct {
	VM      string
	Lines   []string // without control characters; the newest line is last
	Meaning string   // the meaning of a known text in the console, in one clause; "": no text is known
	Line    string   // the line with that text
	Fatal   bool     // the VM cannot get further by itself
	Hint    string   // what to type, or ""
	Show    string   // the command that prints the whole console
	Text    string   // all that was read, without control characters
}

// String returns what the console says, in one clause.
func (c Console) String() string {
	line := c.Line
	if line == "" && len(c.Lines) > 0 {
		line = c.Lines[len(c.Lines)-1]
	}
	switch {
	case c.Meaning != "" && line == "":
		return fmt.Sprintf("VM %s: %s, its serial console is empty", c.VM, c.Meaning)
	case c.Meaning != "":
		return fmt.Sprintf("VM %s: %s, its serial console says: %s", c.VM, c.Meaning, line)
	}
	return fmt.Sprintf("VM %s: its serial console ends with: %s", c.VM, line)
}

// Foremost returns the console that explains most. This is one of a VM that cannot get
// further, else one with a known text, else the first. all must not be empty.
func Foremost(all []Console) Console {
	rank := func(c Console) int {
		switch {
		case c.Fatal:
			return 2
		case c.Meaning != "":
			return 1
		}
		return 0
	}
	return slices.MaxFunc(all, func(a, b Console) int { return rank(a) - rank(b) })
}

// A Reserver is a Provider that can say whether slices can use reserved capacity.
type Reserver interface {
	// Reserved looks at the reservation called name for count slices of type t. If there is
	// none, the error is of class gcp.NotFound.
	Reserved(ctx context.Context, name string, t tpu.Type, count int) (ReservedCapacity, error)
}

// ReservedCapacity is what is known of a reservation.
type ReservedCapacity struct {
	Text     string   // the capacity, in one clause
	Errors   []string // why slices cannot use it, in clauses
	Warnings []string // what the user should know before slices use it
	Show     string   // the command that shows the reservation
}

// An Itemizer is a Provider whose resources have several parts.
type Itemizer interface {
	// Items returns the existing parts of a resource.
	Items(ctx context.Context, id string) ([]Item, error)

	// ItemsOf returns the parts that Create makes for r. It makes no calls.
	ItemsOf(r Request) []Item
}

// An Item is one part of a resource.
type Item struct {
	Kind string `json:"kind"` // "group", "instance template"
	Name string `json:"name"`

	VMs     int `json:"vms,omitempty"`     // number of VMs of the part, each with a boot disk; a part without VMs costs nothing
	Running int `json:"running,omitempty"` // number of these VMs that run
	Chips   int `json:"chips,omitempty"`   // chips of all VMs together
}
