package preflight_test

import (
	"os"
	"testing"

	"multihost/internal/sim/worker"
)

func TestMain(m *testing.M) {
	if worker.MaybeInit(os.Args) {
		return
	}
	os.Exit(m.Run())
}
