package store

import (
	_ "embed"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// lists.yaml says which lists are merged by a key in their elements. A real server reads
// that from the schema of each kind.
//
//go:embed lists.yaml
var lists string

// typing records which manager owns which field, with the library of the API server.
type typing struct{ parser *typed.Parser }

func newTyping() (*typing, error) {
	p, err := typed.NewParser(typed.YAMLObject(lists))
	if err != nil {
		return nil, fmt.Errorf("parse schema of lists: %w", err)
	}
	return &typing{p}, nil
}

func (t *typing) manager(k *Kind, status bool) (*managedfields.FieldManager, error) {
	sub := ""
	if status {
		sub = "status"
	}
	gv := k.GroupVersion(k.Stored())
	name := "object"
	switch k {
	case Pods:
		name = "pod"
	case Jobs:
		name = "job"
	case JobSets:
		name = "jobset"
	case Deployments:
		name = "deployment"
	case Services:
		name = "service"
	}
	return managedfields.NewDefaultCRDFieldManager(converter{t.parser.Type(name)}, unconverted{}, undefaulted{}, creater{}, gv.WithKind(k.Kind), gv, sub, nil)
}

// update returns o with the managers of its fields after a write that is not an apply.
func (t *typing) update(k *Kind, w Write, old, o *Object) (*Object, error) {
	m, err := t.manager(k, w.Status)
	if err != nil {
		return nil, err
	}
	if old == nil {
		old = NewObject(k, "", "")
		old.SetName(o.GetName())
	}
	made, err := m.Update(old, o, w.Manager)
	if err != nil {
		return nil, err
	}
	return made.(*Object), nil
}

// apply merges patch into old, which is nil if the object does not exist.
func (t *typing) apply(k *Kind, w Write, old, patch *Object) (*Object, error) {
	m, err := t.manager(k, w.Status)
	if err != nil {
		return nil, err
	}
	live := NewObject(k, "", "")
	if old != nil {
		live = old.DeepCopy()
	} else {
		live = &Object{Object: map[string]any{"apiVersion": live.GetAPIVersion(), "kind": live.GetKind(), "metadata": map[string]any{}}}
		live.SetManagedFields(nil)
	}
	made, err := m.Apply(live, patch, w.Manager, w.Force)
	if err != nil {
		return nil, err
	}
	return made.(*Object), nil
}

// converter implements managedfields.TypeConverter.
type converter struct{ typed.ParseableType }

func (c converter) ObjectToTyped(o runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return c.FromUnstructured(o.(*Object).Object, opts...)
}

func (c converter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	m, ok := v.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, errors.New("merged value is no object")
	}
	return &Object{Object: m}, nil
}

// unconverted implements runtime.ObjectConvertor for one version.
type unconverted struct{}

func (unconverted) Convert(in, out, _ any) error {
	in.(*Object).DeepCopyInto(out.(*Object))
	return nil
}

func (unconverted) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func (unconverted) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

type undefaulted struct{}

func (undefaulted) Default(runtime.Object) {}

type creater struct{}

func (creater) New(k schema.GroupVersionKind) (runtime.Object, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(k)
	return o, nil
}
