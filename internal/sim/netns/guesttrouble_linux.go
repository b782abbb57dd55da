package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"multihost/internal/sim/worker"
)

// The faults of a machine's disks, clock, start-up files and login shell. For each one, a
// function sets it or, without a fault, undoes it. Files survive a reboot, so an earlier
// boot may have set the fault. Undoing a fault that was never set does nothing.

// inGuest reports whether faults of this kind are simulated inside the machine.
func inGuest(k worker.FaultKind) bool {
	switch k {
	case worker.NoSudo, worker.DiskSpace, worker.ReadOnly, worker.Clock, worker.Startup, worker.Banner, worker.Shell:
		return true
	}
	return false
}

// setTroubles makes the inGuest faults in want active. It does not touch an unchanged one:
// setting a disk fault again would lose what was written to the disk.
func (p *process1) setTroubles(want []worker.Fault) error {
	find := func(all []worker.Fault, kind worker.FaultKind) *worker.Fault {
		for i, f := range all {
			if f.Kind == kind {
				return &all[i]
			}
		}
		return nil
	}
	type trouble struct {
		kind worker.FaultKind
		set  func(*worker.Fault) error
	}
	// The other faults write to homes, so read-only homes are undone first and set last.
	readOnly := trouble{worker.ReadOnly, p.setReadOnly}
	all := []trouble{
		{worker.NoSudo, setSudo}, {worker.DiskSpace, p.setDiskSpace}, {worker.Clock, setClock},
		{worker.Startup, setStartup}, {worker.Banner, setBanner}, {worker.Shell, setShell}, readOnly,
	}
	if find(want, worker.ReadOnly) == nil {
		all = append([]trouble{readOnly}, all...)
	}
	for _, t := range all {
		had, f := find(p.troubles, t.kind), find(want, t.kind)
		if had != nil && f != nil && *had == *f {
			continue
		}
		if err := t.set(f); err != nil {
			return fmt.Errorf("%s: %w", t.kind, err)
		}
	}
	p.troubles = want
	return nil
}

// setLogins creates the logins in keys, and applies the login faults to new ones. Meanwhile
// it undoes the disk faults of homes.
func (p *process1) setLogins(keys map[string][]string) error {
	fresh := false
	for login := range keys {
		if _, err := os.Stat(filepath.Join("/home", login)); err != nil {
			fresh = true
		}
	}
	troubles := p.troubles
	if fresh {
		if err := p.setTroubles(slices.DeleteFunc(slices.Clone(troubles), func(f worker.Fault) bool { return f.Kind == worker.DiskSpace || f.Kind == worker.ReadOnly })); err != nil {
			return err
		}
	}
	if err := setLogins(keys); err != nil || !fresh {
		return err
	}
	for _, f := range p.troubles {
		var err error
		switch f.Kind {
		case worker.Clock:
			err = setClock(&f)
		case worker.Startup:
			err = setStartup(&f)
		case worker.Shell:
			err = setShell(&f)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Kind, err)
		}
	}
	return p.setTroubles(troubles)
}

// hidden returns where a file is while a fault replaces it.
func hidden(path string) string { return path + ".without-fault" }

// stashFile replaces a file by text and keeps the original.
func stashFile(path, text string, mode fs.FileMode) error {
	if _, err := os.Lstat(hidden(path)); errors.Is(err, fs.ErrNotExist) {
		if err := hideFile(path); err != nil {
			return err
		}
	}
	return replaceFile(path, text, mode)
}

// hideFile removes a file, or records that there was none.
func hideFile(path string) error {
	err := os.Rename(path, hidden(path))
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		err = os.Symlink("none", hidden(path))
	}
	return err
}

// unhideFile restores what stashFile or hideFile removed.
func unhideFile(path string) error {
	info, err := os.Lstat(hidden(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return errors.Join(os.Remove(hidden(path)), os.RemoveAll(path))
	}
	return os.Rename(hidden(path), path)
}

const sudo = "/usr/bin/sudo"

// setSudo sets the fault of sudo: sudo asks for a password, or is missing.
func setSudo(f *worker.Fault) error {
	if err := unhideFile(sudo); err != nil {
		return err
	}
	if f != nil && f.Mode == "missing" {
		return hideFile(sudo)
	}
	return writeSudoers(f != nil)
}

func (p *process1) setReadOnly(f *worker.Fault) error {
	if p.readOnly {
		if err := unix.Unmount("/home", unix.MNT_DETACH); err != nil {
			return err
		}
	}
	p.readOnly = f != nil
	if f == nil {
		return nil
	}
	return bindReadOnly("/home")
}

// tmpFiller uses the one page that /tmp always has.
const tmpFiller = "/tmp/.full"

const tmpFlags = unix.MS_NOSUID | unix.MS_NODEV

// setDiskSpace limits /tmp, or moves the homes to a small disk.
func (p *process1) setDiskSpace(f *worker.Fault) error {
	if p.smallDisk {
		p.smallDisk = false
		if err := unix.Unmount("/home", unix.MNT_DETACH); err != nil {
			return err
		}
	}
	if p.smallTmp {
		p.smallTmp = false
		if err := os.Remove(tmpFiller); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := unix.Mount("", "/tmp", "", unix.MS_REMOUNT|tmpFlags, "size=50%"); err != nil {
			return err
		}
	}
	if f == nil {
		return nil
	}
	if f.Mode == "tmp" {
		var used unix.Statfs_t
		if err := unix.Statfs("/tmp", &used); err != nil {
			return err
		}
		p.smallTmp = true
		// An empty file system would have one page.
		if err := os.WriteFile(tmpFiller, make([]byte, used.Bsize), 0o600); err != nil {
			return err
		}
		size := int64(used.Blocks-used.Bfree+1)*used.Bsize + f.Bytes
		return unix.Mount("", "/tmp", "", unix.MS_REMOUNT|tmpFlags, tmpfsSize(size))
	}
	const disk = "/run/small-disk"
	if err := os.Mkdir(disk, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", tmpFlags, "mode=0755"); err != nil {
		return err
	}
	defer unix.Unmount(disk, unix.MNT_DETACH)
	if err := p.run("/bin/cp", "-a", "/home/.", disk); err != nil {
		return err
	}
	var used unix.Statfs_t
	if err := unix.Statfs(disk, &used); err != nil {
		return err
	}
	size := int64(used.Blocks-used.Bfree)*used.Bsize + f.Bytes
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|tmpFlags, tmpfsSize(size)); err != nil {
		return err
	}
	p.smallDisk = true
	return bind(disk, "/home")
}

// tmpfsSize returns the mount option for a size, never 0, which would mean no limit.
func tmpfsSize(bytes int64) string { return "size=" + strconv.FormatInt(max(bytes, 1), 10) }

// setClock changes the clock for programs of logins, not for the whole machine: sshd does
// not work with the library.
func setClock(f *worker.Fault) error {
	var text string
	if f != nil {
		library, err := worker.FakeClock()
		if err != nil {
			return err
		}
		text = fmt.Sprintf("LD_PRELOAD=%s\nFAKETIME=%s\nFAKETIME_DONT_FAKE_MONOTONIC=1\nMULTIHOST_KEEP=%s\n", library, f.ClockText(), worker.ClockVars)
	}
	for _, home := range homes() {
		file := filepath.Join(home, ".ssh/environment")
		err := unhideFile(file)
		if err == nil && f != nil {
			err = stashFile(file, text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func homes() []string {
	found, _ := filepath.Glob("/home/*") // the pattern is valid
	return found
}

// setStartup writes the start-up file of the machine, or of every home.
func setStartup(f *worker.Fault) error {
	errs := []error{unhideFile(worker.SystemBashrc)}
	for _, home := range homes() {
		errs = append(errs, unhideFile(filepath.Join(home, ".bashrc")), unhideFile(filepath.Join(home, ".ssh/rc")))
	}
	if err := errors.Join(errs...); err != nil || f == nil {
		return err
	}
	file, text := f.Startup()
	below, private := strings.CutPrefix(file, "~/")
	if !private {
		return stashFile(file, text, 0o644)
	}
	for _, home := range homes() {
		if err := stashFile(filepath.Join(home, below), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

const (
	bannerFile = "/etc/ssh/banner" // sshd shows this file if it exists
	motdFile   = "/etc/motd"
)

func setBanner(f *worker.Fault) error {
	if f == nil {
		return errors.Join(unhideFile(bannerFile), unhideFile(motdFile))
	}
	return errors.Join(stashFile(bannerFile, worker.BannerText, 0o644), stashFile(motdFile, worker.BannerText, 0o644))
}

// setShell changes the shell of every login.
func setShell(f *worker.Fault) error {
	shell := "/bin/bash"
	if f != nil {
		shell = f.Name
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	var b strings.Builder
	for line := range strings.Lines(string(passwd)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(fields) == 7 {
			if id, err := strconv.Atoi(fields[2]); err == nil && id >= firstUID && id < 60000 {
				fields[6] = shell
			}
		}
		b.WriteString(strings.Join(fields, ":") + "\n")
	}
	if b.String() == string(passwd) {
		return nil
	}
	return replaceFile("/etc/passwd", b.String(), 0o644)
}
