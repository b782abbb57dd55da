package job

import (
	"errors"
	"testing"

	"multihost/internal/launch"
	"multihost/internal/stage"
	"multihost/internal/testkit"
)

// A job that could not start does not delete slices on which another run is active.
func TestOccupied(t *testing.T) {
	other := &launch.BusyError{Worker: "s0w0", Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}}}
	silent := errors.New("no answer")
	for _, tt := range []struct {
		story string
		err   error
		want  bool
	}{
		{"nothing", nil, false},
		{"another run was found", &stage.Error{Stage: stage.Busy, Text: "run r lives"}, true},
		{"workers could not be asked", stage.WorkersError(stage.Busy, testkit.WorkerIDs(2, 1), []error{silent, nil}), false},
		{"another run was first on one worker", stage.WorkersError(stage.Start, testkit.WorkerIDs(2, 1), []error{silent, other}), true},
		{"the start failed", stage.WorkersError(stage.Start, testkit.WorkerIDs(2, 1), []error{silent, silent}), false},
	} {
		if got := occupied(tt.err); got != tt.want {
			t.Errorf("%s: %v", tt.story, got)
		}
	}
}
