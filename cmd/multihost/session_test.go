package main

import (
	"testing"

	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/options"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/qr"
)

// A command that makes and deletes slices has one provider and does not touch another
// provider's resource of the same name. Other commands find the slices of all providers.
func TestAJobHasOneProvider(t *testing.T) {
	t.Parallel()
	cloud := gcp.New(gcp.Config{Project: "p", Zone: "z", DisableAuth: true})
	t.Cleanup(cloud.Close)
	s := &session{cloud: cloud, queue: qr.New(cloud), compute: gce.New(cloud, ""), stateDir: t.TempDir()}
	for on, kind := range map[string]string{options.OnTPU: "queued resource", options.OnGCE: "slice request"} {
		s.makeOn(on)
		if _, all := provision.As[*provider.Joined](s.slices()); !all {
			t.Errorf("%s: slices of other providers are not found", on)
		}
		s.makeOnly()
		if _, all := provision.As[*provider.Joined](s.slices()); all || s.slices().Undoing("").Commands.Kind != kind {
			t.Errorf("%s: the provider is %T of a %s", on, s.slices(), s.slices().Undoing("").Commands.Kind)
		}
	}
}
