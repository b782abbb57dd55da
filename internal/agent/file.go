//go:build unix

package agent

import (
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces a file: after a crash it has the old text or the new one. It does not
// write the same text again, because the disk may be full.
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

// Lock takes the lock of a file, which it creates, and holds it until unlock is called or
// the program ends. If another program has the lock, unlock is nil, and there is no error.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return func() {
			// Closing alone is not enough: a program that is being started has the file
			// open too, until its exec.
			_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // of our own lock: cannot fail
			f.Close()
		}, nil
	}
	f.Close()
	if err == syscall.EWOULDBLOCK {
		return nil, nil
	}
	return nil, &os.PathError{Op: "lock", Path: path, Err: err}
}
