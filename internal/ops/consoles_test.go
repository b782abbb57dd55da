package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// consoles is a provider that shows the serial consoles of VMs.
type consoles struct{ testkit.FixedSlices }

func (*consoles) Consoles(_ context.Context, s tpu.Slice, vms []string) (all []provision.Console, err error) {
	for _, vm := range vms {
		if strings.HasSuffix(vm, "-1") {
			err = errors.New("VM " + vm + ": denied")
			continue
		}
		all = append(all, provision.Console{VM: vm, Meaning: "its kernel has stopped", Line: "panic", Lines: []string{"boot", "panic"}, Hint: "make " + s.Name + " again", Show: "show " + vm})
	}
	return all, err
}

// If workers do not answer, dump shows what their consoles say, for a limited number of
// slices. A worker that refuses the key does answer.
func TestConsolesOfWorkersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	said := &testkit.Recorder{}
	d := &workers.Reach{Invocation: &stage.Invocation{Sink: said}, Cloud: &consoles{}}
	var sel tpu.Selection
	away := map[tpu.WorkerID]error{}
	for i := range 10 {
		name := fmt.Sprintf("m-%d", i)
		sel.Slices = append(sel.Slices, tpu.Slice{Name: name, Index: i, Workers: []tpu.Worker{{Name: name + "-x-0"}, {Name: name + "-x-1"}}})
		if i > 0 {
			away[tpu.WorkerID{Slice: i}] = remote.ErrSilent
		}
	}
	away[tpu.WorkerID{}] = remote.ErrKeyRefused
	away[tpu.WorkerID{Slice: 2, Worker: 1}] = remote.ErrSilent
	showConsoles(t.Context(), d, sel, away)
	var notes, results []string
	for _, e := range said.Events() {
		switch e := e.(type) {
		case event.Note:
			notes = append(notes, e.Text)
		case event.Result:
			results = append(results, e.Text)
			if ends := e.Data.([]ConsoleEnd); len(ends) != consolesSlices || ends[0].Worker != "s1w0" || ends[7].VM != "m-8-x-0" {
				t.Errorf("got %+v", ends)
			}
		}
	}
	want := `serial consoles of workers that do not answer:

s1w0, VM m-1-x-0: its kernel has stopped, its serial console says: panic
    boot
    panic
  make m-1 again
  all of it: show m-1-x-0
`
	if len(results) != 1 || !strings.HasPrefix(results[0], want) || !strings.HasSuffix(results[0], "\n… and 1 slice more with workers that do not answer\n\n") {
		t.Errorf("shows %q", results)
	}
	if len(notes) != 1 || notes[0] != "not all serial consoles of slice m-2 could be read: VM m-2-x-1: denied" {
		t.Errorf("notes %q", notes)
	}
	delete(away, tpu.WorkerID{})
	d.Cloud = &testkit.FixedSlices{}
	showConsoles(t.Context(), d, sel, away)
	if n := len(said.Events()); n != len(notes)+len(results) {
		t.Errorf("without consoles: %d events", n)
	}
}

// slow is a provider that never returns the consoles of one slice.
type slow struct{ consoles }

func (p *slow) Consoles(ctx context.Context, s tpu.Slice, vms []string) ([]provision.Console, error) {
	if s.Name == "m-1" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.consoles.Consoles(ctx, s, vms)
}

// If the consoles of one slice are not read in time, those of the others are shown.
func TestConsolesThatComeInTimeAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &testkit.Recorder{}
		d := &workers.Reach{Invocation: &stage.Invocation{Sink: said}, Cloud: &slow{}}
		sel, away := tpu.Selection{}, map[tpu.WorkerID]error{}
		for i, name := range []string{"m-0", "m-1"} {
			sel.Slices = append(sel.Slices, tpu.Slice{Name: name, Index: i, Workers: []tpu.Worker{{Name: name + "-x-0"}}})
			away[tpu.WorkerID{Slice: i}] = remote.ErrSilent
		}
		showConsoles(t.Context(), d, sel, away)
		shown := 0
		for _, e := range said.Events() {
			if r, ok := e.(event.Result); ok && len(r.Data.([]ConsoleEnd)) == 1 {
				shown++
			}
		}
		if shown != 1 || !said.Said(event.Warn, "not all serial consoles of slice m-1 could be read") {
			t.Errorf("said %+v", said.Events())
		}
	})
}
