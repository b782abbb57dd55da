package provider_test

import (
	"errors"
	"strings"
	"testing"

	"multihost/internal/event"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

func TestWhatIsSaidOfARequest(t *testing.T) {
	t.Parallel()
	failed := errors.New("x")
	active := provision.Resource{ID: "q", State: "ACTIVE", Slices: []tpu.Slice{{Name: "q"}}, Commands: provision.Commands{Kind: "slice request", Show: "show q", Wait: "wait q", Delete: "delete q"}}
	for _, tt := range []struct {
		created, async bool
		err            error
		level          event.Level
		says, hint     string
	}{
		{false, false, nil, "", "", ""},
		{false, false, failed, "", "", ""},
		{true, false, nil, event.Info, "created slice request q, state ACTIVE", "wait for it with: wait q; its slices are billed until: delete q"},
		{true, true, nil, event.Info, "asked for slice request q", "with: show q; its slices are billed until: delete q"},
		{true, false, failed, event.Warn, "slice request q exists, state ACTIVE, and is billed", "delete it with: delete q"},
	} {
		n, said := provider.Asked(active, tt.created, tt.async, tt.err)
		if said != (tt.says != "") || said && n.Level != tt.level || !strings.Contains(n.Text, tt.says) || !strings.Contains(n.Hint, tt.hint) {
			t.Errorf("created %t, async %t, %v: %+v, %t", tt.created, tt.async, tt.err, n, said)
		}
	}
	for want, slices := range map[string][]tpu.Slice{
		"slice request q is ready: 1 slice, 1 worker answers":  {{Workers: make([]tpu.Worker, 1)}},
		"slice request q is ready: 2 slices, 8 workers answer": {{Workers: make([]tpu.Worker, 4)}, {Workers: make([]tpu.Worker, 4)}},
	} {
		if n := provider.Answering("slice request q", slices); n.Level != event.Info || n.Text != want {
			t.Errorf("%+v, want %q", n, want)
		}
	}
}
