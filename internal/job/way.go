package job

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
)

// Way says by which address the workers are reached.
type Way string

// Auto takes the external address if it answers, otherwise a tunnel through
// Identity-Aware Proxy. With a bastion it takes the internal address.
const (
	Auto     Way = "auto"
	Internal Way = "internal"
	External Way = "external"
	IAP      Way = "iap"
)

// reachPatience is how long an external address may take to answer before the tunnel is
// used. A firewall drops packets silently, and users do not wait long for that.
const reachPatience = 5 * time.Second

// route holds the way that a command has chosen; it is chosen once.
type route struct {
	mu     sync.Mutex
	chosen Way
}

// way chooses how to reach the workers of sel, and logs the choice of a tunnel that the
// user did not ask for. It stores no choice while the first worker does not answer: a VM
// that is still booting must not decide for the whole command.
func (d *Deps) way(ctx context.Context, sel tpu.Selection) Way {
	asked := d.Access.Way
	switch {
	case d.onHosts():
		return Internal
	case asked != Auto && asked != "":
		return asked
	case len(d.Access.Jump) > 0:
		return Internal
	}
	d.route.mu.Lock()
	defer d.route.mu.Unlock()
	if d.route.chosen != "" {
		return d.route.chosen
	}
	at := slices.IndexFunc(sel.Slices, func(s tpu.Slice) bool { return len(s.Workers) > 0 })
	if at < 0 {
		return Internal // no worker to reach
	}
	name, first := sel.Slices[at].Name, sel.Slices[at].Workers[0]
	if first.External != "" {
		addr := net.JoinHostPort(first.External, strconv.Itoa(d.Access.Port))
		if _, err := sshfan.Reachable(ctx, nil, min(d.Access.ConnectTimeout, reachPatience), addr); err == nil {
			d.route.chosen = External
			return External
		} else if d.Access.IAP == nil || ctx.Err() != nil {
			return External
		}
		event.Notef(d.Sink, event.Info, "", "%s does not answer at its external address: going through Identity-Aware Proxy (--ip says otherwise)", name)
		return IAP
	}
	if d.Access.IAP == nil {
		return Internal
	}
	event.Notef(d.Sink, event.Info, "from inside the network add --internal-ip", "the workers have no external addresses: going through Identity-Aware Proxy")
	d.route.chosen = IAP
	return IAP
}

// address returns the address to dial for worker id of s. For Identity-Aware Proxy that
// is the name of its VM, which dialer understands.
func (d *Deps) address(ctx context.Context, way Way, s tpu.Slice, id tpu.WorkerID) (string, error) {
	w := s.Workers[id.Worker]
	host := ""
	switch way {
	case External:
		if host = w.External; host == "" {
			return "", &sshfan.NoAddressError{Worker: id.String(), Kind: "external"}
		}
	case IAP:
		_, name, err := d.Cloud.HostKeys(ctx, s, id.Worker)
		if err != nil {
			return "", fmt.Errorf("learn the VM name of %s for the tunnel: %w", id, err)
		}
		host = name
	default:
		if host = w.Internal; host == "" {
			return "", &sshfan.NoAddressError{Worker: id.String(), Kind: "internal"}
		}
	}
	port := d.Access.Port
	if w.Port != 0 {
		port = w.Port
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// dialer returns the function that opens the connections under SSH; nil means plain TCP.
func (d *Deps) dialer(way Way) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if way != IAP {
		return d.Access.Dial
	}
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		name, text, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		return d.Access.IAP.Dial(ctx, d.Zone, name, "nic0", port)
	}
}
