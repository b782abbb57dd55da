package testkit

import (
	"os"
	"os/signal"
	"syscall"
)

// HearSignals has the programs that tests start hear SIGHUP, SIGINT and SIGQUIT,
// also where nohup or a shell's & has all that descends from it ignore them. It is
// called before the tests run. A test that counts goroutines may count on the one
// that serves signals: it is there from now on.
func HearSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGALRM) // nobody sends it, and every system has it
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // one that is handled is not ignored by children
		}
	}
}
