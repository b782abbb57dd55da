package nodes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"

	"golang.org/x/sync/semaphore"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// attributeCalls limits how many calls for guest attributes run at once. The API would
// refuse thousands with status 429.
const attributeCalls = 32

// hostKeys reads the host keys of workers.
type hostKeys struct {
	api
	attributes *semaphore.Weighted // calls for guest attributes
}

// HostKeys returns the SSH host keys of one worker from its guest attributes, in
// the form of authorized_keys without a comment, and the name of its VM. The error
// is provision.ErrNoHostKeys if the API does not give the keys.
//
// HostKeys asks for one worker at a time. An answer about several workers does not say which
// part belongs to which worker. At most attributeCalls calls run at once, for all callers
// together.
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
		err = fmt.Errorf("read host keys of worker %d of slice %q: %w", worker, s.Name, provision.ErrNoHostKeys)
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
		// An organization policy has switched guest attributes off, or the node does not
		// support them. The API returns different errors for this.
		return nil, "", fmt.Errorf("%s: %w: %w", what, provision.ErrNoHostKeys, err)
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
		var all []Attribute
		for _, item := range attributes.QueryValue.Items {
			all = append(all, Attribute{item.Namespace, item.Key, item.Value})
		}
		found, name := HostKeysIn(all)
		// A VM's name ends in its worker number. Another worker's keys must not be taken
		// for this one's.
		if number, ok := workerOf(name); ok && number != worker {
			continue
		}
		if len(found) > 0 {
			return found, name, nil
		}
		hostname = cmp.Or(hostname, name)
	}
	return nil, hostname, nil
}

// An Attribute is one guest attribute of a VM.
type Attribute struct{ Namespace, Key, Value string }

// HostKeysIn returns the SSH host keys among the guest attributes of one VM, best key
// first. hostname is the name that the VM has given itself.
func HostKeysIn(attributes []Attribute) (keys []string, hostname string) {
	for _, item := range attributes {
		if item.Namespace != "hostkeys" && item.Namespace != "" {
			continue
		}
		value, _, _ := strings.Cut(strings.TrimSpace(item.Value), " ")
		switch {
		case item.Key == "hostname":
			hostname = value
		case isKeyOf(item.Key, value):
			keys = append(keys, item.Key+" "+value)
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return keyRank(a) - keyRank(b) })
	return keys, hostname
}

// isKeyOf reports whether value is the base64 form of an SSH public key of the algorithm.
// The decoded key begins with the algorithm's name.
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
