//go:build unix

package agent

import (
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces a file. After a crash the file has the old text or the new one.
// WriteFile does not write a text that the file already has, because the disk may be full.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync() // otherwise a file system may rename before it writes
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Lock creates a file and takes its lock. It holds the lock until unlock is called or the
// program ends. If another program has the lock, unlock and the error are nil.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return func() {
			// Closing is not enough: a new child process has the file open too, until its
			// exec.
			_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // cannot fail for our own lock
			f.Close()
		}, nil
	}
	f.Close()
	if err == syscall.EWOULDBLOCK {
		return nil, nil
	}
	return nil, &os.PathError{Op: "lock", Path: path, Err: err}
}
