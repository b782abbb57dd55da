package provision

import "testing"

func TestFieldsOfAnAnswer(t *testing.T) {
	u := Undoing{Labels: "/tpu/nodeSpec/*/node/labels"}
	for _, row := range []struct {
		field         Field
		path, pattern string
	}{
		{Field{}, "", ""},
		{Field{"/state/state", "DELETING"}, "/state/state", `"state": *"DELETING"`},
		{u.Proof(LabelRun, "train"), "/tpu/nodeSpec/*/node/labels/multihost-run", `"multihost-run": *"train"`},
	} {
		if row.field.Path != row.path || row.field.Pattern() != row.pattern {
			t.Errorf("%+v: pattern %s, want %s at %s", row.field, row.field.Pattern(), row.pattern, row.path)
		}
	}
}
