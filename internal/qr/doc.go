// Package qr wraps the queued-resource part of the Cloud TPU API. It checks a request,
// creates it exactly once, waits for it, says why a wait ended, and deletes it. Package
// nodes is about existing slices.
//
// The cloud holds the state: between calls, a Client remembers nothing about queued
// resources.
//
// Create checks the whole Request before its first call. A caller may repeat Create: a
// request id lets the API recognise that, and after "already exists" Create reads the
// resource and compares it. A caller may also repeat Delete: a resource that is gone counts
// as deleted.
package qr
