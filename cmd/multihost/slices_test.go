package main

import (
	"strings"
	"testing"
	"time"

	"multihost/internal/provider"
	"multihost/internal/provision"
)

// A command that waits for the slices of a job, also because the same request exists
// already, does not give them back: the session is not needed to refuse that.
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
