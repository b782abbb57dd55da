package options

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"multihost/internal/access"
	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/hosts"
	"multihost/internal/overssh"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/workers"
)

// gcloudFields lists the flags for which gcloud's configuration has a value.
var gcloudFields = map[string]string{"project": "Project", "zone": "Zone", "access-token-file": "AccessTokenFile"}

// Gcloud reads gcloud's configuration, with the changes that flags make.
func Gcloud(c *Call, m Machine) config.Gcloud {
	g, err := config.LoadGcloud(m.Lookup, m.Home, c.String("configuration"))
	if err != nil {
		c.Refuse(&cmdline.ConfigError{Err: err}, "configuration")
	}
	for _, flag := range slices.Sorted(maps.Keys(gcloudFields)) {
		if v := m.Setting(c, flag); v != "" {
			if err := g.Override(gcloudFields[flag], m.sourceOf(c, flag), v); err != nil {
				c.Refuse(&cmdline.UsageError{Err: err}, flag)
			}
		}
	}
	return g
}

// Setting returns the value of a flag. The environment may have got it after the command
// line was read, from a simulator that this command starts.
func (m Machine) Setting(c *Call, flag string) string {
	if _, typed := c.Typed[flag]; typed {
		return fmt.Sprint(c.Flags.Value(flag))
	}
	if v, ok := m.Lookup(config.FlagVariable(flag)); ok && v != "" {
		return v
	}
	return fmt.Sprint(c.Flags.Value(flag))
}

// sourceOf returns the source of the value that Setting returns.
func (m Machine) sourceOf(c *Call, flag string) string {
	if _, typed := c.Typed[flag]; typed {
		return "--" + flag
	}
	if v, ok := m.Lookup(config.FlagVariable(flag)); ok && v != "" {
		return config.FlagVariable(flag)
	}
	if from, ok := c.From[flag]; ok {
		return from.Source.String()
	}
	return "--" + flag
}

// Hosts returns the machines that replace slices: those on the command line, or those on
// which the named run was started.
func Hosts(c *Call, stateDir string) (list hosts.HostList) {
	text, path := c.String("hosts"), c.String("hosts-file")
	var err error
	if text != "" {
		if list, err = hosts.ParseHosts(text); err != nil {
			c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--hosts: %w", err)}, "hosts")
		}
	}
	if path != "" {
		list, err = hosts.ReadHosts(c.Context, path)
		switch {
		case c.Context.Err() != nil:
			c.Refuse(context.Cause(c.Context))
		case err != nil:
			c.Refuse(&cmdline.ConfigError{Err: fmt.Errorf("--hosts-file: %w", err)}, "hosts-file")
		}
	}
	if text != "" && path != "" {
		c.Refuse(cmdline.Usagef("give either --hosts or --hosts-file, not both"), "hosts", "hosts-file")
	}
	if text == "" && path == "" && namesRun(c.Line) {
		list, err = workers.RecordedHosts(stateDir, c.Words[0])
		c.Refuse(err, cmdline.Word)
	}
	return list
}

// namesRun reports whether the command's word is the name of a run.
func namesRun(l *cmdline.Line) bool {
	return len(l.Path) == 1 && len(l.Words) == 1 && slices.Contains([]string{"attach", "dump", "logs", "stop", "top"}, l.Path[0])
}

// Key returns the user's key without asking for its passphrase.
func Key(c *Call, m Machine) access.Key {
	_, named := c.Typed["identity-file"]
	path := m.Setting(c, "identity-file")
	if path == "" {
		path = filepath.Join(m.Home, ".ssh", "google_compute_engine")
	}
	return access.Key{Path: path, Ours: !named, Agent: m.agent()}
}

// agent returns the socket of the user's ssh-agent, or "".
func (m Machine) agent() string {
	if socket, _ := m.Lookup("SSH_AUTH_SOCK"); socket != "" {
		return socket
	}
	return sshkey.DefaultAgent()
}

// legalLogin matches the logins that Linux accepts.
var legalLogin = regexp.MustCompile(`^[a-z_][a-z0-9_.-]{0,31}$`)

// Access reads the flags that say how to reach workers with a key. note says which login is
// used, if that may surprise the user. Identity and IAP stay unset.
func Access(c *Call, m Machine, key access.Key) (a overssh.Access, note string) {
	if c.Duration("connect-timeout") <= 0 {
		c.Refuse(cmdline.Usagef("--connect-timeout=%s: it must be more than 0", c.Duration("connect-timeout")), "connect-timeout")
	}
	if c.Int("max-dials") < 1 {
		c.Refuse(cmdline.Usagef("--max-dials=%d: it must be 1 or more", c.Int("max-dials")), "max-dials")
	}
	login := c.String("user")
	switch {
	case login != "" && !legalLogin.MatchString(login):
		c.Refuse(cmdline.Usagef("--user=%s: no login is called that on Linux", login), "user")
	case login == "root":
		c.Refuse(&cmdline.UsageError{Err: errors.New("--user=root: TPU VMs take no root login"), Advice: "leave --user out, or name another login; it can use sudo on the workers"}, "user")
	case login == "":
		login, note = m.User, m.UserNote
	}
	var port int
	if _, err := fmt.Sscanf(m.Setting(c, "ssh-port"), "%d", &port); err != nil || port < 1 || port > 65535 {
		c.Refuse(cmdline.Usagef("--ssh-port=%s: it is a port from 1 to 65535", m.Setting(c, "ssh-port")), "ssh-port")
	}
	known := m.Setting(c, "known-hosts")
	if known == "" {
		known = filepath.Join(m.StateDir, "known_hosts")
	}
	retry := c.Duration("connect-timeout")
	a = overssh.Access{
		Login: login, Account: m.Account, KeyFile: key.Path, KnownHosts: known, Port: port,
		ConnectTimeout: min(retry, 15*time.Second), RetryFor: retry, MaxDials: c.Int("max-dials"),
		Passphrase: key.Passphrase,
	}
	way(c, m, &a)
	return a, note
}

// way reads the flags that say by which way to reach workers.
func way(c *Call, m Machine, a *overssh.Access) {
	text := c.String("ip")
	c.OneOf("ip", text, string(overssh.Auto), string(overssh.Internal), string(overssh.External), string(overssh.IAP))
	a.Way = overssh.Way(text)
	if c.Bool("internal-ip") || c.Bool("internal-ips") && a.Way == overssh.Auto {
		if a.Way != overssh.Auto && a.Way != overssh.Internal {
			c.Refuse(cmdline.Usagef("--internal-ip and --ip=%s contradict each other", a.Way), "internal-ip", "ip")
		}
		a.Way = overssh.Internal
	}
	local, _ := m.Lookup("USER")
	var err error
	if path := c.String("ssh-config"); path != "" {
		if a.SSHConfig, err = sshfan.LoadSSHConfig(path, m.Home, local); err != nil {
			c.Refuse(&cmdline.ConfigError{Err: fmt.Errorf("--ssh-config: %w", err)}, "ssh-config")
		}
	}
	if a.Jump, err = sshfan.ParseJump(c.String("ssh-proxy-jump"), local, a.SSHConfig); err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--ssh-proxy-jump: %w", err)}, "ssh-proxy-jump")
	}
	ssh := filepath.Join(m.Home, ".ssh")
	a.UserKnownHosts = []string{filepath.Join(ssh, "known_hosts"), filepath.Join(ssh, "known_hosts2"), "/etc/ssh/ssh_known_hosts"}
	a.AgentSocket = m.agent()
}
