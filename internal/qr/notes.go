package qr

import (
	"multihost/internal/event"
)

// Deleted returns a note for people about the result of a deletion. deleted is what Delete
// returned.
func Deleted(id string, deleted, async bool) event.Note {
	switch {
	case !deleted: // the user may have meant another resource, which is still billed
		return event.Note{Level: event.Warn, Text: "queued resource " + id + " is not there: nothing to delete", Hint: "what there is: multihost qr list"}
	case async:
		return event.Note{Level: event.Info, Text: "queued resource " + id + " is being deleted", Hint: "see whether it is gone with: multihost qr show " + id + "; its slices are billed until then"}
	}
	return event.Note{Level: event.Info, Text: "deleted queued resource " + id}
}

// Rebooted returns a note for people about the result of a reset.
func Rebooted(id string, async bool) event.Note {
	n := event.Note{Level: event.Info, Text: "rebooted the workers of queued resource " + id, Hint: "wait until they answer with: multihost qr wait " + id}
	if async {
		n.Text = "the workers of queued resource " + id + " are being rebooted"
	}
	return n
}
