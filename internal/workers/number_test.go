//go:build unix

package workers

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/tpu"
)

// An untoldCloud has slice t with the VMs a and b. Their worker numbers are known only after
// both have run a script.
type untoldCloud struct {
	cloud
	homes []string
}

func (c *untoldCloud) Slices(context.Context) ([]tpu.Slice, error) {
	s := ready("t", 2)
	s.Workers = []tpu.Worker{{Name: "b"}, {Name: "a"}}
	for _, home := range c.homes {
		if _, err := os.Stat(filepath.Join(home, "told")); err != nil {
			s.Condition, s.State = tpu.Making, "ACTIVE, but VM a has not told which worker it is"
			s.Workers, s.Untold = nil, []tpu.Worker{{Name: "a"}, {Name: "b"}}
		}
	}
	return []tpu.Slice{s}, nil
}

func (*untoldCloud) Number(tpu.Slice) string {
	return "test ! -e ~/mute && touch ~/told\n"
}

// multihost asks the VMs of a slice that somebody else has made for their worker numbers. If a
// number stays unknown, the slice is not used.
func TestVMsTellWhichWorkerEachIs(t *testing.T) {
	t.Parallel()
	for _, mute := range []bool{false, true} {
		fleet := localworker.Fleet{}
		fleet.Slice(t, "a", 1)
		fleet.Slice(t, "b", 1)
		homes := []string{fleet["a"][0].Home, fleet["b"][0].Home}
		said := &testkit.Recorder{}
		d := reach(said, fleet.Dialer())
		d.Cloud = &untoldCloud{homes: homes}
		if mute {
			testkit.Must(t, os.WriteFile(filepath.Join(homes[1], "mute"), nil, 0o600))
		}
		d.ReadOnly = true
		if _, err := d.Discover(t.Context(), "t", nil, false); err == nil || len(said.Notes()) > 0 {
			t.Errorf("in a dry run: %v", err)
		}
		d.ReadOnly, d.Access.RetryFor = false, 10*time.Second
		sel, err := d.Discover(t.Context(), "t", nil, false)
		if told := said.Said(event.Warn, "VMs have not told which worker each is: b: its metadata has no agent-worker-number, or its guest attributes are off"); told != mute {
			t.Errorf("mute %v: said %v", mute, said.Notes())
		}
		if mute == (err == nil) || !mute && (len(sel.Slices) != 1 || sel.Slices[0].Workers[0].Name != "b") {
			t.Errorf("mute %v: %+v, %v", mute, sel, err)
		}
	}
}
