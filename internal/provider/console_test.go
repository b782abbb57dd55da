package provider_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A mute provider has one slice. The VMs of the slice run, but their worker numbers are unknown.
type mute struct {
	provision.Provider
	consoles []provision.Console
	err      error
}

func (m mute) Undoing(string, ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "box"}}
}

func (m mute) Get(context.Context, string) (provision.Resource, error) {
	s := tpu.Slice{Name: "m-0", Condition: tpu.Making, State: "ACTIVE, but VM m-0-a has not told which worker it is"}
	return provision.Resource{ID: "m", Life: provision.Active, State: "ACTIVE", NodeCount: 1, Nodes: []string{"m-0"}, Slices: []tpu.Slice{s}}, nil
}

func (m mute) Consoles(_ context.Context, s tpu.Slice, vms []string) ([]provision.Console, error) {
	if s.Name != "m-0" || len(vms) > 0 {
		return nil, errors.New("asked for something else")
	}
	return m.consoles, m.err
}

// If slices are not ready in time, the error quotes their serial consoles.
func TestADeadlineSaysWhatConsolesSay(t *testing.T) {
	t.Parallel()
	const known = "; VM m-0-b: its kernel has stopped, its serial console says: Kernel panic"
	two := []provision.Console{{VM: "m-0-a", Lines: []string{"x"}, Show: "show a"}, {VM: "m-0-b", Meaning: "its kernel has stopped", Line: "Kernel panic", Fatal: true, Hint: "try another", Show: "show b"}}
	for _, tt := range []struct {
		story             string
		p                 mute
		says, hint, again string
	}{
		{"a text that is known", mute{consoles: two}, known, "; see the whole serial console with: show b", "try another"},
		{"one that is not", mute{consoles: two[:1]}, "; VM m-0-a: its serial console ends with: x", "; see the whole serial console with: show a", ""},
		{"one of two cannot be read", mute{consoles: two[1:], err: errors.New("denied")}, known, "with: show b", "try another"},
		{"none can be read", mute{err: errors.New("denied")}, "has not told which worker it is", "", ""},
	} {
		said := &testkit.Recorder{}
		_, _, err := provider.Wait(t.Context(), tt.p, "m", provider.WaitOptions{Clock: testkit.NewFastClock(), Sink: said, BootLimit: 10 * time.Second, AdviceAfter: time.Second})
		var late *provision.DeadlineError
		if !errors.As(err, &late) || !strings.HasSuffix(late.Error(), tt.says) || !strings.HasSuffix(late.Hint(), tt.hint) || late.Again != tt.again {
			t.Errorf("%s: %v\nhint %q, again %q", tt.story, err, late.Hint(), late.Again)
		}
		advised := slices.ContainsFunc(said.Notes(), func(n event.Note) bool { return strings.HasSuffix(n.Text, tt.says) })
		if !advised {
			t.Errorf("%s: nothing was said while it waited: %v", tt.story, said.Notes())
		}
	}
}
