// Package gce makes slices of TPU VMs with Compute Engine itself, without the Cloud TPU API.
//
// A resource is one request: N slices, each a managed instance group of the zone in BULK
// mode, which makes all its VMs or none; one instance template for all of them; and for
// slices of several VMs one workload policy, which has the topology. The template and the
// policy belong to the region. Their names are those of the request and of the zone.
//
// What belongs together is known by its description, "multihost ID multihost-run=RUN":
// groups and policies have no labels. The description of the policy also names the user,
// because the policy may be the last part that is left. The labels of the owner are on the VMs, and the
// template remembers the whole request in the VMs' metadata. A resource exists for as long as
// it has a group: a template and a policy alone cost nothing, and Create goes on from them.
//
// The order of the workers is told by the VMs alone: the API shows neither in names nor in
// lists which VM is worker 0. Every VM writes its number into a guest attribute at its boot.
// A slice whose VMs have not told it, or contradict each other, is not ready.
//
// Compute Engine restarts a slice as a whole after a machine has failed. Such a slice is
// recovering, which nobody may take for a loss.
package gce
