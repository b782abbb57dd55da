package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/version"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/kube"
)

// readyLimit limits the time from the installation of a controller to its first answer. In this
// time a node fetches the image, and the controller makes its certificates.
const readyLimit = 10 * time.Minute

// A State says what a cluster has of a controller.
type State struct {
	Served    bool   // the API server knows its kinds
	Deployed  bool   // the deployment exists, with its usual name and namespace
	Available bool   // the deployment has the condition Available
	Ours      bool   // multihost has set fields of the deployment
	Version   string // "v0.11.1"; "": not known
}

// A Verdict says what to do about a controller.
type Verdict string

const (
	Install Verdict = "create"
	Upgrade Verdict = "change"
	Keep    Verdict = "keep"
	Wait    Verdict = "wait"
	Refuse  Verdict = "conflict"
)

// Judge decides what to do about a controller, and says why.
func (c Controller) Judge(s State) (Verdict, string) {
	named := "a version that is not known"
	if s.Version != "" {
		named = s.Version
	}
	switch {
	case !s.Served && !s.Deployed:
		return Install, c.Version
	case !s.Deployed:
		return Keep, "it is there, and multihost has not installed it"
	case s.Ours && older(s.Version, c.Version):
		return Upgrade, fmt.Sprintf("from %s to %s", named, c.Version)
	case s.Ours && !s.Available:
		return Wait, named + " is not ready yet"
	case !s.Served:
		return Refuse, fmt.Sprintf("%s is installed, and does not serve %s of %s", named, c.Kind, c.APIVersion)
	case s.Ours && s.Version == c.Version:
		return Keep, named
	case s.Ours:
		return Keep, named + ", which is newer than " + c.Version
	}
	return Keep, named + ", which multihost has not installed"
}

// older reports whether version a is older than b. An unreadable version a is not older.
func older(a, b string) bool {
	left, err := version.ParseSemantic(a)
	if err != nil {
		return false
	}
	return left.LessThan(version.MustParseSemantic(b))
}

// An UnusableError says that a cluster has a controller that multihost can neither use nor
// replace.
type UnusableError struct{ Name, Why string }

func (e *UnusableError) Error() string {
	return fmt.Sprintf("use %s of the cluster: %s", e.Name, e.Why)
}

// Fault returns fault.Unavailable.
func (e *UnusableError) Fault() fault.Kind { return fault.Unavailable }

func (e *UnusableError) Hint() string {
	return "whoever has installed it has to upgrade it, or to remove it"
}

// A Clock tells the time and waits.
type Clock = kube.Clock

// An Installer installs controllers in one cluster.
type Installer struct {
	Client *kube.Client
	Sink   event.Sink
	Clock  Clock
}

// Look returns what the cluster has of a controller.
func (i Installer) Look(ctx context.Context, c Controller) (s State, err error) {
	_, err = i.Client.Resource(ctx, c.APIVersion, c.Kind)
	switch {
	case err == nil:
		s.Served = true
	case !kube.NotFound(err):
		return s, err
	}
	d, err := i.get(ctx, "apps/v1", "Deployment", c.Namespace, c.Deployment)
	if d == nil || err != nil {
		return s, err
	}
	s.Deployed, s.Available, s.Ours, s.Version = true, condition(d, "Available"), madeByUs(d), imageVersion(d)
	return s, nil
}

// get returns an object, or nil if it does not exist or the server does not know its kind.
func (i Installer) get(ctx context.Context, apiVersion, kind, namespace, name string) (*unstructured.Unstructured, error) {
	k, err := i.Client.Resource(ctx, apiVersion, kind)
	if err == nil {
		var o *unstructured.Unstructured
		if o, err = k.In(i.Client, namespace).Get(ctx, name); err == nil {
			return o, nil
		}
	}
	if kube.NotFound(err) {
		return nil, nil
	}
	return nil, err
}

// madeByUs reports whether multihost has set fields of an object.
func madeByUs(o *unstructured.Unstructured) bool {
	for _, f := range o.GetManagedFields() {
		if f.Manager == kube.Manager {
			return true
		}
	}
	return false
}

func imageVersion(d *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers") // an error means none
	for _, c := range list {
		m, _ := c.(map[string]any)
		image, _ := m["image"].(string)
		image, _, _ = strings.Cut(image, "@")
		if at := strings.LastIndexByte(image, ':'); at > strings.LastIndexByte(image, '/') {
			return image[at+1:]
		}
	}
	return ""
}

// condition reports whether a condition of an object is true.
func condition(o *unstructured.Unstructured, kind string) bool {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions") // an error means none
	return slices.ContainsFunc(list, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == kind && m["status"] == "True"
	})
}

// Apply installs a controller, or upgrades multihost's own installation. It does not wait until
// the controller answers. It does not take over fields that somebody else has set. kube.Conflict
// reports true for the error of such a field.
func (i Installer) Apply(ctx context.Context, c Controller) error {
	objects, err := c.Objects()
	if err != nil {
		return err
	}
	var kinds []unstructured.Unstructured
	established := false
	for _, o := range objects {
		if o.GetKind() == kindCRD {
			kinds = append(kinds, o)
		} else if len(kinds) > 0 && !established {
			if err := i.await(ctx, c.Name+": its kinds", kinds, "Established"); err != nil {
				return err
			}
			established = true
		}
		if err := i.ApplyObject(ctx, o); err != nil {
			return fmt.Errorf("install %s %s: %w", c.Name, c.Version, err)
		}
	}
	return nil
}

// ApplyObject makes an object, or gives it the wanted fields. While a controller starts, its
// webhooks do not answer. ApplyObject then retries for readyLimit.
func (i Installer) ApplyObject(ctx context.Context, o unstructured.Unstructured) error {
	start := i.Clock.Now()
	for {
		k, err := i.Client.Resource(ctx, o.GetAPIVersion(), o.GetKind())
		if err == nil {
			_, err = k.In(i.Client, o.GetNamespace()).Apply(ctx, &o, kube.WriteOptions{})
		}
		if err == nil || !starting(err) || i.Clock.Now().Sub(start) > readyLimit {
			return err
		}
		if err := i.pause(ctx); err != nil {
			return err
		}
	}
}

// starting reports whether the API server refused an object because a controller's webhook does
// not answer yet.
func starting(err error) bool {
	return strings.Contains(err.Error(), "failed calling webhook") || strings.Contains(err.Error(), "conversion webhook")
}

// Await waits until a controller answers.
func (i Installer) Await(ctx context.Context, c Controller) error {
	d := unstructured.Unstructured{}
	d.SetAPIVersion("apps/v1")
	d.SetKind("Deployment")
	d.SetNamespace(c.Namespace)
	d.SetName(c.Deployment)
	return i.await(ctx, c.Name, []unstructured.Unstructured{d}, "Available")
}

// await waits until all objects have a condition.
func (i Installer) await(ctx context.Context, what string, objects []unstructured.Unstructured, kind string) error {
	start := i.Clock.Now()
	for {
		missing := 0
		for _, o := range objects {
			have, err := i.get(ctx, o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName())
			if err != nil {
				return err
			}
			if have == nil || !condition(have, kind) {
				missing++
			}
		}
		elapsed := i.Clock.Now().Sub(start)
		switch {
		case missing == 0:
			return nil
		case elapsed > readyLimit:
			return &SlowError{What: what, Condition: kind, Limit: readyLimit}
		}
		i.Sink.Emit(event.Progress{Phase: "cluster", Done: len(objects) - missing, Total: len(objects), Waiting: what, Detail: "not " + kind + " yet", Elapsed: elapsed, Limit: readyLimit})
		if err := i.pause(ctx); err != nil {
			return err
		}
	}
}

func (i Installer) pause(ctx context.Context) error {
	select {
	case <-i.Clock.After(2 * time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A SlowError says that a new controller does not answer within its limit.
type SlowError struct {
	What, Condition string
	Limit           time.Duration
}

func (e *SlowError) Error() string {
	return fmt.Sprintf("install %s: it is not %s after %s", e.What, e.Condition, event.Duration(e.Limit))
}

// Fault returns fault.Temporary.
func (e *SlowError) Fault() fault.Kind { return fault.Temporary }

func (e *SlowError) Hint() string {
	return "its image may not be fetched, or no CPU node has room for it; the same command goes on waiting"
}
