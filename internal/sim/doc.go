// Package sim is a fake Google Cloud for real clients. One HTTP server on loopback speaks
// the Cloud TPU API (v2 and v2alpha1), and the parts of the Compute Engine API (v1) and of
// other APIs that multihost needs. Behind it are workers that answer SSH (package
// sim/worker). Product code reaches the simulator only through its endpoints. An unmodified
// gcloud can use these, too. Server.Env returns the settings for both.
//
// The simulator is strict. It refuses every field, query parameter, method, name or
// combination that the real API refuses, with the same error body and code. It answers 501
// UNIMPLEMENTED for everything that the real API has and the simulator does not model. It
// ignores nothing silently.
//
// # Modelled
//
//   - Nodes: list, get, create, delete, patch, getGuestAttributes. States CREATING, READY,
//     DELETING, PREEMPTED; health; networkEndpoints in worker order. A node may have
//     several networkConfigs, but workers answer only on the first network.
//   - Queued resources: create, list, get, delete with and without force,
//     reset. CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE,
//     one Config.Step apart; SUSPENDING, SUSPENDED, FAILED, DELETING.
//     Multi-node requests, tiers, valid-until and valid-after, maximum run
//     duration, request ids.
//   - Quota per zone, in TensorCores or chips, in the unit of the accelerator type.
//     SUSPENDED and FAILED requests hold their quota until they are deleted.
//   - Operations, locations, accelerator types and runtime versions.
//   - Compute: the project and its common metadata, networks, subnetworks
//     (reading them, and creating them in custom-mode networks), firewalls, regions,
//     zones, operations with wait; workload policies, instance templates (regional and
//     global), the machine types with TPU chips, and the images of the project
//     ubuntu-os-accelerator-images.
//   - Zonal managed instance groups of VMs with TPU chips: one VM, or in BULK mode the VMs
//     of a slice with a workload policy. Insert, get, list, resize, delete,
//     listManagedInstances, listErrors. Without capacity, a group waits and has the reason
//     in lastProgressCheck. Its VMs are PENDING (flex-start), PROVISIONING, STAGING,
//     RUNNING. Its topology is ACTIVATING, ACTIVE; INCOMPLETE if VMs are missing;
//     REACTIVATING while all VMs restart after a failure of a host; or FAILED. Preemption.
//     The end of a maximum run duration: the group keeps its size, but has no VMs. The
//     worker numbers are not in the order of the VMs' names.
//   - VMs of groups: get, list, delete, reset, setMetadata, getGuestAttributes,
//     getSerialPortOutput. Their metadata has the form of Compute Engine: an endpoint is
//     the name of a VM, and tpu-env has TPU_WORKER_ID, but no WORKER_ID or NODE_ID. Workers
//     of the netns backend know each other's names.
//   - Google Kubernetes Engine: clusters, node pools, operations, serverConfig, see package
//     containerapi. Each cluster has a Kubernetes API with JobSet and Kueue, see package
//     kubeapi.
//   - Reservations of VMs of one machine type: insert, get, list, delete, how many of
//     their VMs are in use, and the one block of a DENSE reservation.
//   - SSH keys: a worker gets them from project and node metadata, or from OS Login if
//     enable-oslogin is TRUE. It publishes its host keys as guest attributes once it has
//     booted.
//   - The instance metadata server: instance and project attributes, tpu-env, tokens, guest
//     attributes. The startup script runs at each boot. The shutdown script runs when a
//     machine is preempted (for 30 s), deleted, or rebooted from inside (for 90 s), but not
//     when a queued resource is reset.
//   - Cloud Storage: buckets and objects with partial responses, as gcloud storage cp, mv,
//     ls, cat and rm need them, see storage.go. The bucket DefaultBucket exists from the
//     start.
//   - Secret Manager: secrets, their versions, access to them.
//   - The project: its enabled APIs, its policy with the permissions that follow from it,
//     the quotas of the TPU API. See project.go.
//   - The caller: a token of a metadata server identifies its worker, and has the scopes of
//     the node's service account. Every other caller is the user.
//   - The relay of Identity-Aware Proxy, to the SSH port of every worker.
//   - Faults: see Faults.
//
// # Not modelled
//
//   - Permissions: every caller may do everything in the only project, by inheritance,
//     except what the fault permission-denied denies. A role in the project's policy grants
//     its permissions even then. The default service account has only the roles of the
//     project's policy, at first roles/editor. With Config.Login, callers must present a
//     token of the only user or of a worker. The user's tokens do not expire by age, only
//     through faults.
//   - Groups that repair their VMs or change their template, groups of several VMs
//     without a topology, regional groups, VMs without a group, stopping and starting
//     VMs. The texts of some refusals of groups are the simulator's own.
//   - Routing: the simulator stores and checks firewall rules, but they filter nothing.
//     Networks separate only the workers of the netns backend.
//   - Capacity as a number: there is enough or, under a fault, none.
//   - The limits of reservations: every name counts as a reservation with room, whether it
//     can be read or not.
//   - Sessions of the IAP relay that survive their WebSocket; gRPC.
//   - snake_case names in JSON bodies of the TPU API, partial responses (fields=) of APIs
//     other than Cloud Storage, filters with more than single comparisons.
//   - Starting and stopping nodes, manual maintenance.
package sim
