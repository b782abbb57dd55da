package announce

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/workers"
)

// A RightsReader is a provider that knows, before any worker exists, what the workers may
// do.
type RightsReader interface {
	// DefaultServiceAccount returns the account of VMs whose request names none, or "" if
	// not known.
	DefaultServiceAccount(ctx context.Context) string
	Policy(ctx context.Context) ([]gcp.Binding, error)
	// MayCallAPI reports whether the scopes of a request let the workers delete the
	// resource.
	MayCallAPI(r provision.Request) bool
	// DeletionRoles returns the permission with which a worker deletes slices, and the
	// predefined roles that have it. The first role has the fewest other permissions.
	DeletionRoles() (permission string, roles []string)
}

// A DeletionRight says, before the request, whether the workers may delete the queued
// resource, as far as that is known.
type DeletionRight struct {
	Account string `json:"service_account,omitempty"` // of the workers; absent: not known
	May     string `json:"may"`                       // "yes", "no" or "unknown", from the project's own policy alone
	Why     string `json:"why,omitempty"`

	cure  string // command or flag that gives the permission
	until string // what ends the bill if the workers may not delete the slices
}

// Values of DeletionRight.May.
const (
	MayDelete    = "yes"
	MayNotDelete = "no"
	MayUnknown   = "unknown"
)

// judgePolicy says whether the project's policy gives a service account one of the roles.
// It returns MayUnknown for custom roles and conditions. The bindings lack roles from a
// group, a folder or the organization.
func judgePolicy(account string, roles []string, bindings []gcp.Binding) (may, why string) {
	may = MayNotDelete
	for _, b := range bindings {
		if !slices.ContainsFunc(b.Members, func(m string) bool {
			return m == "allUsers" || m == "allAuthenticatedUsers" || strings.EqualFold(m, "serviceAccount:"+account)
		}) {
			continue
		}
		custom := !strings.HasPrefix(b.Role, "roles/")
		switch deletes := slices.Contains(roles, b.Role); {
		case deletes && !b.Conditional:
			return MayDelete, "it has " + b.Role
		case deletes:
			may, why = MayUnknown, "it has "+b.Role+" under a condition"
		case custom:
			may, why = MayUnknown, "what its custom role "+b.Role+" allows is not read"
		}
	}
	return may, why
}

// rightLimit limits the optional check of what the workers may do.
const rightLimit = 5 * time.Second

// AskRight starts to find out whether the workers of a job may delete its queued resource,
// and returns at once. The parameter deletes says whether they ever should. The function
// answer waits for the result. It returns nil if AskRight asked nothing. The caller must
// call the function over at the end, even without a call of answer.
func AskRight(ctx context.Context, d *workers.Reach, o provision.Request, deletes bool) (answer func() *DeletionRight, over func()) {
	reader, ok := provision.As[RightsReader](d.Cloud)
	until := "you delete them" + AtTheLatest(o)
	switch {
	case !deletes || !ok:
		return func() *DeletionRight { return nil }, func() {}
	case !reader.MayCallAPI(o):
		r := &DeletionRight{Account: o.ServiceAccount, May: MayNotDelete,
			Why: "the scopes of the request lack cloud-platform", cure: "add --scopes=cloud-platform", until: until}
		return func() *DeletionRight { return r }, func() {}
	}
	ctx, cancel := context.WithTimeout(gcp.Unattended(ctx), rightLimit)
	account := o.ServiceAccount
	var bindings []gcp.Binding
	var err error
	var asked sync.WaitGroup
	if account == "" {
		asked.Go(func() { account = reader.DefaultServiceAccount(ctx) })
	}
	asked.Go(func() { bindings, err = reader.Policy(ctx) })
	permission, roles := reader.DeletionRoles()
	answer = func() *DeletionRight {
		asked.Wait()
		r := &DeletionRight{Account: account, May: MayUnknown, until: until}
		switch {
		case err != nil:
			r.Why = err.Error()
		case account == "":
			r.Why = "the project's default service account cannot be read"
		default:
			r.May, r.Why = judgePolicy(account, roles, bindings)
		}
		if r.May == MayNotDelete {
			r.Why = fmt.Sprintf("service account %s has no role with %s in the policy of project %s, unless a group, a folder or the organization gives it one",
				account, permission, d.Project)
			r.cure = GrantCommand(d.Project, account, roles[0])
		}
		return r
	}
	return answer, func() { cancel(); asked.Wait() }
}

func GrantCommand(project, account, role string) string {
	return remote.CommandLine("gcloud", "projects", "add-iam-policy-binding", project, "--member=serviceAccount:"+account, "--role="+role)
}

// Occasions on which workers delete a queued resource.
const (
	WhenRunnerDies = "if this machine dies"
	WhenRunEnds    = "when the command has ended" // for a job without runner
)

// TellRight warns, before the request, if the workers may not delete the slices. The
// parameter when names the occasion on which they would have to.
func TellRight(d *workers.Reach, r *DeletionRight, id, when string) {
	switch {
	case r == nil || r.May == MayDelete:
	case r.May == MayNotDelete:
		event.Notef(d.Sink, event.Warn, r.cure, "the workers may not delete %s: %s; %s, the slices stay and are billed until %s", provision.NameOf(d.Cloud, id), r.Why, when, r.until)
	default:
		event.Notef(d.Sink, event.Debug, "", "whether the workers may delete %s is not known before they exist: %s", provision.NameOf(d.Cloud, id), r.Why)
	}
}
