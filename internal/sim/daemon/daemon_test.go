package daemon

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestWorkersOfTheSimulatorAnswerWhereGcloudLooks(t *testing.T) {
	t.Parallel()
	taken := &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	for _, test := range []struct {
		name    string
		asked   int
		try     error // of the port that has to be tried
		tried   int
		port    int
		why     string
		refused string
	}{
		{name: "22 can be had", tried: 22, port: 22},
		{name: "22 is somebody's", try: taken, tried: 22, why: "workers cannot answer at port 22: address already in use"},
		{name: "ports below 1024 are root's", try: syscall.EACCES, tried: 22, why: "workers cannot answer at port 22: permission denied"},
		{name: "asked for", asked: 2222, tried: 2222, port: 2222},
		{name: "asked for, and somebody's", asked: 22, try: taken, tried: 22, refused: "--ssh-port=22: workers cannot answer there: address already in use"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tried := 0
			port, why, err := Port(test.asked, func(port int) error { tried = port; return test.try })
			if port != test.port || tried != test.tried || text(why) != test.why || text(err) != test.refused {
				t.Errorf("got %d, %q, %q after trying %d; want %d, %q, %q after %d", port, text(why), text(err), tried, test.port, test.why, test.refused, test.tried)
			}
			if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("the cause of %q is lost", err)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
