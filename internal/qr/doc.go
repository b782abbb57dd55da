// Package qr wraps the queued-resource part of the Cloud TPU API. It checks a request,
// creates it exactly once, waits for it, says why a wait ended, and deletes it. Package
// nodes does everything that is about slices that exist.
//
// The cloud holds the state. Between calls, a Client keeps nothing about queued resources.
//
// Create checks the whole Request before its first call. A caller may repeat Create. A
// request id lets the API recognise the repetition. If the API answers "already exists",
// Create reads the resource and compares it. A caller may repeat Delete, too: a resource
// that is gone counts as deleted.
package qr
