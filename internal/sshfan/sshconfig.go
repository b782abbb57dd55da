package sshfan

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kevinburke/ssh_config"

	"multihost/internal/fault"
	"multihost/internal/sshkey"
)

// SSHConfig is a configuration file of ssh. It uses only Host, Include, HostName, User, Port,
// IdentityFile, ProxyJump, UserKnownHostsFile and HostKeyAlias. It is safe for concurrent
// use.
type SSHConfig struct {
	path, home, login string
	file              *ssh_config.Config
}

// SSHConfigError reports a configuration file of ssh that cannot be used.
type SSHConfigError struct {
	Path string
	Host string // host that the error is about; "": the whole file
	Err  error
}

func (e *SSHConfigError) Error() string {
	if e.Host == "" {
		return fmt.Sprintf("read ssh configuration %q: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("ssh configuration %q for host %q: %v", e.Path, e.Host, e.Err)
}

// Fault returns fault.Configuration.
func (e *SSHConfigError) Fault() fault.Kind { return fault.Configuration }

func (e *SSHConfigError) Unwrap() error { return e.Err }

// LoadSSHConfig reads a configuration file of ssh. home replaces ~. login is the user name
// on a bastion if nothing else gives one. The error is an *SSHConfigError.
func LoadSSHConfig(path, home, login string) (*SSHConfig, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &SSHConfigError{Path: path, Err: sshkey.Bare(err)}
	}
	file, err := ssh_config.DecodeBytes(data)
	if err != nil {
		return nil, &SSHConfigError{Path: path, Err: err}
	}
	return &SSHConfig{path: path, home: home, login: login, file: file}, nil
}

// HostSettings holds the settings of one host that multihost uses.
type HostSettings struct {
	HostName       string
	User           string
	Port           string
	IdentityFiles  []string
	ProxyJump      string // "" for "none"
	UserKnownHosts []string
	HostKeyAlias   string
}

// Settings looks up a host by the name or address that the caller uses for it.
func (c *SSHConfig) Settings(host string) (HostSettings, error) {
	fail := func(err error) (HostSettings, error) {
		return HostSettings{}, &SSHConfigError{Path: c.path, Host: host, Err: err}
	}
	values := make(map[string][]string)
	for _, key := range []string{"HostName", "User", "Port", "IdentityFile", "ProxyJump", "ProxyCommand", "UserKnownHostsFile", "HostKeyAlias"} {
		all, err := c.file.GetAll(host, key)
		if err != nil {
			return fail(err)
		}
		for _, v := range all {
			if v = strings.Trim(strings.TrimSpace(v), `"`); v != "" {
				values[key] = append(values[key], v)
			}
		}
	}
	first := func(key string) string {
		if len(values[key]) == 0 {
			return ""
		}
		return values[key][0]
	}
	s := HostSettings{
		HostName:     strings.NewReplacer("%h", host, "%%", "%").Replace(first("HostName")),
		User:         first("User"),
		Port:         first("Port"),
		ProxyJump:    first("ProxyJump"),
		HostKeyAlias: first("HostKeyAlias"),
	}
	if n, err := strconv.ParseUint(s.Port, 10, 16); s.Port != "" && (err != nil || n == 0) {
		return fail(fmt.Errorf("port %q: want 1 to 65535", s.Port))
	}
	if strings.EqualFold(s.ProxyJump, "none") {
		s.ProxyJump = ""
	} else if command := first("ProxyCommand"); s.ProxyJump == "" && command != "" && !strings.EqualFold(command, "none") {
		return fail(errors.New("ProxyCommand is not supported, ProxyJump is"))
	}
	for _, v := range values["IdentityFile"] {
		if !strings.EqualFold(v, "none") {
			s.IdentityFiles = append(s.IdentityFiles, c.expand(v, host, s))
		}
	}
	for _, v := range strings.Fields(first("UserKnownHostsFile")) {
		if !strings.EqualFold(v, "none") {
			s.UserKnownHosts = append(s.UserKnownHosts, c.expand(v, host, s))
		}
	}
	return s, nil
}

// expand replaces ~ and the % tokens of a file name.
func (c *SSHConfig) expand(path, host string, s HostSettings) string {
	name, user, port := s.HostName, s.User, s.Port
	if name == "" {
		name = host
	}
	if user == "" {
		user = c.login
	}
	if port == "" {
		port = "22"
	}
	path = strings.NewReplacer("%%", "%", "%d", c.home, "%h", name, "%n", host, "%p", port, "%r", user, "%u", c.login).Replace(path)
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		return filepath.Join(c.home, rest)
	}
	return path
}

// reach returns the address to dial for a worker's address, and the bastions on the way.
func (c *SSHConfig) reach(addr string) (string, []JumpHost, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, nil, fmt.Errorf("%q is no host:port", addr)
	}
	s, err := c.Settings(host)
	if err != nil {
		return addr, nil, err
	}
	jumps, err := parseJump(s.ProxyJump, c.login, c, 0)
	if err != nil {
		return addr, nil, &SSHConfigError{Path: c.path, Host: host, Err: err}
	}
	if s.HostName != "" {
		host = s.HostName
	}
	if s.Port != "" && port == "22" { // a user who typed another port wants that port
		port = s.Port
	}
	return net.JoinHostPort(host, port), jumps, nil
}

// ParseJump reads the bastions on the way to the workers, in the form of ssh -J:
// "[user@]host[:port],…" or "ssh://[user@]host[:port]". login is the user if neither spec
// nor config names one. If config is not nil, its settings for each bastion apply, and may
// add a bastion before the first.
func ParseJump(spec, login string, config *SSHConfig) ([]JumpHost, error) {
	jumps, err := parseJump(spec, login, config, 0)
	if err != nil {
		return nil, fmt.Errorf("parse jump host %q: %w", spec, err)
	}
	return jumps, nil
}

// mostJumps limits the bastions that a configuration puts before other bastions. The
// configuration may go in a circle.
const mostJumps = 8

func parseJump(spec, login string, config *SSHConfig, depth int) ([]JumpHost, error) {
	if spec == "" {
		return nil, nil
	}
	if depth > mostJumps {
		return nil, errors.New("bastions lead to each other in a circle")
	}
	var jumps []JumpHost
	for i, word := range strings.Split(spec, ",") {
		user, host, port, err := splitJump(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		j := JumpHost{User: user}
		if config != nil {
			s, err := config.Settings(host)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				before, err := parseJump(s.ProxyJump, login, config, depth+1)
				if err != nil {
					return nil, err
				}
				jumps = append(jumps, before...)
			}
			host, port, j.User = firstOf(s.HostName, host), firstOf(port, s.Port), firstOf(user, s.User)
			j.IdentityFiles, j.KnownHosts, j.KnownAs = s.IdentityFiles, s.UserKnownHosts, s.HostKeyAlias
		}
		j.User = firstOf(j.User, login)
		if j.User == "" {
			return nil, fmt.Errorf("no login name for %q: write USER@%[1]s", host)
		}
		j.Addr = net.JoinHostPort(host, firstOf(port, "22"))
		jumps = append(jumps, j)
	}
	if len(jumps) > mostJumps {
		return nil, fmt.Errorf("%d bastions, at most %d", len(jumps), mostJumps)
	}
	return jumps, nil
}

// splitJump splits one bastion of a list into its parts.
func splitJump(word string) (user, host, port string, err error) {
	rest := strings.TrimPrefix(word, "ssh://")
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		user, rest = rest[:i], rest[i+1:]
		if user == "" {
			return "", "", "", fmt.Errorf("%q: no login name before the @", word)
		}
	}
	u, err := url.Parse("ssh://" + rest)
	if err != nil || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" ||
		strings.HasPrefix(rest, "-") || strings.Count(rest, ":") > 1 && rest[0] != '[' || strings.ContainsFunc(user, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "", "", "", fmt.Errorf("%q: want [USER@]HOST[:PORT]", word)
	}
	host, port = u.Hostname(), u.Port()
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return "", "", "", fmt.Errorf("%q: port %q: want 1 to 65535", word, port)
	}
	return user, host, port, nil
}

func firstOf(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}
