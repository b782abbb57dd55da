package kube

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"multihost/internal/fault"
)

// Everywhere means all namespaces.
const Everywhere = "*"

// Objects are the objects of one kind in a namespace.
type Objects[T any] struct {
	c         *Client
	kind      Kind[T]
	namespace string // "": none
}

// In returns the objects in a namespace. "" means the client's namespace. Everywhere is allowed
// only for List and Watch.
func (k Kind[T]) In(c *Client, namespace string) Objects[T] {
	switch {
	case k.Cluster:
		namespace = ""
	case namespace == "":
		namespace = c.namespace
	}
	return Objects[T]{c: c, kind: k, namespace: namespace}
}

func (o Objects[T]) at() dynamic.ResourceInterface {
	all := o.c.objects.Resource(o.kind.gvr())
	if o.namespace == "" || o.namespace == Everywhere {
		return all
	}
	return all.Namespace(o.namespace)
}

// what returns the name of a call for messages: `get Pod "team/p"`.
func (o Objects[T]) what(verb, name string) string {
	if o.namespace != "" && name != "" {
		name = o.namespace + "/" + name
	}
	if name == "" {
		where := ""
		if o.namespace == Everywhere {
			where = " in all namespaces"
		} else if o.namespace != "" {
			where = fmt.Sprintf(" in namespace %q", o.namespace)
		}
		return verb + " " + o.kind.Resource + where
	}
	return fmt.Sprintf("%s %s %q", verb, o.kind.Kind, name)
}

// Get returns an object. If it does not exist, NotFound reports true for the error.
func (o Objects[T]) Get(ctx context.Context, name string) (*T, error) {
	return o.one(ctx, o.what("get", name), func(ctx context.Context) (*unstructured.Unstructured, error) {
		return o.at().Get(ctx, name, metav1.GetOptions{})
	})
}

// one makes a call that returns an object.
func (o Objects[T]) one(ctx context.Context, what string, call func(context.Context) (*unstructured.Unstructured, error)) (*T, error) {
	var got *unstructured.Unstructured
	err := o.c.do(ctx, what, func(ctx context.Context) (err error) {
		got, err = call(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return decode[T](what, got)
}

// ListOptions choose objects by selectors in the API's syntax: "a=b,c!=d".
type ListOptions struct{ Labels, Fields string }

// page is the number of objects in one answer.
const page = 500

// List returns objects in the server's order. It also returns the version of the list, from
// which a watch can continue.
func (o Objects[T]) List(ctx context.Context, l ListOptions) (all []T, version string, err error) {
	what := o.what("list", "")
	options := metav1.ListOptions{LabelSelector: l.Labels, FieldSelector: l.Fields, Limit: page}
	for again := false; ; {
		var got *unstructured.UnstructuredList
		err := o.c.do(ctx, what, func(ctx context.Context) (err error) {
			got, err = o.at().List(ctx, options)
			return err
		})
		if Expired(err) && options.Continue != "" && !again { // the list has changed too much since its first page
			all, options.Continue, options.Limit, again = nil, "", 0, true
			continue
		}
		if err != nil {
			return nil, "", err
		}
		for i := range got.Items {
			one, err := decode[T](what, &got.Items[i])
			if err != nil {
				return nil, "", err
			}
			all = append(all, *one)
		}
		if options.Continue = got.GetContinue(); options.Continue == "" {
			return all, got.GetResourceVersion(), nil
		}
	}
}

// WriteOptions say how to write an object.
type WriteOptions struct {
	// DryRun makes the server check the request and answer as if it had carried it out.
	DryRun bool

	// Force lets Apply take over fields that other programs have set. Without it, such a
	// field is a conflict; see Conflict.
	Force bool
}

func (w WriteOptions) dryRun() []string {
	if w.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// Manager is this program's name for the server, as the owner of fields.
const Manager = "multihost"

// Create makes an object and returns the server's version of it. If an object of this name
// exists, AlreadyExists reports true for the error.
func (o Objects[T]) Create(ctx context.Context, object *T, w WriteOptions) (*T, error) {
	raw, err := o.encode(object)
	if err != nil {
		return nil, err
	}
	return o.one(ctx, o.what("create", raw.GetName()), func(ctx context.Context) (*unstructured.Unstructured, error) {
		return o.at().Create(ctx, raw, metav1.CreateOptions{DryRun: w.dryRun(), FieldManager: Manager, FieldValidation: metav1.FieldValidationStrict})
	})
}

// Apply makes an object, or gives it the fields of object (server-side apply). It removes
// fields that an earlier Apply has set and that object lacks. It returns the server's
// version of the object.
func (o Objects[T]) Apply(ctx context.Context, object *T, w WriteOptions) (*T, error) {
	raw, err := o.encode(object)
	if err != nil {
		return nil, err
	}
	what := o.what("apply", raw.GetName())
	data, err := json.Marshal(raw.Object)
	if err != nil {
		return nil, &dataError{what, err}
	}
	force := w.Force
	return o.one(ctx, what, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return o.at().Patch(ctx, raw.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
			DryRun: w.dryRun(), Force: &force, FieldManager: Manager, FieldValidation: metav1.FieldValidationStrict})
	})
}

// Merge changes the fields of an object that patch has (JSON merge patch: null removes a
// field). It returns the object.
func (o Objects[T]) Merge(ctx context.Context, name string, patch map[string]any, w WriteOptions) (*T, error) {
	what := o.what("change", name)
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, &dataError{what, err}
	}
	return o.one(ctx, what, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return o.at().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{DryRun: w.dryRun(), FieldManager: Manager})
	})
}

type RemoveOptions struct {
	DryRun bool

	// UID, if not "", is the UID of the object to delete. Another object of the name stays,
	// and Conflict then reports true for the error.
	UID string

	// With Foreground, the server deletes the object after everything that belongs to it.
	// Otherwise it deletes the object first.
	Foreground bool

	Grace *int64 // seconds that pods have to end; nil: as the pods say
}

// Delete begins to delete an object, and all that belongs to it. It does not wait until the
// object is gone. deleted is false if the object does not exist.
func (o Objects[T]) Delete(ctx context.Context, name string, r RemoveOptions) (deleted bool, err error) {
	policy := metav1.DeletePropagationBackground
	if r.Foreground {
		policy = metav1.DeletePropagationForeground
	}
	options := metav1.DeleteOptions{GracePeriodSeconds: r.Grace, PropagationPolicy: &policy, DryRun: WriteOptions{DryRun: r.DryRun}.dryRun()}
	if r.UID != "" {
		uid := types.UID(r.UID)
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	err = o.c.do(ctx, o.what("delete", name), func(ctx context.Context) error {
		return o.at().Delete(ctx, name, options)
	})
	if NotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Body returns the JSON that Create sends for an object.
func (o Objects[T]) Body(object *T) ([]byte, error) {
	raw, err := o.encode(object)
	if err != nil {
		return nil, err
	}
	return json.Marshal(raw.Object)
}

// encode returns an object in the server's form: with its kind, without a status and
// without the empty fields that typed structs write.
func (o Objects[T]) encode(object *T) (*unstructured.Unstructured, error) {
	raw, ok := any(object).(*unstructured.Unstructured)
	if ok {
		raw = raw.DeepCopy()
	} else {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, &dataError{"write " + o.kind.Kind, err}
		}
		delete(fields, "status")
		withoutNulls(fields)
		raw = &unstructured.Unstructured{Object: fields}
	}
	raw.SetAPIVersion(o.kind.APIVersion())
	raw.SetKind(o.kind.Kind)
	if o.namespace != "" && o.namespace != Everywhere && raw.GetNamespace() == "" {
		raw.SetNamespace(o.namespace)
	}
	return raw, nil
}

// withoutNulls removes fields that are null, for example creationTimestamp of every
// template.
func withoutNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			if field == nil {
				delete(value, name)
			}
			withoutNulls(field)
		}
	case []any:
		for _, element := range value {
			withoutNulls(element)
		}
	}
}

func decode[T any](what string, raw *unstructured.Unstructured) (*T, error) {
	if same, ok := any(raw).(*T); ok {
		return same, nil
	}
	object := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, object); err != nil {
		return nil, &dataError{what, fmt.Errorf("read %s %q: %w", raw.GetKind(), raw.GetName(), err)}
	}
	return object, nil
}

// dataError says that an object does not fit its struct.
type dataError struct {
	what string
	err  error
}

func (e *dataError) Error() string   { return e.what + ": " + e.err.Error() }
func (e *dataError) Unwrap() error   { return e.err }
func (*dataError) Fault() fault.Kind { return fault.Internal }
