package kubeapi_test

import (
	"os"
	"testing"

	"multihost/internal/sim/netns"
)

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	os.Exit(m.Run())
}
