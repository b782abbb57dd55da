package testkit

import (
	"os"
	"os/signal"
	"syscall"
)

// Programs that tests start must receive SIGHUP, SIGINT and SIGQUIT. HearSignals makes sure
// of that, even if nohup or a shell's & made all descendants ignore them. Call it before
// the tests run. It also starts the goroutine that serves signals. So tests that count
// goroutines find it from the start.
func HearSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGALRM) // nobody sends this signal, and every system has it
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // a child does not ignore a signal that is handled here
		}
	}
}
