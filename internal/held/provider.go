package held

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/event"
	"multihost/internal/kube"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// Provider is the provider of the slices that are held in one namespace of a cluster. It
// implements provision.Provider.
type Provider struct {
	Client *kube.Client
	Flags  string // flags that name this cluster and namespace: "--context=c --namespace=n"
	Clock  remote.Clock

	// ReadOnly makes Create ask the server whether it would accept the request, and refuses
	// every other change.
	ReadOnly bool
}

var _ provision.Provider = (*Provider)(nil)

var errDryRun = errors.New("this is a dry run")

func (p *Provider) jobSets() kube.Objects[jobset.JobSet] { return kube.JobSets.In(p.Client, "") }

// selector chooses the JobSets of this provider.
const selector = labelHeld + "=slices"

// pods returns the pods of the JobSet with this id, or for "" of all JobSets.
func (p *Provider) pods(ctx context.Context, id string) ([]corev1.Pod, error) {
	chosen := jobset.JobSetNameKey
	if id != "" {
		chosen += "=" + id
	}
	all, _, err := kube.Pods.In(p.Client, "").List(ctx, kube.ListOptions{Labels: chosen})
	return all, err
}

// find returns the JobSet of a resource.
func (p *Provider) find(ctx context.Context, id string) (*jobset.JobSet, error) {
	js, err := p.jobSets().Get(ctx, id)
	switch {
	case kube.NotFound(err):
		return nil, provision.ErrNotFound
	case err != nil:
		return nil, err
	case js.Labels[labelHeld] == "": // a workload has this name
		return nil, provision.ErrNotFound
	}
	return js, nil
}

// Get implements provision.Provider.
func (p *Provider) Get(ctx context.Context, id string) (provision.Resource, error) {
	js, err := p.find(ctx, id)
	if err != nil {
		return provision.Resource{}, err
	}
	pods, err := p.pods(ctx, id)
	return describe(js, pods, p.commands(id)), err
}

// List implements provision.Provider.
func (p *Provider) List(ctx context.Context) ([]provision.Resource, error) {
	found, pods, err := p.list(ctx)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	tiers := p.tiers(ctx)
	for i := range found {
		found[i].Tier = tierOf(pods[found[i].ID], tiers)
	}
	return found, nil
}

// list returns all resources, without their tiers, and the pods of each.
func (p *Provider) list(ctx context.Context) ([]provision.Resource, map[string][]corev1.Pod, error) {
	all, _, err := p.jobSets().List(ctx, kube.ListOptions{Labels: selector})
	if err != nil || len(all) == 0 {
		return nil, nil, err
	}
	pods, err := p.pods(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	byJobSet := map[string][]corev1.Pod{}
	for _, pod := range pods {
		name := pod.Labels[jobset.JobSetNameKey]
		byJobSet[name] = append(byJobSet[name], pod)
	}
	found := make([]provision.Resource, len(all))
	for i := range all {
		found[i] = describe(&all[i], byJobSet[all[i].Name], p.commands(all[i].Name))
	}
	slices.SortFunc(found, func(a, b provision.Resource) int { return cmp.Compare(a.ID, b.ID) })
	return found, byJobSet, nil
}

// tiers returns the tiers of GKE's nodes with TPUs, by node name. Without permission to read
// nodes the map is empty, and only the price of the slices is unknown.
func (p *Provider) tiers(ctx context.Context) map[string]provision.Tier {
	nodes, _, _ := kube.Nodes.In(p.Client, "").List(ctx, kube.ListOptions{Labels: labelPool + "," + labelKind})
	tiers := map[string]provision.Tier{}
	for _, n := range nodes {
		tier := provision.OnDemand
		switch {
		case n.Labels["cloud.google.com/gke-spot"] == "true":
			tier = provision.Spot
		case n.Labels["cloud.google.com/gke-flex-start"] == "true":
			tier = provision.FlexStart
		case n.Labels["cloud.google.com/reservation-name"] != "":
			tier = provision.Reserved
		}
		tiers[n.Name] = tier
	}
	return tiers
}

// tierOf returns the tier of the nodes on which pods run. It returns "" if the tier is not
// known or differs.
func tierOf(pods []corev1.Pod, tiers map[string]provision.Tier) (tier provision.Tier) {
	for i, p := range pods {
		if of := tiers[p.Spec.NodeName]; i == 0 {
			tier = of
		} else if of != tier {
			return ""
		}
	}
	return tier
}

// Slices implements provision.Provider. A run calls Slices often, so Slices reads no nodes.
func (p *Provider) Slices(ctx context.Context) ([]tpu.Slice, error) {
	all, _, err := p.list(ctx)
	if err != nil {
		return nil, err
	}
	var found []tpu.Slice
	for _, res := range all {
		found = append(found, res.Slices...)
	}
	return found, nil
}

// Preview implements provision.Previewer.
func (p *Provider) Preview(r provision.Request) (body []byte, command string) {
	js, err := jobSet(r, p.Clock.Now())
	if err != nil {
		return nil, ""
	}
	body, err = p.jobSets().Body(js)
	if err != nil {
		return nil, ""
	}
	return body, ""
}

// Create implements provision.Provider. The API server checks the request before it makes
// anything.
func (p *Provider) Create(ctx context.Context, r provision.Request) (provision.Resource, bool, error) {
	js, err := jobSet(r, p.Clock.Now())
	if err != nil {
		return provision.Resource{}, false, err
	}
	made, err := p.jobSets().Create(ctx, js, kube.WriteOptions{DryRun: p.ReadOnly})
	switch {
	case kube.AlreadyExists(err):
		return p.existing(ctx, js)
	case err != nil:
		return provision.Resource{}, false, withJobSet(err)
	}
	return describe(made, nil, p.commands(r.ID)), !p.ReadOnly, nil
}

// Asked returns the message that the cluster has accepted a request.
func (*Provider) Asked(res provision.Resource) event.Note {
	text := fmt.Sprintf("created %s %s: its pods take the nodes that are free", res.Commands.Kind, res.ID)
	if lease, _ := res.Own.(time.Duration); lease > 0 {
		text += ", and end when nobody uses them for " + event.Duration(lease) + " (--lease)"
	}
	if !res.Until.IsZero() {
		text += "; all end at " + res.Until.Local().Format("Mon 15:04:05") + " (--ttl)"
	}
	return event.Note{Level: event.Info, Text: text,
		Hint: "wait for it with: " + res.Commands.Wait + "; it holds the nodes until: " + res.Commands.Delete}
}

// existing returns the resource of the existing JobSet with the name of js. Other settings than
// those of js are a *provision.ConflictError. If the existing JobSet has ended, existing
// replaces it with js.
func (p *Provider) existing(ctx context.Context, js *jobset.JobSet) (provision.Resource, bool, error) {
	old, err := p.jobSets().Get(ctx, js.Name)
	if err != nil {
		return provision.Resource{}, false, err
	}
	var differs []string
	if have, want := old.Annotations[annotationMade], js.Annotations[annotationMade]; have != want {
		differs = append(differs, fmt.Sprintf("it has %s, you asked for %s", cmp.Or(have, "other pods"), want))
	}
	if len(differs) > 0 {
		return provision.Resource{}, false, &provision.ConflictError{Commands: p.commands(js.Name), ID: js.Name, Owner: provision.Owner(old.Labels), Differences: differs}
	}
	pods, err := p.pods(ctx, js.Name)
	if res := describe(old, pods, p.commands(js.Name)); err != nil || res.Life != provision.Suspended || p.ReadOnly {
		return res, false, err
	}
	if err := p.remove(ctx, old, deleteLimit); err != nil { // the old JobSet has ended
		return provision.Resource{}, false, err
	}
	made, err := p.jobSets().Create(ctx, js, kube.WriteOptions{})
	if err != nil {
		return provision.Resource{}, false, err
	}
	return describe(made, nil, p.commands(js.Name)), true, nil
}

// withJobSet adds a hint to the error of a cluster without JobSet.
func withJobSet(err error) error {
	if kube.NotFound(err) {
		return &missing{err}
	}
	return err
}

type missing struct{ error }

func (m missing) Unwrap() error { return m.error }

func (missing) Hint() string {
	return "the namespace does not exist, or the cluster has no JobSet: kubectl get namespaces; kubectl get crd jobsets.jobset.x-k8s.io"
}

// Restart implements provision.Provider. It returns provision.ErrFixed. JobSet itself replaces
// failed pods. Restarting a running pod would replace all pods and lose their files and
// processes, as Delete and Create do.
func (p *Provider) Restart(_ context.Context, id string) error {
	return &noRestart{p.commands(id).Delete}
}

type noRestart struct{ delete string }

func (*noRestart) Error() string {
	return "restart pods: new pods have none of the files and processes of the old ones: delete the slices and make them again"
}

func (*noRestart) Unwrap() error { return provision.ErrFixed }

// Hint says what to type.
func (e *noRestart) Hint() string { return e.delete }

// deleteLimit is how long Delete waits by default.
const deleteLimit = 10 * time.Minute

// Delete implements provision.Provider.
func (p *Provider) Delete(ctx context.Context, id string, o provision.DeleteOptions) (bool, error) {
	js, err := p.find(ctx, id)
	if errors.Is(err, provision.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	res := describe(js, nil, p.commands(id))
	if o.OnlyRun != "" && !res.IsOf(o.OnlyRun) {
		return false, fmt.Errorf("delete %s %q: it belongs to %s", res.Commands.Kind, id, res.Owner())
	}
	if p.ReadOnly {
		return false, errDryRun
	}
	if err := p.remove(ctx, js, cmp.Or(o.Limit, deleteLimit)); err != nil {
		return false, err
	}
	return true, nil
}

// remove deletes a JobSet with its pods and waits until they are gone. If a newer JobSet has
// the same name by now, remove leaves it.
func (p *Provider) remove(ctx context.Context, js *jobset.JobSet, limit time.Duration) error {
	if _, err := p.jobSets().Delete(ctx, js.Name, kube.RemoveOptions{UID: string(js.UID), Foreground: true}); err != nil {
		return err
	}
	begin := p.Clock.Now()
	for {
		left, err := p.left(ctx, js)
		if err == nil && left == "" {
			return nil
		}
		if p.Clock.Now().Sub(begin) > limit {
			return &provision.DeadlineError{Commands: p.commands(js.Name), ID: js.Name, Phase: "delete", Limit: limit, Life: provision.Deleting, State: "Deleting", Detail: left, Err: err}
		}
		select {
		case <-p.Clock.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// left says what still exists of a JobSet that is being deleted, or returns "".
func (p *Provider) left(ctx context.Context, js *jobset.JobSet) (string, error) {
	pods, err := p.pods(ctx, js.Name)
	if err != nil {
		return "", err
	}
	for _, pod := range pods {
		if pod.Labels[jobset.JobSetUIDKey] == string(js.UID) || pod.DeletionTimestamp != nil {
			return fmt.Sprintf("pod %q is still there", pod.Name), nil
		}
	}
	now, err := p.jobSets().Get(ctx, js.Name)
	switch {
	case kube.NotFound(err):
		return "", nil
	case err != nil:
		return "", err
	case now.UID != js.UID:
		return "", nil
	}
	return fmt.Sprintf("JobSet %q is still there", js.Name), nil
}

// HostKeys implements provision.Provider: pods have none.
func (*Provider) HostKeys(_ context.Context, s tpu.Slice, worker int) ([]string, string, error) {
	if worker < len(s.Workers) {
		return nil, s.Workers[worker].Name, provision.ErrNoHostKeys
	}
	return nil, "", provision.ErrNoHostKeys
}

// Admit implements provision.Provider. It does nothing, because users need no login to run
// commands in pods.
func (*Provider) Admit(_ context.Context, _ tpu.Slice, l provision.Login) (string, bool, error) {
	return l.Name, false, nil
}

// Undoing implements provision.Provider. Workers cannot delete the slices.
func (p *Provider) Undoing(id string, _ ...string) provision.Undoing {
	return provision.Undoing{Commands: p.commands(id)}
}

func (p *Provider) commands(id string) provision.Commands {
	flags := ""
	if p.Flags != "" {
		flags = " " + p.Flags
	}
	return provision.Commands{
		Service: "Kubernetes", Kind: "held slices", List: "multihost slices list" + flags,
		Show: "multihost slices list" + flags, Wait: "multihost slices wait " + id + flags, Gone: "multihost slices list" + flags,
		Delete: "multihost slices delete " + id + flags,
	}
}
