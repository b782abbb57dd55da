package testkit

import (
	"os"
	"os/signal"
	"syscall"
)

// HearSignals makes programs that tests start receive SIGHUP, SIGINT and SIGQUIT, even if
// nohup or a shell's & made all descendants ignore them. Call it before the tests run. It
// also starts the goroutine that serves signals, so tests that count goroutines find it
// there from the start.
func HearSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGALRM) // nobody sends this signal, and every system has it
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // children do not inherit a handled signal as ignored
		}
	}
}
