package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"multihost/internal/sim/worker"
)

const (
	keysDir = "/var/lib/google-keys"
	sudoers = "/etc/sudoers.d/google_sudoers"

	firstUID = 1001
)

// moduleParameters are the module parameters that each machine has for itself, with their
// values after boot.
func moduleParameters() map[string]string {
	return map[string]string{"/sys/module/tcp_cubic/parameters/hystart_detect": "3"}
}

// enterRoot creates the machine's file system and enters it. The mount namespace must be
// the machine's.
func enterRoot(b bootRequest) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// Relative names keep commas and colons out of the overlay's options.
	if err := os.Chdir(b.Disk); err != nil {
		return err
	}
	for dir, mode := range map[string]fs.FileMode{
		"upper": 0o755, "work": 0o755, "mount": 0o755, "home": 0o755, "root": 0o700, "vartmp": 0o777 | fs.ModeSticky, "boot": 0o755,
	} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil {
			return err
		}
	}
	if err := mountOverlay(); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	if err := os.WriteFile("boot/boot_id", []byte(b.BootID+"\n"), 0o444); err != nil {
		return err
	}
	root := filepath.Join(b.Disk, "mount")
	for _, step := range []func(string, bootRequest) error{mountProc, mountSys, mountDev, mountPrivate} {
		if err := step(root, b); err != nil {
			return err
		}
	}
	// Put both roots in one place, then unmount the old one there.
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// A fault in an earlier boot may have removed it.
	if err := unhideFile(sudo); err != nil {
		return err
	}
	for _, path := range b.Tools {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("root file system has no %s: mounts below / are not part of a worker", path)
		}
	}
	return nil
}

// overlayLimit limits the wait until the kernel releases the mount of an earlier boot.
const overlayLimit = 2 * time.Second

func mountOverlay() error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(overlayLimit)
	for {
		err := unix.Mount("multihost-root", "mount", "overlay", 0, "lowerdir=/,upperdir=upper,workdir=work")
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-tick.C:
		case <-limit:
			return err
		}
	}
}

func mountAt(root, target, kind string, flags uintptr, options string) error {
	path := filepath.Join(root, target)
	if err := unix.Mount(kind, path, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", kind, target, err)
	}
	return nil
}

func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// bindReadOnly makes a file or directory read-only in place, but not what is mounted below
// it.
func bindReadOnly(path string) error {
	if err := bind(path, path); err != nil {
		return err
	}
	return remountReadOnly(path)
}

func remountReadOnly(path string) error {
	if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", path, err)
	}
	return nil
}

// mountProc mounts /proc. Only the settings of the network namespace are writable: the
// others are the real machine's.
func mountProc(root string, _ bootRequest) error {
	if err := mountAt(root, "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	proc := filepath.Join(root, "proc")
	for _, dir := range []string{"sys", "sys/net"} {
		if err := bind(filepath.Join(proc, dir), filepath.Join(proc, dir)); err != nil {
			return err
		}
	}
	bootID := filepath.Join(proc, "sys/kernel/random/boot_id")
	if err := bind("boot/boot_id", bootID); err != nil {
		return err
	}
	if err := remountReadOnly(bootID); err != nil {
		return err
	}
	if err := remountReadOnly(filepath.Join(proc, "sys")); err != nil {
		return err
	}
	for _, name := range []string{"sysrq-trigger", "irq", "bus", "fs", "acpi", "kcore", "scsi"} {
		path := filepath.Join(proc, name)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := bindReadOnly(path); err != nil {
			return err
		}
	}
	return nil
}

// mountSys mounts /sys with the interfaces of the network namespace. Only the machine's
// module parameters are writable.
func mountSys(root string, _ bootRequest) error {
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY)
	if err := mountAt(root, "/sys", "sysfs", flags, ""); err != nil {
		return err
	}
	for path, value := range moduleParameters() {
		target := filepath.Join(root, path)
		if _, err := os.Stat(target); err != nil {
			continue // the real machine has not loaded the module
		}
		private := filepath.Join("boot", filepath.Base(path))
		if err := os.WriteFile(private, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := bind(private, target); err != nil {
			return err
		}
	}
	return nil
}

// mountDev creates a /dev with the usual devices and with stand-ins for the TPU.
func mountDev(root string, b bootRequest) error {
	if err := mountAt(root, "/dev", "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return err
	}
	dev := filepath.Join(root, "dev")
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := makeDevice(filepath.Join(dev, name), 1, minor); err != nil {
			return err
		}
	}
	if err := makeDevice(filepath.Join(dev, "tty"), 5, 0); err != nil {
		return err
	}
	for _, path := range b.Devices {
		if err := makeStandIn(filepath.Join(root, path)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"pts", "shm"} {
		if err := os.Mkdir(filepath.Join(dev, dir), 0o755); err != nil {
			return err
		}
	}
	if err := mountAt(root, "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,gid=5,mode=620,ptmxmode=666"); err != nil {
		return err
	}
	if err := mountAt(root, "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return nil
}

func makeDevice(path string, major, minor uint32) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		return fmt.Errorf("make device %q: %w", path, err)
	}
	return os.Chmod(path, 0o666) // regardless of the umask
}

// makeStandIn makes a character device. As on a TPU VM, anybody can open it. It drops what
// is written to it.
func makeStandIn(path string) error { return makeDevice(path, 1, 3) }

// mountPrivate covers directories of the real machine that a machine must not see, and
// mounts the directories that a boot empties.
func mountPrivate(root string, _ bootRequest) error {
	for target, source := range map[string]string{"/home": "home", "/root": "root", "/var/tmp": "vartmp"} {
		if err := os.MkdirAll(filepath.Join(root, target), 0o755); err != nil {
			return err
		}
		if err := bind(source, filepath.Join(root, target)); err != nil {
			return err
		}
	}
	for target, mode := range map[string]string{"/tmp": "mode=1777", "/run": "mode=0755"} {
		if err := mountAt(root, target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, mode); err != nil {
			return err
		}
	}
	for _, dir := range []string{"sshd", "lock"} {
		if err := os.Mkdir(filepath.Join(root, "run", dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// writeEtc writes the configuration of a machine. Users of an earlier boot stay.
func writeEtc(b bootRequest) error {
	if _, err := os.Stat(keysDir); errors.Is(err, fs.ErrNotExist) {
		if err := writeAccounts(); err != nil {
			return err
		}
		if err := os.MkdirAll(keysDir, 0o755); err != nil {
			return err
		}
	}
	config := []string{
		"Port 22", "ListenAddress " + b.Listen,
		"HostKey " + hostKeyPath("ssh-ed25519"), "HostKey " + hostKeyPath("ecdsa-sha2-nistp256"),
		"PermitRootLogin no", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no", "UseDNS no",
		"AuthorizedKeysFile " + keysDir + "/%u .ssh/authorized_keys",
		"AcceptEnv LANG LC_*", "PermitUserEnvironment LD_PRELOAD,FAKETIME*,MULTIHOST_KEEP", "PrintMotd no", "PrintLastLog no", "Banner " + bannerFile, "Subsystem sftp internal-sftp",
	}
	environment := []string{"PATH=" + worker.LoginPath, "LANG=C.UTF-8"}
	setenv := "SetEnv"
	for _, e := range append(environment, b.Env...) {
		setenv += ` "` + strings.ReplaceAll(strings.ReplaceAll(e, `\`, `\\`), `"`, `\"`) + `"`
	}
	config = append(append(config, setenv), b.SSHD...)
	for path, text := range map[string]string{
		"/etc/ssh/sshd_config": strings.Join(config, "\n") + "\n",
		"/etc/environment":     `PATH="` + worker.LoginPath + `"` + "\n",
		"/etc/hostname":        b.Hostname + "\n",
		"/etc/hosts":           b.hosts(),
		"/etc/resolv.conf":     "nameserver " + metadataAddr + "\n",
		"/etc/sudoers": "Defaults env_reset\nDefaults secure_path=\"" + worker.LoginPath + "\"\n" +
			"root ALL=(ALL:ALL) ALL\n@include " + sudoers + "\n",
	} {
		mode := fs.FileMode(0o644)
		if path == "/etc/sudoers" {
			mode = 0o440
		}
		if err := replaceFile(path, text, mode); err != nil {
			return err
		}
	}
	return nil
}

// hosts returns the text of /etc/hosts, which replaces the network's DNS.
func (b bootRequest) hosts() string {
	text := "127.0.0.1 localhost\n" + b.IP + " " + b.Hostname + "\n" + metadataAddr + " metadata.google.internal metadata\n"
	for _, name := range slices.Sorted(maps.Keys(b.Hosts)) {
		if name != b.Hostname {
			text += b.Hosts[name] + " " + name + "\n"
		}
	}
	return text
}

// replaceFile replaces a file by a new one, even if it is a link to somewhere else.
func replaceFile(path, text string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// writeAccounts keeps only the system accounts of the real machine, without their
// passwords.
func writeAccounts() error {
	system := func(path string) ([][]string, error) {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var all [][]string
		for line := range strings.Lines(string(data)) {
			f := strings.Split(strings.TrimSpace(line), ":")
			if len(f) < 4 {
				continue
			}
			if id, err := strconv.Atoi(f[2]); err == nil && (id < 1000 || id == 65534) {
				all = append(all, f)
			}
		}
		return all, nil
	}
	users, err := system("/etc/passwd")
	if err != nil {
		return err
	}
	groups, err := system("/etc/group")
	if err != nil {
		return err
	}
	var passwd, shadow, group strings.Builder
	for _, f := range users {
		f[1] = "x"
		passwd.WriteString(strings.Join(f, ":") + "\n")
		shadow.WriteString(f[0] + ":*:19000:0:99999:7:::\n")
	}
	for _, f := range groups {
		f[3] = ""
		group.WriteString(strings.Join(f, ":") + "\n")
	}
	group.WriteString("google-sudoers:x:1000:\n")
	for path, text := range map[string]string{"/etc/passwd": passwd.String(), "/etc/group": group.String()} {
		if err := replaceFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return replaceFile("/etc/shadow", shadow.String(), 0o640)
}

// setLogins creates the users in keys, with exactly these keys.
func setLogins(keys map[string][]string) error {
	names, err := os.ReadDir(keysDir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if _, ok := keys[n.Name()]; !ok {
			if err := os.Remove(filepath.Join(keysDir, n.Name())); err != nil {
				return err
			}
		}
	}
	for _, login := range sortedKeys(keys) {
		if err := addUser(login); err != nil {
			return fmt.Errorf("add user %q: %w", login, err)
		}
		if err := replaceFile(filepath.Join(keysDir, login), strings.Join(keys[login], "\n")+"\n", 0o644); err != nil {
			return err
		}
	}
	return nil
}

// addUser creates a user, as the guest agent does, in the group whose members may use sudo
// without a password. It does not change an existing user.
func addUser(login string) error {
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	uid := firstUID
	for line := range strings.Lines(string(passwd)) {
		f := strings.Split(line, ":")
		if f[0] == login {
			return nil
		}
		if len(f) > 2 {
			if id, err := strconv.Atoi(f[2]); err == nil && id >= uid && id < 60000 {
				uid = id + 1
			}
		}
	}
	group, err := os.ReadFile("/etc/group")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(group)), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "google-sudoers:") {
			if !strings.HasSuffix(line, ":") {
				line += ","
			}
			lines[i] = line + login
		}
	}
	lines = append(lines, fmt.Sprintf("%s:x:%d:", login, uid))
	shadow, err := os.ReadFile("/etc/shadow")
	if err != nil {
		return err
	}
	home := "/home/" + login
	if err := makeHome(home, uid); err != nil {
		return err
	}
	if err := replaceFile("/etc/group", strings.Join(lines, "\n")+"\n", 0o644); err != nil {
		return err
	}
	if err := replaceFile("/etc/shadow", string(shadow)+login+":*:19000:0:99999:7:::\n", 0o640); err != nil {
		return err
	}
	return replaceFile("/etc/passwd", string(passwd)+fmt.Sprintf("%s:x:%d:%d::%s:/bin/bash\n", login, uid, uid, home), 0o644)
}

// makeHome creates a home and copies the files of /etc/skel into it.
func makeHome(home string, uid int) error {
	if err := os.Mkdir(home, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err := filepath.WalkDir("/etc/skel", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // without /etc/skel homes are empty
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		to := filepath.Join(home, filepath.Base(path))
		if err := os.WriteFile(to, data, 0o644); err != nil {
			return err
		}
		return os.Chown(to, uid, uid)
	})
	if err != nil {
		return err
	}
	return os.Chown(home, uid, uid)
}

func writeSudoers(refuse bool) error {
	text := "%google-sudoers ALL=(ALL:ALL) NOPASSWD:ALL\n"
	if refuse {
		text = "%google-sudoers ALL=(ALL:ALL) ALL\n"
	}
	return replaceFile(sudoers, text, 0o440)
}

// writeSSHRC delays the start of every command: sshd runs this file before each.
func writeSSHRC(seconds float64) error {
	const path = "/etc/ssh/sshrc"
	if seconds > 0 {
		return replaceFile(path, fmt.Sprintf("sleep %g\n", seconds), 0o644)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func hostKeyPath(kind string) string {
	return map[string]string{"ssh-ed25519": "/etc/ssh/ssh_host_ed25519_key", "ecdsa-sha2-nistp256": "/etc/ssh/ssh_host_ecdsa_key"}[kind]
}

// writeHostKeys writes the host keys, and reports whether they have changed.
func writeHostKeys(keys map[string]string) (changed bool, err error) {
	for kind, text := range keys {
		path := hostKeyPath(kind)
		if old, err := os.ReadFile(path); err == nil && string(old) == text {
			continue
		}
		if err := replaceFile(path, text, 0o600); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// cubicModule is the directory that the fault "missing tcp_cubic" hides.
const cubicModule = "/sys/module/tcp_cubic"

// canMiss returns an error for a name that a real kernel cannot hide.
func canMiss(name string, devices []string) error {
	if name == "tcp_cubic" || slices.Contains(devices, name) {
		return nil
	}
	return errors.New("of a real kernel only tcp_cubic and the TPU devices can be hidden")
}

func makeMissing(name string) error {
	if name != "tcp_cubic" {
		return os.Remove(name)
	}
	if _, err := os.Stat(cubicModule); err != nil {
		return nil // already missing
	}
	return mountAt("/", cubicModule, "tmpfs", unix.MS_RDONLY, "mode=0755")
}

func restoreMissing(name string) error {
	if name != "tcp_cubic" {
		return makeStandIn(name)
	}
	if _, err := os.Stat(cubicModule); err != nil {
		return nil
	}
	return unix.Unmount(cubicModule, unix.MNT_DETACH)
}

// deniedPath returns the file of a setting. name is a sysctl key or a path.
func deniedPath(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}

// canDeny returns an error for a setting without a file: only a file can be made read-only.
func canDeny(name string) error {
	path := deniedPath(name)
	if strings.HasPrefix(path, "/proc/sys/net/") || strings.HasPrefix(path, "/sys/module/") {
		return nil
	}
	return errors.New("of a real kernel only sysctl keys of the network and module parameters can be denied")
}
