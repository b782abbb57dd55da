// Package qr hides the queued-resource half of the Cloud TPU API: what a
// request may say, how it is created exactly once, how long one waits for it
// and why the wait ended, and how it is deleted. It also reads the slices that
// queued resources made, and puts SSH keys into them.
//
// The cloud holds the truth. Nothing here is remembered between calls except
// the answer whether the project's own SSH keys already let a user in.
//
// A Request is validated whole before the first call. Create may be repeated:
// a request id makes the API recognise a repetition, and where it answers
// "already exists" the resource is read and compared. Delete may be repeated
// too: a resource that is gone counts as deleted.
package qr
