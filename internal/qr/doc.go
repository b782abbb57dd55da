// Package qr wraps the queued-resource part of the Cloud TPU API. It checks a
// request, creates it exactly once, waits for it, says why a wait ended, and deletes
// it. Package nodes does what concerns slices that exist.
//
// The cloud holds the state: between calls, a Client keeps nothing of queued resources.
//
// Create checks the whole Request before its first call. Create may be repeated: a
// request id lets the API recognise a repetition, and when the API answers "already
// exists", Create reads and compares the resource. Delete may be repeated too: a
// resource that is gone counts as deleted.
package qr
