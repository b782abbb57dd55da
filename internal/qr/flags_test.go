package qr_test

import (
	"strings"
	"testing"

	"multihost/internal/qr"
	"multihost/internal/qr/createflags"

	"github.com/google/go-cmp/cmp"
)

// extra adds flags of gcloud to r, or leaves r unchanged and returns an error.
func extra(args string, r *qr.Request) error {
	flags := createflags.NewReader(*r, testNow)
	if err := flags.Extra(args); err != nil {
		return err
	}
	got, wrong := flags.Request()
	if len(wrong) > 0 {
		return wrong[0]
	}
	*r = got
	return nil
}

// The flags that Gcloud prints must give the same request when they are read.
func TestGcloudLineRoundTrip(t *testing.T) {
	t.Parallel()
	for name, want := range goldenRequests(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line := want.Gcloud("p", "us-central2-b")
			args := line[strings.Index(line, " --"):]
			args = strings.ReplaceAll(strings.ReplaceAll(args, "--project=p", ""), "--zone=us-central2-b", "")
			args = strings.NewReplacer("multihost-", "other-").Replace(args)
			got := qr.Request{ID: want.ID}
			if err := extra(args, &got); err != nil {
				t.Fatal(err)
			}
			if got.NodeCount == 0 {
				got.NodeCount = 1
			}
			a, b := bodyText(t, want), bodyText(t, got)
			if diff := cmp.Diff(strings.ReplaceAll(a, "multihost-", "other-"), b); diff != "" {
				t.Errorf("body differs (-want +got):\n%s\nline: %s", diff, line)
			}
		})
	}
}
