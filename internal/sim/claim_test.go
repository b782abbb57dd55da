package sim_test

import (
	"net/netip"
	"strings"
	"testing"

	"multihost/internal/sim"
	"multihost/internal/sim/worker"
)

// taken is a backend beside another one that uses some of the addresses.
type taken struct {
	worker.Backend
	has func(netip.Addr) bool
}

func (t taken) Claim(addr netip.Addr) bool { return !t.has(addr) }
func (taken) Close() error                 { return nil }

func TestWorkersDoNotGetAddressesOfAnotherSimulator(t *testing.T) {
	t.Parallel()
	_, err := sim.Start(t.Context(), sim.Config{
		Dir: t.TempDir(), Listen: "none", Workers: taken{has: func(netip.Addr) bool { return true }},
		Slices: []sim.SliceSpec{{Name: "t", Count: 1, Type: "v4-8"}},
	})
	if err == nil || !strings.Contains(err.Error(), "no internal address is free: other simulators on this machine have those") {
		t.Errorf("got %v, want what has the addresses", err)
	}
}

// Networks have the same ranges, and this machine reaches the workers of all of them.
func TestWorkersOfTwoNetworksShareNoAddress(t *testing.T) {
	t.Parallel()
	_, fakes := start(t, preset(t, "a:1xv4-16,b:2xv4-16"))
	networks, addresses := map[string]bool{}, map[string]bool{}
	for _, name := range []string{"a", "b-0", "b-1"} {
		for i := range 2 {
			spec := fakes.find(name, i).spec
			networks[spec.Network], addresses[spec.IP] = true, true
		}
	}
	if len(networks) != 2 || len(addresses) != 6 {
		t.Errorf("6 workers of two networks have the addresses %v in %v", addresses, networks)
	}
}
