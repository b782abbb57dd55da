//go:build unix

// Package builtagent has multihost-agent for the workers of tests. All tests with the same
// source directory share it.
package builtagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"multihost/internal/agent/program/build"
)

var built struct {
	once   sync.Once
	folder string
	err    error
}

// Folder returns a folder for program.In with multihost-agent for this machine. source is the
// source directory. The first call in a process waits for other processes that build the program,
// and then builds it. Go compiles only changes, and [build.Into] compresses only a new program.
// Folder is safe for concurrent use.
func Folder(source string) (string, error) {
	built.once.Do(func() { built.folder, built.err = fill(source) })
	return built.folder, built.err
}

func fill(source string) (folder string, err error) {
	fail := func(err error) (string, error) { return "", fmt.Errorf("build multihost-agent for tests: %w", err) }
	if folder, err = filepath.Abs(filepath.Join(source, "bin", "test-agent")); err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fail(err)
	}
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fail(err)
	}
	defer lock.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return fail(&os.PathError{Op: "lock", Path: lock.Name(), Err: err})
	}
	return folder, build.Into(context.Background(), source, folder, runtime.GOARCH)
}
