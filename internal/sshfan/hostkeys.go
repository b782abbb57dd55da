package sshfan

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"multihost/internal/remote"
	"multihost/internal/sshkey"
)

// trust holds what is known about a worker's host key before one try, and what the try has
// found.
//
// A key must match the pinned key, if there is one, and one of the API's keys, if there are
// any. If the API has a new key for the same machine, that key does not replace the pinned
// key. A machine that was made again has a new Pin. The same machine has no reason to change
// its key.
type trust struct {
	host       Host
	pinned     ssh.PublicKey // nil: no key is pinned
	pinnedIn   string        // where pinned comes from
	listed     []ssh.PublicKey
	listedIn   string // where listed comes from
	remembered bool   // pinned is the key of an earlier connection of this Conn
	accept     string
	revoked    func(ssh.PublicKey) error // returns an error for a revoked key; nil: no key is revoked

	// x/crypto/ssh verifies in a goroutine of its own, and again at every later key
	// exchange of a long connection.
	mu       sync.Mutex
	offered  ssh.PublicKey // the verified key
	mismatch error
}

// trust returns which host keys the worker may show. If this Conn has verified a key before,
// the worker may show only that key. Otherwise trust returns the pinned key and the API's
// keys. If there are none, the worker may show any key.
func (c *Conn) trust(ctx context.Context) (*trust, error) {
	t := &trust{host: c.host, accept: c.fleet.accept(c.host.Name, c.host.Pin), listedIn: remote.SourceAPI}
	c.mu.Lock()
	remembered := c.trusted
	c.mu.Unlock()
	if remembered != nil {
		t.pinned, t.pinnedIn, t.remembered = remembered, "the earlier connection", true
		return t, nil
	}
	t.pinned, t.pinnedIn = c.fleet.pins.get(c.host.Pin), c.fleet.pins.name()
	if c.host.Keys == nil {
		return t, nil
	}
	lines, err := c.host.Keys(ctx)
	switch {
	case errors.Is(err, ErrNoHostKeys):
	case err != nil:
		return nil, fmt.Errorf("ask for host keys: %w", err)
	default:
		if t.listed, err = parseKeys(lines); err != nil {
			return nil, fmt.Errorf("read host keys of the API: %w", err)
		}
	}
	return t, nil
}

// accept returns the command with which a user accepts a changed key, or "".
func (f *Fleet) accept(name, pin string) string {
	if f.cfg.AcceptCommand != nil {
		if command := f.cfg.AcceptCommand(name); command != "" {
			return command
		}
	}
	if f.pins.path == "" {
		return ""
	}
	return "sed -E -i " + remote.Quote(`\,^`+regexp.QuoteMeta(pin)+` ,d`, f.pins.path)
}

// verify checks the key that the worker shows. The key may never change within a
// connection.
func (t *trust) verify(key ssh.PublicKey) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.revoked != nil {
		if err := t.revoked(key); err != nil {
			t.mismatch = permanentError{err}
			return t.mismatch
		}
	}
	isListed := len(t.listed) == 0 || slices.ContainsFunc(t.listed, func(k ssh.PublicKey) bool { return sshkey.Same(k, key) })
	switch {
	case t.offered != nil && !sshkey.Same(t.offered, key):
		return t.refuse(key, "this connection", t.offered)
	case t.pinned != nil && !sshkey.Same(t.pinned, key):
		e := t.refuse(key, t.pinnedIn, t.pinned)
		e.Confirmed = isListed && len(t.listed) > 0
		e.Contradicted = !isListed
		return e
	case !isListed:
		e := t.refuse(key, t.listedIn, t.listed...)
		e.Contradicted = t.listedIn == remote.SourceAPI
		return e
	}
	t.offered = key
	return nil
}

func (t *trust) refuse(key ssh.PublicKey, source string, known ...ssh.PublicKey) *remote.HostKeyError {
	e := &remote.HostKeyError{
		Host:    t.host.Name,
		Pin:     t.host.Pin,
		Source:  source,
		Offered: sshkey.Fingerprint(key),
		Accept:  t.accept,
	}
	for _, k := range known {
		e.Known = append(e.Known, sshkey.Fingerprint(k))
	}
	t.mismatch = e
	return e
}

// outcome returns the verified key, or why the offered key was refused. Both are nil before
// the first key.
func (t *trust) outcome() (verified ssh.PublicKey, mismatch error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offered, t.mismatch
}

// firstUse reports whether nothing is known about the key.
func (t *trust) firstUse() bool { return t.pinned == nil && len(t.listed) == 0 }

// algorithms lists the algorithms of host keys to ask for. Those of known keys come first,
// so that a worker with several keys shows one that can be verified. If no key is known,
// ed25519 comes first, because the others cost two to six times as much CPU time.
func (t *trust) algorithms() []string {
	all := []string{
		ssh.KeyAlgoED25519,
		ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512,
	}
	known := t.listed
	if t.pinned != nil {
		known = []ssh.PublicKey{t.pinned}
	}
	isKnown := func(algo string) bool {
		return slices.ContainsFunc(known, func(k ssh.PublicKey) bool {
			return k.Type() == algo || k.Type() == ssh.KeyAlgoRSA && strings.HasPrefix(algo, "rsa-sha2-")
		})
	}
	slices.SortStableFunc(all, func(a, b string) int {
		return sshkey.Rank(isKnown(a)) - sshkey.Rank(isKnown(b))
	})
	return all
}

// remember keeps and pins the key that the worker has shown in a completed login. If the login
// does not complete, no key is pinned. A machine that refuses our login may be another one
// that got the worker's address.
func (c *Conn) remember(t *trust) {
	key, _ := t.outcome()
	c.mu.Lock()
	c.trusted = key
	c.mu.Unlock()
	c.fleet.pin(t, key)
}

// pin adds a key to the pins, unless one was pinned before. The next flush writes it to the
// file.
func (f *Fleet) pin(t *trust, key ssh.PublicKey) {
	if t.pinned != nil {
		return
	}
	f.pins.put(t.host.Pin, key, len(t.listed) > 0)
	if t.firstUse() {
		f.mu.Lock()
		f.firstUse = append(f.firstUse, t.host.Name)
		f.mu.Unlock()
	}
}

// parseKeys reads public keys in authorized_keys form.
func parseKeys(lines []string) ([]ssh.PublicKey, error) {
	var keys []ssh.PublicKey
	for _, line := range lines {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, fmt.Errorf("parse %q: %w", line, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// pins is the known hosts file: host keys by identity. multihost has a file of its own,
// because ssh's file has addresses as keys, and the address of a TPU VM soon belongs to
// another machine. The file has one line per identity,
//
//	<pin> <key type> <base64 key>
//
// and also empty lines, and comments that begin with '#'. A change replaces the whole file
// by rename, under a lock that all multihost processes share. An unreadable line is an
// error: if it were skipped, a known worker would be trusted on first use.
type pins struct {
	path string // "": the pins are not kept in a file

	mu    sync.Mutex
	keys  map[string]ssh.PublicKey
	fresh map[string]bool // pins that flush has not tried to write yet; true: the API has the key
	own   map[string]bool // pins of this process that are not in the file yet
	read  fs.FileInfo     // the file as it was read; nil: there was none
}

const pinsHeader = "# Host keys of TPU workers, kept by multihost: <node id>/<worker> <key type> <key>\n"

// CheckHostKeys checks that New could read a file of pinned host keys. The error is a
// *KnownHostsError. A missing file is no error: it is made later.
func CheckHostKeys(path string) error {
	_, err := loadPins(path)
	return err
}

func loadPins(path string) (*pins, error) {
	p := &pins{path: path, keys: make(map[string]ssh.PublicKey), fresh: make(map[string]bool), own: make(map[string]bool)}
	if err := p.load(); err != nil {
		return nil, err
	}
	return p, nil
}

// load reads the file if it has changed since the last read. It keeps pins that are not in
// the file yet.
func (p *pins) load() error {
	if p.path == "" {
		return nil
	}
	info, err := os.Stat(p.path)
	if err == nil && p.read != nil && os.SameFile(info, p.read) && info.ModTime().Equal(p.read.ModTime()) && info.Size() == p.read.Size() {
		return nil
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(p.path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &KnownHostsError{Path: p.path, Err: sshkey.Bare(err)}
	}
	keys := make(map[string]ssh.PublicKey)
	for n, line := range strings.Split(string(data), "\n") {
		pin, key, err := parsePin(line)
		if err != nil {
			return &KnownHostsError{Path: p.path, Line: n + 1, Err: err}
		}
		if key != nil {
			keys[pin] = key
		}
	}
	for pin := range p.own {
		keys[pin] = p.keys[pin]
	}
	p.keys, p.read = keys, info
	return nil
}

// parsePin reads one line of the file. An empty line or a comment has a nil key.
func parsePin(line string) (string, ssh.PublicKey, error) {
	line = strings.TrimSpace(line)
	if line == "" || strings.HasPrefix(line, "#") {
		return "", nil, nil
	}
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return "", nil, fmt.Errorf("%d words instead of pin, key type and key", len(fields))
	}
	blob, err := base64.StdEncoding.DecodeString(fields[2])
	if err != nil {
		return "", nil, fmt.Errorf("key of %q: %w", fields[0], err)
	}
	key, err := ssh.ParsePublicKey(blob)
	if err != nil {
		return "", nil, fmt.Errorf("key of %q: %w", fields[0], err)
	}
	if key.Type() != fields[1] {
		return "", nil, fmt.Errorf("key of %q is of type %q, not %q", fields[0], key.Type(), fields[1])
	}
	return fields[0], key, nil
}

func formatPin(pin string, key ssh.PublicKey) string {
	return pin + " " + key.Type() + " " + base64.StdEncoding.EncodeToString(key.Marshal()) + "\n"
}

// validPin reports whether the file can hold the pin.
func validPin(pin string) bool {
	return pin != "" && pin[0] != '#' && !strings.ContainsFunc(pin, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// name returns the name of the file for errors.
func (p *pins) name() string {
	if p.path == "" {
		return "the known hosts file"
	}
	return p.path
}

// get returns the key that the file now has for a pin, or nil. It reads the file again,
// because a person may remove a key while a command waits for the worker. If the file has
// become unreadable, the keys stay as they were.
func (p *pins) get(pin string) ssh.PublicKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.load()
	return p.keys[pin]
}

func (p *pins) put(pin string, key ssh.PublicKey, proven bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[pin] = key
	p.fresh[pin], p.own[pin] = proven, true
}

// flush writes the new pins to the file, those of many workers in one write.
func (p *pins) flush() error {
	p.mu.Lock()
	fresh := p.fresh
	keys := make(map[string]ssh.PublicKey, len(fresh))
	for pin := range fresh {
		keys[pin] = p.keys[pin]
	}
	p.fresh = make(map[string]bool)
	p.mu.Unlock()
	if p.path == "" || len(fresh) == 0 {
		return nil
	}
	err := rewritePins(p.path, func(lines []string) []string {
		written := make(map[string]bool)
		for i, line := range lines {
			pin, key, err := parsePin(line)
			if err != nil || key == nil || keys[pin] == nil {
				continue
			}
			// Another process may have pinned the worker meanwhile. Our key replaces that
			// pin only if the API has ours. Otherwise both keys were trusted on first use,
			// and neither is better.
			if fresh[pin] {
				lines[i] = formatPin(pin, keys[pin])
			}
			written[pin] = true
		}
		for _, pin := range slices.Sorted(mapKeys(keys)) {
			if !written[pin] {
				lines = append(lines, formatPin(pin, keys[pin]))
			}
		}
		return lines
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for pin := range fresh {
		if _, again := p.fresh[pin]; !again {
			delete(p.own, pin)
		}
	}
	return nil
}

func mapKeys(m map[string]ssh.PublicKey) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// ForgetHostKeys removes pins from the known hosts file and returns how many it has removed.
// This is how a user accepts a changed host key: the worker then counts as a new one. A pin
// that ends with "/" stands for all pins that begin with it, such as those of all workers of
// a node.
func ForgetHostKeys(path string, forget ...string) (removed int, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	err = rewritePins(path, func(lines []string) []string {
		return slices.DeleteFunc(lines, func(line string) bool {
			pin, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			gone := validPin(pin) && slices.ContainsFunc(forget, func(f string) bool {
				return pin == f || strings.HasSuffix(f, "/") && strings.HasPrefix(pin, f)
			})
			if gone {
				removed++
			}
			return gone
		})
	})
	return removed, err
}

// rewritePins passes the lines of the file to change, each with its newline. The lines that
// change returns become the file.
func rewritePins(path string, change func([]string) []string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write known hosts: %w", err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// The file itself is replaced, so the lock is another file beside it.
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := lockFile(lock); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte(pinsHeader), nil
	}
	if err != nil {
		return err
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		data = append(data, '\n')
	}
	lines := strings.SplitAfter(string(data), "\n")
	lines = change(lines[:len(lines)-1])
	return sshkey.ReplaceFile(path, []byte(strings.Join(lines, "")), 0o600)
}
