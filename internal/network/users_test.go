package network_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/testkit"
)

// A network is neither deleted nor changed while Compute Engine has machines on it or is
// about to make some.
func TestANetworkWithMachinesStays(t *testing.T) {
	const address = "https://www.googleapis.com/compute/v1/projects/p/"
	type object = map[string]any
	on := func(name string) []any { return []any{object{"network": address + "global/networks/" + name}} }
	now := testkit.NewJumpClock().Now()
	template := func(network string, age time.Duration) object {
		return object{"name": "t-a", "selfLink": address + "regions/r/instanceTemplates/t-a", "creationTimestamp": now.Add(-age).Format(time.RFC3339),
			"properties": object{"networkInterfaces": on(network)}}
	}
	group := func(size int) object {
		return object{"name": "g", "zone": address + "zones/z", "targetSize": size, "instanceTemplate": "projects/p/regions/r/instanceTemplates/t-a"}
	}
	vm := func(networks ...string) object {
		var all []any
		for _, n := range networks {
			all = append(all, on(n)...)
		}
		return object{"name": "v", "zone": address + "zones/z", "status": "TERMINATED", "networkInterfaces": all}
	}
	for _, tt := range []struct {
		story    string
		machines map[string][]any
		secret   string
		want     string // the named user; "": the network is deleted
	}{
		{story: "nothing"},
		{story: "a VM", machines: map[string][]any{"instances": {vm("mtu9k")}}, want: "VM v (z)"},
		{story: "a VM with its second interface", machines: map[string][]any{"instances": {vm("other", "mtu9k")}}, want: "VM v (z)"},
		{story: "a VM elsewhere", machines: map[string][]any{"instances": {vm("other")}}},
		{story: "a group that waits", machines: map[string][]any{"instanceGroupManagers": {group(2)}, "instanceTemplates": {template("mtu9k", time.Hour)}}, want: "instance group g (z)"},
		{story: "an empty group", machines: map[string][]any{"instanceGroupManagers": {group(0)}, "instanceTemplates": {template("mtu9k", time.Hour)}}},
		{story: "a group elsewhere", machines: map[string][]any{"instanceGroupManagers": {group(2)}, "instanceTemplates": {template("other", time.Hour)}}},
		{story: "a template made a moment ago", machines: map[string][]any{"instanceTemplates": {template("mtu9k", time.Second)}}, want: "instance template t-a"},
		{story: "an old template", machines: map[string][]any{"instanceTemplates": {template("mtu9k", time.Hour)}}},
		{story: "VMs not listed", secret: "instances", want: "list VMs"},
		{story: "groups not listed", secret: "instanceGroupManagers", want: "list instance groups"},
		{story: "templates not listed", secret: "instanceTemplates", want: "list instance templates"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			c, f, _ := setUp(t)
			if err := create(t, c, network.Options{MTU: 1500}); err != nil {
				t.Fatal(err)
			}
			f.machines, f.secret = tt.machines, tt.secret
			before := len(f.Writes())
			owned, ownedErr := c.Owned(t.Context())
			users, usersErr := c.Users(t.Context(), "mtu9k")
			if tt.want == "" {
				if ownedErr != nil || len(owned) != 1 || len(owned[0].Users) > 0 || usersErr != nil || len(users) > 0 {
					t.Errorf("owned %+v, %v; users %v, %v", owned, ownedErr, users, usersErr)
				}
				if d, err := c.Delete(t.Context(), "mtu9k"); err != nil || !d.Network {
					t.Errorf("deleted %+v, %v", d, err)
				}
				return
			}
			_, err := c.Delete(t.Context(), "mtu9k")
			_, mtuErr := c.SetMTU(t.Context(), "mtu9k", 8896)
			for _, err := range []error{err, mtuErr} {
				if inUse := (*network.InUseError)(nil); errors.As(err, &inUse) == (tt.secret != "") || err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want one that names %s", err, tt.want)
				}
			}
			if tt.secret != "" {
				if gcp.ClassOf(err) != gcp.Permission || ownedErr == nil || usersErr == nil {
					t.Errorf("got %v (%v), %v, %v", err, gcp.ClassOf(err), ownedErr, usersErr)
				}
			} else if len(owned) != 1 || !slices.Equal(owned[0].Users, []string{tt.want}) || !slices.Equal(users, []string{tt.want}) {
				t.Errorf("owned %+v; users %v", owned, users)
			}
			if n := len(f.Writes()); n != before {
				t.Errorf("%d writes", n-before)
			}
		})
	}
}
