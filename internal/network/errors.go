package network

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/remote"
)

// A Difference is one property in which a resource differs from the wanted one.
type Difference struct {
	Field string `json:"field"`
	Have  string `json:"have"`
	Want  string `json:"want"`
}

func describe(diffs []Difference) string {
	var parts []string
	for _, d := range diffs {
		parts = append(parts, fmt.Sprintf("%s is %s, wanted %s", d.Field, d.Have, d.Want))
	}
	return strings.Join(parts, "; ")
}

// A MismatchError says that a resource exists but differs from the wanted one. Nothing
// was changed.
type MismatchError struct {
	Resource    string // "network" or "firewall rule"
	Name        string
	Owned       bool // made by multihost
	Differences []Difference

	project string
	rule    FirewallRule // the wanted rule; zero for a network
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s %q exists and is different: %s", e.Resource, e.Name, describe(e.Differences))
}

// Class returns the class for gcp.ClassOf.
func (e *MismatchError) Class() gcp.Class { return gcp.AlreadyExists }

// Fault returns the fault.Kind that belongs to Class.
func (e *MismatchError) Fault() fault.Kind { return e.Class().Fault() }

// Hint says how to get the wanted resource, and for a network also how to use the existing
// one.
func (e *MismatchError) Hint() string {
	if e.Resource != "network" {
		remove := "multihost network firewall delete " + e.Name
		if !e.Owned {
			remove = remote.CommandLine("gcloud", "compute", "firewall-rules", "delete", e.Name, "--project="+e.project)
		}
		hint := "remove it, and give the same command again: " + remove
		if beside := e.beside(); beside != "" {
			hint = "make another rule beside it: " + beside + "; or " + hint
		}
		return hint
	}
	remove := "multihost network delete " + e.Name
	if !e.Owned {
		remove = remote.CommandLine("gcloud", "compute", "networks", "delete", e.Name, "--project="+e.project)
	}
	hint := fmt.Sprintf("make another network beside it: multihost network create OTHER; or remove it and create it again: %s", remove)
	if take := e.takeFlags(); take != "" {
		hint += "; or take it as it is: " + take
	}
	return hint
}

// beside returns the command that creates the wanted rule under another name, for the source
// ranges that the existing rule does not allow. It is "" if the existing rule allows all of them.
// It is also "" if the existing rule denies traffic, because it would override the new rule.
func (e *MismatchError) beside() string {
	if slices.ContainsFunc(e.Differences, func(d Difference) bool { return d.Field == "action" }) {
		return ""
	}
	r := e.rule
	from := e.missingRanges()
	if len(r.SourceRanges) > 0 && len(from) == 0 {
		return ""
	}
	words := []string{"multihost", "network", "firewall", "create", r.Name[:min(len(r.Name), 61)] + "-2", "--network=" + r.Network, "--allow=" + strings.Join(r.Allow, ",")}
	if len(from) > 0 {
		words = append(words, "--source-ranges="+strings.Join(from, ","))
	}
	if len(r.TargetTags) > 0 {
		words = append(words, "--target-tags="+strings.Join(r.TargetTags, ","))
	}
	if r.Priority != defaultPriority {
		words = append(words, fmt.Sprintf("--priority=%d", r.Priority))
	}
	return remote.CommandLine(words...)
}

// missingRanges returns the wanted source ranges that the existing rule lacks. If the rules also
// differ in something else, it returns all wanted source ranges.
func (e *MismatchError) missingRanges() []string {
	if len(e.Differences) != 1 || e.Differences[0].Field != "source ranges" {
		return e.rule.SourceRanges
	}
	d := e.Differences[0]
	have := strings.Split(d.Have, ",")
	return slices.DeleteFunc(strings.Split(d.Want, ","), func(r string) bool { return slices.Contains(have, r) })
}

// takeFlags returns the flags with which the existing network is the wanted one.
func (e *MismatchError) takeFlags() string {
	var flags []string
	for _, d := range e.Differences {
		switch d.Field {
		case "MTU":
			flags = append(flags, "--mtu="+d.Have)
		case "subnet mode":
			flags = append(flags, "--subnet-mode="+d.Have)
		case "routing mode":
			flags = append(flags, "--bgp-routing-mode="+d.Have)
		}
	}
	return strings.Join(flags, " ")
}

// A MissingError says that a needed network does not exist.
type MissingError struct{ Network string }

func (e *MissingError) Error() string { return fmt.Sprintf("network %q: not found", e.Network) }

// Class returns the class for gcp.ClassOf.
func (e *MissingError) Class() gcp.Class { return gcp.NotFound }

// Fault returns the fault.Kind that belongs to Class.
func (e *MissingError) Fault() fault.Kind { return e.Class().Fault() }

// Hint returns the command that creates the network.
func (e *MissingError) Hint() string {
	return "create it with: multihost network create " + e.Network
}

// A NotOursError says that a resource was not deleted because multihost did not create
// it.
type NotOursError struct {
	Resource    string // "network" or "firewall rule"
	Name        string
	Description string

	project string
}

func (e *NotOursError) Error() string {
	return fmt.Sprintf("delete %s %q: not made by multihost (its description is %q)", e.Resource, e.Name, e.Description)
}

// Class returns the class for gcp.ClassOf.
func (e *NotOursError) Class() gcp.Class { return gcp.Conflict }

// Fault returns the fault.Kind that belongs to Class.
func (e *NotOursError) Fault() fault.Kind { return e.Class().Fault() }

// Hint returns gcloud's command that deletes the resource.
func (e *NotOursError) Hint() string {
	kind := "networks"
	if e.Resource != "network" {
		kind = "firewall-rules"
	}
	return "if it is yours to delete: " + remote.CommandLine("gcloud", "compute", kind, "delete", e.Name, "--project="+e.project)
}

// A ForeignRulesError says that a network that multihost created has firewall rules that it did
// not create. Nothing was deleted.
type ForeignRulesError struct {
	Network string
	Rules   []string

	project string
}

func (e *ForeignRulesError) Error() string {
	return fmt.Sprintf("delete network %q: it has firewall rules that multihost did not make: %s", e.Network, strings.Join(e.Rules, ", "))
}

// Class returns the class for gcp.ClassOf.
func (e *ForeignRulesError) Class() gcp.Class { return gcp.Conflict }

// Fault returns the fault.Kind that belongs to Class.
func (e *ForeignRulesError) Fault() fault.Kind { return e.Class().Fault() }

// Hint returns the command that deletes the rules.
func (e *ForeignRulesError) Hint() string {
	words := append([]string{"gcloud", "compute", "firewall-rules", "delete"}, e.Rules...)
	return "somebody may need them; if not: " + remote.CommandLine(append(words, "--project="+e.project)...)
}

// An InUseError says that a network cannot be deleted or changed because something
// uses it.
type InUseError struct {
	Network string
	Verb    string   // the refused action; "": delete
	Users   []string // "TPU node t-0 (us-central2-b)", "VM v-0 (us-east5-a)"
	Err     error    // the API's answer; nil if there was no request
}

func (e *InUseError) Error() string {
	by := "something"
	if len(e.Users) > 0 {
		by = strings.Join(e.Users, ", ")
	}
	return fmt.Sprintf("%s network %q: it is used by %s", cmp.Or(e.Verb, "delete"), e.Network, by)
}

// Unwrap returns the API's answer.
func (e *InUseError) Unwrap() error { return e.Err }

// Class returns the class for gcp.ClassOf.
func (e *InUseError) Class() gcp.Class { return gcp.Conflict }

// Fault returns the fault.Kind that belongs to Class.
func (e *InUseError) Fault() fault.Kind { return e.Class().Fault() }

// Hint says what to delete first.
func (e *InUseError) Hint() string {
	for _, u := range e.Users {
		if strings.HasPrefix(u, "TPU") || strings.HasPrefix(u, "queued resource") {
			return "delete what uses it first: multihost qr list, then multihost qr delete ID"
		}
		if strings.HasPrefix(u, "instance ") {
			return "delete what uses it first: multihost slices list, then multihost slices delete ID"
		}
	}
	return "delete what uses it first, then the network again"
}

// A SlowOperationError says that an operation did not end in time. It may still
// succeed.
type SlowOperationError struct {
	What      string
	Operation string
	Limit     time.Duration

	project string
}

func (e *SlowOperationError) Error() string {
	return fmt.Sprintf("%s: operation %s still runs after %v", e.What, e.Operation, e.Limit)
}

// Class returns the class for gcp.ClassOf.
func (e *SlowOperationError) Class() gcp.Class { return gcp.Timeout }

// Fault returns the fault.Kind that belongs to Class.
func (e *SlowOperationError) Fault() fault.Kind { return e.Class().Fault() }

// Hint returns the command that shows the operation.
func (e *SlowOperationError) Hint() string {
	return "it goes on without multihost; look at it with: " +
		remote.CommandLine("gcloud", "compute", "operations", "describe", e.Operation, "--global", "--project="+e.project)
}

var (
	notReadyText = regexp.MustCompile(`(?i)is not ready`)
	usedByText   = regexp.MustCompile(`used by '([^']+)'`)
	projectText  = regexp.MustCompile(`(?i)'projects/[^/']+' was not found|project .* (not found|does not exist)`)
)

// notReady reports whether a change failed because a resource that it needs is not ready
// yet.
func notReady(err error) bool {
	var op *gcp.OperationError
	if errors.As(err, &op) {
		return op.Status == "RESOURCE_NOT_READY" || op.Reason == "resourceNotReady"
	}
	var e *gcp.Error
	return errors.As(err, &e) && e.HTTP == 400 && (e.Reason == "resourceNotReady" || notReadyText.MatchString(e.Message))
}

// inUse reports whether err says that something uses the resource. users are the names in the
// message.
func inUse(err error) (users []string, ok bool) {
	var op *gcp.OperationError
	var e *gcp.Error
	var text string
	switch {
	case errors.As(err, &op):
		ok, text = op.Status == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE" || op.Reason == "resourceInUseByAnotherResource", op.Message
	case errors.As(err, &e):
		ok, text = e.Reason == "resourceInUseByAnotherResource", e.Message
	}
	if !ok {
		return nil, false
	}
	for _, m := range usedByText.FindAllStringSubmatch(text, -1) {
		users = append(users, userName(m[1]))
	}
	return users, true
}

// userName returns "instance vm-1 (us-central2-b)" for
// projects/p/zones/us-central2-b/instances/vm-1.
func userName(resource string) string {
	parts := strings.Split(resource, "/")
	if len(parts) < 2 {
		return resource
	}
	kind := strings.TrimSuffix(parts[len(parts)-2], "s")
	name := kind + " " + parts[len(parts)-1]
	if len(parts) >= 4 && (parts[len(parts)-4] == "zones" || parts[len(parts)-4] == "regions") {
		name += " (" + parts[len(parts)-3] + ")"
	}
	return name
}

// missingProject reports whether err means that the project itself does not exist.
func missingProject(err error) bool {
	return err != nil && projectText.MatchString(err.Error())
}
