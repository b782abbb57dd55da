package testkit

import (
	"os"
	"syscall"
	"testing"
)

// WriteProgram writes a file that a test executes soon, with mode 0755. No process of the
// test binary forks meanwhile: a forked process would hold the file open for writing until
// its exec, and the kernel refuses to execute such a file (ETXTBSY).
func WriteProgram(t testing.TB, file, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(file, []byte(text), 0o755)
	syscall.ForkLock.RUnlock()
	Must(t, err)
}
