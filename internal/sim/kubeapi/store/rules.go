package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// fitted returns an object with only the fields of its kind, or an error if a field has the
// wrong type.
func fitted(k *Kind, o *Object) (*Object, error) {
	if k.Typed == nil {
		return o, nil
	}
	typed := k.Typed()
	if err := Decode(o, typed); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", k.Kind, k.Stored(), k.Kind, err))
	}
	fit, err := Encode(typed)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	fit.SetAPIVersion(o.GetAPIVersion())
	fit.SetKind(o.GetKind())
	return fit, nil
}

// Unknown returns the fields of an object that its kind does not have, in the words of the
// API server: unknown field "spec.foo".
func Unknown(k *Kind, o *Object) []string {
	if k.Typed == nil {
		return nil
	}
	text, err := json.Marshal(o.Object)
	if err != nil {
		return nil
	}
	strict, err := kjson.UnmarshalStrict(text, k.Typed())
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range strict {
		found = append(found, e.Error())
	}
	return found
}

// Decode decodes an object into a struct.
func Decode(o *Object, into any) error {
	text, err := json.Marshal(o.Object)
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(text, into)
}

// Encode returns a struct as an object without null fields.
func Encode(typed any) (*Object, error) {
	text, err := json.Marshal(typed)
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// Parse reads an object from JSON.
func Parse(text []byte) (*Object, error) {
	var m map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(bytes.TrimSpace(text), &m); err != nil {
		return nil, err
	}
	dropNull(m)
	return &Object{Object: m}, nil
}

func dropNull(m map[string]any) {
	for name, v := range m {
		switch v := v.(type) {
		case nil:
			delete(m, name)
		case map[string]any:
			dropNull(v)
		case []any:
			for _, e := range v {
				if e, ok := e.(map[string]any); ok {
					dropNull(e)
				}
			}
		}
	}
}

// setDefaults sets the defaults of a real server that something reads.
func setDefaults(k *Kind, o *Object) {
	spec, _ := o.Object["spec"].(map[string]any)
	switch k {
	case Pods:
		defaultPod(spec, "Always")
	case Jobs:
		defaultJob(spec)
	case JobSets:
		defaultJobSet(spec)
	case Services:
		if spec != nil {
			setDefault(spec, "type", "ClusterIP")
			setDefault(spec, "sessionAffinity", "None")
		}
	case Namespaces:
		if o.Object["spec"] == nil {
			o.Object["spec"] = map[string]any{"finalizers": []any{"kubernetes"}}
		}
		if o.Object["status"] == nil {
			o.Object["status"] = map[string]any{"phase": "Active"}
		}
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels["kubernetes.io/metadata.name"] = o.GetName()
		o.SetLabels(labels)
	case ClusterQueues:
		defaultClusterQueue(spec)
	}
}

func setDefault(m map[string]any, name string, v any) {
	if _, ok := m[name]; !ok {
		m[name] = runtime.DeepCopyJSONValue(v)
	}
}

func defaultPod(spec map[string]any, restart string) {
	if spec == nil {
		return
	}
	if restart != "" {
		setDefault(spec, "restartPolicy", restart)
	}
	setDefault(spec, "terminationGracePeriodSeconds", int64(30))
	setDefault(spec, "dnsPolicy", "ClusterFirst")
	setDefault(spec, "schedulerName", "default-scheduler")
	setDefault(spec, "securityContext", map[string]any{})
	for _, list := range []string{"containers", "initContainers"} {
		containers, _ := spec[list].([]any)
		for _, c := range containers {
			if c, ok := c.(map[string]any); ok {
				defaultContainer(c)
			}
		}
	}
}

func defaultContainer(c map[string]any) {
	setDefault(c, "terminationMessagePath", "/dev/termination-log")
	setDefault(c, "terminationMessagePolicy", "File")
	image, _ := c["image"].(string)
	policy := "IfNotPresent"
	if last := image[strings.LastIndexByte(image, '/')+1:]; !strings.Contains(last, ":") || strings.HasSuffix(last, ":latest") {
		policy = "Always"
	}
	if strings.Contains(image, "@") {
		policy = "IfNotPresent"
	}
	setDefault(c, "imagePullPolicy", policy)
	setDefault(c, "resources", map[string]any{})
	if res, ok := c["resources"].(map[string]any); ok {
		limits, _ := res["limits"].(map[string]any)
		if len(limits) > 0 {
			setDefault(res, "requests", map[string]any{})
			requests, _ := res["requests"].(map[string]any)
			for name, v := range limits {
				setDefault(requests, name, v)
			}
		}
	}
}

func defaultJob(spec map[string]any) {
	if spec == nil {
		return
	}
	setDefault(spec, "completionMode", "NonIndexed")
	if spec["completions"] == nil && spec["parallelism"] == nil {
		setDefault(spec, "completions", int64(1))
	}
	setDefault(spec, "parallelism", int64(1))
	setDefault(spec, "backoffLimit", int64(6))
	setDefault(spec, "suspend", false)
	setDefault(spec, "manualSelector", false)
	setDefault(spec, "podReplacementPolicy", "TerminatingOrFailed")
	if spec["podFailurePolicy"] != nil {
		spec["podReplacementPolicy"] = "Failed"
	}
	if pod, ok, _ := unstructured.NestedFieldNoCopy(spec, "template", "spec"); ok {
		p, _ := pod.(map[string]any)
		defaultPod(p, "")
	}
}

// defaultJobSet does what JobSet's webhook does.
func defaultJobSet(spec map[string]any) {
	if spec == nil {
		return
	}
	setDefault(spec, "successPolicy", map[string]any{"operator": "All"})
	setDefault(spec, "startupPolicy", map[string]any{"startupPolicyOrder": "AnyOrder"})
	setDefault(spec, "network", map[string]any{})
	if network, ok := spec["network"].(map[string]any); ok {
		setDefault(network, "enableDNSHostnames", true)
		setDefault(network, "publishNotReadyAddresses", true)
	}
	if policy, ok := spec["failurePolicy"].(map[string]any); ok {
		setDefault(policy, "restartStrategy", "Recreate")
		setDefault(policy, "maxRestarts", int64(0))
		rules, _ := policy["rules"].([]any)
		for i, r := range rules {
			if r, ok := r.(map[string]any); ok {
				setDefault(r, "name", fmt.Sprintf("failurePolicyRule%d", i))
			}
		}
	}
	jobs, _ := spec["replicatedJobs"].([]any)
	for _, j := range jobs {
		j, ok := j.(map[string]any)
		if !ok {
			continue
		}
		setDefault(j, "replicas", int64(1))
		setDefault(j, "groupName", "default")
		job, _, _ := unstructured.NestedFieldNoCopy(j, "template", "spec")
		if job, ok := job.(map[string]any); ok {
			setDefault(job, "completionMode", "Indexed")
			if pod, ok, _ := unstructured.NestedFieldNoCopy(job, "template", "spec"); ok {
				if p, ok := pod.(map[string]any); ok {
					setDefault(p, "restartPolicy", "OnFailure")
				}
			}
		}
	}
}

func defaultClusterQueue(spec map[string]any) {
	if spec == nil {
		return
	}
	setDefault(spec, "queueingStrategy", "BestEffortFIFO")
	setDefault(spec, "stopPolicy", "None")
	setDefault(spec, "preemption", map[string]any{})
	if p, ok := spec["preemption"].(map[string]any); ok {
		setDefault(p, "reclaimWithinCohort", "Never")
		setDefault(p, "withinClusterQueue", "Never")
	}
}

// validate returns what is wrong with an object. old is nil for a new object.
func validate(k *Kind, old, o *Object) field.ErrorList {
	meta := field.NewPath("metadata")
	var errs field.ErrorList
	if o.GetName() == "" {
		return field.ErrorList{field.Required(meta.Child("name"), "name or generateName is required")}
	}
	if k.Group != "rbac.authorization.k8s.io" {
		check := utilvalidation.IsDNS1123Subdomain
		if k == Services {
			check = utilvalidation.IsDNS1035Label
		} else if k == Namespaces {
			check = utilvalidation.IsDNS1123Label
		}
		for _, msg := range check(o.GetName()) {
			errs = append(errs, field.Invalid(meta.Child("name"), o.GetName(), msg))
		}
	}
	errs = append(errs, validateLabels(o, meta)...)
	switch k {
	case Pods:
		errs = append(errs, validatePod(old, o)...)
	case Jobs:
		errs = append(errs, validateJob(old, o)...)
	case JobSets:
		errs = append(errs, validateJobSet(old, o)...)
	}
	return errs
}

func validateLabels(o *Object, meta *field.Path) (errs field.ErrorList) {
	for name, value := range o.GetLabels() {
		for _, msg := range utilvalidation.IsQualifiedName(name) {
			errs = append(errs, field.Invalid(meta.Child("labels"), name, msg))
		}
		for _, msg := range utilvalidation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(meta.Child("labels"), value, msg))
		}
	}
	return append(errs, validation.ValidateAnnotations(o.GetAnnotations(), meta.Child("annotations"))...)
}

func validatePod(old, o *Object) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "containers")
	if len(containers) == 0 {
		errs = append(errs, field.Required(spec.Child("containers"), ""))
	}
	for i, c := range containers {
		m, _ := c.(map[string]any)
		if name, _ := m["name"].(string); name == "" {
			errs = append(errs, field.Required(spec.Child("containers").Index(i).Child("name"), ""))
		}
		if image, _ := m["image"].(string); image == "" {
			errs = append(errs, field.Required(spec.Child("containers").Index(i).Child("image"), ""))
		}
	}
	if host, _, _ := unstructured.NestedString(o.Object, "spec", "hostname"); host != "" {
		for _, msg := range utilvalidation.IsDNS1123Label(host) {
			errs = append(errs, field.Invalid(spec.Child("hostname"), host, msg))
		}
	}
	if old != nil {
		before, _, _ := unstructured.NestedSlice(old.Object, "spec", "containers")
		a, _ := json.Marshal(before)
		b, _ := json.Marshal(containers)
		if !bytes.Equal(a, b) {
			errs = append(errs, field.Forbidden(spec, "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"))
		}
	}
	return errs
}

func validateJob(old, o *Object) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	restart, _, _ := unstructured.NestedString(o.Object, "spec", "template", "spec", "restartPolicy")
	switch restart {
	case "Never", "OnFailure":
	case "":
		errs = append(errs, field.Required(spec.Child("template", "spec", "restartPolicy"), `valid values: "OnFailure", "Never"`))
	default:
		errs = append(errs, field.NotSupported(spec.Child("template", "spec", "restartPolicy"), restart, []string{"OnFailure", "Never"}))
	}
	if policy, ok, _ := unstructured.NestedMap(o.Object, "spec", "podFailurePolicy"); ok && policy != nil && restart != "Never" {
		errs = append(errs, field.Invalid(spec.Child("template", "spec", "restartPolicy"), restart, "only \"Never\" is supported when podFailurePolicy is specified"))
	}
	if old == nil && o.GetAnnotations()["batch.kubernetes.io/job-tracking"] == "" && len(o.GetName()) > 63 {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), o.GetName(), utilvalidation.MaxLenError(63)))
	}
	return errs
}

func validateJobSet(old, o *Object) (errs field.ErrorList) {
	jobs := field.NewPath("spec", "replicatedJobs")
	list, _, _ := unstructured.NestedSlice(o.Object, "spec", "replicatedJobs")
	for i, j := range list {
		m, _ := j.(map[string]any)
		name, _ := m["name"].(string)
		replicas, _, _ := unstructured.NestedInt64(m, "replicas")
		longest := fmt.Sprintf("%s-%s-%d", o.GetName(), name, max(replicas-1, 0))
		for range utilvalidation.IsDNS1035Label(longest) {
			errs = append(errs, field.Invalid(jobs, longest, "JobSet name is too long, job names generated for this JobSet will exceed 63 characters"))
			break
		}
		completions, ok, _ := unstructured.NestedInt64(m, "template", "spec", "completions")
		if pod := fmt.Sprintf("%s-%d-abcde", longest, max(completions-1, 0)); ok && len(pod) > 63 {
			errs = append(errs, field.Invalid(jobs, pod, "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"))
		}
		if old == nil {
			continue
		}
		errs = append(errs, immutableJob(jobs.Index(i), old, o, i)...)
	}
	return errs
}

// immutableJob returns the error for a change of a replicated job. Only a suspended JobSet
// allows one.
func immutableJob(at *field.Path, old, o *Object, i int) field.ErrorList {
	suspended, _, _ := unstructured.NestedBool(old.Object, "spec", "suspend")
	suspend, _, _ := unstructured.NestedBool(o.Object, "spec", "suspend")
	before, _, _ := unstructured.NestedSlice(old.Object, "spec", "replicatedJobs")
	after, _, _ := unstructured.NestedSlice(o.Object, "spec", "replicatedJobs")
	if suspended || suspend || i >= len(before) {
		return nil
	}
	a, _ := json.Marshal(before[i])
	b, _ := json.Marshal(after[i])
	if bytes.Equal(a, b) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, after[i], "field is immutable")}
}

// IsTerminating reports whether an object is being deleted.
func IsTerminating(o metav1.Object) bool { return o.GetDeletionTimestamp() != nil }
