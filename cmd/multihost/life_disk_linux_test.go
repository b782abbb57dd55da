package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// smallDisk returns the path of a small, empty file system that only this process sees and
// that ends with it. It returns "" if this process lacks the rights.
func (w *lifeWorld) smallDisk() string {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return ""
	}
	defer unix.Close(fs)
	if unix.FsconfigSetString(fs, "size", "512k") != nil || unix.FsconfigCreate(fs) != nil {
		return ""
	}
	dir, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	w.disks = append(w.disks, func() { unix.Close(dir) })
	return fmt.Sprintf("/proc/self/fd/%d", dir)
}

// hasSmallDisk reports whether this process may make small file systems.
func hasSmallDisk() bool {
	w := &lifeWorld{}
	has := w.smallDisk() != ""
	for _, unmount := range w.disks {
		unmount()
	}
	return has
}
