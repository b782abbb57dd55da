package qr

import (
	"fmt"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// Asked returns what became of a request, for people: created and err are what Create
// returned, or Submit if async is set. It returns false if nothing is to be said: Create has
// reported a resource that existed already, and err says the rest.
func Asked(r Request, res Resource, created, async bool, err error) (n event.Note, said bool) {
	const remove = "; its slices are billed until: multihost qr delete %s --force"
	switch {
	case !created:
		return n, false
	case err != nil:
		return event.Note{Level: event.Warn, Text: fmt.Sprintf("queued resource %s exists, %s", r.ID, res.Neutral().Standing()), Hint: "delete it with: multihost qr delete " + r.ID + " --force"}, true
	case async:
		return event.Note{Level: event.Info, Text: "asked for queued resource " + res.ID, Hint: "see whether the service takes it with: multihost qr show " + res.ID + fmt.Sprintf(remove, res.ID)}, true
	}
	return event.Note{Level: event.Info, Text: fmt.Sprintf("created queued resource %s, state %s", res.ID, res.State), Hint: "wait for it with: multihost qr wait " + res.ID + fmt.Sprintf(remove, res.ID)}, true
}

// Deleted returns what became of a deletion, for people. deleted is what Delete returned.
func Deleted(id string, deleted, async bool) event.Note {
	switch {
	case !deleted: // the user may have meant another one, which is still billed
		return event.Note{Level: event.Warn, Text: "queued resource " + id + " is not there: nothing to delete", Hint: "what there is: multihost qr list"}
	case async:
		return event.Note{Level: event.Info, Text: "queued resource " + id + " is being deleted", Hint: "see whether it is gone with: multihost qr show " + id + "; its slices are billed until then"}
	}
	return event.Note{Level: event.Info, Text: "deleted queued resource " + id}
}

// Rebooted returns what became of a reset, for people.
func Rebooted(id string, async bool) event.Note {
	n := event.Note{Level: event.Info, Text: "rebooted the workers of queued resource " + id, Hint: "wait until they answer with: multihost qr wait " + id}
	if async {
		n.Text = "the workers of queued resource " + id + " are being rebooted"
	}
	return n
}

// Answering says that all workers of the slices of a queued resource answer, for people.
func Answering(id string, slices []tpu.Slice) event.Note {
	workers := 0
	for _, s := range slices {
		workers += len(s.Workers)
	}
	answer := "answer"
	if workers == 1 {
		answer = "answers"
	}
	return event.Note{Level: event.Info, Text: fmt.Sprintf("queued resource %s is ready: %s, %s %s", id, event.Count(len(slices), "slice"), event.Count(workers, "worker"), answer)}
}
