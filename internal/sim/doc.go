// Package sim is a fake Google Cloud for real clients: one HTTP server on
// loopback that speaks the Cloud TPU API (v2 and v2alpha1) and the part of the
// Compute Engine API (v1) that multihost needs, with workers behind it that
// answer SSH (package sim/worker). Product code meets it through endpoints
// only, and an unmodified gcloud can be pointed at it; Server.Env says how.
//
// It fails closed. A field, query parameter, method, name or combination that
// the real API refuses is refused here with the same error body and code, and
// what the real API has but the simulator does not model is answered with
// 501 UNIMPLEMENTED, never with silence.
//
// # Modelled
//
//   - Nodes: list, get, create, delete, patch, getGuestAttributes. States
//     CREATING, READY, DELETING, PREEMPTED; health; networkEndpoints in worker
//     order; several networkConfigs are refused.
//   - Queued resources: create, list, get, delete with and without force,
//     reset. CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE,
//     one Config.Step apart; SUSPENDING, SUSPENDED, FAILED, DELETING.
//     Multi-node requests, tiers, valid-until and valid-after, maximum run
//     duration, request ids.
//   - Quota in TensorCores or chips, as the accelerator type counts, per zone.
//     SUSPENDED and FAILED requests hold their quota until they are deleted.
//   - Operations, locations, accelerator types and runtime versions.
//   - Compute: the project and its common metadata, networks, subnetworks
//     (read, and made in custom-mode networks), firewalls, regions, zones,
//     operations with wait.
//   - SSH keys reach a worker from project and node metadata, or from OS Login
//     where enable-oslogin says so; host keys leave it as guest attributes once
//     it has booted.
//   - The instance metadata server: instance and project attributes, tpu-env,
//     tokens, guest attributes; the startup script at each boot, and the shutdown
//     script when a machine is preempted, deleted or rebooted from inside, but not
//     when a queued resource is reset: for 30 s when it is preempted, else 90 s.
//   - Cloud Storage: buckets and objects with partial responses, what gcloud storage
//     cp, mv, ls, cat and rm need; see storage.go. The bucket named by DefaultBucket
//     is there from the start.
//   - Secret Manager: secrets, their versions, access to them.
//   - The project: which APIs are enabled, its policy and the permissions that
//     follow from it, the quotas of the TPU API; see project.go.
//   - Who calls: a worker by the token of its metadata server, with the scopes
//     of its node's service account; everybody else is the user.
//   - The relay of Identity-Aware Proxy, to the SSH port of every worker.
//   - Faults: see Faults.
//
// # Not modelled
//
//   - Permissions: every caller may do everything in the one project that
//     exists, by inheritance, but for what the fault permission-denied says; a
//     role that the project's policy gives counts. With Config.Login
//     callers must show a token of the one user there is, or of a worker; the
//     user's tokens end by faults only, never by their age.
//   - Routing: firewall rules are stored and checked but filter nothing, and
//     networks separate only the workers of the netns backend.
//   - Capacity as a number; it is there or, under a fault, not.
//   - Reservations: every reservation name is taken as one with room.
//   - Sessions of the IAP relay that outlive their WebSocket; gRPC.
//   - snake_case names in JSON bodies of the TPU API, partial responses (fields=) of
//     other APIs than Cloud Storage, filters beyond single comparisons.
//   - starting and stopping nodes, manual maintenance.
package sim
