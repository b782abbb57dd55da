package provision_test

import (
	"testing"

	"multihost/internal/provision"
)

// A request may leave parts that cost nothing. They are neither a waiting request nor a
// dead one that holds quota.
func TestRemains(t *testing.T) {
	t.Parallel()
	of := func(id string, life provision.Life, free bool) provision.Resource {
		return provision.Resource{ID: id, Life: life, State: "S", Free: free, Commands: provision.Commands{Delete: "delete " + id}}
	}
	old, young := of("a", provision.Failed, true), of("b", provision.Requested, true)
	for _, tt := range []struct {
		all        []provision.Resource
		text, hint string
	}{
		{[]provision.Resource{of("x", provision.Failed, false), of("y", provision.Requested, false)}, "", ""},
		{[]provision.Resource{old}, "a has no slices, costs nothing and holds no quota", "remove what is left of it with: delete a"},
		{[]provision.Resource{young}, "b has no slices, costs nothing and holds no quota", "unless a command is making it now, remove what is left of it with: delete b"},
		{[]provision.Resource{old, of("x", provision.Failed, false), young}, "a, b have no slices, cost nothing and hold no quota", "unless a command is making it now, remove what is left of each, such as: delete a"},
	} {
		if text, hint := provision.Remains(tt.all); text != tt.text || hint != tt.hint {
			t.Errorf("%q, hint %q; want %q, hint %q", text, hint, tt.text, tt.hint)
		}
	}
}
