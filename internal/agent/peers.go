package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Peers say how a worker reads the reports of a slice's workers. The provider that made the
// slices gives Peers as data. In the addresses, {slice} and {vm} stand for names.
type Peers struct {
	// Read is the address of the reports of all workers of a slice. With a List, Read is
	// the address of one VM's report. A request for Read is a POST with Body, or a GET if
	// there is no Body. Told is the path of the reports in the answer, in the syntax of
	// Field.
	Read string `json:"read,omitempty"`
	Body string `json:"body,omitempty"`
	Told string `json:"told,omitempty"`

	// List takes a POST and answers with the VMs of a slice. It is "" if Read shows all
	// workers of a slice.
	List string `json:"list,omitempty"`
	// Names is the path of the names of VMs in the answer of List. A name may be the end of
	// an address. States is the path of the VMs' states. Idle has states, separated by
	// spaces. A VM in one of these states, or without a state, cannot run a command.
	Names  string `json:"names,omitempty"`
	States string `json:"states,omitempty"`
	Idle   string `json:"idle,omitempty"`
	// More is the path of a text that the answer has only if it does not name all VMs.
	More string `json:"more,omitempty"`
}

// readsAtOnce limits how many reports are read at the same time.
const readsAtOnce = 8

var (
	errNoPeers  = errors.New("the terms do not say how it is read")
	errNoObject = errors.New("the answer is no JSON object")
	errNotAll   = errors.New("the list of its VMs is not whole")
)

// Told returns the reports of a slice's workers, and how many workers can run a command.
// The number is -1 if the answer does not show it. Some workers may have no report. If the
// slice does not exist, StatusOf the error is 404.
func (c *Client) Told(ctx context.Context, p Peers, slice string) (texts []string, workers int, err error) {
	if p.Read == "" {
		return nil, 0, errNoPeers
	}
	if p.List == "" {
		texts, err = c.told(ctx, p, slice, "")
		return texts, -1, err
	}
	vms, err := c.vms(ctx, p, slice)
	if err != nil {
		return nil, 0, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex
	var all sync.WaitGroup
	turn := make(chan struct{}, readsAtOnce)
	for _, vm := range vms {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			its, err := c.told(ctx, p, slice, vm)
			if StatusOf(err) == http.StatusNotFound { // the VM has no report, or was deleted meanwhile
				err = nil
			}
			if err != nil {
				stop(fmt.Errorf("VM %s: %w", vm, err))
			}
			mu.Lock()
			defer mu.Unlock()
			texts = append(texts, its...)
		})
	}
	all.Wait()
	return texts, len(vms), context.Cause(ctx)
}

// MayRead returns nil if this VM may read the reports of a slice's workers. It retries
// temporary errors for about half a minute.
func (c *Client) MayRead(ctx context.Context, p Peers, slice string) error {
	return c.patiently(ctx, func() error {
		vm := ""
		if p.List != "" {
			vms, err := c.vms(ctx, p, slice)
			if err != nil || len(vms) == 0 {
				return err
			}
			vm = vms[0]
		}
		_, err := c.told(ctx, p, slice, vm)
		return err
	})
}

func (c *Client) told(ctx context.Context, p Peers, slice, vm string) ([]string, error) {
	call := Call{Method: http.MethodGet, URL: strings.NewReplacer("{slice}", slice, "{vm}", vm).Replace(p.Read)}
	if p.Body != "" {
		call.Method, call.Type, call.Body, call.Size = http.MethodPost, "application/json", strings.NewReader(p.Body), int64(len(p.Body))
	}
	answer, err := c.object(ctx, call)
	if err != nil {
		return nil, err
	}
	return textsAt(answer, p.Told), nil
}

// vms returns the names of the VMs of a slice that can run a command.
func (c *Client) vms(ctx context.Context, p Peers, slice string) (names []string, err error) {
	answer, err := c.object(ctx, Call{Method: http.MethodPost, URL: strings.ReplaceAll(p.List, "{slice}", slice)})
	if err != nil {
		return nil, err
	}
	if more := textsAt(answer, p.More); len(more) > 0 && more[0] != "" {
		return nil, errNotAll
	}
	states, idle := textsAt(answer, p.States), strings.Fields(p.Idle)
	for i, name := range textsAt(answer, p.Names) {
		name = name[strings.LastIndexByte(name, '/')+1:]
		if name != "" && i < len(states) && states[i] != "" && !slices.Contains(idle, states[i]) {
			names = append(names, name)
		}
	}
	return names, nil
}

// object makes a call whose answer is a JSON object.
func (c *Client) object(ctx context.Context, call Call) (object map[string]any, err error) {
	answer, err := c.Do(ctx, call)
	if err == nil && (json.Unmarshal(answer.Body, &object) != nil || object == nil) {
		err = errNoObject
	}
	return object, err
}

// textsAt returns the texts at a path of a decoded JSON value, in the syntax of Field. If
// an element of an array lacks the text, textsAt returns "" for it, so that the results of
// two paths match.
func textsAt(value any, path string) []string {
	names, ok := strings.CutPrefix(path, "/")
	if !ok {
		return nil
	}
	return appendTexts(nil, value, strings.Split(names, "/"))
}

func appendTexts(all []string, value any, path []string) []string {
	if len(path) == 0 {
		text, _ := value.(string)
		return append(all, text)
	}
	name := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	switch v := value.(type) {
	case map[string]any:
		return appendTexts(all, v[name], path[1:])
	case []any:
		if name == "*" {
			for _, element := range v {
				all = appendTexts(all, element, path[1:])
			}
			return all
		}
	}
	return append(all, "")
}
