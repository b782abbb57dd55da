package worker_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"multihost/internal/sim/netns"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
)

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	if root := os.Getenv("WORKER_TEST_HOLD"); root != "" {
		if err := hold(root); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	testkit.HearSignals()
	os.Exit(m.Run())
}

// hold runs a simulator until somebody kills this process.
func hold(root string) error {
	b, err := netns.New(netns.Config{Root: root})
	if err != nil {
		return err
	}
	for i := range 2 {
		if _, err := b.Start(context.Background(), worker.Spec{Name: fmt.Sprint(i), Node: "t-0", Index: i, IP: fmt.Sprintf("10.255.77.%d", i+2)}); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return b.Close()
}
