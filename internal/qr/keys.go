package qr

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/tpu"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// sshKeys is the metadata key under which Compute Engine VMs look for the SSH keys
// that may log in. Each line is "login:type key comment".
const sshKeys = "ssh-keys"

const (
	blockProjectKeys = "block-project-ssh-keys"
	enableOSLogin    = "enable-oslogin"
)

// attributeCalls limits the calls for guest attributes that run at once: the API would
// refuse thousands at once with status 429.
const attributeCalls = 32

// hostKeys reads the host keys of workers.
type hostKeys struct {
	api
	attributes *semaphore.Weighted // calls for guest attributes
}

// HostKeys returns the SSH host keys of one worker from its guest attributes, in
// the form of authorized_keys without a comment, and the name of its VM. The error
// is ErrNoGuestAttributes if the API does not give the keys.
//
// HostKeys asks for one worker at a time: an answer about several does not say
// which part belongs to which worker, and a worker without keys would shift the
// rest. However many callers there are, at most attributeCalls calls run at once.
func (c *hostKeys) HostKeys(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error) {
	if err := c.attributes.Acquire(ctx, 1); err != nil {
		return nil, "", context.Cause(ctx)
	}
	defer c.attributes.Release(1)
	// The guest agent writes the keys some seconds after the first boot.
	policy := gcp.Backoff{First: time.Second, Max: 4 * time.Second, Factor: 2}
	tries := 0
	err = gcp.Poll(ctx, c.gcp.Clock(), policy, func(ctx context.Context) (bool, error) {
		tries++
		keys, hostname, err = c.ask(ctx, s, worker)
		return len(keys) > 0 || tries == 3, err
	})
	if err == nil && len(keys) == 0 {
		err = fmt.Errorf("read host keys of worker %d of slice %q: %w", worker, s.Name, ErrNoGuestAttributes)
	}
	return keys, hostname, err
}

func (c *hostKeys) ask(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return nil, "", err
	}
	what := fmt.Sprintf("read host keys of worker %d of slice %q", worker, s.Name)
	request := &tpuapi.GetGuestAttributesRequest{QueryPath: "hostkeys/", WorkerIds: []string{strconv.Itoa(worker)}}
	var answer *tpuapi.GetGuestAttributesResponse
	err = c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
		answer, err = svc.Projects.Locations.Nodes.GetGuestAttributes(c.nodeName(s.Name), request).Context(ctx).Do()
		return err
	})
	switch gcp.ClassOf(err) {
	case gcp.NotFound, gcp.Permission, gcp.Invalid, gcp.Conflict:
		// An organization policy switches guest attributes off, or the node does not
		// support them. The API has several errors for this; after none of them can
		// the keys be had.
		return nil, "", fmt.Errorf("%s: %w: %w", what, ErrNoGuestAttributes, err)
	}
	if err != nil {
		return nil, "", err
	}
	return readHostKeys(answer, worker)
}

func readHostKeys(answer *tpuapi.GetGuestAttributesResponse, worker int) (keys []string, hostname string, err error) {
	for _, attributes := range answer.GuestAttributes {
		if attributes == nil || attributes.QueryValue == nil {
			continue
		}
		var found []string
		name := ""
		for _, item := range attributes.QueryValue.Items {
			if item.Namespace != "hostkeys" && item.Namespace != "" {
				continue
			}
			value, _, _ := strings.Cut(strings.TrimSpace(item.Value), " ")
			switch {
			case item.Key == "hostname":
				name = value
			case isKeyOf(item.Key, value):
				found = append(found, item.Key+" "+value)
			}
		}
		// A VM's name ends in its worker number. The keys of another worker must not
		// be taken for this one's.
		if number, ok := workerOf(name); ok && number != worker {
			continue
		}
		if len(found) > 0 {
			slices.SortFunc(found, func(a, b string) int { return keyRank(a) - keyRank(b) })
			return found, name, nil
		}
		hostname = firstOf(hostname, name)
	}
	return nil, hostname, nil
}

// isKeyOf reports whether value is the base64 form of an SSH public key of the
// given algorithm. The decoded key begins with the algorithm's name.
func isKeyOf(algorithm, value string) bool {
	if !strings.HasPrefix(algorithm, "ssh-") && !strings.HasPrefix(algorithm, "ecdsa-") {
		return false
	}
	wire, err := base64.StdEncoding.DecodeString(value)
	if err != nil || len(wire) < 4 {
		return false
	}
	n := int(binary.BigEndian.Uint32(wire))
	return n == len(algorithm) && len(wire) > 4+n && bytes.Equal(wire[4:4+n], []byte(algorithm))
}

// keyRank sorts the keys that a client prefers first.
func keyRank(key string) int {
	switch {
	case strings.HasPrefix(key, "ssh-ed25519 "):
		return 0
	case strings.HasPrefix(key, "ecdsa-"):
		return 1
	}
	return 2
}

// workerOf returns the worker number in a VM name such as t1v-n-1a2b3c4d-w-7.
func workerOf(hostname string) (int, bool) {
	name, _, _ := strings.Cut(hostname, ".")
	i := strings.LastIndex(name, "-w-")
	if i < 0 {
		return 0, false
	}
	n, err := strconv.Atoi(name[i+3:])
	return n, err == nil
}

// KeyEntry returns the line of ssh-keys metadata that allows login to log in with
// publicKey, which is "type base64" with or without a comment.
func KeyEntry(login, publicKey string) (string, error) {
	fields := strings.Fields(publicKey)
	switch {
	case login == "" || strings.ContainsAny(login, ": \t\r\n"):
		return "", fmt.Errorf("add SSH key: login %q is not legal", login)
	case len(fields) < 2 || !isKeyOf(fields[0], fields[1]) || strings.ContainsAny(publicKey, "\r\n"):
		return "", fmt.Errorf("add SSH key of %q: it is not a public key of the form \"ssh-ed25519 AAAA…\"", login)
	}
	return login + ":" + fields[0] + " " + fields[1] + " " + login, nil
}

const maxKeyTries = 8

// access lets keys log in to workers: through metadata, or through OS Login.
type access struct {
	api
	flight singleflight.Group

	mu          sync.Mutex // guards the fields below
	project     *projectMetadata
	saidOSLogin bool
}

// EnsureKey makes sure that login can log in to every worker of a slice with
// publicKey ("ssh-ed25519 AAAA…"). It does nothing if the project or the slice
// accepts the key already; changed reports whether it wrote.
//
// Node metadata can only be written whole, and the last writer wins. EnsureKey
// keeps everything that it read, reads back what it wrote, and starts over if
// another writer removed its entry. A writer that read before EnsureKey wrote and
// writes after EnsureKey's check can still remove the entry. No client can prevent
// this: call EnsureKey again when a login is refused.
//
// EnsureKey does not read a slice whose s.Metadata has the key: 64 slices would
// take 64 calls. To force the read, leave ssh-keys out of Metadata.
func (c *access) EnsureKey(ctx context.Context, s tpu.Slice, login, publicKey string) (changed bool, err error) {
	entry, err := KeyEntry(login, publicKey)
	if err != nil {
		return false, err
	}
	project := c.cachedProject(ctx)
	if listed := (&tpuapi.Node{Name: s.Name, Metadata: s.Metadata}); c.letsIn(listed, project, entry) {
		c.warnOSLogin(listed, project)
		return false, nil
	}
	policy := gcp.Backoff{First: 200 * time.Millisecond, Max: 5 * time.Second, Factor: 2}
	tries := 0
	err = gcp.Poll(ctx, c.gcp.Clock(), policy, func(ctx context.Context) (bool, error) {
		node, err := c.readNode(ctx, s.Name)
		if err != nil {
			return false, err
		}
		if tries == 0 {
			c.warnOSLogin(node, project)
		}
		if c.letsIn(node, project, entry) {
			return true, nil
		}
		if tries++; tries > maxKeyTries {
			return false, fmt.Errorf("add SSH key to slice %q: other writers replaced it %d times", s.Name, maxKeyTries)
		}
		wrote, err := c.addKey(ctx, node, entry)
		changed = changed || wrote
		return false, err
	})
	return changed && err == nil, err
}

// letsIn reports whether the node's workers accept the key of entry.
func (c *access) letsIn(node *tpuapi.Node, project projectMetadata, entry string) bool {
	if hasEntry(node.Metadata[sshKeys], entry, c.now()) {
		return true
	}
	return !strings.EqualFold(node.Metadata[blockProjectKeys], "true") && hasEntry(project.keys, entry, c.now())
}

func (c *access) warnOSLogin(node *tpuapi.Node, project projectMetadata) {
	if !usesOSLogin(node.Metadata, project) {
		return
	}
	c.mu.Lock()
	said := c.saidOSLogin
	c.saidOSLogin = true
	c.mu.Unlock()
	if !said {
		event.Notef(c.sink(), event.Warn, "set it to FALSE in the metadata, or use a login that OS Login knows",
			"OS Login is on for slice %q: its workers ignore keys in metadata", lastPart(node.Name))
	}
}

// addKey writes the node's metadata with one more entry. A conflict with another
// update in progress is no error: addKey returns false and the caller reads again.
func (c *access) addKey(ctx context.Context, node *tpuapi.Node, entry string) (wrote bool, err error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return false, err
	}
	name := lastPart(node.Name)
	metadata := maps.Clone(node.Metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	metadata[sshKeys] = appendLine(metadata[sshKeys], entry)
	if size := len(metadata[sshKeys]); size > maxMetadataValue {
		return false, fmt.Errorf("add SSH key to slice %q: its ssh-keys metadata would have %d bytes, at most %d are allowed: remove old keys", name, size, maxMetadataValue)
	}
	what := fmt.Sprintf("add SSH key to slice %q", name)
	var op *tpuapi.Operation
	err = c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
		op, err = svc.Projects.Locations.Nodes.Patch(node.Name, &tpuapi.Node{Metadata: metadata}).UpdateMask("metadata").Context(ctx).Do()
		return err
	})
	if err == nil {
		_, err = c.gcp.WaitTPU(ctx, op, what)
	}
	switch gcp.ClassOf(err) {
	case gcp.Conflict, gcp.AlreadyExists:
		return false, nil
	}
	return err == nil, err
}

func appendLine(text, line string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + line
}

// hasEntry reports whether ssh-keys metadata accepts entry's key for entry's login.
// It ignores comments, and lines that have expired.
func hasEntry(metadata, entry string, now time.Time) bool {
	login, key, _ := strings.Cut(entry, ":")
	want := strings.Fields(key)
	for line := range strings.Lines(metadata) {
		who, rest, ok := strings.Cut(line, ":")
		has := strings.Fields(rest)
		if ok && strings.TrimSpace(who) == login && len(has) >= 2 && has[0] == want[0] && has[1] == want[1] && !expired(has[2:], now) {
			return true
		}
	}
	return false
}

// expired reports whether the comment of a key has Google's expiring form,
// google-ssh {"userName":"u","expireOn":"2026-01-02T03:04:05+0000"}, and its
// time has passed.
func expired(comment []string, now time.Time) bool {
	if len(comment) < 2 || comment[0] != "google-ssh" {
		return false
	}
	var mark struct {
		ExpireOn string `json:"expireOn"`
	}
	if json.Unmarshal([]byte(strings.Join(comment[1:], " ")), &mark) != nil {
		return false
	}
	for _, layout := range []string{"2006-01-02T15:04:05-0700", time.RFC3339} {
		if t, err := time.Parse(layout, mark.ExpireOn); err == nil {
			return t.Before(now)
		}
	}
	return false
}

// A projectMetadata holds what the project's metadata says about logins.
type projectMetadata struct {
	keys    string
	osLogin string
	account string // default service account of VMs; "": not known
}

// cachedProject reads the project's metadata once, even when many slices ask at the
// same time. If the read fails, it returns empty metadata. An old or missing answer
// does no harm to EnsureKey: the project's keys only save writes.
func (c *access) cachedProject(ctx context.Context) projectMetadata {
	c.mu.Lock()
	cached := c.project
	c.mu.Unlock()
	if cached != nil {
		return *cached
	}
	answer, err, _ := c.flight.Do("project", func() (any, error) {
		meta, err := c.readProject(ctx)
		if err == nil || gcp.ClassOf(err) == gcp.Permission {
			c.mu.Lock()
			c.project = &meta
			c.mu.Unlock()
		}
		return meta, err
	})
	if err != nil && ctx.Err() == nil {
		event.Notef(c.sink(), event.Debug, "", "the project's SSH keys cannot be read, keys are put into the slices: %v", err)
	}
	meta, _ := answer.(projectMetadata)
	return meta
}

func (c *access) readProject(ctx context.Context) (meta projectMetadata, err error) {
	opts, err := c.gcp.ComputeOptions(ctx)
	if err != nil {
		return meta, err
	}
	projects, err := compute.NewProjectsRESTClient(ctx, opts...)
	if err != nil {
		return meta, fmt.Errorf("open Compute Engine client: %w", err)
	}
	defer func() { err = errors.Join(err, projects.Close()) }()
	projects.CallOptions = &compute.ProjectsCallOptions{} // gcp.Do retries
	var project *computepb.Project
	err = c.gcp.Do(ctx, fmt.Sprintf("read project %q", c.gcp.Project()), func(ctx context.Context) (err error) {
		project, err = projects.Get(ctx, &computepb.GetProjectRequest{Project: c.gcp.Project()})
		return err
	})
	if err != nil {
		return meta, err
	}
	meta.account = project.GetDefaultServiceAccount()
	for _, item := range project.GetCommonInstanceMetadata().GetItems() {
		switch item.GetKey() {
		case sshKeys:
			meta.keys = item.GetValue()
		case enableOSLogin:
			meta.osLogin = item.GetValue()
		}
	}
	return meta, nil
}
