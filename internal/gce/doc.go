// Package gce makes slices of TPU VMs with Compute Engine itself, without the Cloud TPU API.
//
// A resource is one request for N slices. Each slice is a managed instance group of the
// zone in BULK mode, which makes all its VMs or none. All slices have one instance template
// in common. Slices of several VMs also have one workload policy in common, which has the
// topology. The template and the policy belong to the region. Their names consist of the
// name of the request and the zone.
//
// Parts that belong together have the same description, "multihost ID multihost-run=RUN",
// because groups and policies have no labels. The description of the policy also names the
// user, because the policy may be the last part that is left. The VMs have the labels of
// the owner. The template stores the whole request in the VMs' metadata. A resource exists
// for as long as it has a group. A template and a policy alone cost nothing, and Create
// continues from them.
//
// Only the VMs know the order of the workers: neither the names nor the lists of the API
// show which VM is worker 0. Every VM writes its number into a guest attribute at its boot.
// A slice is not ready until all its VMs have done that. Their numbers must not contradict
// each other.
//
// Compute Engine restarts a slice as a whole after a machine has failed. Such a slice is
// recovering, and does not count as lost.
package gce
