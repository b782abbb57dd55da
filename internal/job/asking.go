package job

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// asking returns the event that precedes a request for slices. mtu is that of the network
// and 0 if it was not read; until says what ends the bill.
func asking(r provision.Request, project, zone string, mtu int, until string, dryRun bool) event.Request {
	n := max(1, r.NodeCount)
	e := event.Request{
		Resource: r.ID, Slices: n, Type: r.Type.Name, Workers: n * r.Type.Workers, Chips: n * r.Type.Chips,
		Tier: string(r.Asks()), Reservation: r.Reservation, Zone: zone, Network: networkOf(r, project), MTU: mtu,
		PriceDate: tpu.PriceDate, Until: until, DryRun: dryRun,
	}
	if usd, ok := tpu.HourlyPrice(e.Type, zone, e.Tier); ok {
		usd *= float64(n)
		e.Hourly = &usd
	}
	if r.MaxRunDuration > 0 {
		e.Until += ", at the latest " + asTyped(r.MaxRunDuration) + " after they begin to run (--max-run-duration)"
	}
	e.Text = askingText(e)
	return e
}

// askingText is the line for people.
func askingText(e event.Request) string {
	verb, tier, net := "asking for", tierWords(e.Tier), e.Network
	if e.DryRun {
		verb = "would ask for"
	}
	if e.Reservation != "" {
		tier += " (" + e.Reservation + ")"
	}
	if e.MTU > 0 {
		net += fmt.Sprintf(" (MTU %d)", e.MTU)
	}
	price := noPrice(e.Type, e.Tier, e.Zone)
	if e.Hourly != nil {
		price = listPrice(*e.Hourly)
	}
	return fmt.Sprintf("%s %d × %s (%s, %s), %s, in %s, %s; %s; billed until %s", verb, e.Slices, e.Type,
		event.Count(e.Workers, "worker"), event.Count(e.Chips, "chip"), tier, e.Zone, net,
		price, e.Until)
}

// listPrice writes a price with the date of the list.
func listPrice(usd float64) string {
	return fmt.Sprintf("list price %s an hour (%s)", event.Dollars(usd), tpu.PriceDate)
}

// priceOf writes the price of slices for a reader who is not told their tier and zone
// beside it.
func priceOf(hourly *float64, accelerator, tier, zone string) string {
	if hourly == nil {
		return noPrice(accelerator, tier, zone)
	}
	return fmt.Sprintf("list price %s an hour, %s, in %s (%s)", event.Dollars(*hourly), tierWords(tier), zone, tpu.PriceDate)
}

// noPrice says what the price list lacks.
func noPrice(accelerator, tier, zone string) string {
	if _, ok := tpu.HourlyPrice(accelerator, zone, onDemand); ok {
		return "price unknown for " + tierWords(tier) + " in " + zone
	}
	return "price unknown for " + zone
}

// tierWords writes a tier as people do.
func tierWords(tier string) string {
	switch provision.Tier(tier) {
	case provision.OnDemand:
		return "on demand"
	case provision.BestEffort:
		return "best effort"
	}
	return tier
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

// billedUntil says what ends the bill of a job's slices. alone says that the job has no
// runner.
func billedUntil(o JobOptions, alone bool) string {
	text := "the command has ended"
	lease, failed := "", "after a failure"
	switch {
	case o.Keep:
		text = "you delete them (--keep)"
	case alone:
		text += " on all workers"
	case o.Run.Detach && o.Lease > 0:
		text = asTyped(o.Lease) + " after the command has ended (--lease)"
	case o.Run.Detach:
		text = "you delete them (--detach, --lease=0)"
	case o.Lease > 0:
		lease = ", or " + asTyped(o.Lease) + " later if this machine is gone (--lease)"
	default:
		text = "this machine deletes them after the end of the command (--lease=0)"
	}
	if o.KeepOnFailure && !o.Keep {
		if o.KeepFor > 0 {
			text += ", " + failed + " " + asTyped(o.KeepFor) + " longer (--keep-on-failure)"
		} else {
			text += ", " + failed + " until you delete them (--keep-on-failure)"
		}
	}
	text += lease
	if o.TTL > 0 {
		text += ", at the latest " + asTyped(o.TTL) + " after the request (--ttl)"
	}
	return text
}

// untilDeleted says what ends the bill of slices that no job made.
func untilDeleted(p provision.Provider, id string) string {
	return "you delete them: " + p.Undoing(id).Commands.Delete
}

// A declined error says that the user did not confirm a request.
type declined struct{ error }

func (e *declined) Unwrap() error { return e.error }

// announce emits e and has the user confirm it, if this command confirms requests.
func (d *Deps) announce(ctx context.Context, e event.Request) error {
	d.Sink.Emit(e)
	if d.Confirm == nil || e.DryRun {
		return nil
	}
	if err := d.Confirm(ctx, e.Text); err != nil {
		return &declined{err}
	}
	return nil
}

// outlook reads at the same time what a request depends on: whether a resource of its
// name exists already, and the MTU of its network.
func (d *Deps) outlook(ctx context.Context, r provision.Request, made *network.Options) (there bool, mtu int, err error) {
	var both sync.WaitGroup
	both.Go(func() { mtu = d.mtuFor(ctx, r, made) })
	there, err = d.isThere(ctx, r.ID)
	both.Wait()
	return there, mtu, err
}

// mtuFor returns the MTU of the request's network: that of the network to be made, or
// else what WarnOfMTU reads.
func (d *Deps) mtuFor(ctx context.Context, r provision.Request, made *network.Options) int {
	if made != nil {
		return made.MTU
	}
	return d.WarnOfMTU(ctx, r)
}

// isThere reports whether the queued resource exists and is not being deleted. Where the
// answer is a refusal, the request itself gets the better explained one.
func (d *Deps) isThere(ctx context.Context, id string) (bool, error) {
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

// AskFor announces the request of a command that only makes slices, and has it confirmed.
// It announces nothing if the resource exists: then nothing is asked for.
func (d *Deps) AskFor(ctx context.Context, r provision.Request) error {
	there, mtu, err := d.outlook(ctx, r, nil)
	if err != nil || there {
		return err
	}
	return d.announce(ctx, asking(r, d.Project, d.Zone, mtu, untilDeleted(d.Cloud, r.ID), false))
}

// WouldAskFor is AskFor for a dry run that has found out that the resource would be made.
func (d *Deps) WouldAskFor(r provision.Request, mtu int) {
	d.Sink.Emit(asking(r, d.Project, d.Zone, mtu, untilDeleted(d.Cloud, r.ID), true))
}
