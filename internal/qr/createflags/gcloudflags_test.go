package createflags

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// --cqr-extra-args accepts every flag of gcloud's create, or refuses it with a reason. The
// test of the same name in cmd/multihost checks the command line.
func TestEveryFlagOfGcloudIsTakenOrRefused(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../gcloud/testdata/gcloud-flags.json")
	if err != nil {
		t.Fatal(err)
	}
	var flags map[string][]string
	if err := json.Unmarshal(text, &flags); err != nil || len(flags["create"]) < 60 {
		t.Fatalf("%d flags of create, %v", len(flags["create"]), err)
	}
	for _, name := range flags["create"] {
		if slices.Contains([]string{"help", "quiet", "async", "no-async"}, name) || Refused(name) != nil {
			continue
		}
		if _, _, err := lookupFlag(name); err != nil && !strings.Contains(err.Error(), "give it to multihost itself") {
			t.Errorf("--%s: %v", name, err)
		}
	}
}
