// Package overssh reaches workers over SSH. It chooses the address (external, internal or
// through Identity-Aware Proxy), gives the user's key access and pins host keys. It
// implements Dialer of package remote.
package overssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/hosts"
	"multihost/internal/iap"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/tpu"
)

// Access says how to reach workers.
type Access struct {
	Login          string
	Account        string // the user's account at the provider of the slices; "": that of the credentials
	AgentSocket    string
	Identity       *sshkey.Identity // nil in a dry run if there is no key yet
	KeyFile        string           // file of the Identity
	KnownHosts     string           // file of pinned host keys
	Port           int              // SSH port, normally 22
	Way            Way              // which address to use; "" is Auto
	Jump           []sshfan.JumpHost
	SSHConfig      *sshfan.SSHConfig
	UserKnownHosts []string   // files with the host keys of bastions
	IAP            *iap.Proxy // nil: no tunnel
	Passphrase     func(path string) (string, error)
	// Dial opens the connections under SSH, except those through IAP. nil means plain TCP.
	Dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	ConnectTimeout time.Duration
	RetryFor       time.Duration // how long a worker may take to answer at all
	MaxDials       int
}

// authRetry is how long a READY slice may refuse our key before the key counts as wrong.
// Its workers' agent fetches new keys within seconds.
const authRetry = 45 * time.Second

// SSH reaches workers over SSH. It implements remote.Dialer.
type SSH struct {
	Access Access
	Cloud  provision.Provider
	Zone   string
	Clock  gcp.Clock
	// Logins has the login to use, by slice name; the keys on the workers then do not
	// change. If it is nil, the user's key is sent, and the cloud says which login to use.
	Logins map[string]string

	route route
}

// Way implements remote.Dialer. It returns a Way.
func (c *SSH) Way(ctx context.Context, all []tpu.Slice, sink event.Sink) string {
	return string(c.choose(ctx, all, sink))
}

// Dial implements remote.Dialer.
func (c *SSH) Dial(ctx context.Context, r remote.Request) (*remote.Dialed, error) {
	var err error
	logins := map[string]string{} // by slice name, where it differs from Access.Login
	if r.Admit {
		if logins, _, err = c.sendKeys(ctx, r.Slices, r.Sink); err != nil {
			return nil, err
		}
	}
	way := c.choose(ctx, r.Slices, r.Sink)
	cfg := c.config(way, r)
	fleet, err := sshfan.New(cfg)
	if err != nil {
		return nil, err
	}
	roster := newRoster()
	hosts := make([]sshfan.Host, len(r.Workers))
	for i, id := range r.Workers {
		hosts[i] = c.host(way, logins[r.Slices[id.Slice].Name], r.Slices[id.Slice], id, roster)
	}
	conns, errs := fleet.Open(ctx, hosts)
	if refusedKey(errs) && ctx.Err() == nil {
		// Somebody else who writes the slice's metadata may have removed our key.
		if !r.Admit {
			fleet.Close()
			r.Admit = true
			return c.Dial(ctx, r)
		}
		if _, changed, err := c.sendKeys(ctx, unlisted(r.Slices), r.Sink); err == nil && changed {
			conns, errs = fleet.Open(ctx, hosts)
		}
	}
	if !r.ReadOnly {
		if err := provider.SaveKeys(c.Cloud); err != nil {
			event.Notef(r.Sink, event.Debug, "", "%v", err)
		}
	}
	dialed := &remote.Dialed{Errs: errs, Close: fleet.Close}
	for _, conn := range conns {
		dialed.Conns = append(dialed.Conns, conn)
	}
	return dialed, nil
}

// config returns the settings of the connections.
func (c *SSH) config(way Way, r remote.Request) sshfan.Config {
	a := c.Access
	cfg := sshfan.Config{
		Identity:       a.Identity,
		KnownHosts:     a.KnownHosts,
		ReadOnly:       r.ReadOnly,
		MaxDials:       a.MaxDials,
		ConnectTimeout: a.ConnectTimeout,
		RetryFor:       r.RetryFor,
		AuthRetryFor:   min(r.RetryFor, authRetry),
		ShellTimeout:   min(r.RetryFor, shellLimit),
		Jump:           a.Jump,
		SSHConfig:      a.SSHConfig,
		AgentSocket:    a.AgentSocket,
		UserKnownHosts: a.UserKnownHosts,
		Passphrase:     a.Passphrase,
		Dial:           c.dialer(way),
		Sink:           r.Sink,
		Fold: func(waiting []int) string {
			ids := make([]tpu.WorkerID, len(waiting))
			for i, w := range waiting {
				ids[i] = r.Workers[w]
			}
			return tpu.Fold(ids)
		},
		AcceptCommand: func(name string) string {
			id, err := tpu.ParseWorkerID(name)
			if err != nil {
				return ""
			}
			return fmt.Sprintf("multihost hostkey forget s0w%d --tpu-prefix=%s", id.Worker, r.Slices[id.Slice].Name)
		},
	}
	if !r.Admit {
		cfg.AuthRetryFor = time.Millisecond // the first refusal means that the key must be sent
	}
	if way == IAP { // these addresses are names of VMs, to which Host rules do not apply
		cfg.SSHConfig = nil
	}
	return cfg
}

// shellLimit is how long a login may take to run its first command.
const shellLimit = 30 * time.Second

// choose chooses how to reach the workers of the slices. It logs a tunnel that the user did
// not ask for. If the external address of the first worker does not answer, choose does not
// store the choice, because a VM that is still booting must not decide for the whole command.
func (c *SSH) choose(ctx context.Context, all []tpu.Slice, sink event.Sink) Way {
	asked := c.Access.Way
	switch {
	case c.onHosts():
		return Internal
	case asked != Auto && asked != "":
		return asked
	case len(c.Access.Jump) > 0:
		return Internal
	}
	c.route.mu.Lock()
	defer c.route.mu.Unlock()
	if c.route.chosen != "" {
		return c.route.chosen
	}
	at := slices.IndexFunc(all, func(s tpu.Slice) bool { return len(s.Workers) > 0 })
	if at < 0 {
		return Internal // no worker to reach
	}
	name, first := all[at].Name, all[at].Workers[0]
	if first.External != "" {
		addr := net.JoinHostPort(first.External, strconv.Itoa(c.Access.Port))
		if _, err := sshfan.Reachable(ctx, nil, min(c.Access.ConnectTimeout, reachPatience), addr); err == nil {
			c.route.chosen = External
			return External
		} else if c.Access.IAP == nil || ctx.Err() != nil {
			return External
		}
		event.Notef(sink, event.Info, "", "%s does not answer at its external address: going through Identity-Aware Proxy (--ip says otherwise)", name)
		return IAP
	}
	if c.Access.IAP == nil {
		return Internal
	}
	event.Notef(sink, event.Info, "from inside the network add --internal-ip", "the workers have no external addresses: going through Identity-Aware Proxy")
	c.route.chosen = IAP
	return IAP
}

// address returns the address to dial for worker id of s. Through Identity-Aware Proxy,
// that is the name of its VM, which dialer understands.
func (c *SSH) address(ctx context.Context, way Way, s tpu.Slice, id tpu.WorkerID) (string, error) {
	w := s.Workers[id.Worker]
	host := ""
	switch way {
	case External:
		if host = w.External; host == "" {
			return "", &sshfan.NoAddressError{Worker: id.String(), Kind: "external"}
		}
	case IAP:
		_, name, err := c.Cloud.HostKeys(ctx, s, id.Worker)
		if err != nil {
			return "", fmt.Errorf("learn the VM name of %s for the tunnel: %w", id, err)
		}
		host = name
	default:
		if host = w.Internal; host == "" {
			return "", &sshfan.NoAddressError{Worker: id.String(), Kind: "internal"}
		}
	}
	port := c.Access.Port
	if w.Port != 0 {
		port = w.Port
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// dialer returns the function that opens the connections under SSH. nil means plain TCP.
func (c *SSH) dialer(way Way) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if way != IAP {
		return c.Access.Dial
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
		return c.Access.IAP.Dial(ctx, c.Zone, name, "nic0", port)
	}
}

// pin returns the name of the machine to which a host key belongs. For a worker of a cloud
// it never uses the address, which may be another machine's tomorrow.
func pin(s tpu.Slice, id tpu.WorkerID) string {
	if s.UID == "" { // a host that no cloud knows has only its address as identity
		w := s.Workers[id.Worker]
		return "host/" + net.JoinHostPort(w.Internal, strconv.Itoa(w.Port))
	}
	return s.UID + "/" + strconv.Itoa(id.Worker)
}

func (c *SSH) host(way Way, login string, s tpu.Slice, id tpu.WorkerID, roster *roster) sshfan.Host {
	login = cmp.Or(s.Workers[id.Worker].Login, login, c.Access.Login)
	host := sshfan.Host{
		Name: id.String(),
		User: login,
		Pin:  pin(s, id),
		Addr: c.addresses(way, s, id, roster),
		Keys: func(ctx context.Context) ([]string, error) {
			keys, _, err := c.Cloud.HostKeys(ctx, s, id.Worker)
			if errors.Is(err, provision.ErrNoHostKeys) {
				return nil, sshfan.ErrNoHostKeys
			}
			return keys, err
		},
		Doubt: func() bool { return provider.DoubtKeys(c.Cloud, s, id.Worker) },
		Cloud: !c.onHosts(),
	}
	if host.Cloud {
		host.Slice = s.Name
	}
	return host
}

// addresses returns a function that returns a worker's address. The first call uses the
// address from discovery. Later calls ask the API, because a reboot can change the address.
func (c *SSH) addresses(way Way, s tpu.Slice, id tpu.WorkerID, roster *roster) func(context.Context) (string, error) {
	var asked atomic.Bool
	return func(ctx context.Context) (string, error) {
		now := s
		if asked.Swap(true) {
			fresh, known := roster.lookUp(ctx, c.Cloud, c.Clock, s.Name)
			switch {
			case !known:
				// The worker may be reachable although the API is not.
			case fresh.UID != s.UID:
				return "", fmt.Errorf("slice %q was recreated: its id was %s and is %s", s.Name, s.UID, fresh.UID)
			case len(fresh.Workers) > id.Worker:
				now = fresh
			}
		}
		return c.address(ctx, way, now, id)
	}
}

// sendKeys adds the user's public key to every slice that lacks it. It returns the login
// to use, by slice name, and whether it changed anything.
func (c *SSH) sendKeys(ctx context.Context, all []tpu.Slice, sink event.Sink) (logins map[string]string, changed bool, err error) {
	if c.Logins != nil {
		return c.Logins, false, nil
	}
	logins = map[string]string{}
	var mu sync.Mutex // guards logins and changed
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, s := range all {
		if len(s.Workers) == 0 {
			continue // the slice has gone: there is nothing to log in to
		}
		group.Go(func() error {
			user, wrote, err := c.Cloud.Admit(ctx, s, provision.Login{Name: c.Access.Login, PublicKey: c.Access.Identity.PublicKey(), Account: c.Access.Account})
			if err != nil {
				return fmt.Errorf("add the SSH key of %q to slice %q: %w", c.Access.Login, s.Name, err)
			}
			mu.Lock()
			logins[s.Name], changed = user, changed || wrote
			mu.Unlock()
			if wrote {
				event.Notef(sink, event.Info, "", "added the SSH key of %s to slice %s", user, s.Name)
			}
			return nil
		})
	}
	err = group.Wait()
	return logins, changed, err
}

// onHosts reports whether the slices come from a HostList.
func (c *SSH) onHosts() bool {
	_, ok := provision.As[hosts.HostList](c.Cloud)
	return ok
}

// unlisted returns the slices without the keys from the list call, so that the keys are
// read again.
func unlisted(all []tpu.Slice) []tpu.Slice {
	all = slices.Clone(all)
	for i := range all {
		all[i].Metadata = maps.Clone(all[i].Metadata)
		delete(all[i].Metadata, "ssh-keys")
	}
	return all
}

func refusedKey(errs []error) bool {
	return slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, remote.ErrKeyRefused) })
}

// Check finds errors in the files that connections need, before the first request.
func (a Access) Check() error {
	if a.KnownHosts == "" {
		return nil
	}
	return sshfan.CheckHostKeys(a.KnownHosts)
}

// Forget removes the pinned host key of a worker, and reports whether there was one.
func (a Access) Forget(s tpu.Slice, id tpu.WorkerID) (removed bool, err error) {
	n, err := sshfan.ForgetHostKeys(a.KnownHosts, pin(s, id))
	return n > 0, err
}
