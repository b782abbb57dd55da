package workloadcmd

import (
	"testing"

	"multihost/internal/image"
)

func TestTheDefaultRepositoryIsOne(t *testing.T) {
	t.Parallel()
	for project, want := range map[string]string{"my-project": "gcr.io/my-project/ann-runner", "example.com:my-project": "gcr.io/example.com/my-project/ann-runner"} {
		got := defaultRepository(project, "ann")
		if err := image.CheckRepository(got); got != want || err != nil {
			t.Errorf("%s: %s, %v", project, got, err)
		}
	}
}
