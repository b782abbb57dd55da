//go:build unix

package localworker

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"multihost/internal/testkit"
)

// Make returns a worker for this test. It has a home and a root of its own, so our scripts
// see no process, lock or file of this machine. The end of the test kills the processes
// that still run there.
func Make(t testing.TB) *Worker {
	t.Helper()
	testkit.Need(t, "ps")
	root, err := os.MkdirTemp("", "mh") // short, because it is part of the names of FIFOs
	testkit.Must(t, err)
	home := filepath.Join(root, "home")
	for _, dir := range []string{"home", "tmp", "dev/vfio", "sys", "proc/sys/kernel/random"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	testkit.Must(t, os.WriteFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"), []byte("boot-1\n"), 0o644))
	mark := "MULTIHOST_ROOT_TMP=" + root
	w := &Worker{User: "tester", Home: home, Env: []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "USER=tester", "LOGNAME=tester", "SHELL=/bin/bash",
		"MULTIHOST_ROOT_PROC=" + root, "MULTIHOST_ROOT_SYS=" + root, "MULTIHOST_ROOT_DEV=" + root, mark,
	}}
	t.Cleanup(func() {
		w.Cut()
		killMarked(mark)
		w.Wait()
		os.RemoveAll(root)
	})
	return w
}

// killMarked kills the processes that have a variable in their environment.
func killMarked(variable string) {
	for _, pid := range testkit.Processes("environ", variable+"\x00") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
