package main

import (
	"net/http"
	"strings"
	"testing"

	"multihost/internal/announce"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// A job warns before its request if the service account of the workers may not delete
// slices. If the job cannot find that out, it neither warns nor fails.
func TestTheRightToDeleteIsToldBeforeTheRequest(t *testing.T) {
	besideOthers(t)
	r := newRehearsal(t, sim.Config{Backend: "none", Faults: []sim.Fault{{Name: "no-capacity"}}})
	const account = "123456789012-compute@developer.gserviceaccount.com"
	policy := func(bindings string) {
		t.Helper()
		resp, err := http.Post(r.server.URL()+"/v1/projects/"+sim.DefaultProject+":setIamPolicy", "application/json", strings.NewReader(`{"policy":{"bindings":[`+bindings+`]}}`))
		testkit.Must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("set %s: %s", bindings, resp.Status)
		}
	}
	args := func(more ...string) []string {
		return append([]string{"job", "--tpu-type=v4-8", "--run-name=k", "--command=true", "--state-dir=$DIR/state"}, more...)
	}
	const (
		warning = "warning: the workers may not delete queued resource k: "
		dies    = "; if this machine dies, the slices stay and are billed until you delete them"
		lacks   = "service account " + account + " has no role with tpu.nodes.delete in the policy of project multihost-sim, unless a group, a folder or the organization gives it one"
		grant   = "hint: gcloud projects add-iam-policy-binding multihost-sim --member=serviceAccount:" + account + " --role=roles/tpu.admin"
	)
	dry := func(what, may, line, warns string, more ...string) {
		t.Helper()
		stdout, stderr := r.must(0, args(append(more, "--dry-run")...)...)
		if warns == "" && strings.Contains(stderr, "may not delete") || !strings.Contains(stderr, warns) {
			t.Errorf("%s: warned\n%swant %q", what, stderr, warns)
		}
		if !strings.Contains(stdout, line) || line == "" && strings.Contains(stdout, "= right") {
			t.Errorf("%s: the plan is\n%swant %q", what, stdout, line)
		}
		if got := r.plan(args(more...)...).MayDelete; may == "" && got != nil || may != "" && (got == nil || got.May != may) {
			t.Errorf("%s: right %+v, want %q", what, got, may)
		}
	}

	dry("a new project", "yes", "", "")
	if got := r.plan(args()...).MayDelete; *got != (announce.DeletionRight{Account: account, May: "yes", Why: "it has roles/editor"}) {
		t.Errorf("a new project: %+v", got)
	}
	dry("scopes", "no", "= right      the workers may not delete the slices: the scopes of the request lack cloud-platform",
		warning+"the scopes of the request lack cloud-platform"+dies+"\nmultihost: hint: add --scopes=cloud-platform\n", "--scopes=storage-rw")
	dry("no lease", "", "", "", "--lease=0")

	policy(`{"role":"roles/tpu.viewer","members":["serviceAccount:` + account + `"]}`)
	dry("a role that does not delete", "no", "= right      the workers may not delete the slices: "+lacks, warning+lacks+dies+"\nmultihost: "+grant+"\n")
	dry("a job without runner", "no", "= right", warning+lacks+"; when the command has ended, the slices stay", "--detach", "--bucket-name=multihost-sim")
	dry("another account", "no", "= right", warning+"service account other@p.iam.gserviceaccount.com has no role", "--service-account=other@p.iam.gserviceaccount.com")
	dry("scopes and role", "no", "= right", "lack cloud-platform", "--scopes=storage-rw")

	// The warning comes before the request, and the check sends nothing else.
	since := len(r.server.Requests())
	_, stderr := r.must(exitTempFail, args("--queue-timeout=1s")...)
	if !strings.Contains(stderr, warning+lacks+dies) || strings.Index(stderr, warning) > strings.Index(stderr, "request: ") {
		t.Errorf("the warning does not come before the request:\n%s", stderr)
	}
	asked, at, reads := -1, -1, 0
	for i, q := range r.server.Requests()[since:] {
		switch {
		case strings.Contains(q.Path, ":getIamPolicy"):
			asked, reads = i, reads+1
		case q.Method == "POST" && strings.Contains(q.Path, "/queuedResources?"):
			at = i
		}
	}
	if reads != 1 || at < asked {
		t.Errorf("the policy was read %d times, at %d; the request was made at %d", reads, asked, at)
	}

	policy(`{"role":"roles/tpu.admin","members":["serviceAccount:` + account + `"]}`)
	dry("the role of the hint", "yes", "", "")
	_, err := r.server.Inject(sim.Fault{Name: "permission-denied", Permission: "resourcemanager.*", Count: sim.AllCalls})
	testkit.Must(t, err)
	dry("a policy that may not be read", "unknown", "= right      whether the workers may delete the slices is not known: ", "")
	if _, stderr := r.must(exitTempFail, args("--queue-timeout=1s", "--run-name=l")...); strings.Contains(stderr, "may not delete") || strings.Contains(stderr, "is not known before") {
		t.Errorf("a policy that may not be read is a warning:\n%s", stderr)
	}
}
