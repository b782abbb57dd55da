package testkit

import (
	"os"
	"os/signal"
	"syscall"
)

// HearSignals makes sure that programs that tests start receive SIGHUP, SIGINT and SIGQUIT,
// even if nohup or a shell's & made all descendants ignore them. Call it before the tests
// run. It also starts the goroutine that serves signals. So tests that count goroutines
// always see it.
func HearSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGALRM) // every system has this signal, and nobody sends it
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // a child does not ignore a signal that this process handles
		}
	}
}
