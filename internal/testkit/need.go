package testkit

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// packages maps each program that a test may need to its Debian package. .ci/tools installs
// the same programs.
func packages() map[string]string {
	return map[string]string{
		"chromium":   "chromium",
		"curl":       "curl",
		"ethtool":    "ethtool",
		"gcc":        "gcc",
		"git":        "git",
		"gzip":       "gzip",
		"ip":         "iproute2",
		"localedef":  "libc-bin",
		"lsof":       "lsof",
		"mandoc":     "mandoc",
		"numactl":    "numactl",
		"perl":       "perl",
		"pgrep":      "procps",
		"ps":         "procps",
		"ping":       "iputils-ping",
		"python3":    "python3",
		"scp":        "openssh-client",
		"setpriv":    "util-linux",
		"setsid":     "util-linux",
		"shellcheck": "shellcheck",
		"ssh":        "openssh-client",
		"ssh-agent":  "openssh-client",
		"ssh-keygen": "openssh-client",
		"sshd":       "openssh-server",
		"sudo":       "sudo",
		"sysctl":     "procps",
		"tar":        "tar",
		"taskset":    "util-linux",
		"tc":         "iproute2",
		"tmux":       "tmux",
		"faketime":   "faketime",
		"zsh":        "zsh",
		"fish":       "fish",
		"unshare":    "util-linux",
	}
}

// Need returns the path of program. If program or one of more is not installed, it ends the test
// like Lacks.
func Need(t testing.TB, program string, more ...string) string {
	t.Helper()
	path := find(t, program)
	for _, p := range more {
		find(t, p)
	}
	return path
}

func find(t testing.TB, program string) string {
	t.Helper()
	pkg, known := packages()[program]
	if !known {
		t.Fatalf("testkit knows no Debian package of %s: add it, and to .ci/tools", program)
	}
	path, err := exec.LookPath(program)
	if err != nil && !strings.Contains(program, "/") {
		path, err = exec.LookPath("/usr/sbin/" + program) // not in every user's PATH
	}
	if err != nil {
		Lacks(t, "%s is not installed (Debian package %s)", program, pkg)
	}
	return path
}

// NeedWorker ends the test like Lacks unless this machine has the programs that our scripts
// need on a worker. Every image of a TPU VM has them.
func NeedWorker(t testing.TB) {
	t.Helper()
	Need(t, "curl", "gzip", "ps", "setsid", "tar")
}

// NeedRoot ends the test like Lacks unless root runs it.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacks(t, "only root can run this test")
	}
}

// NeedVenv ends the test like Lacks unless python3 can make virtual environments with pip.
func NeedVenv(t testing.TB) {
	t.Helper()
	if out, err := exec.Command(Need(t, "python3"), "-c", "import ensurepip, venv").CombinedOutput(); err != nil {
		Lacks(t, "python3 cannot make virtual environments, install python3-venv: %s", out)
	}
}

// Lacks skips a test that needs something missing on this machine. format describes it. With
// MULTIHOST_REQUIRE_TOOLS=1, which says that everything is installed, Lacks fails the test.
func Lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("MULTIHOST_REQUIRE_TOOLS") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}
