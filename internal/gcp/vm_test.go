package gcp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"multihost/internal/gcp"
	"multihost/internal/testkit"
)

// An answer that breaks off after its status is none: it is no value, and a queued
// resource of which only a half was read is neither deleted nor given up as
// another's, for then nobody would ever delete it.
func TestABrokenAnswerOnAWorkerIsNone(t *testing.T) {
	testkit.Need(t, "curl")
	const ours = `{"name": "q", "labels": {"multihost-run": "r"}, "state": {"state": "ACTIVE"}}`
	for _, row := range []struct {
		story, call, answer string
		cut                 bool
		want                string
		deletes             bool
	}{
		{"a value", `api GET "$url/value"`, "17", false, "rc=0 status=200 reply=17 why=", false},
		{"a value that breaks off", `api GET "$url/value"`, "17", true, "rc=1 status=000 reply= why=no answer: curl: (18)", false},
		{"ours", `delete_resource multihost-run=r`, ours, false, "rc=0 status=200 ", true},
		{"ours, of which a part came", `delete_resource multihost-run=r`, ours[:14], true, "rc=0 status=000 reply= why=it cannot be read: no answer: curl: (18)", false},
		{"no queued resource at all", `delete_resource multihost-run=r`, "<html>", false, "rc=0 status=200 reply=<html> why=it cannot be read", false},
		{"another's", `delete_resource multihost-run=other`, ours, false, "rc=1 status=200 ", false},
		{"ours, and the terms delete another one", `undo_delete=$url/other; delete_resource multihost-run=r`, ours, false, "rc=1 status=200 ", false},
		{"ours, deleted already", `delete_resource multihost-run=r`, strings.Replace(ours, "ACTIVE", "DELETING", 1), false, "rc=0 status=200 ", false},
		{"another's, with our label in a text", `delete_resource multihost-run=r`, `{"name": "q", "description": "\"labels\": {\"multihost-run\": \"r\"}", "multihost-run": "r", "labels": {"multihost-run": "s"}}`, false, "rc=1 status=200 ", false},
	} {
		t.Run(row.story, func(t *testing.T) {
			var mu sync.Mutex
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/token") {
					fmt.Fprint(w, `{"access_token": "t"}`)
					return
				}
				mu.Lock()
				asked = append(asked, r.Method+" "+r.URL.Path)
				mu.Unlock()
				if row.cut {
					w.Header().Set("Content-Length", fmt.Sprint(len(row.answer)+100))
				}
				fmt.Fprint(w, row.answer)
			}))
			defer server.Close()
			cmd := exec.CommandContext(t.Context(), "bash", "-c", gcp.VMScript+"\nset -u\nurl=$1 why=\nundo_look=$url/q undo_delete=$url/q?force=true undo_going='\"state\": *\"DELETING\"'\n"+row.call+
				`; printf 'rc=%s status=%s reply=%s why=%s' $? "$status" "$reply" "$why"`, "vm", server.URL)
			cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "GCE_METADATA_HOST=" + strings.TrimPrefix(server.URL, "http://")}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), row.want) {
				t.Errorf("%v, %q, want %q", err, out, row.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if deleted := slices.Contains(asked, "DELETE /q"); deleted != row.deletes {
				t.Errorf("asked %q", asked)
			}
		})
	}
}
