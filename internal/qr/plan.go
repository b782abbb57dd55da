package qr

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"multihost/internal/gcp"
)

// A CreatePlan says what Create would do. Its JSON is the result of a dry run.
type CreatePlan struct {
	Exists  *Resource       `json:"exists,omitempty"` // an existing resource that Create would use
	Gcloud  string          `json:"gcloud,omitempty"` // the command that makes the same request
	Request json.RawMessage `json:"request,omitempty"`

	id string
}

// PlanCreate returns what Create would do. The client must be read-only.
func (c *Client) PlanCreate(ctx context.Context, r Request) (CreatePlan, error) {
	p := CreatePlan{id: r.ID}
	res, _, err := c.Create(ctx, r)
	var refused *gcp.ReadOnlyError
	switch {
	case err == nil:
		p.Exists = &res
	case errors.As(err, &refused):
		p.Request, p.Gcloud = refused.Body, r.Gcloud(c.gcp.Project(), c.gcp.Zone())
	default:
		return p, err
	}
	return p, nil
}

// String returns the plan for people, as whole lines.
func (p CreatePlan) String() string {
	if p.Exists != nil {
		return fmt.Sprintf("queued resource %s is there already, state %s: nothing to create\n", p.id, p.Exists.State)
	}
	var text bytes.Buffer
	if json.Indent(&text, p.Request, "", "  ") != nil { // package json has made it, so it is valid
		text.Write(p.Request)
	}
	return fmt.Sprintf("would create queued resource %s:\n%s\nthe same with gcloud:\n%s\n", p.id, strings.TrimSpace(text.String()), p.Gcloud)
}

// A DeletePlan says what Delete would delete. Its JSON is the result of a dry run.
type DeletePlan struct {
	Deletes        bool     `json:"deletes"` // Delete would send a request
	QueuedResource string   `json:"queued_resource"`
	Slices         []string `json:"slices"` // slices that Delete would delete, too

	res Resource // zero: there is no resource, or it is being deleted
	has bool     // the resource exists
}

// PlanDelete returns what Delete would delete. The client must be read-only. If its slices
// prevent the deletion of the resource, the error is that of Delete.
func (c *Client) PlanDelete(ctx context.Context, id string, force bool) (DeletePlan, error) {
	p := DeletePlan{QueuedResource: id, Slices: []string{}}
	var err error
	p.has, err = c.Delete(ctx, id, DeleteOptions{Force: force, Async: true})
	var refused *gcp.ReadOnlyError
	if err == nil || !errors.As(err, &refused) {
		return p, err
	}
	p.Deletes, p.has = true, true
	if p.res, err = c.Get(ctx, id); err != nil {
		return p, err
	}
	p.Slices = p.res.existing()
	return p, nil
}

// String returns the plan for people, as one line.
func (p DeletePlan) String() string {
	if !p.has {
		return "queued resource " + p.QueuedResource + " is not there: nothing to delete\n"
	}
	if !p.Deletes {
		return "queued resource " + p.QueuedResource + " is being deleted already\n"
	}
	text := fmt.Sprintf("would delete queued resource %s (%s, of %s)", p.QueuedResource, p.res.State, p.res.Owner())
	if len(p.Slices) > 0 {
		text += " with its slices " + strings.Join(p.Slices, ", ")
	}
	return text + "\n"
}

// A ResetPlan says what Reset would reboot. Its JSON is the result of a dry run.
type ResetPlan struct {
	QueuedResource string   `json:"queued_resource"`
	Resets         bool     `json:"resets"`
	Slices         []string `json:"slices"`

	res Resource
}

// PlanReset returns what Reset would reboot. If there is no such queued resource, the error
// is that of Missing.
func (c *Client) PlanReset(ctx context.Context, id string) (ResetPlan, error) {
	res, err := c.Get(ctx, id)
	if gcp.ClassOf(err) == gcp.NotFound {
		err = Missing(id)
	}
	return ResetPlan{QueuedResource: id, Resets: res.State == "ACTIVE", Slices: res.existing(), res: res}, err
}

// String returns the plan for people, as one line.
func (p ResetPlan) String() string {
	if !p.Resets {
		return fmt.Sprintf("queued resource %s is %s: only an ACTIVE one can be reset\n", p.QueuedResource, p.res.State)
	}
	return fmt.Sprintf("would reboot all workers of queued resource %s (%s, of %s): %s\n", p.QueuedResource, p.res.State, p.res.Owner(), strings.Join(p.Slices, ", "))
}

// existing returns the names of the existing slices, never nil.
func (r Resource) existing() []string {
	names := make([]string, len(r.Slices))
	for i, s := range r.Slices {
		names[i] = s.Name
	}
	return names
}
