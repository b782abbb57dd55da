package sim_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"multihost/internal/sim"
	"multihost/internal/sim/netns"
)

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	if dir := os.Getenv("SIM_TEST_HOLD"); dir != "" {
		if err := hold(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// hold runs a simulator until somebody kills this process.
func hold(dir string) error {
	s, err := sim.Start(context.Background(), sim.Config{
		Dir: dir, Backend: "netns", Step: time.Millisecond, Slices: []sim.SliceSpec{{Name: "t", Count: 1, Type: "v4-16"}},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return s.Close()
}
