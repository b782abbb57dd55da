//go:build unix

package localworker_test

import (
	"os"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
	"multihost/internal/testkit/contract"
	"multihost/internal/testkit/localworker"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

var (
	_ remote.Conn   = (*localworker.Conn)(nil)
	_ remote.Dialer = (*localworker.Dialer)(nil)
)

func TestContract(t *testing.T) {
	testkit.NoLeaks(t)
	home := t.TempDir()
	w := &localworker.Worker{User: "tester", Home: home, Env: []string{"HOME=" + home, "USER=tester", "LOGNAME=tester", "PATH=" + os.Getenv("PATH")}}
	t.Cleanup(w.Wait)
	connect := func(t *testing.T, readOnly bool) remote.Conn {
		c := w.Connect("s0w0", readOnly, time.Minute)
		t.Cleanup(c.Close)
		return c
	}
	contract.Check(t, contract.Target{
		Connect:         connect,
		ConnectCuttable: func(t *testing.T) (remote.Conn, func()) { return connect(t, false), w.Cut },
	})
}
