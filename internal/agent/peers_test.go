package agent_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"multihost/internal/agent"
)

var (
	nodes = agent.Peers{Read: "https://cloud/nodes/{slice}:attributes", Body: `{"q":"lease"}`, Told: "/all/*/items/*/value"}
	vms   = agent.Peers{
		List: "https://cloud/groups/{slice}/list", Names: "/vms/*/vm", States: "/vms/*/state", Idle: "STAGING TERMINATED", More: "/next",
		Read: "https://cloud/vms/{vm}/attributes?path=multihost/lease", Told: "/items/*/value",
	}
)

// Told reads reports in one call, or in one call for each VM that can run a command.
func TestTold(t *testing.T) {
	t.Parallel()
	const list = "POST /groups/m-0/list"
	vm := func(n int) string { return fmt.Sprintf("GET /vms/vm-%d/attributes?path=multihost/lease", n) }
	running := func(n int) string {
		return fmt.Sprintf(`{"vm":"https://c/zones/z/instances/vm-%d","state":"RUNNING"}`, n)
	}
	one := fmt.Sprintf(`{"vms":[%s]}`, running(0))
	said := func(text string) string { return fmt.Sprintf(`{"items":[{"value":%q}]}`, text) }
	for name, row := range map[string]struct {
		peers   agent.Peers
		answers map[string]string // answers by call; "404 …" refuses the call; calls without an answer are not found
		want    []string
		workers int
		err     string
	}{
		"a slice":                {nodes, map[string]string{"POST /nodes/m-0:attributes": `{"all":[{"items":[{"value":"a"}]},{},{"items":[{"value":"b"}]}]}`}, []string{"a", "", "b"}, -1, ""},
		"a slice that is gone":   {nodes, nil, nil, -1, "HTTP status 404"},
		"VMs":                    {vms, map[string]string{list: fmt.Sprintf(`{"vms":[%s,%s]}`, running(0), running(1)), vm(0): said("a"), vm(1): said("b")}, []string{"a", "b"}, 2, ""},
		"VMs that do not run":    {vms, map[string]string{list: `{"vms":[{"vm":"vm-0"},{"vm":"vm-1","state":"STAGING"},` + running(2) + `,{"vm":"vm-3","state":"TERMINATED"},{"vm":"vm-4","state":"STOPPING"}]}`, vm(2): said("c"), vm(4): said("e")}, []string{"c", "e"}, 2, ""},
		"no VMs":                 {vms, map[string]string{list: `{}`}, nil, 0, ""},
		"a VM that has not told": {vms, map[string]string{list: one}, nil, 1, ""},
		"a group that is gone":   {vms, nil, nil, 0, "HTTP status 404"},
		"a part of the list":     {vms, map[string]string{list: `{"next":"t","vms":[` + running(0) + `]}`, vm(0): said("a")}, nil, 0, "the list of its VMs is not whole"},
		"a list that is none":    {vms, map[string]string{list: `[]`}, nil, 0, "the answer is no JSON object"},
		"no right to list":       {vms, map[string]string{list: "403 no"}, nil, 0, "HTTP status 403: no"},
		"no right to read":       {vms, map[string]string{list: one, vm(0): "403 no"}, nil, 1, "VM vm-0: HTTP status 403: no"},
		"a VM that is away":      {vms, map[string]string{list: one, vm(0): "503 away"}, nil, 1, "VM vm-0: HTTP status 503: away"},
		"nobody says how":        {agent.Peers{}, nil, nil, 0, "the terms do not say how it is read"},
	} {
		var mu sync.Mutex
		client := clientOf(func(w *httptest.ResponseRecorder, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			answer, ok := row.answers[r.Method+" "+r.URL.RequestURI()]
			if _, text, refused := strings.Cut(answer, " "); !ok {
				http.NotFound(w, r)
			} else if refused && answer[0] != '{' {
				var status int
				_, _ = fmt.Sscan(answer, &status)
				http.Error(w, text, status)
			} else {
				fmt.Fprint(w, answer)
			}
		})
		got, workers, err := client.Told(t.Context(), row.peers, "m-0")
		slices.Sort(got)
		slices.Sort(row.want)
		if (row.err == "") != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), row.err) {
			t.Errorf("%s: got %v, want %q", name, err, row.err)
		}
		if workers != row.workers || err == nil && !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q of %d, want %q of %d", name, got, workers, row.want, row.workers)
		}
	}
}

// A worker without reports to read may still have the permission.
func TestMayRead(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		peers      agent.Peers
		list, read int // statuses
		want       int
	}{
		"may":                     {vms, 200, 200, 200},
		"nobody has told":         {vms, 200, 404, 200},
		"the slice is gone":       {vms, 404, 200, 200},
		"may not list":            {vms, 403, 200, 403},
		"may not read":            {vms, 200, 403, 403},
		"the API is away":         {vms, 200, 503, 503},
		"may not read of a slice": {nodes, 200, 403, 403},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := clientOf(func(w *httptest.ResponseRecorder, r *http.Request) {
				status := row.read
				if strings.HasSuffix(r.URL.Path, "/list") {
					status = row.list
				}
				w.WriteHeader(status)
				fmt.Fprint(w, `{"vms":[{"vm":"vm-0","state":"RUNNING"}]}`)
			})
			if err := client.MayRead(t.Context(), row.peers, "m-0"); agent.StatusOf(err) != row.want {
				t.Errorf("%s: got %v, want %d", name, err, row.want)
			}
		})
	}
}
