package runs

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A shadow is a provider that hides some slices.
type shadow struct {
	provision.Provider
	unseen map[string]error // by kind
}

func (s shadow) Slices(context.Context) ([]tpu.Slice, error) { return nil, nil }
func (s shadow) Unseen(kind string) error                    { return s.unseen[kind] }

// A slice of a record has gone only if its provider has answered.
func TestAnUnseenSliceIsNotGone(t *testing.T) {
	t.Parallel()
	busy := errors.New("busy")
	d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{}, Cloud: shadow{unseen: map[string]error{"slice request": busy}}}}
	for kind, want := range map[string]string{"slice request": "[] busy", "queued resource": "[t] <nil>", "": "[t] <nil>"} {
		rec := &record.Record{Slices: record.SlicesOf([]tpu.Slice{{Name: "t", Provider: kind}})}
		_, gone, err := Recorded(t.Context(), d, rec)
		if errors.Is(err, busy) {
			err = busy
		}
		if got := fmt.Sprint(gone, " ", err); got != want {
			t.Errorf("%s: got %s, want %s", kind, got, want)
		}
	}
}
