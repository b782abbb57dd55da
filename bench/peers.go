package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// peers returns the installed ones of other tools for commands on many hosts. Each tool
// contacts all hosts at once, uses the same key and checks the host keys as in usual use.
func (l *lab) peers(ctx context.Context, n int, command string) ([]contestant, error) {
	hosts := make([]string, n)
	known := make([]string, n)
	for i := range hosts {
		hosts[i] = address(i)
		known[i] = fmt.Sprintf("[%s]:%d %s", address(i), l.port, l.hostKey)
	}
	knownHosts, list := filepath.Join(l.dir, "known_hosts"), filepath.Join(l.dir, "hosts")
	for path, lines := range map[string][]string{knownHosts: known, list: hosts} {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	options := []string{
		"-F", "/dev/null", "-i", l.key, "-p", fmt.Sprint(l.port), "-l", "tester", "-o", "UserKnownHostsFile=" + knownHosts,
		"-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR",
	}
	joined := strings.Join(options, " ")
	fan := fmt.Sprint(n)
	comma := strings.Join(hosts, ",")
	words := strings.Fields(command)
	// If an ssh fails, the loop fails, as in the other tools.
	loop := "for h in $(cat " + list + "); do ssh " + joined + " $h " + command + " & p+=($!); done; " +
		"for p in ${p[@]}; do wait $p || s=1; done; exit $((s))"
	candidates := []struct {
		name string
		env  []string
		argv []string
	}{
		{"pdsh", []string{"PDSH_SSH_ARGS=" + joined + " %h"}, append([]string{"pdsh", "-R", "ssh", "-S", "-f", fan, "-w", comma}, words...)},
		{"clush", nil, append([]string{"clush", "-S", "-q", "-f", fan, "-w", comma, "-o", joined}, words...)},
		{"parallel-ssh", nil, append(append([]string{"parallel-ssh", "-P", "-t", "0", "-p", fan, "-h", list},
			pssh(l, knownHosts)...), words...)},
		{"ssh loop", nil, []string{"bash", "-c", loop}},
	}
	var all []contestant
	for _, c := range candidates {
		if _, err := exec.LookPath(c.argv[0]); err != nil {
			continue
		}
		all = append(all, contestant{c.name, func() (cost, error) { return l.client(ctx, c.env, c.argv...) }})
	}
	return all, nil
}

// pssh returns the same options in parallel-ssh's syntax.
func pssh(l *lab, knownHosts string) []string {
	return []string{
		"-l", "tester", "-O", "Port=" + fmt.Sprint(l.port), "-O", "IdentityFile=" + l.key, "-O", "UserKnownHostsFile=" + knownHosts,
		"-O", "StrictHostKeyChecking=yes", "-O", "IdentitiesOnly=yes", "-O", "LogLevel=ERROR",
	}
}
