package main

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/stage"
)

// A command that waits for the slices of a job does not give them back, even if it waits
// because the same request exists already. The refusal needs no session.
func TestSlicesOfAJobAreNotGivenBack(t *testing.T) {
	t.Parallel()
	job, own := provision.Request{ID: "m"}, provision.Request{ID: "m"}
	job.Mark("m", "ann")
	job.MarkJob("m")
	own.Mark("m", "ann")
	late := provider.WaitOptions{SlicesLimit: time.Minute}
	err := new(session).waitForSlices(&call{}, &deps{}, nil, provision.Resource{ID: "m", Labels: job.Labels}, late)
	if err == nil || !strings.Contains(err.Error(), "the slices m belong to a job") || exitCode(err) != exitUsage {
		t.Errorf("slices of a job: %v", err)
	}
	for story, err := range map[string]error{
		"own slices":         mayGiveBack(provision.Resource{ID: "m", Labels: own.Labels}, late),
		"without a deadline": mayGiveBack(provision.Resource{ID: "m", Labels: job.Labels}, provider.WaitOptions{}),
	} {
		if err != nil {
			t.Errorf("%s: %v", story, err)
		}
	}
}

// If a deletion is interrupted, the error says what may be billed. Any other error stays as
// it is.
func TestAnInterruptedDeletion(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	if err := deletes(t.Context(), refused, "m", "again"); err != refused {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&stage.Interrupted{Signal: syscall.SIGINT})
	err := deletes(ctx, refused, "m", "multihost slices delete m")
	if exitCode(err) != exitInterrupt || !strings.Contains(err.Error(), "m may still exist and be billed") || hintOf(err) != "go on with: multihost slices delete m" {
		t.Errorf("got %v, hint %q", err, hintOf(err))
	}
}
