package job

import (
	"context"
	"strings"
	"testing"

	"multihost/internal/qr"
)

// oneResource is a cloud with one queued resource.
type oneResource struct {
	Queue
	qr.Resource
}

func (o oneResource) Get(context.Context, string) (qr.Resource, error) { return o.Resource, nil }

// One slice of two whose workers do not answer has its VMs rebooted, and nothing
// is deleted for the one that answers; what is done is done for a reason that is
// told.
func TestASilentSliceBesideOneThatAnswersIsRebooted(t *testing.T) {
	t.Parallel()
	ready := []qr.SliceState{{Name: "m-0", State: "READY", Health: "HEALTHY"}, {Name: "m-1", State: "READY", Health: "HEALTHY"}}
	q := &queued{ours: true, Deps: &Deps{Queue: oneResource{Resource: qr.Resource{State: "ACTIVE", Nodes: []string{"m-0", "m-1"}, Slices: ready}}}}
	late := &qr.DeadlineError{Silent: []string{"m-1"}}
	d, known := q.diagnose(t.Context(), late)
	if !known || d.Step != qr.StepReset || d.Loss != qr.Infrastructure || !strings.Contains(d.Why, "m-1 is READY, but its workers do not all answer") {
		t.Errorf("at first: %+v, %v", d, known)
	}
	q.resets = 1
	if d, _ = q.diagnose(t.Context(), late); d.Step != qr.StepRecreate || !strings.Contains(d.Why, "m-1") {
		t.Errorf("after a reboot: %+v", d)
	}
}
