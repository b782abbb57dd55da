package provider

import (
	"fmt"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// Asked returns a note for people about the result of a request. said is false if there is
// nothing to add to what Create has reported. created and err come from Create. async says that
// the provider has not accepted the request yet.
func Asked(res provision.Resource, created, async bool, err error) (n event.Note, said bool) {
	c := res.Commands
	name := c.Kind + " " + res.ID
	billed := "; its slices are billed until: " + c.Delete
	switch {
	case !created:
		return n, false
	case err != nil:
		return event.Note{Level: event.Warn, Text: fmt.Sprintf("%s exists, %s", name, res.Standing()), Hint: "delete it with: " + c.Delete}, true
	case async:
		return event.Note{Level: event.Info, Text: "asked for " + name, Hint: "see whether the service takes it with: " + c.Show + billed}, true
	}
	return event.Note{Level: event.Info, Text: fmt.Sprintf("created %s, state %s", name, res.State), Hint: "wait for it with: " + c.Wait + billed}, true
}

// Answering returns a note for people which says that all workers of a resource's slices answer.
// name is the resource's name in messages.
func Answering(name string, slices []tpu.Slice) event.Note {
	workers := 0
	for _, s := range slices {
		workers += len(s.Workers)
	}
	answer := "answer"
	if workers == 1 {
		answer = "answers"
	}
	return event.Note{Level: event.Info, Text: fmt.Sprintf("%s is ready: %s, %s %s", name, event.Count(len(slices), "slice"), event.Count(workers, "worker"), answer)}
}
