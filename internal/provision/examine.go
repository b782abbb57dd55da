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
	Use      string // the commands that need it, or the purpose for which they need it
	Required bool   // without it, no command works on slices of the provider
}

// A Permitted is a Provider that names the rights that its calls need.
type Permitted interface {
	// Permissions returns the rights. A name may occur several times, with different uses.
	Permissions() []Permission
}

// A ConsoleReader is a Provider that can read what VMs write to their serial consoles, even
// before they answer SSH.
type ConsoleReader interface {
	// Consoles returns the ends of the consoles of those VMs of a slice that have the names
	// in vms. If vms is empty, it chooses the VMs that have not told which worker they are.
	// If there are no such VMs, it chooses from all VMs. It reads at most [MaxConsoles]. If
	// a console cannot be read, the error is that of the first such console. Consoles
	// returns the other consoles even in this case.
	Consoles(ctx context.Context, s tpu.Slice, vms []string) ([]Console, error)
}

// MaxConsoles limits how many consoles are read at once. VMs of one slice that do not boot
// usually have the same reason.
const MaxConsoles = 4

// A Console is the end of what a VM has written to its serial console since it last booted.
type Console struct {
	VM      string
	Lines   []string // without control characters; the last line is the newest
	Meaning string   // the meaning of a known text in it, in one clause; "": no text is known
	Line    string   // the line with that text
	Fatal   bool     // the VM cannot get further by itself
	Hint    string   // what to type; ""
	Show    string   // the command that prints the whole console
	Text    string   // everything that was read, without control characters
}

// String returns in one clause what the console says.
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

// Foremost returns the console that explains most. That is one of a VM that cannot get
// further. If there is none, it is one with a known text, or else the first one. all has at
// least one console.
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
	// Reserved looks at the reservation called name, for count slices of type t. The error
	// is of class gcp.NotFound if there is none.
	Reserved(ctx context.Context, name string, t tpu.Type, count int) (ReservedCapacity, error)
}

// ReservedCapacity is what is known of a reservation.
type ReservedCapacity struct {
	Text     string   // what capacity there is, in one clause
	Errors   []string // why slices cannot use it; each is a clause
	Warnings []string // what the user should know before slices use it
	Show     string   // the command that shows the reservation
}

// An Itemizer is a Provider whose resources have several parts.
type Itemizer interface {
	// Items returns the parts of a resource that exist.
	Items(ctx context.Context, id string) ([]Item, error)

	// ItemsOf returns the parts that Create makes for r. It makes no calls.
	ItemsOf(r Request) []Item
}

// An Item is one part of a resource.
type Item struct {
	Kind string `json:"kind"` // "group", "instance template"
	Name string `json:"name"`

	VMs     int `json:"vms,omitempty"`     // number of VMs of the part, each with a boot disk; a part without VMs costs nothing
	Running int `json:"running,omitempty"` // how many of these VMs are running
	Chips   int `json:"chips,omitempty"`   // chips of all of them together
}
