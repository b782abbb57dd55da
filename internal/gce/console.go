package gce

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// Limits for reading and showing a serial console.
const (
	consoleBytes = 64 << 10
	consoleLines = 12
	consoleWidth = 200 // characters of a line
)

// Consoles implements provision.ConsoleReader.
func (p *reader) Consoles(ctx context.Context, s tpu.Slice, vms []string) ([]provision.Console, error) {
	if len(vms) == 0 {
		var err error
		if vms, err = p.mute(ctx, s.Name); err != nil {
			return nil, err
		}
	}
	vms = vms[:min(len(vms), provision.MaxConsoles)]
	texts, errs := make([]string, len(vms)), make([]error, len(vms))
	var reads sync.WaitGroup
	for i, vm := range vms {
		reads.Go(func() { texts[i], errs[i] = p.calls.Console(ctx, vm, consoleBytes) })
	}
	reads.Wait()
	var all []provision.Console
	for i, vm := range vms {
		if errs[i] != nil {
			continue
		}
		console := readConsole(texts[i])
		console.VM = vm
		console.Show = fmt.Sprintf("gcloud compute instances get-serial-port-output %s --zone=%s --project=%s", vm, p.gcp.Zone(), p.gcp.Project())
		console.Hint = strings.NewReplacer("{show}", console.Show, "{network}", cmp.Or(s.Network, "default")).Replace(console.Hint)
		all = append(all, console)
	}
	return all, cmp.Or(errs...)
}

// mute returns the names of the running VMs of a group that have not reported their
// numbers. If there is none, it returns all running VMs.
func (p *reader) mute(ctx context.Context, group string) (silent []string, err error) {
	managed, err := p.calls.Managed(ctx, group)
	if err != nil {
		return nil, err
	}
	instances, err := p.calls.Instances(ctx) // one call, because a slice has up to thousands of VMs
	if err != nil {
		return nil, err
	}
	byName := make(map[string]*computepb.Instance, len(instances))
	for _, vm := range instances {
		byName[vm.GetName()] = vm
	}
	var running []string
	for _, m := range managed {
		vm := byName[gcp.BaseName(m.GetInstance())]
		if vm == nil || m.GetInstanceStatus() != "RUNNING" {
			continue
		}
		running = append(running, vm.GetName())
		said, err := p.ask(ctx, vm)
		if err != nil {
			return nil, err
		}
		if said.vm == "" {
			silent = append(silent, vm.GetName())
		}
		if len(silent) == provision.MaxConsoles {
			break
		}
	}
	if len(silent) > 0 {
		return silent, nil
	}
	return running, nil
}

// A sign is a known text on a serial console, with its meaning.
type sign struct {
	text    *regexp.Regexp
	meaning string
	fatal   bool
	passing bool   // healthy VMs print this text too, so it counts only at the end of a console
	hint    string // {show} stands for the command that prints the console, {network} for the network of the slice
}

// signs has the known texts, causes before their consequences. Of several texts on a
// console, the first one in this list counts.
var signs = []sign{
	{regexp.MustCompile(`Kernel panic - not syncing`), "its kernel has stopped", true, false,
		"delete the slices and make them again; if you set --image, try without it"},
	{regexp.MustCompile(`(?i)Unable to mount root|dracut.*FATAL|emergency mode|Give root password for maintenance|ALERT! .* does not exist`), "it cannot read its boot disk", true, false,
		"delete the slices and make them again; if you set --image, try without it"},
	{regexp.MustCompile(`(?i)No bootable device|Boot failed: not a bootable disk`), "its image is not bootable", true, false, "use another --image"},
	{regexp.MustCompile(`(?i)No space left on device`), "its boot disk is full", true, false, "make the slices again with a larger --boot-disk-size"},
	{regexp.MustCompile(`Out of memory: Killed process`), "it has run out of memory", false, false, "see which program needs it with: {show}"},
	{regexp.MustCompile(`(?i)Failed to start OpenBSD Secure Shell|sshd\.service: Failed|ssh\.service: Failed`), "its SSH server does not start", true, false, "see why with: {show}"},
	{regexp.MustCompile(`(?i)startup-script.{0,80}(failed|exit status [1-9])`), "its startup script has failed", false, false,
		"correct the script of --metadata startup-script; what it has printed: {show}"},
	{regexp.MustCompile(`(?i)Failed to start .*(wait-online|Wait for Network|networkd|network configuration)|metadata\.google\.internal.*(i/o timeout|no such host|no route to host|unreachable)|Network is unreachable|Temporary failure in name resolution`),
		"it has no network", true, true, "check the network of the slices with: multihost doctor --network={network}"},
	{regexp.MustCompile(`\blogin: ?$`), "it has booted and offers a login", false, true, "check the firewall rules on the way to it with: multihost doctor --network={network}"},
}

// boots matches the first line of a kernel.
var boots = regexp.MustCompile(`\bLinux version \d`)

// readConsole reads the end of a serial console, without earlier boots.
func readConsole(text string) provision.Console {
	var lines, all []string
	for line := range strings.Lines(text) {
		line = plain(line)
		if boots.MatchString(line) {
			lines = nil
		}
		if line != "" {
			lines, all = append(lines, line), append(all, line+"\n")
		}
	}
	c := provision.Console{Text: strings.Join(all, ""), Lines: slices.Clone(lines[max(0, len(lines)-consoleLines):])}
	if len(lines) == 0 {
		c.Meaning, c.Hint = "it has not begun to boot", "wait, or delete the slices and make them again"
		return c
	}
	for _, s := range signs {
		among := lines
		if s.passing {
			among = c.Lines
		}
		if i := slices.IndexFunc(among, s.text.MatchString); i >= 0 {
			c.Meaning, c.Fatal, c.Hint, c.Line = s.meaning, s.fatal, s.hint, among[i]
			break
		}
	}
	return c
}

// escapes matches control sequences that colour and move text.
var escapes = regexp.MustCompile(`\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])`)

// plain returns a line without control characters, cut to consoleWidth characters.
func plain(line string) string {
	line = strings.ToValidUTF8(escapes.ReplaceAllString(line, ""), "\uFFFD")
	line = strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\r':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, line))
	if utf8.RuneCountInString(line) > consoleWidth {
		line = string([]rune(line)[:consoleWidth-1]) + "…"
	}
	return line
}
