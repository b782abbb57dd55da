package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// hold opens a device of the worker in another user's process.
func hold(t *testing.T, l *local, device string, env ...string) *exec.Cmd {
	t.Helper()
	ready := filepath.Join(l.root, "held-"+filepath.Base(device))
	c := exec.Command("bash", "-c", `exec 3<"$1"; touch "$2"; exec sleep 1000`, "hold", filepath.Join(l.root, "dev", device), ready)
	c.Env = append(os.Environ(), env...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	testkit.Eventually(t, "the device is held", func() bool { _, err := os.Stat(ready); return err == nil })
	return c
}

func lives(c *exec.Cmd) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func TestAWorkerWithoutHoldersLosesItsLockFile(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("dev/accel0", "", 0o666)
	l.write("tmp/libtpu_lockfile", "", 0o644)
	report, err := FreeTPU(t.Context(), l, FreeOptions{})
	if err != nil || !report.LockRemoved || report.Devices != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := os.Stat(filepath.Join(l.root, "tmp/libtpu_lockfile")); !os.IsNotExist(err) {
		t.Errorf("lock file: %v", err)
	}
}

func TestAStrangerThatHoldsTheTPUIsNamedAndKept(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("dev/vfio/0", "", 0o666)
	l.write("dev/vfio/vfio", "", 0o666)
	l.write("tmp/libtpu_lockfile", "", 0o644)
	control := hold(t, l, "vfio/vfio")
	c := hold(t, l, "vfio/0")
	_, err := FreeTPU(t.Context(), l, FreeOptions{Grace: time.Second})
	var held *HoldersError
	if !errors.As(err, &held) || len(held.Holders) != 1 {
		t.Fatalf("got %v", err)
	}
	h := held.Holders[0]
	if h.PID != c.Process.Pid || h.Command != "sleep 1000" || h.User == "" || !h.Mine || h.Device != "/dev/vfio/0" || h.Run.Run != "" {
		t.Errorf("holder: %+v", h)
	}
	if _, err := os.Stat(filepath.Join(l.root, "tmp/libtpu_lockfile")); err != nil || !lives(c) {
		t.Errorf("touched: %v", err)
	}
	if _, err := FreeTPU(t.Context(), l, FreeOptions{Look: true}); !errors.As(err, &held) || len(held.Holders) != 1 {
		t.Errorf("look: %v", err)
	}
	seen, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeAll, Look: true})
	if err != nil || len(seen.Stopped) != 1 || seen.Stopped[0].PID != c.Process.Pid || !lives(c) {
		t.Errorf("look with all: %+v, %v", seen, err)
	}
	report, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeAll, Grace: time.Second})
	if err != nil || len(report.Stopped) != 1 || !report.LockRemoved {
		t.Errorf("%+v, %v", report, err)
	}
	c.Wait()
	if !lives(control) {
		t.Error("the holder of the control node was ended")
	}
}

func TestALivingRunThatHoldsTheTPUIsKept(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("dev/accel0", "", 0o666)
	begin(t, l, spec("r", "exec 3<"+l.root+"/dev/accel0; touch ready; sleep 1000"))
	ready(t, l, "r")
	_, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeAll, Grace: time.Second})
	var held *HoldersError
	if !errors.As(err, &held) || len(held.Holders) == 0 || held.Holders[0].Run.Run != "r" || !held.Holders[0].RunAlive {
		t.Fatalf("got %v", err)
	}
	if hint := held.Hint(); !strings.Contains(hint, "multihost stop r") {
		t.Errorf("hint: %q", hint)
	}
	report := stopped(t, l, Ref{"r", 1}, time.Second)
	if len(report.Devices) != 0 {
		t.Errorf("after stop: %+v", report)
	}
}

func TestOrphansOfAnEndedRunAreEnded(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("dev/accel0", "", 0o666)
	l.write("tmp/libtpu_lockfile", "", 0o644)
	complete(t, l, spec("r", "mkfifo none; setsid --fork bash -c 'trap \"\" TERM; exec 3<"+l.root+"/dev/accel0 4<>none; touch ready; read -r -u 4'; while [ ! -e ready ]; do sleep 0.01; done"))
	if s, err := Status(t.Context(), l, Ref{"r", 1}); err != nil || s.Left == 0 || s.Phase != Exited {
		t.Errorf("status: %+v, %v", s, err)
	}
	seen, err := FreeTPU(t.Context(), l, FreeOptions{Look: true})
	if err != nil || len(seen.Stopped) != 1 || seen.LockRemoved || !strings.HasPrefix(seen.Stopped[0].Command, "bash -c trap") {
		t.Errorf("look: %+v, %v", seen, err)
	}
	if _, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeCheck}); err == nil {
		t.Error("check says free")
	}
	report, err := FreeTPU(t.Context(), l, FreeOptions{Grace: 300 * time.Millisecond})
	if err != nil || len(report.Stopped) == 0 || report.Stopped[0].Run.Run != "r" || !report.LockRemoved {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestAMappedDeviceIsHeld(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	program, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	// A running program has mapped its own file, but has not opened it.
	l.write("dev/accel0", string(program), 0o755)
	c := exec.Command(filepath.Join(l.root, "dev/accel0"), "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	var held *HoldersError
	if _, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeCheck}); !errors.As(err, &held) || held.Holders[0].PID != c.Process.Pid || held.Holders[0].Device != "/dev/accel0" {
		t.Errorf("got %v", err)
	}
	if _, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeAll, Grace: time.Second}); err != nil || lives(c) {
		t.Errorf("got %v", err)
	}
}

func TestAnOrphanWithoutEnvironmentIsKnownByItsOutput(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("dev/accel0", "", 0o666)
	complete(t, l, spec("r", "(setsid --fork env -i bash -c 'exec 3<"+l.root+"/dev/accel0; touch ready; exec sleep 1000'); while [ ! -e ready ]; do sleep 0.01; done"))
	report, err := FreeTPU(t.Context(), l, FreeOptions{Grace: time.Second})
	if err != nil || len(report.Stopped) != 1 || report.Stopped[0].Run.Run != "r" {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestAnotherUsersHolderNeedsAll(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t)
	l := newLocal(t)
	if err := os.Chmod(l.root, 0o777); err != nil {
		t.Fatal(err)
	}
	l.write("dev/accel0", "", 0o666)
	l.write("tmp/libtpu_lockfile", "", 0o600)
	if err := os.Chown(filepath.Join(l.root, "tmp/libtpu_lockfile"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sleep", "1000")
	device, err := os.Open(filepath.Join(l.root, "dev/accel0"))
	if err != nil {
		t.Fatal(err)
	}
	c.ExtraFiles = []*os.File{device}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	group := controlGroup(t, fmt.Sprintf("docker-0123456789ab%052x.scope", os.Getpid()))
	c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(group.Fd())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	device.Close()
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	_, err = FreeTPU(t.Context(), l, FreeOptions{})
	var held *HoldersError
	if !errors.As(err, &held) || held.Holders[0].User != "nobody" || held.Holders[0].Mine || held.Holders[0].Engine != "docker" || !lives(c) {
		t.Fatalf("got %+v", err)
	}
	if hint := held.Hint(); !strings.Contains(hint, "docker stop 0123456789ab on") || !strings.Contains(err.Error(), "docker stop 0123456789ab)") {
		t.Errorf("hint %q, error %v", hint, err)
	}
	report, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeAll, Grace: time.Second})
	if err != nil || !report.LockRemoved || lives(c) || report.Blind != "" {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestADeviceOfAnotherVendorIsNotOurs(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.write("dev/vfio/7", "", 0o666)
	l.write("sys/kernel/iommu_groups/7/devices/0000:00:05.0/vendor", "0x10de\n", 0o644)
	c := hold(t, l, "vfio/7")
	report, err := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeAll})
	if err != nil || report.Devices != 0 || !lives(c) {
		t.Errorf("%+v, %v", report, err)
	}
	l.write("sys/kernel/iommu_groups/7/devices/0000:00:05.0/vendor", "0x1ae0\n", 0o644)
	if _, err := FreeTPU(t.Context(), l, FreeOptions{}); err == nil {
		t.Error("a Google device is ours")
	}
	// The bus also tells the vendor, for both kinds of device files.
	if err := os.RemoveAll(filepath.Join(l.root, "sys/kernel")); err != nil {
		t.Fatal(err)
	}
	for vendor, devices := range map[string]int{"0x10de": 0, "0x1ae0": 2} {
		l.write("dev/accel3", "", 0o666)
		l.write("sys/class/accel/accel3/device/vendor", vendor+"\n", 0o644)
		l.write("sys/bus/pci/devices/0000:00:05.0/vendor", vendor+"\n", 0o644)
		link := filepath.Join(l.root, "sys/bus/pci/devices/0000:00:05.0/iommu_group")
		if err := os.Symlink("../../kernel/iommu_groups/7", link); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		if report, _ := FreeTPU(t.Context(), l, FreeOptions{Policy: FreeCheck}); report.Devices != devices {
			t.Errorf("%s: %+v", vendor, report)
		}
	}
}
