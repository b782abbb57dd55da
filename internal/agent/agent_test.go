package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"multihost/internal/agent"
	"multihost/internal/fault"
)

// inMemory passes requests to a handler, without a network.
type inMemory func(w *httptest.ResponseRecorder, r *http.Request)

func (h inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if strings.HasSuffix(r.URL.Path, "/token") {
		fmt.Fprint(w, `{"access_token": "t"}`)
		return w.Result(), nil
	}
	if h(w, r); w.Code == 0 {
		return nil, errors.New("connection refused")
	}
	return w.Result(), nil
}

func clientOf(h inMemory) *agent.Client {
	return &agent.Client{Metadata: &agent.Metadata{Transport: h}, Transport: h}
}

const ours = `{"name": "q", "tpu": {"nodeSpec": [{"node": {"labels": {"multihost-run": "r"}}}, {"node": {"labels": {"multihost-run": "r"}}}]}, "state": {"state": "ACTIVE"}}`

// Delete deletes a resource only if it has read the whole resource and has found the proof
// in the right field. Other text in the resource does not matter.
func TestDeleteReadsBeforeItDeletes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status  int
		answer  string
		want    string
		deletes bool
	}{
		"ours":                          {200, ours, "", true},
		"gone":                          {404, `{}`, "", false},
		"being deleted":                 {200, strings.Replace(ours, "ACTIVE", "DELETING", 1), "", false},
		"another's":                     {200, strings.ReplaceAll(ours, `"r"`, `"s"`), agent.ErrForeign.Error(), false},
		"another's in part":             {200, strings.Replace(ours, `"r"`, `"s"`, 1), agent.ErrForeign.Error(), false},
		"the proof is a user's text":    {200, `{"name": "q", "description": "\"multihost-run\": \"r\"", "labels": {"multihost-run": "r"}}`, agent.ErrForeign.Error(), false},
		"no slices":                     {200, `{"name": "q", "tpu": {"nodeSpec": []}}`, agent.ErrForeign.Error(), false},
		"a part of it":                  {200, ours[:len(ours)-20], "it cannot be read: the answer is no JSON object", false},
		"a page":                        {200, "<html>", "it cannot be read: the answer is no JSON object", false},
		"an empty object":               {200, "{}", "it cannot be read: the answer is no JSON object", false},
		"it may not be read":            {403, `{"error": {"message": "no\nright"}}`, "it cannot be read: HTTP status 403: no right", false},
		"it may not be deleted":         {200, strings.Replace(ours, `"q"`, `"denied"`, 1), "HTTP status 403: denied", true},
		"it is gone before the request": {200, strings.Replace(ours, `"q"`, `"late"`, 1), "", true},
	} {
		var asked []string
		client := clientOf(func(w *httptest.ResponseRecorder, r *http.Request) {
			asked = append(asked, r.Method+" "+r.URL.RequestURI())
			switch {
			case r.Method == http.MethodGet:
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.answer)
			case strings.Contains(c.answer, "denied"):
				http.Error(w, `{"error": {"message": "denied"}}`, http.StatusForbidden)
			case strings.Contains(c.answer, "late"):
				http.NotFound(w, r)
			}
		})
		err := client.Delete(t.Context(), []agent.Deletion{deletion})
		if text := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && text != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if got := slices.Contains(asked, "DELETE /q?force=true"); got != c.deletes {
			t.Errorf("%s: asked %q", name, asked)
		}
	}
}

var deletion = agent.Deletion{Read: "https://cloud/q", Method: http.MethodDelete, URL: "https://cloud/q?force=true", Probe: "https://cloud/none",
	Proof: agent.Field{Path: "/tpu/nodeSpec/*/node/labels/multihost-run", Value: "r"}, Going: agent.Field{Path: "/state/state", Value: "DELETING"}}

// Delete requests all parts of a deletion in order. If a part is refused or belongs to
// another run, Delete continues. The error names each of these resources and says why.
func TestDeleteKeepsTheOrder(t *testing.T) {
	t.Parallel()
	var asked []string
	client := clientOf(func(w *httptest.ResponseRecorder, r *http.Request) {
		asked = append(asked, r.Method+r.URL.Path)
		if r.URL.Path == "/b" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintf(w, `{"l": %q}`, strings.TrimSuffix(r.URL.Path, "-other"))
	})
	var all []agent.Deletion
	for _, name := range []string{"/a", "/b", "/c-other", "/d"} {
		all = append(all, agent.Deletion{Read: "https://cloud" + name, Method: http.MethodPost, URL: "https://cloud" + name, Proof: agent.Field{Path: "/l", Value: name}})
	}
	if err := client.Delete(t.Context(), all); agent.StatusOf(err) != http.StatusInternalServerError || errors.Is(err, agent.ErrForeign) || !strings.HasPrefix(err.Error(), "b: it cannot be read: ") {
		t.Errorf("got %v", err)
	}
	if want := []string{"GET/computeMetadata/v1/instance/attributes/created-by", "GET/a", "POST/a", "GET/b", "GET/c-other", "GET/d", "POST/d"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if err := client.Delete(t.Context(), append(all[:1:1], all[2:]...)); err != nil {
		t.Errorf("the deletions that were accepted may fail later: got %v", err)
	}
	if err := client.Delete(t.Context(), all[2:3]); !errors.Is(err, agent.ErrForeign) {
		t.Errorf("only another run's is left: got %v", err)
	}
}

// Each worker deletes its own group last, and begins with the group behind it.
func TestAWorkerDeletesItsOwnGroupLast(t *testing.T) {
	t.Parallel()
	const zone = "https://cloud/compute/v1/projects/p/zones/z/instanceGroupManagers/"
	var all []agent.Deletion
	for _, name := range []string{"x-0", "x-1", "x-11"} {
		all = append(all, agent.Deletion{Read: zone + name, Method: http.MethodDelete, URL: zone + name, Proof: agent.Field{Path: "/l", Value: "r"}})
	}
	for own, want := range map[string]string{
		"projects/17/zones/z/instanceGroupManagers/x-0":  "x-1 x-11 x-0",
		"projects/17/zones/z/instanceGroupManagers/x-1":  "x-11 x-0 x-1",
		"projects/17/zones/z/instanceGroupManagers/x-11": "x-0 x-1 x-11",
		"projects/17/zones/z/instanceGroupManagers/y":    "x-0 x-1 x-11",
		"strange": "x-0 x-1 x-11", "": "x-0 x-1 x-11",
	} {
		var asked []string
		client := clientOf(func(w *httptest.ResponseRecorder, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/attributes/created-by") && own == "":
				w.WriteHeader(http.StatusNotFound)
			case strings.HasSuffix(r.URL.Path, "/attributes/created-by"):
				fmt.Fprintln(w, own)
			default:
				if r.Method == http.MethodDelete {
					asked = append(asked, path.Base(r.URL.Path))
				}
				fmt.Fprint(w, `{"l": "r"}`)
			}
		})
		if err := client.Delete(t.Context(), all); err != nil || strings.Join(asked, " ") != want {
			t.Errorf("made by %q: asked %q, want %q: %v", own, asked, want, err)
		}
	}
}

func TestFieldIn(t *testing.T) {
	t.Parallel()
	value := map[string]any{"a": map[string]any{"x/y~": "1", "n": 1.0}, "l": []any{"1", "2"}, "same": []any{"1", "1"}}
	for path, want := range map[string]bool{
		"/a/x~1y~0": true, "/a/n": false, "/a/none": false, "a/x~1y~0": false, "/a": false, "": false,
		"/l/0": true, "/l/1": false, "/l/2": false, "/l/-1": false, "/l/*": false, "/same/*": true, "/l/0/0": false, "/": false,
	} {
		if got := (agent.Field{Path: path, Value: "1"}).In(value); got != want {
			t.Errorf("%q: got %v", path, got)
		}
	}
}

// If the caller may delete, the API answers that the resource does not exist.
func TestMayDelete(t *testing.T) {
	t.Parallel()
	const broken = 0
	for name, c := range map[string]struct {
		answers []int // the last one repeats
		want    bool
		tries   int
	}{
		"may": {[]int{404}, true, 1}, "may not": {[]int{403}, false, 1}, "a wrong request": {[]int{400}, false, 1}, "away": {[]int{503}, false, 4},
		"away for a moment": {[]int{503, 429, broken, 404}, true, 4}, "away, and may not": {[]int{broken, 403}, false, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			client := clientOf(func(w *httptest.ResponseRecorder, r *http.Request) {
				if r.Method != http.MethodDelete || r.URL.Path != "/none" {
					t.Errorf("asked %s %s", r.Method, r.URL)
				}
				status := c.answers[min(tries, len(c.answers)-1)]
				if tries++; status == broken {
					w.Code = 0
					return
				}
				w.WriteHeader(status)
			})
			if err := client.MayDelete(t.Context(), []agent.Deletion{deletion}); (err == nil) != c.want || tries != c.tries {
				t.Errorf("%s: got %v after %d tries", name, err, tries)
			}
		})
	}
}

// If the metadata server gives no token, nothing is known of the resource or of the
// worker's permission.
func TestATokenThatIsRefusedIsNoAnswerOfAnAPI(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]fault.Kind{http.StatusNotFound: fault.Unavailable, http.StatusForbidden: fault.Permission} {
		client := &agent.Client{Metadata: &agent.Metadata{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "/service-accounts/default/token") {
				t.Errorf("asked %s", r.URL)
			}
			w := httptest.NewRecorder()
			http.Error(w, "refused", status)
			return w.Result(), nil
		})}, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			t.Errorf("asked %s without a token", r.URL)
			return nil, errors.New("no")
		})}
		_, err := client.Do(t.Context(), agent.Call{Method: http.MethodGet, URL: "https://cloud/q"})
		text := fmt.Sprintf("no access token: HTTP status %d: refused", status)
		if err == nil || agent.StatusOf(err) != 0 || fault.Of(err) != want || err.Error() != text {
			t.Errorf("%d: got %v of status %d and kind %v", status, err, agent.StatusOf(err), fault.Of(err))
		}
		all := []agent.Deletion{deletion}
		if err := client.Delete(t.Context(), all); err == nil || !strings.HasSuffix(err.Error(), text) {
			t.Errorf("%d: Delete: got %v", status, err)
		}
		if err := client.MayDelete(t.Context(), all); err == nil || err.Error() != text {
			t.Errorf("%d: MayDelete: got %v", status, err)
		}
		b := &agent.Bucket{Name: "b", Storage: "https://S", Client: client}
		if _, _, err := b.List(t.Context(), ""); agent.StatusOf(err) != 0 {
			t.Errorf("%d: List: got %v", status, err)
		}
	}
}

// While the metadata server does not answer, the agent repeats the request for about a
// minute. If a value does not exist, the agent does not repeat the request for it.
func TestMetadataIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		up   time.Duration
		code int
		want string
		took time.Duration
	}{
		"at once":     {0, 200, "a\nb <nil>", 0},
		"after 5 s":   {5 * time.Second, 200, "a\nb <nil>", 7 * time.Second},
		"never":       {time.Hour, 200, " no answer: connection refused", 63 * time.Second},
		"no value":    {0, 404, " HTTP status 404: a\nb", 0},
		"has trouble": {0, 503, " HTTP status 503: a\nb", 63 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			m := agent.Metadata{Transport: inMemory(func(w *httptest.ResponseRecorder, r *http.Request) {
				if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.String() != "http://169.254.169.254/computeMetadata/v1/instance/a/b" {
					t.Errorf("asked %s", r.URL)
				}
				if time.Since(begin) < c.up {
					w.Code = 0
					return
				}
				w.WriteHeader(c.code)
				fmt.Fprint(w, "a\nb\n\n")
			})}
			value, err := m.Value(t.Context(), "a/b")
			if got := fmt.Sprint(value, " ", err); got != c.want && !strings.Contains(got, strings.ReplaceAll(c.want, "\n", " ")) || time.Since(begin) != c.took {
				t.Errorf("%s: got %q after %v", name, got, time.Since(begin))
			}
		})
	}
}

// A malformed answer may contain a token.
func TestNoMessageHasAToken(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"ya29.hush", `{"token": "ya29.hush"}`, `{"access_token": "ya29.hush"`} {
		m := agent.Metadata{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			fmt.Fprint(w, answer)
			return w.Result(), nil
		})}
		if token, err := m.Token(t.Context()); token != "" || err == nil || strings.Contains(err.Error(), "ya29") {
			t.Errorf("%s: got %q, %v", answer, token, err)
		}
	}
}

// The agent soon gives up a call that hangs, for example because a connection was lost
// without a reset. A call that makes progress may take much longer.
func TestACallThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		begin := time.Now()
		client := &agent.Client{Held: "t", Transport: hangs, Limit: 10 * time.Minute}
		_, err := client.Do(t.Context(), agent.Call{Method: http.MethodGet, URL: "https://cloud/b"})
		if agent.StatusOf(err) != 0 || err.Error() != "no answer: nothing came for 1m0s" || time.Since(begin) != time.Minute {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
		slow := roundTrip(func(r *http.Request) (*http.Response, error) {
			for buffer := make([]byte, 1); ; <-time.After(50 * time.Second) {
				if _, err := r.Body.Read(buffer); err != nil {
					break
				}
			}
			return httptest.NewRecorder().Result(), r.Context().Err()
		})
		client.Transport = slow
		if _, err := client.Do(t.Context(), agent.Call{Method: http.MethodPost, URL: "https://cloud/b", Body: strings.NewReader("abcde"), Size: 5}); err != nil {
			t.Errorf("got %v", err)
		}
		if _, err := client.Do(t.Context(), agent.Call{Method: http.MethodPost, URL: "https://cloud/b", Body: strings.NewReader("123456789abcde"), Size: 14}); err == nil || err.Error() != "no answer: it took longer than 10m0s" {
			t.Errorf("got %v", err)
		}
	})
}

type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An incomplete answer is an error. No error contains the token.
func TestABrokenAnswerIsNone(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("got %v", r.Header)
		}
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "17")
	}))
	defer server.Close()
	client := &agent.Client{Held: "secret", Transport: http.DefaultTransport}
	answer, err := client.Do(t.Context(), agent.Call{Method: http.MethodGet, URL: server.URL})
	if agent.StatusOf(err) != 0 || answer.Body != nil || err.Error() != "no answer: unexpected EOF" {
		t.Errorf("got %q, %v", answer.Body, err)
	}
	var into strings.Builder
	if _, err = client.Do(t.Context(), agent.Call{Method: http.MethodGet, URL: server.URL, Into: &into}); agent.StatusOf(err) != 0 || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
	server.Close()
	if _, err = client.Do(t.Context(), agent.Call{Method: http.MethodGet, URL: server.URL}); err == nil || strings.Contains(err.Error(), "://") {
		t.Errorf("got %v", err)
	}
}

// A list has several pages. The name of the next page may have special characters.
func TestAllPagesOfAListAreRead(t *testing.T) {
	t.Parallel()
	var asked []string
	b := &agent.Bucket{Name: "b", Prefix: "r/", Storage: "https://S", Client: clientOf(func(w *httptest.ResponseRecorder, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		w.Header().Set("Date", "Mon, 30 Nov 2026 01:21:00 GMT")
		if r.URL.Query().Get("pageToken") == "" {
			fmt.Fprint(w, `{"items": [{"name": "r/ended/1/s0w0.0", "size": "4", "generation": "7", "updated": "2026-11-30T01:20:00.1Z"}], "nextPageToken": "a+/b="}`)
		} else {
			fmt.Fprint(w, `{"items": [{"name": "r/ended/1/s0w1.3"}]}`)
		}
	})}
	all, date, err := b.List(t.Context(), "ended/1/")
	if err != nil || len(all) != 2 || all[1].Name != "ended/1/s0w1.3" || all[0].Size != 4 || all[0].Generation != 7 || date.Sub(all[0].Updated) != 59900*time.Millisecond {
		t.Errorf("got %+v, %v, %v", all, date, err)
	}
	if want := []string{"prefix=r%2Fended%2F1%2F", "prefix=r%2Fended%2F1%2F&pageToken=a%2B%2Fb%3D"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := agent.Sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
