// Package announce says what a command will request: slices, their price, what ends the
// bill, and whether their workers may delete them. With --confirm it asks the user first.
//
// # Decisions
//
//   - The user sees the price before the request, and only if there is a request. A job
//     that repeats its request after a loss shows no price again. --confirm asks once, and
//     never after the slices have existed, because the user may be away by then.
package announce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/settings"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

type Deps = settings.Deps

// Asking returns the event before a request for slices. mtu is the MTU of the network, or 0
// if not known. The parameter until says what ends the bill.
func Asking(r provision.Request, project, zone string, mtu int, until string, dryRun bool) event.Request {
	n := max(1, r.NodeCount)
	e := event.Request{
		Resource: r.ID, Slices: n, Type: r.Type.Name, Workers: n * r.Type.Workers, Chips: n * r.Type.Chips,
		Tier: string(r.Asks()), Reservation: r.Reservation, Zone: zone, Network: networkOf(r, project), MTU: mtu,
		PriceDate: tpu.PriceDate, Until: until, MaxRun: r.MaxRunDuration, DryRun: dryRun,
	}
	if usd, ok := tpu.HourlyPrice(e.Type, zone, e.Tier); ok {
		usd *= float64(n)
		e.Hourly = &usd
	}
	e.Until += AtTheLatest(r)
	if limit := r.SlicesDeadline; limit > 0 && n > 1 {
		e.Until += "; if slices are missing " + stage.AsTyped(limit) + " after the first one has come, all are given back (--slices-deadline)"
	}
	e.Text = askingText(e)
	return e
}

// AtTheLatest says when the provider takes the slices of a request away, or returns "" if
// it does not.
func AtTheLatest(r provision.Request) string {
	if r.MaxRunDuration <= 0 {
		return ""
	}
	return ", at the latest " + stage.AsTyped(r.MaxRunDuration) + " after they begin to run (--max-run-duration)"
}

// askingText is the line for people.
func askingText(e event.Request) string {
	verb, tier, net := "asking for", cost.TierWords(e.Tier), e.Network
	if e.DryRun {
		verb = "would ask for"
	}
	if e.Reservation != "" {
		tier += " (" + e.Reservation + ")"
	}
	if e.MTU > 0 {
		net += fmt.Sprintf(" (MTU %d)", e.MTU)
	}
	price := cost.NoPrice(e.Type, e.Tier, e.Zone)
	if e.Hourly != nil {
		price = cost.ListPrice(*e.Hourly)
	}
	return fmt.Sprintf("%s %d × %s (%s, %s), %s, in %s, %s; %s; billed until %s", verb, e.Slices, e.Type,
		event.Count(e.Workers, "worker"), event.Count(e.Chips, "chip"), tier, e.Zone, net,
		price, e.Until)
}

// networkOf names the network of a request in words.
func networkOf(r provision.Request, project string) string {
	short := func(name string) string {
		if i := strings.Index(name, "projects/"); i >= 0 {
			name = name[i:]
		}
		name = strings.TrimPrefix(name, "projects/"+project+"/")
		return strings.TrimPrefix(name, "global/networks/")
	}
	one := func(net, sub string) string {
		switch {
		case sub == "":
			return "network " + short(cmp.Or(net, "default"))
		case net == "":
			return "subnetwork " + short(sub)
		}
		return "network " + short(net) + ", subnetwork " + short(sub)
	}
	if len(r.Interfaces) == 0 {
		return one(r.Network, r.Subnetwork)
	}
	names := make([]string, len(r.Interfaces))
	for i, each := range r.Interfaces {
		names[i] = one(each.Network, each.Subnetwork)
	}
	return strings.Join(names, " and ")
}

// A Bill has the options of a job that decide when its slices end.
type Bill struct {
	Keep          bool // --keep
	KeepOnFailure bool // --keep-on-failure
	KeepFor       time.Duration
	Detach        bool // the runner ends once the command has started
	Lease, TTL    time.Duration
}

// BilledUntil says what ends the bill of a job's slices. The parameter alone says that the
// job has no runner.
func BilledUntil(o Bill, alone bool) string {
	text := "the command has ended"
	lease, failed := "", "after a failure"
	switch {
	case o.Keep:
		text = "you delete them (--keep)"
	case alone:
		text += " on all workers"
	case o.Detach && o.Lease > 0:
		text = stage.AsTyped(o.Lease) + " after the command has ended (--lease)"
	case o.Detach:
		text = "you delete them (--detach, --lease=0)"
	case o.Lease > 0:
		lease = ", or " + stage.AsTyped(o.Lease) + " later if this machine is gone (--lease)"
	default:
		text = "this machine deletes them after the end of the command (--lease=0)"
	}
	if o.KeepOnFailure && !o.Keep {
		if o.KeepFor > 0 {
			text += ", " + failed + " " + stage.AsTyped(o.KeepFor) + " longer (--keep-on-failure)"
		} else {
			text += ", " + failed + " until you delete them (--keep-on-failure)"
		}
	}
	text += lease
	if o.TTL > 0 {
		text += ", at the latest " + stage.AsTyped(o.TTL) + " after the request (--ttl)"
	}
	return text
}

// untilDeleted says what ends the bill of slices without a job.
func untilDeleted(p provision.Provider, id string) string {
	return "you delete them: " + p.Undoing(id).Commands.Delete
}

// A Declined error says that the user did not confirm a request.
type Declined struct{ error }

func (e *Declined) Unwrap() error { return e.error }

// Tell warns of a --max-run-duration below shortRun. The provider counts from the moment
// when the VMs begin to run, and they take some minutes to boot.
const shortRun = 10 * time.Minute

// Tell emits e. It warns if the provider takes the slices away before a command can do much
// on them.
func Tell(sink event.Sink, e event.Request) {
	sink.Emit(e)
	if e.MaxRun > 0 && e.MaxRun < shortRun {
		event.Notef(sink, event.Warn, "add some minutes for the boot: --max-run-duration=1h, for example",
			"--max-run-duration=%s counts from the moment when the VMs begin to run, and they take some minutes to boot: the slices may be taken away before the command starts", stage.AsTyped(e.MaxRun))
	}
}

// Announce tells the user of e, and with --confirm asks the user.
func Announce(ctx context.Context, d Deps, e event.Request) error {
	Tell(d.Sink, e)
	if d.Confirm == nil || e.DryRun {
		return nil
	}
	if err := d.Confirm(ctx, e.Text); err != nil {
		return &Declined{err}
	}
	return nil
}

// Outlook reads, at the same time, whether a resource of the request's name exists, the MTU
// of its network, and what the request names. Without a resource, the error names what does
// not exist: the zone, the network, the machine type there, or the reservation. So nobody
// is asked about a request that would be refused.
func Outlook(ctx context.Context, d Deps, r provision.Request, made *network.Options) (there bool, mtu int, err error) {
	var refused error
	var check sync.WaitGroup
	check.Go(func() { mtu, refused = Check(ctx, d, r, made) })
	there, err = isThere(ctx, d, r.ID)
	check.Wait()
	if err == nil && !there {
		err = refused
	}
	return there, mtu, err
}

// Check is the part of Outlook that names what does not exist, for a command that knows
// whether the resource exists. It also returns the MTU of the network.
func Check(ctx context.Context, d Deps, r provision.Request, made *network.Options) (mtu int, err error) {
	var refused error
	var beside sync.WaitGroup
	beside.Go(func() { refused = refusal(ctx, d, r) })
	mtu, missing := MTUFor(ctx, d, r, made)
	beside.Wait()
	return mtu, cmp.Or(missing, refused)
}

// MTUFor returns the MTU of the request's network. If made is set, the command makes the
// network with that MTU. Otherwise settings.WarnOfMTU reads the MTU, and returns the error.
func MTUFor(ctx context.Context, d Deps, r provision.Request, made *network.Options) (int, error) {
	if made != nil {
		return made.MTU, nil
	}
	mtu, err := settings.WarnOfMTU(ctx, d, r)
	return mtu, NamedNetwork(err)
}

// NamedNetwork returns err, the error of reading the network that a flag names. If there is
// no such network, the kind of the returned error is Usage, because the flag is wrong.
func NamedNetwork(err error) error {
	var missing *network.MissingError
	if errors.As(err, &missing) {
		return &namedError{err, "make it with: multihost network create " + missing.Network + "; or name another with --network=NAME"}
	}
	return err
}

// refusal returns an error if the zone does not have the machine type of a request, or if
// its reservation does not exist. It ignores other failures, because the answer to the
// request explains them better.
func refusal(ctx context.Context, d Deps, r provision.Request) error {
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), refusalLimit)
	defer cancel()
	err := offered(ctx, d, r)
	if gcp.NoZone(err) || gcp.ClassOf(err) == gcp.NotFound {
		return err
	}
	if p, ok := provision.As[provision.Reserver](d.Cloud); ok && r.Reservation != "" {
		if _, err := p.Reserved(ctx, r.Reservation, r.Type, max(1, r.NodeCount)); gcp.ClassOf(err) == gcp.NotFound {
			return &namedError{err, fmt.Sprintf("list those of the zone with: gcloud compute reservations list --filter=zone:%s --project=%s; one of another project is called projects/PROJECT/reservations/NAME", d.Zone, d.Project)}
		}
	}
	return nil
}

// offered reads whether the zone exists and has the machine type of the request.
func offered(ctx context.Context, d Deps, r provision.Request) error {
	if p, ok := provision.As[provision.Catalog](d.Cloud); ok {
		_, err := p.Machine(ctx, r.Type)
		return err
	}
	if _, err := provision.Leading(d.Cloud).Get(ctx, r.ID); gcp.NoZone(err) {
		return err
	}
	return nil
}

// refusalLimit limits the calls of refusal.
const refusalLimit = 20 * time.Second

// A namedError says that a flag of the request names something that does not exist.
type namedError struct {
	error
	hint string
}

func (e *namedError) Unwrap() error { return e.error }

// Fault returns fault.Usage.
func (*namedError) Fault() fault.Kind { return fault.Usage }

func (e *namedError) Hint() string { return e.hint }

// isThere reports whether the resource exists and is not being deleted. If the provider
// refuses to say, that is no error here, because the answer to the request explains it
// better.
func isThere(ctx context.Context, d Deps, id string) (bool, error) {
	res, err := d.Cloud.Get(ctx, id)
	switch gcp.ClassOf(err) {
	case gcp.Unavailable, gcp.Timeout, gcp.Unauthenticated:
		return false, err
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return err == nil && res.Life != provision.Deleting, nil
}

// AskFor announces the request of a command that only makes slices, and with --confirm asks
// the user. It announces nothing if the resource exists, because then there is no request.
func AskFor(ctx context.Context, d Deps, r provision.Request) error {
	there, mtu, err := Outlook(ctx, d, r, nil)
	if err != nil || there {
		return err
	}
	return Announce(ctx, d, Asking(r, d.Project, d.Zone, mtu, untilDeleted(d.Cloud, r.ID), false))
}

// WouldAskFor is AskFor for a dry run that has found out that it would make the resource.
func WouldAskFor(d Deps, r provision.Request, mtu int) {
	Tell(d.Sink, Asking(r, d.Project, d.Zone, mtu, untilDeleted(d.Cloud, r.ID), true))
}
