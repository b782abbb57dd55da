package gce

import (
	"context"
	"slices"

	"multihost/internal/gcp"
	"multihost/internal/nodes"
	"multihost/internal/provision"
)

// rights finds out what the workers of slices may do.
type rights struct {
	project  *gcp.Client
	accounts *nodes.Client
}

// DefaultServiceAccount returns the service account of VMs whose request names none, or ""
// if the project cannot be read.
func (r rights) DefaultServiceAccount(ctx context.Context) string {
	return r.accounts.DefaultServiceAccount(ctx)
}

// Policy returns the bindings of the project's own policy.
func (r rights) Policy(ctx context.Context) ([]gcp.Binding, error) { return r.project.Policy(ctx) }

// DeletionRoles returns the permission with which workers delete groups, and the predefined
// roles that have it. With each of these roles, workers may also read each other's guest
// attributes.
func (rights) DeletionRoles() (permission string, roles []string) {
	return "compute.instanceGroupManagers.delete", []string{"roles/compute.instanceAdmin.v1", "roles/compute.instanceAdmin", "roles/compute.admin", "roles/editor", "roles/owner"}
}

// MayCallAPI reports whether the scopes of a request let the workers delete the resource.
func (rights) MayCallAPI(r provision.Request) bool {
	scopes := recordOf(r).Scopes
	return slices.Contains(scopes, cloudPlatform) || slices.Contains(scopes, "https://www.googleapis.com/auth/compute")
}
