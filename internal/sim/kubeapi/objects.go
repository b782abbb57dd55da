package kubeapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"multihost/internal/sim/kubeapi/store"
)

// objects serves the objects of a store.
type objects struct{ store *store.Store }

// serveObjects answers a request for objects.
func (s *Server) serveObjects(w http.ResponseWriter, q *request) {
	var err error
	switch {
	case q.sub != "" && q.sub != "status":
		err = s.serveSub(w, q)
	case q.sub == "status" && !q.kind.Status:
		err = notFound()
	default:
		err = objects{s.store}.serve(w, q)
	}
	if err != nil {
		writeError(w, err)
	}
}

func (s objects) serve(w http.ResponseWriter, q *request) (err error) {
	switch {
	case q.Method == http.MethodGet && q.flag("watch"):
		err = s.watch(w, q)
	case q.Method == http.MethodGet && q.name == "":
		err = s.list(w, q)
	case q.Method == http.MethodGet:
		var o *store.Object
		if o, err = s.store.Get(q.kind, q.namespace, q.name); err == nil {
			q.answer(w, http.StatusOK, o)
		}
	case q.Method == http.MethodPost && q.name == "":
		err = s.create(w, q)
	case q.Method == http.MethodPut && q.name != "":
		err = s.update(w, q)
	case q.Method == http.MethodPatch && q.name != "":
		err = s.patch(w, q)
	case q.Method == http.MethodDelete && q.name != "":
		err = s.remove(w, q)
	case q.Method == http.MethodDelete:
		err = s.removeAll(w, q)
	default:
		err = apierrors.NewMethodNotSupported(q.kind.Resource(), strings.ToLower(q.Method))
	}
	return err
}

// answer writes an object in the version of the request.
func (q *request) answer(w http.ResponseWriter, code int, o *store.Object) {
	writeJSON(w, code, q.kind.FromStored(q.version, o).Object)
}

// A continuation says where a list continues that was cut off.
type continuation struct {
	Version uint64 `json:"rv"`
	After   string `json:"start"`
}

func (s objects) list(w http.ResponseWriter, q *request) error {
	sel, err := q.selection()
	if err != nil {
		return err
	}
	limit, _ := strconv.Atoi(q.query.Get("limit"))
	var from continuation
	if text := q.query.Get("continue"); text != "" {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || json.Unmarshal(raw, &from) != nil {
			return apierrors.NewBadRequest("continue key is not valid")
		}
		if _, _, ok := s.store.Since(from.Version); !ok {
			return apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.")
		}
	}
	all, version := s.store.List(q.kind, q.namespace)
	if from.Version > 0 {
		version = from.Version
	}
	items := []any{}
	meta := map[string]any{"resourceVersion": strconv.FormatUint(version, 10)}
	left, last := 0, ""
	for _, o := range all {
		key := o.GetNamespace() + "/" + o.GetName()
		if from.After != "" && key <= from.After || !sel.has(q.kind, o) {
			continue
		}
		if limit > 0 && len(items) == limit {
			left++
			continue
		}
		items = append(items, q.kind.FromStored(q.version, o).Object)
		last = key
	}
	if left > 0 {
		token, err := json.Marshal(continuation{version, last})
		if err != nil {
			return err
		}
		meta["continue"] = base64.RawURLEncoding.EncodeToString(token)
		if sel.labels.Empty() && sel.fields.Empty() {
			meta["remainingItemCount"] = left
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"kind": q.kind.Kind + "List", "apiVersion": q.kind.GroupVersion(q.version).String(), "metadata": meta, "items": items,
	})
	return nil
}

func (s objects) create(w http.ResponseWriter, q *request) error {
	how, err := q.write()
	if err != nil {
		return err
	}
	body, err := q.body()
	if err != nil {
		return err
	}
	o, err := q.object(body)
	if err != nil {
		return err
	}
	if err := q.checkFields(w, o); err != nil {
		return err
	}
	if o, err = s.store.Create(q.kind, q.namespace, o, how); err != nil {
		return err
	}
	q.answer(w, http.StatusCreated, o)
	return nil
}

func (s objects) update(w http.ResponseWriter, q *request) error {
	how, err := q.write()
	if err != nil {
		return err
	}
	body, err := q.body()
	if err != nil {
		return err
	}
	next, err := q.object(body)
	if err != nil {
		return err
	}
	if err := q.checkFields(w, next); err != nil {
		return err
	}
	o, err := s.store.Change(q.kind, q.namespace, q.name, how, func(o *store.Object) error {
		next.DeepCopyInto(o)
		return nil
	})
	if err != nil {
		return err
	}
	q.answer(w, http.StatusOK, o)
	return nil
}

func (s objects) patch(w http.ResponseWriter, q *request) error {
	how, err := q.write()
	if err != nil {
		return err
	}
	body, err := q.body()
	if err != nil {
		return err
	}
	kind := types.PatchType(q.contentType())
	switch kind {
	case types.ApplyYAMLPatchType:
		return s.apply(w, q, body, how)
	case types.MergePatchType, types.JSONPatchType:
	default:
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
			Message: "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
		}}
	}
	o, err := s.store.Change(q.kind, q.namespace, q.name, how, func(o *store.Object) error {
		text, err := json.Marshal(q.kind.FromStored(q.version, o).Object)
		if err != nil {
			return err
		}
		patched, err := patched(kind, text, body)
		if err != nil {
			return err
		}
		next, err := store.Parse(patched)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		next = q.kind.ToStored(q.version, next)
		if err := q.checkFields(w, next); err != nil {
			return err
		}
		next.DeepCopyInto(o)
		return nil
	})
	if err != nil {
		return err
	}
	q.answer(w, http.StatusOK, o)
	return nil
}

// patched returns a document after a patch.
func patched(kind types.PatchType, document, patch []byte) ([]byte, error) {
	if kind == types.MergePatchType {
		out, err := jsonpatch.MergePatch(document, patch)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		return out, nil
	}
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	out, err := p.Apply(document)
	if err != nil {
		return nil, statusError(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the server rejected our request due to an error in our request")
	}
	return out, nil
}

// apply serves a server-side apply.
func (s objects) apply(w http.ResponseWriter, q *request, body []byte, how store.Write) error {
	if q.query.Get("fieldManager") == "" {
		return apierrors.NewInvalid(schema.GroupVersion{}.WithKind("PatchOptions").GroupKind(), "", requiredManager())
	}
	o, err := q.object(body)
	if err != nil {
		return err
	}
	if unknown := store.Unknown(q.kind, o); len(unknown) > 0 {
		at := strings.Trim(strings.TrimPrefix(unknown[0], "unknown field "), `"`)
		return fmt.Errorf("failed to create typed patch object (%s/%s; %s): .%s: field not declared in schema", q.namespace, q.name, q.kind.GroupVersion(q.version).WithKind(q.kind.Kind), at)
	}
	o, created, err := s.store.Apply(q.kind, q.namespace, q.name, o, how)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	q.answer(w, code, o)
	return nil
}

// removal reads from a request how to delete.
func (q *request) removal() (store.Removal, error) {
	var r store.Removal
	body, err := q.body()
	if err != nil {
		return r, err
	}
	var opts metav1.DeleteOptions
	if len(bytes.TrimSpace(body)) > 0 {
		if err := json.Unmarshal(body, &opts); err != nil {
			return r, apierrors.NewBadRequest(err.Error())
		}
	}
	if text := q.query.Get("gracePeriodSeconds"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return r, apierrors.NewBadRequest(err.Error())
		}
		opts.GracePeriodSeconds = &n
	}
	if text := q.query.Get("propagationPolicy"); text != "" {
		opts.PropagationPolicy = (*metav1.DeletionPropagation)(&text)
	}
	r.Grace = opts.GracePeriodSeconds
	if opts.PropagationPolicy != nil {
		r.Propagation = *opts.PropagationPolicy
	}
	if p := opts.Preconditions; p != nil {
		if p.UID != nil {
			r.UID = string(*p.UID)
		}
		if p.ResourceVersion != nil {
			r.Version = *p.ResourceVersion
		}
	}
	r.DryRun = len(opts.DryRun) > 0 || len(q.query["dryRun"]) > 0
	return r, nil
}

func (s objects) remove(w http.ResponseWriter, q *request) error {
	r, err := q.removal()
	if err != nil {
		return err
	}
	o, gone, err := s.store.Remove(q.kind, q.namespace, q.name, r)
	if err != nil {
		return err
	}
	if !gone || q.kind == store.Pods {
		q.answer(w, http.StatusOK, o)
		return nil
	}
	writeJSON(w, http.StatusOK, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: q.name, Group: q.kind.Group, Kind: q.kind.Plural, UID: o.GetUID()},
	})
	return nil
}

// removeAll deletes the objects of a list.
func (s objects) removeAll(w http.ResponseWriter, q *request) error {
	r, err := q.removal()
	if err != nil {
		return err
	}
	sel, err := q.selection()
	if err != nil {
		return err
	}
	all, _ := s.store.List(q.kind, q.namespace)
	items := []any{}
	for _, o := range all {
		if !sel.has(q.kind, o) {
			continue
		}
		o, _, err := s.store.Remove(q.kind, o.GetNamespace(), o.GetName(), r)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil {
			items = append(items, q.kind.FromStored(q.version, o).Object)
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"kind": q.kind.Kind + "List", "apiVersion": q.kind.GroupVersion(q.version).String(),
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(s.store.Version(), 10)}, "items": items,
	})
	return nil
}
