// Package sim is a fake Google Cloud for real clients: one HTTP server on loopback that
// speaks the Cloud TPU API (v2 and v2alpha1) and the parts of the Compute Engine API (v1)
// and other APIs that multihost needs. Behind it are workers that answer SSH (package sim/worker).
// Product code reaches it only through its endpoints, and so can an unmodified gcloud;
// Server.Env returns the settings for both.
//
// The simulator fails closed. It refuses every field, query parameter, method, name or
// combination that the real API refuses, with the same error body and code. For everything
// that the real API has and the simulator does not model, it answers 501 UNIMPLEMENTED. It
// ignores nothing.
//
// # Modelled
//
//   - Nodes: list, get, create, delete, patch, getGuestAttributes. States
//     CREATING, READY, DELETING, PREEMPTED; health; networkEndpoints in worker
//     order; several networkConfigs, where only the first network has workers that answer.
//   - Queued resources: create, list, get, delete with and without force,
//     reset. CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE,
//     one Config.Step apart; SUSPENDING, SUSPENDED, FAILED, DELETING.
//     Multi-node requests, tiers, valid-until and valid-after, maximum run
//     duration, request ids.
//   - Quota per zone, in TensorCores or chips, whichever the accelerator type counts.
//     SUSPENDED and FAILED requests hold their quota until they are deleted.
//   - Operations, locations, accelerator types and runtime versions.
//   - Compute: the project and its common metadata, networks, subnetworks
//     (reading them, and creating them in custom-mode networks), firewalls, regions,
//     zones, operations with wait; workload policies, instance templates (regional and
//     global), the machine types with TPU chips, and the images of the project
//     ubuntu-os-accelerator-images.
//   - Zonal managed instance groups of VMs with TPU chips: one VM, or in BULK mode the VMs
//     of a slice with a workload policy. Insert, get, list, resize, delete,
//     listManagedInstances, listErrors. A group waits for room with the reason in
//     lastProgressCheck; its VMs are PENDING (flex-start), PROVISIONING, STAGING, RUNNING,
//     and its topology ACTIVATING, ACTIVE; INCOMPLETE without all VMs, REACTIVATING while
//     all VMs restart after the failure of a host, FAILED. Preemption; the end of a maximum
//     run duration, after which the group keeps its size without VMs. The order of the
//     worker numbers differs from that of the VMs' names.
//   - VMs of groups: get, list, delete, reset, setMetadata, getGuestAttributes,
//     getSerialPortOutput. Their metadata has the form of Compute Engine: an endpoint
//     is the name of a VM, and tpu-env has TPU_WORKER_ID but no WORKER_ID and NODE_ID.
//     Workers of the netns backend know each other's names.
//   - Google Kubernetes Engine: clusters, node pools, operations, serverConfig; see package
//     containerapi. Each cluster has a Kubernetes API with JobSet and Kueue: see package kubeapi.
//   - Reservations of VMs of one machine type: insert, get, list, delete, how many of
//     their VMs are in use, and the one block of a DENSE reservation.
//   - SSH keys: a worker gets them from project and node metadata, or from OS Login
//     where enable-oslogin is TRUE. A worker publishes its host keys as guest
//     attributes once it has booted.
//   - The instance metadata server: instance and project attributes, tpu-env,
//     tokens, guest attributes. The startup script runs at each boot. The shutdown
//     script runs when a machine is preempted (for 30 s) or deleted or rebooted from
//     inside (for 90 s), but not when a queued resource is reset.
//   - Cloud Storage: buckets and objects with partial responses, as needed by gcloud
//     storage cp, mv, ls, cat and rm; see storage.go. The bucket DefaultBucket exists
//     from the start.
//   - Secret Manager: secrets, their versions, access to them.
//   - The project: its enabled APIs, its policy and the permissions that
//     follow from it, the quotas of the TPU API; see project.go.
//   - The caller: a worker is identified by the token of its metadata server, with
//     the scopes of its node's service account; every other caller is the user.
//   - The relay of Identity-Aware Proxy, to the SSH port of every worker.
//   - Faults: see Faults.
//
// # Not modelled
//
//   - Permissions: every caller may do everything in the only project, by
//     inheritance, except what the fault permission-denied denies; a role in the
//     project's policy still grants its permissions. The default service account
//     has only the roles of the project's policy, at first roles/editor. With Config.Login callers must
//     present a token of the only user or of a worker; the user's tokens expire
//     through faults only, never by age.
//   - Groups that repair their VMs or change their template, groups of several VMs
//     without a topology, regional groups, VMs without a group, stopping and starting
//     VMs. The texts of some refusals of groups are the simulator's own.
//   - Routing: the simulator stores and checks firewall rules, but they filter
//     nothing; networks separate only the workers of the netns backend.
//   - Capacity as a number: there is capacity or, under a fault, none.
//   - What reservations limit: every name counts as a reservation with room, whether
//     it can be read or not.
//   - Sessions of the IAP relay that outlive their WebSocket; gRPC.
//   - snake_case names in JSON bodies of the TPU API, partial responses (fields=) of
//     APIs other than Cloud Storage, filters beyond single comparisons.
//   - Starting and stopping nodes, manual maintenance.
package sim
