//go:build linux

package worker

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/uuid"
)

// The stand-ins are scripts, so that authors of worker scripts can read why the simulator
// has answered as it did.
//
//go:embed standin/*.sh standin/lib/*.sh
var standinScripts embed.FS

// refusedCommands would change the machine on which the simulator runs. multihost needs
// none of them. One stand-in refuses them all.
var refusedCommands = []string{
	"reboot", "shutdown", "halt", "poweroff", "init", "service",
	"mount", "umount", "swapon", "swapoff", "mkfs", "fdisk", "parted",
	"modprobe", "insmod", "rmmod", "iptables", "ip6tables", "nft", "tc", "ifconfig", "route",
	"dpkg", "snap", "useradd", "userdel", "usermod", "groupadd", "passwd", "chpasswd",
	"hostnamectl", "timedatectl", "crontab", "su", "chroot",
}

// sameAs maps commands to those whose stand-ins they share.
var sameAs = map[string]string{
	"apt":     "apt-get",
	"pgrep":   "pkill",
	"killall": "pkill",
}

// WriteProgram writes a file that will be executed soon, and prevents forks in the
// simulator meanwhile. A forked process would hold the file open for writing until its
// exec, and the kernel refuses to execute such a file (ETXTBSY).
func WriteProgram(file string, text []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(file, text, 0o755)
}

// writeStandins makes the directory of stand-ins, to which all machines link.
func writeStandins(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	scripts, err := fs.Glob(standinScripts, "standin/*.sh")
	if err != nil {
		return err
	}
	write := func(name, script string) error {
		text, err := standinScripts.ReadFile(script)
		if err != nil {
			return err
		}
		// Another simulator may share the directory and run the script now.
		tmp := filepath.Join(dir, "."+name)
		if err := WriteProgram(tmp, text); err != nil {
			return err
		}
		return os.Rename(tmp, filepath.Join(dir, name))
	}
	if err := write("rights.sh", "standin/lib/rights.sh"); err != nil {
		return err
	}
	for _, s := range scripts {
		if err := write(strings.TrimSuffix(path.Base(s), ".sh"), s); err != nil {
			return err
		}
	}
	for _, name := range refusedCommands {
		if err := write(name, "standin/refused.sh"); err != nil {
			return err
		}
	}
	for name, other := range sameAs {
		if err := write(name, "standin/"+other+".sh"); err != nil {
			return err
		}
	}
	return nil
}

// A disk is the directory that a machine takes for its file system.
type disk struct {
	root     string
	standins string // directory of the programs that stand in for real ones
	of       Spec   // the machine of this disk
}

func (d disk) path(elem ...string) string {
	return filepath.Join(append([]string{d.root}, elem...)...)
}

// A reboot makes the volatile directories again. state holds the data of the stand-ins:
// routes, ethtool features, and the marks of faults.
var volatile = []string{"proc", "sys", "dev", "tmp", "state"}

// reset restores the machine's files to those of a boot. It creates only files that
// something reads, because creating files is most of the cost of a machine.
func (m *machine) reset() error {
	devices, err := m.b.nodeDevices(m.Spec.NUMANodes)
	if err == nil {
		err = m.resetFiles(devices)
	}
	if err != nil {
		return fmt.Errorf("reset files: %w", err)
	}
	return m.applyMarks()
}

// resetFiles makes the files of a boot. devices is the directory of the devices.
func (d disk) resetFiles(devices string) error {
	for _, dir := range volatile {
		if err := os.RemoveAll(d.path(dir)); err != nil {
			return err
		}
	}
	made := make(map[string]bool)
	for name, content := range d.bootFiles() {
		if err := d.write(made, name, content); err != nil {
			return err
		}
	}
	for _, dir := range []string{"tmp", "root"} {
		if err := os.MkdirAll(d.path(dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(d.path("tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	if err := os.Symlink(devices, d.path("sys/devices")); err != nil {
		return err
	}
	if err := os.Symlink(d.standins, d.path("bin")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (d disk) write(made map[string]bool, name, content string) error {
	file := d.path(name)
	if dir := filepath.Dir(file); !made[dir] {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		made[dir] = true
	}
	mode := os.FileMode(0o644)
	if strings.HasPrefix(name, "/dev/") {
		mode = 0o666
	}
	return os.WriteFile(file, []byte(content), mode)
}

// bootFiles returns kernel settings, devices and the state of the stand-ins, by absolute
// path. The values are those after the boot of an Ubuntu 22.04 image for TPU VMs.
func (d disk) bootFiles() map[string]string {
	files := map[string]string{
		"/proc/sys/kernel/random/boot_id": uuid.NewString() + "\n",
		"/proc/sys/kernel/hostname":       d.of.Hostname + "\n",

		"/proc/sys/net/core/somaxconn":                    "4096\n",
		"/proc/sys/net/core/optmem_max":                   "20480\n",
		"/proc/sys/net/ipv4/tcp_slow_start_after_idle":    "1\n",
		"/proc/sys/net/ipv4/tcp_no_metrics_save":          "0\n",
		"/proc/sys/net/ipv4/tcp_max_syn_backlog":          "2048\n",
		"/proc/sys/net/ipv4/tcp_mtu_probing":              "0\n",
		"/proc/sys/net/ipv4/tcp_congestion_control":       "cubic\n",
		"/proc/sys/net/ipv4/ip_local_port_range":          "32768\t60999\n",
		"/sys/module/tcp_cubic/parameters/hystart_detect": "3\n",
		"/sys/class/net/ens8/mtu":                         strconv.Itoa(d.of.MTU) + "\n",
		"/sys/class/net/lo/mtu":                           "65536\n",
		"/sys/kernel/mm/transparent_hugepage/enabled":     "always [madvise] never\n",

		"/state/route": fmt.Sprintf("default via 10.128.0.1 dev ens8 proto dhcp src %s metric 100\n"+
			"10.128.0.1 dev ens8 proto dhcp scope link src %s metric 100\n", d.of.IP, d.of.IP),
		"/state/features": "tx-nocache-copy off\ntcp-segmentation-offload on\ngeneric-segmentation-offload on\n" +
			"generic-receive-offload on\nscatter-gather on\n",
		"/state/address": d.of.IP + "\n",
	}
	for _, device := range d.of.Devices {
		files[device] = ""
	}
	return files
}

// nodeDevices returns the /sys/devices directory for machines with n NUMA nodes. The
// machines share it, because nothing in it can be changed.
func (b *processBackend) nodeDevices(n int) (dir string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	dir = filepath.Join(b.cfg.Root, fmt.Sprintf("numa-%d", n))
	if b.nodesMade[n] {
		return dir, nil
	}
	online := "0"
	if n > 1 {
		online = fmt.Sprintf("0-%d", n-1)
	}
	files := map[string]string{"online": online, "possible": online}
	for i := range n {
		node := fmt.Sprintf("node%d/", i)
		files[node+"cpulist"] = fmt.Sprintf("%d-%d", i*120, i*120+119)
		files[node+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       %d kB", i, 400<<20/n)
	}
	for name, content := range files {
		file := filepath.Join(dir, "system/node", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(file, []byte(content+"\n"), 0o444); err != nil && !errors.Is(err, fs.ErrPermission) {
			return "", err
		}
	}
	b.nodesMade[n] = true
	return dir, nil
}

// applyMarks writes to the machine's files which settings are missing, denied or fixed,
// and whether sudo works.
func (m *machine) applyMarks() error {
	m.Mu.Lock()
	missing := append([]string(nil), m.marks[Missing]...)
	lines := map[string][]string{
		"denied": append([]string(nil), m.marks[Denied]...),
		"fixed":  append([]string(nil), m.marks[Fixed]...),
	}
	if _, ok := m.Faults[NoSudo]; ok {
		lines["no-sudo"] = []string{"yes"}
	} else {
		lines["no-sudo"] = nil
	}
	m.Mu.Unlock()

	for _, name := range missing {
		for _, p := range settingPaths(name) {
			if err := os.RemoveAll(m.path(p)); err != nil {
				return err
			}
		}
	}
	for name, l := range lines {
		file := m.path("state", name)
		if len(l) == 0 {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		if err := os.WriteFile(file, []byte(strings.Join(l, "\n")+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// mayLack are the programs that an image for TPU VMs may lack.
var mayLack = []string{"numactl", "ethtool"}

// takeAway removes a program from the machine: its stand-in, and the real program behind
// it. For that, bin and all later directories on the PATH become directories of the
// machine, with links to all other programs.
func (d disk) takeAway(name string) error {
	own := d.path("own-bin")
	if _, err := os.Lstat(d.path("programs")); err == nil {
		return errors.Join(removed(filepath.Join(own, name)), removed(d.path("programs", name)))
	}
	if err := linkPrograms(own, name, d.standins); err != nil {
		return err
	}
	// Sessions look at the directory to choose their PATH, so it must appear at once.
	if err := linkPrograms(d.path("programs-new"), name,
		"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"); err != nil {
		return err
	}
	if err := os.Rename(d.path("programs-new"), d.path("programs")); err != nil {
		return err
	}
	return d.linkBin(own)
}

// putBack undoes takeAway.
func (d disk) putBack() error {
	if _, err := os.Lstat(d.path("programs")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := d.linkBin(d.standins); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(d.path("programs")), os.RemoveAll(d.path("own-bin")))
}

// linkBin makes bin a link to dir, so that bin exists at every moment.
func (d disk) linkBin(dir string) error {
	if err := os.Symlink(dir, d.path("bin-new")); err != nil {
		return err
	}
	return os.Rename(d.path("bin-new"), d.path("bin"))
}

// linkPrograms makes a directory of links to all programs in from but one. The first
// directory that has a program wins.
func linkPrograms(dir, except string, from ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range from {
		entries, err := os.ReadDir(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if e.Name() == except {
				continue
			}
			if err := os.Symlink(filepath.Join(f, e.Name()), filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return nil
}

func removed(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// knows reports whether the machine has a setting of that name.
func (d disk) knows(name string) bool {
	for _, p := range settingPaths(name) {
		for file := range d.bootFiles() {
			if file == p || strings.HasPrefix(file, p+"/") {
				return true
			}
		}
	}
	return false
}

// restore restores the boot values of settings that were missing.
func (d disk) restore(names []string) error {
	boot := d.bootFiles()
	made := make(map[string]bool)
	for _, name := range names {
		for _, p := range settingPaths(name) {
			for file, content := range boot {
				if file != p && !strings.HasPrefix(file, p+"/") {
					continue
				}
				if err := d.write(made, file, content); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// settingPaths returns the paths of a setting: the name itself if it is a path, the file of
// a sysctl key, or the directory of a module.
func settingPaths(name string) []string {
	switch {
	case strings.HasPrefix(name, "/proc/sys/"), strings.HasPrefix(name, "/sys/"), strings.HasPrefix(name, "/dev/"):
		return []string{path.Clean(name)}
	case strings.Contains(name, "."):
		return []string{"/proc/sys/" + strings.ReplaceAll(name, ".", "/")}
	case strings.HasPrefix(name, "/"):
		return nil
	}
	return []string{"/sys/module/" + name}
}
