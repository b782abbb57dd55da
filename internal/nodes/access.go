package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/tpu"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"golang.org/x/sync/singleflight"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// MaxMetadataValue is Compute Engine's documented limit for one value of metadata, in
// bytes.
const MaxMetadataValue = 262144

// SSHKeys is the metadata key of the SSH keys that may log in to Compute Engine VMs. Each
// line is "login:type key comment".
const SSHKeys = "ssh-keys"

const (
	blockProjectKeys = "block-project-ssh-keys"
	enableOSLogin    = "enable-oslogin"
)

// KeyEntry returns the line of ssh-keys metadata with which login can use publicKey. publicKey
// is "type base64", with or without a comment.
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

// A Holder is a resource whose metadata has the keys that may log in: a node of the TPU API for
// all its workers, or one VM.
type Holder struct {
	Name     string            // for messages: `slice "t-0"`
	Metadata map[string]string // as last listed

	// Read returns the present metadata.
	Read func(context.Context) (map[string]string, error)
	// Write replaces the metadata. wrote is false if somebody else was writing at the same
	// time. The caller must then read the metadata again.
	Write func(ctx context.Context, metadata map[string]string) (wrote bool, err error)
}

// node returns the Holder of the keys of a slice.
func (c *access) node(s tpu.Slice) Holder {
	return Holder{
		Name: fmt.Sprintf("slice %q", s.Name), Metadata: s.Metadata,
		Read: func(ctx context.Context) (map[string]string, error) {
			node, err := c.readNode(ctx, s.Name)
			if err != nil {
				return nil, err
			}
			return node.Metadata, nil
		},
		Write: func(ctx context.Context, metadata map[string]string) (bool, error) {
			return c.writeNode(ctx, s.Name, metadata)
		},
	}
}

// EnsureKey makes sure that login can log in to every worker of a slice with publicKey
// ("ssh-ed25519 AAAA…"). It does nothing if the project or the slice accepts the key
// already. changed reports whether it wrote the metadata.
//
// The API can only replace the whole metadata of a node, and the last writer wins. EnsureKey
// keeps everything that it has read. It reads back what it has written, and starts over if
// another writer has removed its entry. Another writer still removes the entry if it read
// before EnsureKey wrote, and writes after EnsureKey has checked. No client can prevent this,
// so call EnsureKey again when a worker refuses the login.
//
// If s.Metadata has the key, EnsureKey does not read the slice, to save a call for each slice.
// To force the read, leave ssh-keys out of s.Metadata.
func (c *access) EnsureKey(ctx context.Context, s tpu.Slice, login, publicKey string) (changed bool, err error) {
	return c.ensureKey(ctx, c.node(s), login, publicKey)
}

func (c *access) ensureKey(ctx context.Context, h Holder, login, publicKey string) (changed bool, err error) {
	entry, err := KeyEntry(login, publicKey)
	if err != nil {
		return false, err
	}
	project := c.cachedProject(ctx)
	if c.letsIn(h.Metadata, project, entry) {
		c.warnOSLogin(h.Name, h.Metadata, project)
		return false, nil
	}
	policy := gcp.Backoff{First: 200 * time.Millisecond, Max: 5 * time.Second, Factor: 2}
	tries := 0
	err = gcp.Poll(ctx, c.gcp.Clock(), policy, func(ctx context.Context) (bool, error) {
		metadata, err := h.Read(ctx)
		if err != nil {
			return false, err
		}
		if tries == 0 {
			c.warnOSLogin(h.Name, metadata, project)
		}
		if c.letsIn(metadata, project, entry) {
			return true, nil
		}
		if tries++; tries > maxKeyTries {
			return false, fmt.Errorf("add SSH key to %s: other writers replaced it %d times", h.Name, maxKeyTries)
		}
		wrote, err := h.addKey(ctx, metadata, entry)
		changed = changed || wrote
		return false, err
	})
	return changed && err == nil, err
}

// letsIn reports whether VMs with this metadata accept the key in entry.
func (c *access) letsIn(metadata map[string]string, project projectMetadata, entry string) bool {
	if hasEntry(metadata[SSHKeys], entry, c.now()) {
		return true
	}
	return !strings.EqualFold(metadata[blockProjectKeys], "true") && hasEntry(project.keys, entry, c.now())
}

func (c *access) warnOSLogin(name string, metadata map[string]string, project projectMetadata) {
	if !usesOSLogin(metadata, project) {
		return
	}
	c.mu.Lock()
	said := c.saidOSLogin
	c.saidOSLogin = true
	c.mu.Unlock()
	if !said {
		event.Notef(c.sink(), event.Warn, "set it to FALSE in the metadata, or use a login that OS Login knows",
			"OS Login is on for %s: its workers ignore keys in metadata", name)
	}
}

// addKey writes the metadata with one more entry.
func (h Holder) addKey(ctx context.Context, metadata map[string]string, entry string) (wrote bool, err error) {
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	metadata[SSHKeys] = appendLine(metadata[SSHKeys], entry)
	if size := len(metadata[SSHKeys]); size > MaxMetadataValue {
		return false, fmt.Errorf("add SSH key to %s: its ssh-keys metadata would have %d bytes, at most %d are allowed: remove old keys", h.Name, size, MaxMetadataValue)
	}
	return h.Write(ctx, metadata)
}

// writeNode replaces the metadata of a node. If another update is under way, wrote is false and
// err is nil.
func (c *access) writeNode(ctx context.Context, name string, metadata map[string]string) (wrote bool, err error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return false, err
	}
	what := fmt.Sprintf("add SSH key to slice %q", name)
	var op *tpuapi.Operation
	err = c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
		op, err = svc.Projects.Locations.Nodes.Patch(c.nodeName(name), &tpuapi.Node{Metadata: metadata}).UpdateMask("metadata").Context(ctx).Do()
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

// hasEntry reports whether ssh-keys metadata accepts entry's key for entry's login. It
// ignores comments and expired lines.
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

// expired reports whether a key's comment has Google's expiring form, google-ssh
// {"userName":"u","expireOn":"2026-01-02T03:04:05+0000"}, and its time has passed.
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

// projectMetadata is the part of the project's metadata that is about logins.
type projectMetadata struct {
	keys    string
	osLogin string
	account string // default service account of VMs; "": unknown
}

// cachedProject reads the project's metadata once, also if many slices need it at the same
// time. If the read fails, it returns empty metadata. EnsureKey then works too, but may add a
// key that the project already accepts.
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
		case SSHKeys:
			meta.keys = item.GetValue()
		case enableOSLogin:
			meta.osLogin = item.GetValue()
		}
	}
	return meta, nil
}

// DefaultServiceAccount returns the service account of VMs whose request names none, or ""
// if the project cannot be read.
func (c *access) DefaultServiceAccount(ctx context.Context) string {
	return c.cachedProject(ctx).account
}
