// Package hosts is the provider for --hosts: machines that the user names form one slice.
// multihost neither makes nor deletes these machines.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"multihost/internal/config"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A HostList lists machines that no cloud knows, in worker order. They are the single slice
// of a run with --hosts. A HostList implements provision.Provider.
type HostList []HostAddress

// HostAddress is one machine of a HostList.
type HostAddress struct {
	Login string // "": the login of all hosts
	Name  string // host name or IP address
	Port  int    // 0: the port of all hosts
}

// HostsPrefix is the name of a HostList's single slice.
const HostsPrefix = "hosts"

// ParseHosts parses a list of [user@]host[:port] with commas between them.
func ParseHosts(text string) (HostList, error) {
	var list HostList
	err := list.add(text, map[HostAddress]bool{})
	return list, err
}

// add appends the hosts in text. seen has the hosts that are already in the list.
func (l *HostList) add(text string, seen map[HostAddress]bool) error {
	for word := range strings.SplitSeq(text, ",") {
		h, err := parseHost(strings.TrimSpace(word))
		if err != nil {
			return err
		}
		if seen[HostAddress{Name: h.Name, Port: h.Port}] {
			return fmt.Errorf("host %q is named twice", word)
		}
		seen[HostAddress{Name: h.Name, Port: h.Port}] = true
		*l = append(*l, h)
	}
	return nil
}

func parseHost(word string) (HostAddress, error) {
	var h HostAddress
	rest := word
	if !utf8.ValidString(word) || strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return h, fmt.Errorf("host %q: it has a character that cannot be printed", word)
	}
	if login, host, ok := strings.Cut(word, "@"); ok {
		h.Login, rest = login, host
		if login == "" {
			return h, fmt.Errorf("host %q: nothing before @", word)
		}
		if login == "root" {
			return h, fmt.Errorf("host %q: root logins are refused; name another login, it can use sudo", word)
		}
	}
	h.Name = rest
	if name, port, err := net.SplitHostPort(rest); err == nil {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return h, fmt.Errorf("host %q: %q is no port", word, port)
		}
		h.Name, h.Port = name, n
	}
	if h.Name == "" || strings.ContainsAny(h.Name, " \t/@'\"") {
		return h, fmt.Errorf("host %q: want [user@]host[:port]", word)
	}
	return h, nil
}

// hostsLimit is the largest size of a hosts file, in bytes.
const hostsLimit = 4 << 20

// ReadHosts reads a file of hosts. A line has one or more hosts with commas between them. #
// begins a comment. The error is one of config.ReadText, or a *config.FileError that names the
// line.
func ReadHosts(ctx context.Context, path string) (HostList, error) {
	text, err := config.ReadText(ctx, path, hostsLimit)
	if err != nil {
		return nil, err
	}
	var list HostList
	seen := map[HostAddress]bool{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		words, _, _ := strings.Cut(line, "#")
		if words = strings.TrimSpace(words); words == "" {
			continue
		}
		if err := list.add(words, seen); err != nil {
			return nil, &config.FileError{Path: path, Line: n, Err: err}
		}
	}
	if len(list) == 0 {
		return nil, &config.FileError{Path: path, Err: errors.New("there is no host in it")}
	}
	return list, nil
}

// String returns the form that ParseHosts reads.
func (l HostList) String() string {
	words := make([]string, len(l))
	for i, h := range l {
		words[i] = h.Name
		if h.Port != 0 {
			words[i] = net.JoinHostPort(h.Name, strconv.Itoa(h.Port))
		}
		if h.Login != "" {
			words[i] = h.Login + "@" + words[i]
		}
	}
	return strings.Join(words, ",")
}

var _ provision.Provider = HostList{}

// Slices implements provision.Provider: all hosts are one slice.
func (l HostList) Slices(context.Context) ([]tpu.Slice, error) {
	s := tpu.Slice{Name: HostsPrefix, State: "READY", Condition: tpu.Usable}
	for _, h := range l {
		s.Workers = append(s.Workers, tpu.Worker{Internal: h.Name, Login: h.Login, Port: h.Port})
	}
	return []tpu.Slice{s}, nil
}

// HostKeys implements provision.Provider. No cloud knows the keys of these machines.
func (HostList) HostKeys(context.Context, tpu.Slice, int) ([]string, string, error) {
	return nil, "", provision.ErrNoHostKeys
}

// Admit implements provision.Provider. It changes nothing: the machines must already accept the
// key.
func (HostList) Admit(_ context.Context, _ tpu.Slice, l provision.Login) (string, bool, error) {
	return l.Name, false, nil
}

// Get implements provision.Provider. It never finds a resource, because nobody requested these
// machines.
func (HostList) Get(context.Context, string) (provision.Resource, error) {
	return provision.Resource{}, provision.ErrNotFound
}

// List implements provision.Provider: hosts are in no resource.
func (HostList) List(context.Context) ([]provision.Resource, error) { return nil, nil }

// Create implements provision.Provider. The error is provision.ErrFixed.
func (HostList) Create(context.Context, provision.Request) (provision.Resource, bool, error) {
	return provision.Resource{}, false, provision.ErrFixed
}

// Restart implements provision.Provider. The error is provision.ErrFixed.
func (HostList) Restart(context.Context, string) error { return provision.ErrFixed }

// Delete implements provision.Provider. The error is provision.ErrFixed.
func (HostList) Delete(context.Context, string, provision.DeleteOptions) (bool, error) {
	return false, provision.ErrFixed
}

// Undoing implements provision.Provider: there is nothing to undo.
func (HostList) Undoing(string, ...string) provision.Undoing { return provision.Undoing{} }

// JaxPort is the port of JAX's coordinator since jax 0.8.1.
const JaxPort = 8482
