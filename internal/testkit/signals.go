package testkit

import (
	"os"
	"os/signal"
	"syscall"
)

// HearSignals has the programs that tests start hear SIGHUP, SIGINT and SIGQUIT,
// also where nohup or a shell's & has all that descends from it ignore them. It is
// called before the tests run.
func HearSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // one that is handled is not ignored by children
		}
	}
}
