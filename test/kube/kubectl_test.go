package kube_test

import (
	"os/exec"
	"strings"
	"testing"

	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/testkit"
)

// TestKubectl: kubectl sees the objects that multihost makes, and its commands work on them.
func TestKubectl(t *testing.T) {
	if _, err := exec.LookPath("kubectl"); err != nil {
		testkit.Lacks(t, "no second judge: %v", err)
	}
	e := cluster(t)
	kubectl := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "kubectl", append([]string{"--kubeconfig=" + e.Kubeconfig()}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("kubectl %s: %v", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out))
	}
	u := newUser(t, e, "ann")
	u.types(0, "slices", "create", "judged", "--context=test", "--tpu-type=v5litepod-16", "--wait")
	t.Cleanup(func() { u.types(0, "slices", "delete", "judged", "--context=test") })
	of := "--selector=" + jobset.JobSetNameKey + "=judged"
	if got := kubectl("wait", "pod", of, "--for=condition=Ready", "--timeout=60s"); strings.Count(got, "condition met") != 4 {
		t.Errorf("kubectl wait says %q", got)
	}
	name := strings.Fields(kubectl("get", "pods", of, "--output=jsonpath={.items[*].metadata.name}"))[0]
	u.types(0, "cp", "--context=test", "--tpu-prefix=judged", "data", "all:copy")
	if got := kubectl("exec", name, "--", "bash", "-c", "cat ~/copy"); got != "here" {
		t.Errorf("the pod has %q", got)
	}
	if got := kubectl("get", "jobset", "judged", "--output=jsonpath={.spec.replicatedJobs[0].template.spec.parallelism}"); got != "4" {
		t.Errorf("the JobSet has %q workers", got)
	}
}
