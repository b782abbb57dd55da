package gcp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"multihost/internal/gcp"
	"multihost/internal/testkit"
)

// An answer that breaks off after its status does not count. With half of an answer about a
// queued resource, the worker does not delete the resource. It does not take the resource
// for another run's either, because then nobody would ever delete it.
func TestABrokenAnswerOnAWorkerIsNone(t *testing.T) {
	testkit.Need(t, "curl")
	const (
		ours  = `{"name": "q", "list": [{"labels": {"multihost-run": "r"}}, {"labels": {"multihost-run": "r"}}], "state": {"state": "ACTIVE"}}`
		dies  = `delete_resource "{\"read\":\"$url/q\",\"method\":\"DELETE\",\"url\":\"$url/q?force=true\",\"proof\":{\"path\":\"/list/*/labels/multihost-run\",\"value\":\"r\"},\"going\":{\"path\":\"/state/state\",\"value\":\"DELETING\"}}"`
		stays = "rc=1 status=200 "
	)
	changed := func(from, to string) string { return strings.Replace(ours, from, to, 1) }
	for _, row := range []struct {
		story, call, answer string
		cut                 bool
		want                string
		deletes             bool
	}{
		{"a value", `api GET "$url/value"`, "17", false, "rc=0 status=200 reply=17 why=", false},
		{"a value that breaks off", `api GET "$url/value"`, "17", true, "rc=1 status=000 reply= why=no answer: curl: (18)", false},
		{"an option is no address", `api GET "-T/etc/passwd"`, "17", false, "rc=1 status=000 reply= why=no answer: curl: (", false},
		{"a file is no address", `api GET "file:///etc/passwd"`, "17", false, "rc=1 status=000 reply= why=no answer: curl: (1)", false},
		{"ours", dies, ours, false, "rc=0 status=200 ", true},
		{"ours, without spaces", dies, strings.ReplaceAll(ours, " ", ""), false, "rc=0 status=200 ", true},
		{"ours, of which a part came", dies, ours[:14], true, "rc=0 status=000 reply= why=it cannot be read: no answer: curl: (18)", false},
		{"a whole answer that is a part", dies, ours[:len(ours)-1], false, "rc=0 status=200 reply=" + ours[:len(ours)-1] + " why=it cannot be read: the answer is no JSON object", false},
		{"a page", dies, "<html>", false, "rc=0 status=200 reply=<html> why=it cannot be read: the answer is no JSON object", false},
		{"an empty object", dies, "{ }", false, "rc=0 status=200 reply={ } why=it cannot be read: the answer is no JSON object", false},
		{"another's", dies, strings.ReplaceAll(ours, `"r"`, `"s"`), false, stays, false},
		{"another's in part", dies, changed(`"r"`, `"s"`), false, stays, false},
		{"without a label in part", dies, changed(`"multihost-run": "r"`, ""), false, stays, false},
		{"without slices", dies, `{"name": "q", "list": []}`, false, stays, false},
		{"with the label elsewhere", dies, `{"name": "q", "labels": {"multihost-run": "r"}}`, false, stays, false},
		{"another's, with our label in a text", dies, `{"name": "q", "description": "\"list\": [{\"labels\": {\"multihost-run\": \"r\"}}]", "multihost-run": "r", "list": [{"labels": {"multihost-run": "s"}}]}`, false, stays, false},
		{"ours, and the terms delete another one", strings.Replace(dies, "q?force", "other?force", 1), ours, false, "rc=0 status= reply= why=the terms name another resource to delete: it stays", false},
		{"ours, and the terms have no proof", strings.Replace(dies, `"r\"`, `"\"`, 1), ours, false, "rc=0 status= reply= why=it stays: the terms do not say how it is deleted", false},
		{"ours, and there are no terms", "delete_resource x", ours, false, "rc=0 status= reply= why=it stays: the terms do not say how it is deleted", false},
		{"what is gone, and then ours", strings.Replace(strings.ReplaceAll(dies, "$url/q", "$url/gone"), "delete_resource", "delete_resources", 1) + strings.TrimPrefix(dies, "delete_resource"), ours, false, "rc=0 status=200 ", true},
		{"another's, and then ours", "delete_resources" + strings.Replace(strings.ReplaceAll(dies, `\"r\"`, `\"s\"`), "delete_resource", "", 1) + strings.TrimPrefix(dies, "delete_resource"), ours, false, "rc=0 status=200 ", true},
		{"another's, and then one that is gone", "delete_resources" + strings.Replace(strings.ReplaceAll(dies, `\"r\"`, `\"s\"`), "delete_resource", "", 1) + strings.ReplaceAll(strings.TrimPrefix(dies, "delete_resource"), "$url/q", "$url/gone"), ours, false, "rc=1 status=404 ", false},
		{"one that cannot be told, and then ours", "delete_resources x" + strings.TrimPrefix(dies, "delete_resource"), ours, false, "rc=0 status=200 ", true},
		{"ours, deleted already", dies, changed("ACTIVE", "DELETING"), false, "rc=0 status=200 ", false},
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
				if r.URL.Path == "/gone" {
					http.NotFound(w, r)
					return
				}
				if row.cut {
					w.Header().Set("Content-Length", fmt.Sprint(len(row.answer)+100))
				}
				fmt.Fprint(w, row.answer)
			}))
			defer server.Close()
			cmd := exec.CommandContext(t.Context(), "bash", "-c", gcp.VMScript+"\nset -u\nurl=$1\n"+row.call+
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

// The order is the same as that of the agent.
func TestAScriptDeletesItsOwnGroupLast(t *testing.T) {
	testkit.Need(t, "curl")
	for own, want := range map[string]string{
		"projects/17/zones/z/groups/x-0": "x-1 x-11 x-0",
		"projects/17/zones/z/groups/x-1": "x-11 x-0 x-1",
		"":                               "x-0 x-1 x-11",
	} {
		var mu sync.Mutex
		var asked []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/token"):
				fmt.Fprint(w, `{"access_token": "t"}`)
			case strings.HasSuffix(r.URL.Path, "/created-by") && own == "":
				http.NotFound(w, r)
			case strings.HasSuffix(r.URL.Path, "/created-by"):
				fmt.Fprint(w, own)
			default:
				if r.Method == http.MethodDelete {
					mu.Lock()
					asked = append(asked, path.Base(r.URL.Path))
					mu.Unlock()
				}
				fmt.Fprint(w, `{"l": "r"}`)
			}
		}))
		script := "\nset -u\n"
		for _, name := range []string{"x-0", "x-1", "x-11"} {
			group := server.URL + "/projects/p/zones/z/groups/" + name
			script += fmt.Sprintf(`set -- "$@" '{"read":"%[1]s","method":"DELETE","url":"%[1]s","proof":{"path":"/l","value":"r"}}'`+"\n", group)
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-c", gcp.VMScript+script+`delete_resources "$@" && printf %s "$why"`)
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "GCE_METADATA_HOST=" + strings.TrimPrefix(server.URL, "http://")}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 || strings.Join(asked, " ") != want {
			t.Errorf("made by %q: asked %q, want %q: %v, %s", own, asked, want, err, out)
		}
		server.Close()
	}
}

// An answer that should contain a token is never shown.
func TestNoTokenInAMessageOfAWorker(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "curl")
	for answer, want := range map[string]string{
		`{"access_token": "secret", `: "no access token: the answer of the metadata server has none",
		`{"access_token": "secret"`:   "no access token: curl: (18)",
		`"access_token": "secret"`:    "no access token: the answer of the metadata server has none",
		`{"error": "for secret"}`:     "no access token: the answer of the metadata server has none",
		"":                            "no access token: the answer of the metadata server has none",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(want, "curl") {
				w.Header().Set("Content-Length", "1000")
			}
			fmt.Fprint(w, answer)
		}))
		cmd := exec.CommandContext(t.Context(), "bash", "-c", gcp.VMScript+"\napi GET https://127.0.0.1:9/\nprintf '%s %s' \"$why\" \"$reply\"")
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "GCE_METADATA_HOST=" + strings.TrimPrefix(server.URL, "http://")}
		out, err := cmd.CombinedOutput()
		server.Close()
		if err != nil || !strings.HasPrefix(string(out), want) || strings.Contains(string(out), "secret") {
			t.Errorf("%q: %v, %q, want %q", answer, err, out, want)
		}
	}
}
