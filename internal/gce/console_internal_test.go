package gce

import (
	"strings"
	"testing"

	"multihost/internal/provision"
)

func TestWhatASerialConsoleMeans(t *testing.T) {
	t.Parallel()
	const boot = "[    0.000000] Linux version 6.8.0-1020-gcp (buildd@lcy02)\r\n"
	for _, tt := range []struct{ story, text, want, line string }{
		{"nothing", "", "it has not begun to boot", ""},
		{"only control characters", "\x1b[2J\x1b[01;01H\r\n\x00", "it has not begun to boot", ""},
		{"it boots", boot + "[    1.2] smp: Bringing up secondary CPUs\r\n", "", ""},
		{"a panic", boot + "[    2.1] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)\r\n[    2.2] ---[ end Kernel panic ]---\r\n",
			"its kernel has stopped", "[    2.1] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)"},
		{"a panic of an earlier boot", boot + "Kernel panic - not syncing: x\n" + boot + "m-0-abcd login: ", "it has booted and offers a login", "m-0-abcd login:"},
		{"no root", boot + "Give root password for maintenance\r\n", "it cannot read its boot disk", "Give root password for maintenance"},
		{"the startup script", boot + "google_metadata_script_runner[1021]: Script \"startup-script\" failed with error: exit status 7\r\nm login: ",
			"its startup script has failed", `google_metadata_script_runner[1021]: Script "startup-script" failed with error: exit status 7`},
		{"an older form of it", boot + "startup-script exit status 1\n", "its startup script has failed", "startup-script exit status 1"},
		{"a startup script that is well", boot + "startup-script exit status 0\nm login: ", "it has booted and offers a login", "m login:"},
		{"no network", boot + "Failed to start systemd-networkd-wait-online.service - Wait for Network\r\n", "it has no network", "Failed to start systemd-networkd-wait-online.service - Wait for Network"},
		{"no network for a moment", boot + "dial tcp: lookup metadata.google.internal: Temporary failure in name resolution\n" + strings.Repeat("[  OK  ] Started something\n", consoleLines) + "m login: ",
			"it has booted and offers a login", "m login:"},
		{"colours", boot + "\x1b[0;1;31mFailed to start OpenBSD Secure Shell server.\x1b[0m\x1b]0;t\x07\r\n", "its SSH server does not start", "Failed to start OpenBSD Secure Shell server."},
		{"a full disk", boot + "cloud-init: OSError: [Errno 28] No space left on device\n", "its boot disk is full", "cloud-init: OSError: [Errno 28] No space left on device"},
	} {
		if got := readConsole(tt.text); got.Meaning != tt.want || got.Line != tt.line {
			t.Errorf("%s: %q, %q, want %q, %q", tt.story, got.Meaning, got.Line, tt.want, tt.line)
		}
	}
}

func TestASerialConsoleIsBounded(t *testing.T) {
	t.Parallel()
	c := readConsole(strings.Repeat(strings.Repeat("ä", 900)+"\n", 400) + "the end\xff\x07\n")
	if len(c.Lines) != consoleLines || c.Lines[consoleLines-1] != "the end\uFFFD" || len([]rune(c.Lines[0])) != consoleWidth {
		t.Errorf("got %q", c.Lines)
	}
}

func TestTheConsoleThatExplainsMost(t *testing.T) {
	t.Parallel()
	all := []provision.Console{{VM: "a", Lines: []string{"x"}}, {VM: "b", Meaning: "m", Line: "l"}, {VM: "c", Meaning: "n", Fatal: true}, {VM: "d", Meaning: "o"}}
	if c := provision.Foremost(all); c.String() != "VM c: n, its serial console is empty" {
		t.Errorf("got %s", c)
	}
	if c := provision.Foremost(all[:2]); c.String() != "VM b: m, its serial console says: l" {
		t.Errorf("got %s", c)
	}
	if c := provision.Foremost(all[:1]); c.String() != "VM a: its serial console ends with: x" {
		t.Errorf("got %s", c)
	}
}

// Any text is cleaned, limited and read.
func FuzzConsole(f *testing.F) {
	f.Add("\x1b[31mKernel panic - not syncing\x1b]0;")
	f.Fuzz(func(t *testing.T, text string) {
		c := readConsole(text)
		for _, line := range append(c.Lines, c.Line) {
			if strings.ContainsAny(line, "\x1b\n\r\x00\x07\u009b") || len([]rune(line)) > consoleWidth {
				t.Fatalf("%q of %q", line, text)
			}
		}
	})
}
