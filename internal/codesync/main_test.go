//go:build linux

package codesync_test

import (
	"os"
	"testing"

	"multihost/internal/sim/netns"
)

// Workers in namespaces start this program again as their process 1.
func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	os.Exit(m.Run())
}
