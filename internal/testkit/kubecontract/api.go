package kubecontract

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"multihost/internal/testkit"
)

// raw returns a configuration for requests without objects in their answers.
func raw(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	gv := podsGVR.GroupVersion()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, gv)
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.GroupVersion = &gv
	return c
}

func configMap(name, data string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": %q}, "data": %s}`, name, data)
}

func errorsOf(t *T) {
	all := t.in(configMapsGVR)
	t.create(configMapsGVR, configMap("a", `{"k": "v"}`))
	_, err := all.Create(t.Context(), t.object(configMap("a", `{}`)), metav1.CreateOptions{})
	t.has("create what exists", err, 409, `configmaps "a" already exists`)
	_, err = all.Get(t.Context(), "b", metav1.GetOptions{})
	t.has("get what is missing", err, 404, `configmaps "b" not found`)
	_, err = t.client.Resource(configMapsGVR).Namespace("none").Create(t.Context(), t.object(configMap("a", `{}`)), metav1.CreateOptions{})
	t.has("create in a namespace that is missing", err, 404, `namespaces "none" not found`)
	_, err = all.Create(t.Context(), t.object(configMap("A_b", `{}`)), metav1.CreateOptions{})
	t.has("create with a bad name", err, 422, `ConfigMap "A_b" is invalid: metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must consist of`)
	_, err = all.Create(t.Context(), t.object(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "dato": {}}`), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	t.has("create with an unknown field", err, 400, `strict decoding error: unknown field "dato"`)
	_, err = t.client.Resource(gvr("nothing.io", "v1", "things")).List(t.Context(), metav1.ListOptions{})
	t.has("list a kind that is missing", err, 404, "the server could not find the requested resource")

	o, err := all.Get(t.Context(), "a", metav1.GetOptions{})
	testkit.Must(t, err)
	stale := o.DeepCopy()
	testkit.Must(t, unstructured.SetNestedField(o.Object, "w", "data", "k"))
	_, err = all.Update(t.Context(), o, metav1.UpdateOptions{})
	testkit.Must(t, err)
	testkit.Must(t, unstructured.SetNestedField(stale.Object, "x", "data", "k"))
	_, err = all.Update(t.Context(), stale, metav1.UpdateOptions{})
	t.has("update an old version", err, 409, "the object has been modified; please apply your changes to the latest version and try again")

	made, err := all.Create(t.Context(), t.object(configMap("dry", `{}`)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	testkit.Must(t, err)
	if made.GetUID() == "" {
		t.Error("a dry run answers an object without id")
	}
	_, err = all.Get(t.Context(), "dry", metav1.GetOptions{})
	t.has("get what a dry run made", err, 404, `configmaps "dry" not found`)
}

func patches(t *T) {
	all := t.in(configMapsGVR)
	t.create(configMapsGVR, configMap("a", `{"k": "v", "l": "w"}`))
	o, err := all.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data": {"k": null, "m": "x"}}`), metav1.PatchOptions{})
	testkit.Must(t, err)
	t.data(o, map[string]any{"l": "w", "m": "x"})
	o, err = all.Patch(t.Context(), "a", types.JSONPatchType, []byte(`[{"op": "test", "path": "/data/l", "value": "w"}, {"op": "replace", "path": "/data/l", "value": "y"}]`), metav1.PatchOptions{})
	testkit.Must(t, err)
	t.data(o, map[string]any{"l": "y", "m": "x"})
	_, err = all.Patch(t.Context(), "none", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	t.has("patch what is missing", err, 404, `configmaps "none" not found`)
}

func (t *T) data(o *unstructured.Unstructured, want map[string]any) {
	t.Helper()
	have, _, err := unstructured.NestedMap(o.Object, "data")
	testkit.Must(t, err)
	a, err := json.Marshal(have)
	testkit.Must(t, err)
	b, err := json.Marshal(want)
	testkit.Must(t, err)
	if string(a) != string(b) {
		t.Errorf("data is %s, want %s", a, b)
	}
}

func applies(t *T) {
	all := t.in(configMapsGVR)
	apply := func(manager, data string, force bool) (*unstructured.Unstructured, error) {
		return all.Apply(t.Context(), "a", t.object(configMap("a", data)), metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	o, err := apply("one", `{"k": "v", "l": "w"}`, false)
	testkit.Must(t, err)
	version := o.GetResourceVersion()
	o, err = apply("one", `{"k": "v", "l": "w"}`, false)
	testkit.Must(t, err)
	if o.GetResourceVersion() != version {
		t.Error("an apply that changes nothing made a new version")
	}
	_, err = apply("two", `{"k": "x", "m": "y"}`, false)
	t.has("apply over a field of another manager", err, 409, `Apply failed with 1 conflict: conflict with "one": .data.k`)
	o, err = apply("two", `{"k": "x", "m": "y"}`, true)
	testkit.Must(t, err)
	t.data(o, map[string]any{"k": "x", "l": "w", "m": "y"})
	o, err = apply("one", `{}`, false) // this gives up l; now k belongs to both
	testkit.Must(t, err)
	t.data(o, map[string]any{"k": "x", "m": "y"})
	var managers []string
	for _, m := range o.GetManagedFields() {
		managers = append(managers, m.Manager+" "+string(m.Operation))
	}
	if !slices.Contains(managers, "two Apply") {
		t.Errorf("managers are %q", managers)
	}
	_, err = all.Apply(t.Context(), "dry", t.object(configMap("dry", `{}`)), metav1.ApplyOptions{FieldManager: "one", DryRun: []string{metav1.DryRunAll}})
	testkit.Must(t, err)
	_, err = all.Get(t.Context(), "dry", metav1.GetOptions{})
	t.has("get what a dry run applied", err, 404, `configmaps "dry" not found`)
}

func lists(t *T) {
	all := t.in(configMapsGVR)
	for _, name := range []string{"a", "b", "c"} {
		t.createf(configMapsGVR, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": %q, "labels": {"row": "lists", "name": %q}}}`, name, name)
	}
	names := func(o metav1.ListOptions) (names []string, next string) {
		t.Helper()
		l, err := all.List(t.Context(), o)
		testkit.Must(t, err)
		for _, i := range l.Items {
			names = append(names, i.GetName())
		}
		return names, l.GetContinue()
	}
	for _, tt := range []struct {
		options metav1.ListOptions
		want    string
	}{
		{metav1.ListOptions{LabelSelector: "row=lists"}, "a b c"},
		{metav1.ListOptions{LabelSelector: "name in (a,c)"}, "a c"},
		{metav1.ListOptions{LabelSelector: "row=lists,name!=a"}, "b c"},
		{metav1.ListOptions{FieldSelector: "metadata.name=b"}, "b"},
		{metav1.ListOptions{LabelSelector: "row=lists", Limit: 2}, "a b"},
	} {
		if got, _ := names(tt.options); strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: %q, want %s", tt.options, got, tt.want)
		}
	}
	_, next := names(metav1.ListOptions{LabelSelector: "row=lists", Limit: 2})
	if got, after := names(metav1.ListOptions{LabelSelector: "row=lists", Limit: 2, Continue: next}); strings.Join(got, " ") != "c" || after != "" {
		t.Errorf("the rest of a list is %q, then %q", got, after)
	}
	_, err := all.List(t.Context(), metav1.ListOptions{FieldSelector: "data.k=v"})
	t.has("select by a field that cannot be selected", err, 400, `"data.k" is not a known field selector: only "metadata.name", "metadata.namespace"`)
	for _, r := range []schema.GroupVersionResource{podsGVR, jobSetsGVR} {
		_, err = t.in(r).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.k=v"})
		t.has("select "+r.Resource+" by a field that cannot be selected", err, 400, "field label not supported: spec.k")
	}
}

func watches(t *T) {
	all := t.in(configMapsGVR)
	l, err := all.List(t.Context(), metav1.ListOptions{LabelSelector: "row=watch"})
	testkit.Must(t, err)
	t.create(configMapsGVR, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"row": "watch"}}}`)
	w, err := all.Watch(t.Context(), metav1.ListOptions{LabelSelector: "row=watch", ResourceVersion: l.GetResourceVersion(), AllowWatchBookmarks: true})
	testkit.Must(t, err)
	defer w.Stop()
	see := func(kind watch.EventType, name string) {
		t.Helper()
		for e := range w.ResultChan() {
			if e.Type == watch.Bookmark {
				continue
			}
			if o := e.Object.(*unstructured.Unstructured); e.Type != kind || o.GetName() != name {
				t.Errorf("event is %s of %s, want %s of %s", e.Type, o.GetName(), kind, name)
			}
			return
		}
		t.Fatal("the watch ended")
	}
	see(watch.Added, "a")
	t.create(configMapsGVR, configMap("other", `{}`))
	for _, label := range []string{`"else"`, `"watch"`} {
		_, err = all.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata": {"labels": {"row": `+label+`}}}`), metav1.PatchOptions{})
		testkit.Must(t, err)
	}
	see(watch.Deleted, "a") // the object left the selection
	see(watch.Added, "a")
	_, err = all.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data": {"k": "v"}}`), metav1.PatchOptions{})
	testkit.Must(t, err)
	see(watch.Modified, "a")
	testkit.Must(t, all.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	see(watch.Deleted, "a")
}

func deletions(t *T) {
	all := t.in(configMapsGVR)
	owner := t.create(configMapsGVR, configMap("owner", `{}`))
	child := func(name, finalizers string) {
		t.createf(configMapsGVR, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": %q, "finalizers": %s, "ownerReferences": [
			{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": %q, "blockOwnerDeletion": true}]}}`, name, finalizers, owner.GetUID())
	}
	child("a", `[]`)
	child("b", `["test.io/hold"]`)
	how := metav1.DeletePropagationForeground
	testkit.Must(t, all.Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &how}))
	gone := func(name string) bool {
		_, err := all.Get(t.Context(), name, metav1.GetOptions{})
		return err != nil
	}
	t.eventually("the end of a", func() bool { return gone("a") })
	for _, name := range []string{"owner", "b"} {
		o, err := all.Get(t.Context(), name, metav1.GetOptions{})
		testkit.Must(t, err)
		if o.GetDeletionTimestamp() == nil && name == "owner" {
			t.Errorf("%s is not being deleted", name)
		}
	}
	t.eventually("the deletion of b", func() bool {
		o, err := all.Get(t.Context(), "b", metav1.GetOptions{})
		testkit.Must(t, err)
		return o.GetDeletionTimestamp() != nil
	})
	_, err := all.Patch(t.Context(), "b", types.JSONPatchType, []byte(`[{"op": "remove", "path": "/metadata/finalizers"}]`), metav1.PatchOptions{})
	testkit.Must(t, err)
	t.eventually("the end of all", func() bool { return gone("b") && gone("owner") })
	uid := types.UID("none")
	t.create(configMapsGVR, configMap("c", `{}`))
	err = all.Delete(t.Context(), "c", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	t.has("delete an object with another id", err, 409, `Operation cannot be fulfilled on ConfigMap "c": the UID in the precondition (none) does not match the UID in record (`)
}
