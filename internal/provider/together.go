package provider

import (
	"context"
	"errors"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// WaitTogether waits as Wait does. If some slices do not come within opts.SlicesLimit of the
// first one, it also deletes the resource with all its parts. The error then says which slices
// did not come and what the others cost. If the deletion fails, the error includes that error.
func WaitTogether(ctx context.Context, p provision.Provider, id string, opts WaitOptions) (provision.Resource, []tpu.Slice, error) {
	res, all, err := Wait(ctx, p, id, opts)
	if !provision.GivesBack(err) {
		return res, all, err
	}
	event.Notef(opts.withDefaults().Sink, event.Warn, "", "%s is deleted: its slices that have come are given back", provision.NameOf(p, id))
	if _, failed := p.Delete(ctx, id, provision.DeleteOptions{}); failed != nil {
		return res, all, errors.Join(err, failed)
	}
	return res, nil, stage.WithoutSlices(err)
}
