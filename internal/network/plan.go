package network

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/remote"
)

// A Verb is what a plan does to a resource.
type Verb string

// The verbs of a plan.
const (
	Create   Verb = "create"
	Keep     Verb = "keep"     // the resource exists as wanted
	Conflict Verb = "conflict" // the resource exists but differs, so the plan cannot be applied
)

// An Action is one step of a Plan.
type Action struct {
	Verb     Verb   `json:"verb"`
	Resource string `json:"resource"` // "network" or "firewall"
	Name     string `json:"name"`
	Gcloud   string `json:"gcloud,omitempty"` // for Create: the gcloud command line that does the same
	Reason   string `json:"reason,omitempty"`

	network  *computepb.Network
	firewall *computepb.Firewall
	options  Options
	rule     FirewallRule
	conflict error
}

// A Plan lists what Apply would do, in order. It does not notice later changes of the network.
type Plan struct {
	Actions []Action `json:"actions"`
}

// Err joins the plan's conflicts with existing resources, or returns nil.
func (p Plan) Err() error {
	var errs []error
	for _, a := range p.Actions {
		if a.conflict != nil {
			errs = append(errs, a.conflict)
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Changes returns how many resources the plan would create.
func (p Plan) Changes() int {
	n := 0
	for _, a := range p.Actions {
		if a.Verb == Create {
			n++
		}
	}
	return n
}

// String returns the plan for people, with one line for each resource. Below each resource to
// create is the gcloud command that does the same.
func (p Plan) String() string {
	var b strings.Builder
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "%-8s %s %s", a.Verb, a.Resource, a.Name)
		if a.Reason != "" {
			fmt.Fprintf(&b, ": %s", a.Reason)
		}
		b.WriteByte('\n')
		if a.Verb == Create {
			fmt.Fprintf(&b, "    %s\n", a.Gcloud)
		}
	}
	return b.String()
}

// Plan returns what must be created for o. It only reads. Conflicts with existing resources
// are in the plan, not in err.
func (c *Client) Plan(ctx context.Context, o Options) (Plan, error) {
	if err := o.Validate(); err != nil {
		return Plan{}, err
	}
	o = o.withDefaults()
	have, err := c.calls.getNetwork(ctx, o.Name)
	if err != nil {
		return Plan{}, err
	}
	existing, err := c.calls.listFirewalls(ctx)
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{Actions: []Action{c.planNetwork(o, have)}}
	for _, rule := range o.rules() {
		rule = rule.withDefaults()
		flag := "--ssh-source-ranges"
		if rule.Name == o.Name+"-all" {
			flag = "--all-ports-from"
		}
		c.warnExposed(rule, flag)
		plan.Actions = append(plan.Actions, c.planRule(rule, existing))
	}
	return plan, nil
}

func (c *Client) planNetwork(o Options, have *computepb.Network) Action {
	a := Action{Resource: "network", Name: o.Name, options: o}
	if have == nil {
		a.Verb, a.network, a.Gcloud = Create, o.body(), o.gcloud(c.gcp.Project())
		return a
	}
	info := infoOf(have)
	var diffs []Difference
	if info.MTU != o.MTU {
		diffs = append(diffs, Difference{"MTU", fmt.Sprint(info.MTU), fmt.Sprint(o.MTU)})
	}
	if info.SubnetMode != o.SubnetMode {
		diffs = append(diffs, Difference{"subnet mode", info.SubnetMode, o.SubnetMode})
	}
	if info.RoutingMode != o.RoutingMode {
		diffs = append(diffs, Difference{"routing mode", info.RoutingMode, o.RoutingMode})
	}
	if len(diffs) > 0 {
		a.Verb = Conflict
		a.conflict = &MismatchError{Resource: "network", Name: o.Name, Owned: info.Owned, Differences: diffs, project: c.gcp.Project()}
		a.Reason = describe(diffs)
		return a
	}
	a.Verb, a.Reason = Keep, fmt.Sprintf("exists with MTU %d", info.MTU)
	if !info.Owned {
		a.Reason += "; not made by multihost, so never deleted by it"
	}
	return a
}

// planRule compares rule with the project's rule of the same name. Names are unique across
// networks. rule must have its defaults set.
func (c *Client) planRule(rule FirewallRule, existing []*computepb.Firewall) Action {
	a := Action{Resource: "firewall", Name: rule.Name, rule: rule}
	for _, fw := range existing {
		if fw.GetName() != rule.Name {
			continue
		}
		have := ruleOf(fw)
		if diffs := differences(have, rule); len(diffs) > 0 {
			a.Verb = Conflict
			a.conflict = &MismatchError{Resource: "firewall rule", Name: rule.Name, Owned: have.Owned, Differences: diffs, project: c.gcp.Project(), rule: rule}
			a.Reason = describe(diffs)
			return a
		}
		a.Verb, a.Reason = Keep, "exists"
		return a
	}
	a.Verb, a.firewall, a.Gcloud = Create, rule.body(c.gcp.Project()), rule.gcloud(c.gcp.Project())
	return a
}

// Apply creates the resources of plan, the network before its rules, and waits until each exists.
// If plan has a conflict, it changes nothing and returns plan.Err(). If Apply fails half-way, the
// resources that it has created stay. A new Plan continues from there.
func (c *Client) Apply(ctx context.Context, plan Plan) error {
	if err := plan.Err(); err != nil {
		return err
	}
	if plan.Changes() == 0 {
		c.sayUnchanged(plan)
		return nil
	}
	start := c.gcp.Clock().Now()
	c.gcp.Sink().Emit(event.Phase{Name: phase, State: event.Started})
	made, err := c.apply(ctx, plan)
	end := event.Phase{Name: phase, State: event.Done, Detail: strings.Join(made, ", "), Elapsed: c.gcp.Clock().Now().Sub(start)}
	if err != nil {
		end.State = event.Failed
		if len(made) > 0 {
			end.Detail = "made " + end.Detail
		}
	}
	c.gcp.Sink().Emit(end)
	if err == nil {
		c.sayHints(plan)
	}
	return err
}

// phase is this package's phase in events.
const phase = "network"

func (c *Client) apply(ctx context.Context, plan Plan) (made []string, err error) {
	for _, a := range plan.Actions {
		if a.Verb != Create {
			continue
		}
		if a.network != nil {
			err = c.createNetwork(ctx, a)
		} else {
			err = c.createFirewall(ctx, a)
		}
		if err != nil {
			return made, err
		}
		made = append(made, fmt.Sprintf("%s %s", a.Resource, a.Name))
	}
	return made, nil
}

func (c *Client) sayUnchanged(plan Plan) {
	var names []string
	for _, a := range plan.Actions {
		names = append(names, fmt.Sprintf("%s %s", a.Resource, a.Name))
	}
	event.Notef(c.gcp.Sink(), event.Info, "", "nothing to change: %s as wanted", strings.Join(names, ", "))
}

// sayHints reports what users probably need after plan was applied.
func (c *Client) sayHints(plan Plan) {
	for _, a := range plan.Actions {
		switch {
		case a.Verb != Create:
		case a.network != nil && a.options.SubnetMode == "custom":
			hint := remote.CommandLine("gcloud", "compute", "networks", "subnets", "create", a.Name, "--project="+c.gcp.Project(), "--network="+a.Name, "--region=REGION", "--range=10.0.0.0/20")
			event.Notef(c.gcp.Sink(), event.Info, hint, "network %q has no subnetwork yet", a.Name)
		case strings.HasSuffix(a.Name, "-ssh") && len(a.rule.SourceRanges) == 1 && a.rule.SourceRanges[0] == IAPRange:
			hint := fmt.Sprintf("to let this machine in: multihost network firewall create %s-ssh-me --network=%s --allow=tcp:22 --source-ranges=YOUR_ADDRESS/32", a.rule.Network, a.rule.Network)
			event.Notef(c.gcp.Sink(), event.Info, hint, "SSH to network %q is open to Identity-Aware Proxy only", a.rule.Network)
		}
	}
}

// createNetwork creates the network of a. An equal network that has appeared since the plan
// is no error.
func (c *Client) createNetwork(ctx context.Context, a Action) error {
	err := c.calls.insertNetwork(ctx, a.Name, a.network)
	if gcp.ClassOf(err) == gcp.AlreadyExists {
		have, gerr := c.calls.getNetwork(ctx, a.Name)
		if gerr != nil || have == nil {
			return err
		}
		err = c.planNetwork(a.options, have).conflict
	}
	if err == nil {
		c.gcp.Sink().Emit(event.State{Resource: "network", Name: a.Name, State: "READY"})
	}
	return err
}

func (c *Client) createFirewall(ctx context.Context, a Action) error {
	err := c.calls.insertFirewall(ctx, a.firewall)
	if gcp.ClassOf(err) == gcp.AlreadyExists {
		have, gerr := c.calls.getFirewall(ctx, a.Name)
		if gerr != nil || have == nil {
			return err
		}
		err = c.planRule(a.rule, []*computepb.Firewall{have}).conflict
	}
	if err == nil {
		c.gcp.Sink().Emit(event.State{Resource: "firewall", Name: a.Name, State: "READY"})
	}
	return err
}
