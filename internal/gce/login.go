package gce

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"multihost/internal/gcp"
	"multihost/internal/nodes"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// vmOf returns the name of the VM of a worker.
func vmOf(s tpu.Slice, worker int) (string, error) {
	if worker < 0 || worker >= len(s.Workers) {
		return "", fmt.Errorf("find VM of worker %d of slice %q: it has %d workers", worker, s.Name, len(s.Workers))
	}
	return s.Workers[worker].Name, nil
}

// HostKeys implements provision.Provider. The guest agent writes the keys some seconds after
// the first boot.
func (p *Provider) HostKeys(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error) {
	vm, err := vmOf(s, worker)
	if err != nil {
		return nil, "", err
	}
	tries := 0
	err = gcp.Poll(ctx, p.gcp.Clock(), gcp.Backoff{First: time.Second, Max: 4 * time.Second, Factor: 2}, func(ctx context.Context) (bool, error) {
		tries++
		entries, err := p.attributes(ctx, vm, "hostkeys/")
		var all []nodes.Attribute
		for _, e := range entries {
			all = append(all, nodes.Attribute{Namespace: e.GetNamespace(), Key: e.GetKey(), Value: e.GetValue()})
		}
		keys, _ = nodes.HostKeysIn(all)
		return len(keys) > 0 || tries == 3, err
	})
	if err == nil && len(keys) == 0 {
		err = fmt.Errorf("read host keys of VM %q: %w", vm, provision.ErrNoHostKeys)
	}
	return keys, vm, err
}

// Admit implements provision.Provider, with the metadata of every VM, or with OS Login.
func (p *Provider) Admit(ctx context.Context, s tpu.Slice, l provision.Login) (user string, changed bool, err error) {
	users := make([]string, len(s.Workers))
	var any atomic.Bool
	admits, ctx := errgroup.WithContext(ctx)
	admits.SetLimit(callsAtOnce)
	for i, w := range s.Workers {
		admits.Go(func() error {
			name, changed, err := p.logins.LoginTo(ctx, p.holder(w.Name, s.Metadata), l.Name, l.PublicKey, nodes.OSLoginOptions{Account: l.Account})
			users[i] = name
			if changed {
				any.Store(true)
			}
			return err
		})
	}
	if err := admits.Wait(); err != nil {
		return "", false, err
	}
	return slices.Concat(users, []string{l.Name})[0], any.Load(), nil
}

// Door implements provision.Doorkeeper.
func (p *Provider) Door(ctx context.Context, s tpu.Slice, l provision.Login) (provision.Door, error) {
	return p.logins.Door(ctx, s, l.Name, l.PublicKey, nodes.OSLoginOptions{Account: l.Account})
}

// holder returns the Holder of one VM's keys. The parameter listed is the metadata of the
// slice: that of its template, with what was later added to all VMs.
func (p *Provider) holder(vm string, listed map[string]string) nodes.Holder {
	fingerprint := ""
	return nodes.Holder{
		Name: fmt.Sprintf("VM %q", vm), Metadata: listed,
		Read: func(ctx context.Context) (map[string]string, error) {
			has, err := p.calls.Instance(ctx, vm)
			fingerprint = has.GetMetadata().GetFingerprint()
			return items(has.GetMetadata()), err
		},
		Write: func(ctx context.Context, metadata map[string]string) (bool, error) {
			m := &computepb.Metadata{Fingerprint: proto.String(fingerprint)}
			for _, key := range slices.Sorted(maps.Keys(metadata)) {
				m.Items = append(m.Items, &computepb.Items{Key: proto.String(key), Value: proto.String(metadata[key])})
			}
			err := p.calls.SetMetadata(ctx, vm, m)
			if gcp.ClassOf(err) == gcp.Conflict {
				return false, nil
			}
			return err == nil, err
		},
	}
}
