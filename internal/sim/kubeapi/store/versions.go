package store

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// ToStored converts an object from a served version to the stored version. It may change o.
func (k *Kind) ToStored(version string, o *Object) *Object {
	if version != k.Stored() {
		o.SetAPIVersion(k.GroupVersion(k.Stored()).String())
		rename(k, o, true)
	}
	return o
}

// FromStored converts an object from the stored version to a served version. It does not
// change o.
func (k *Kind) FromStored(version string, o *Object) *Object {
	if version == k.Stored() || o == nil {
		return o
	}
	o = o.DeepCopy()
	o.SetAPIVersion(k.GroupVersion(version).String())
	rename(k, o, false)
	return o
}

// renamed has the fields of Kueue with different names in v1beta1 and v1beta2.
var renamed = map[string][][3]string{ // by kind: part of the object, old name, new name
	"ClusterQueue": {{"spec", "cohort", "cohortName"}},
	"Cohort":       {{"spec", "parent", "parentName"}},
	"LocalQueue":   {{"status", "flavorUsage", "flavorsUsage"}},
}

func rename(k *Kind, o *Object, up bool) {
	for _, r := range renamed[k.Kind] {
		m, _, _ := unstructured.NestedFieldNoCopy(o.Object, r[0])
		part, _ := m.(map[string]any)
		from, to := r[1], r[2]
		if !up {
			from, to = to, from
		}
		if v, ok := part[from]; ok {
			delete(part, from)
			part[to] = v
		}
	}
	spec, _ := o.Object["spec"].(map[string]any)
	switch k.Kind {
	case "Workload":
		renamePriority(spec, up)
	case "ClusterQueue":
		renameChecks(spec, up)
	}
}

// renamePriority converts the reference of a workload to its priority class.
func renamePriority(spec map[string]any, up bool) {
	groups := map[string]string{"PriorityClass": "scheduling.k8s.io", "WorkloadPriorityClass": "kueue.x-k8s.io"}
	if !up {
		ref, _ := spec["priorityClassRef"].(map[string]any)
		if ref == nil {
			return
		}
		delete(spec, "priorityClassRef")
		group, _ := ref["group"].(string)
		kind, _ := ref["kind"].(string)
		spec["priorityClassName"] = ref["name"]
		spec["priorityClassSource"] = group + "/" + lower(kind)
		return
	}
	source, _ := spec["priorityClassSource"].(string)
	name, _ := spec["priorityClassName"].(string)
	delete(spec, "priorityClassSource")
	delete(spec, "priorityClassName")
	for kind, group := range groups {
		if source == group+"/"+lower(kind) && name != "" {
			spec["priorityClassRef"] = map[string]any{"group": group, "kind": kind, "name": name}
		}
	}
}

// renameChecks converts the plain list of admission checks, which only v1beta1 has.
func renameChecks(spec map[string]any, up bool) {
	list, _ := spec["admissionChecks"].([]any)
	if !up || len(list) == 0 {
		return
	}
	var rules []any
	for _, name := range list {
		rules = append(rules, map[string]any{"name": name})
	}
	delete(spec, "admissionChecks")
	spec["admissionChecksStrategy"] = map[string]any{"admissionChecks": rules}
}
