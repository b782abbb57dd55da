// Package gce makes slices of TPU VMs with Compute Engine itself, without the Cloud TPU API.
//
// A resource is one request for N slices. Each slice is a managed instance group of the
// zone in BULK mode, which makes all its VMs or none. All slices share one instance
// template. Slices of several VMs also share one workload policy, which has the topology.
// The template and the policy belong to the region. Their names consist of the name of the
// request and the zone.
//
// All parts have the same description, "multihost ID multihost-run=RUN", because groups and
// policies have no labels. The description of the policy also names the user, because the
// policy may be the last part that is left. The VMs have the owner's labels. The template
// stores the whole request in the VMs' metadata. A resource exists as long as it has a
// group. A template and a policy alone cost nothing, and Create continues from them.
//
// Only the VMs know the order of the workers: neither names nor lists of the API show which
// VM is worker 0. Every VM writes its number into a guest attribute when it boots. A slice
// is ready when all its VMs have done that, without contradiction.
//
// After a failure of a machine, Compute Engine restarts the whole slice. Such a slice is
// recovering, and not lost.
package gce
