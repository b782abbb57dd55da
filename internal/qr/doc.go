// Package qr wraps the queued-resource part of the Cloud TPU API. It checks a
// request, creates it exactly once, waits for it, says why a wait ended, and deletes
// it. It also reads the slices that queued resources made, and adds SSH keys to them.
//
// The cloud holds the state. Between calls, a Client keeps only the project's
// metadata for logins (SSH keys and OS Login) and the workers' host keys.
//
// Create checks the whole Request before its first call. Create may be repeated: a
// request id lets the API recognise a repetition, and when the API answers "already
// exists", Create reads and compares the resource. Delete may be repeated too: a
// resource that is gone counts as deleted.
package qr
