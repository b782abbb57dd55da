package detach_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	storage "google.golang.org/api/storage/v1"

	"multihost/internal/detach"
	"multihost/internal/gcp"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// objects is a bucket that loses the answer to one upload.
type objects struct {
	mu   sync.Mutex
	lose string // end of the name of the upload without an answer; empty: none, or not any more
	data map[string][]byte
}

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	answer := func(code int, body []byte) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(body)
	}
	if r.Method == http.MethodGet {
		_, name, _ := strings.Cut(r.URL.Path, "/o/")
		if data, ok := o.data[name]; ok {
			answer(http.StatusOK, data)
			return
		}
		answer(http.StatusNotFound, []byte("{}"))
		return
	}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		answer(http.StatusBadRequest, []byte("{}"))
		return
	}
	parts := multipart.NewReader(r.Body, params["boundary"])
	var meta struct{ Name string }
	var media []byte
	if p, err := parts.NextPart(); err == nil && json.NewDecoder(p).Decode(&meta) == nil {
		if p, err = parts.NextPart(); err == nil {
			media, _ = io.ReadAll(p)
		}
	}
	if o.data[meta.Name] != nil && r.URL.Query().Get("ifGenerationMatch") == "0" {
		answer(http.StatusPreconditionFailed, []byte("{}"))
		return
	}
	o.data[meta.Name] = media
	if o.lose != "" && strings.HasSuffix(meta.Name, o.lose) {
		o.lose = ""
		answer(http.StatusServiceUnavailable, []byte("{}"))
		return
	}
	answer(http.StatusOK, []byte("{}"))
}

// openOn opens a bucket that this server has.
func openOn(t *testing.T, storage http.Handler) *detach.Bucket {
	t.Helper()
	server := httptest.NewServer(storage)
	t.Cleanup(server.Close)
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, StorageEndpoint: server.URL + "/storage/v1/"})
	t.Cleanup(cloud.Close)
	b, err := detach.Open(t.Context(), cloud, "bucket", "")
	testkit.Must(t, err)
	return b
}

func TestALostAnswerIsNotTakenForAnotherRunOfThatName(t *testing.T) {
	t.Parallel()
	for _, lose := range []string{"kit.tar.gz", "run.json"} {
		b := openOn(t, &objects{lose: lose, data: map[string][]byte{}})
		testkit.Must(t, b.Create(t.Context(), &detach.Job{Run: "r"}, aRun, nil, nil, nil))
		var taken *detach.ExistsError
		if err := b.Create(t.Context(), &detach.Job{Run: "r"}, aRun, nil, nil, nil); !errors.As(err, &taken) {
			t.Errorf("got %v for the same run again, want that its name is taken", err)
		}
	}
}

var aRun = detach.Description{Run: "r", Resource: "r", Nodes: []string{"r"}, Workers: 1, Login: "ann"}

// Workers may write to the bucket, and anybody may have written their programs.
func TestForgedDescriptionIsRefused(t *testing.T) {
	t.Parallel()
	const good = `{"run":"r","queued_resource":"r","slices":["r-0","r-1"],"workers_per_slice":4,"login":"ann"}`
	o := &objects{data: map[string][]byte{"r/run.json": []byte(good)}}
	b := openOn(t, o)
	d, err := b.Describe(t.Context(), "r")
	testkit.Must(t, err)
	if n := len(d.IDs()); n != 8 {
		t.Errorf("%d workers, want 8", n)
	}
	for _, forged := range [][2]string{
		{`"run":"r"`, `"run":"../../.ssh"`},
		{`"queued_resource":"r"`, `"queued_resource":"r; reboot"`},
		{`"r-1"`, `"../r"`},
		{`["r-0","r-1"]`, `[]`},
		{`:4`, `:-1`},
		{`:4`, `:1000000000000`},
		{`"ann"`, `"-oProxyCommand=x"`},
		{`:4`, `:4,"attempt":1000000000`},
	} {
		o.mu.Lock()
		o.data["r/run.json"] = []byte(strings.Replace(good, forged[0], forged[1], 1))
		o.mu.Unlock()
		if d, err := b.Describe(t.Context(), "r"); err == nil {
			t.Errorf("%s: accepted as %+v", forged[1], d)
		}
	}
	if _, err := b.Describe(t.Context(), ".."); err == nil {
		t.Error("a run may be called ..")
	}
}

// Reading the objects of 256 workers one after the other would take half a minute across
// the Atlantic.
func TestEndsAreReadBesideEachOther(t *testing.T) {
	t.Parallel()
	const workers = 8
	p := &page{all: make(chan struct{})}
	for i := range workers {
		p.names = append(p.names, fmt.Sprintf("r/ended/1/s0w%d.%d", i, i))
	}
	s, err := openOn(t, p).State(t.Context(), "r")
	testkit.Must(t, err)
	if len(s.Ended) != workers || s.Ended[7].Code != 7 || s.Ended[7].Reason != "enough" {
		t.Errorf("got %+v", s.Ended)
	}
}

// The verdict follows the same rule as over SSH. A run has succeeded only if every worker
// ended with 0 or is excused as a training's tail.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		ends    string // WORKER.CODE and seconds, then fields; separated by ";"
		strict  bool
		blame   string // Blame's words about a worker; "": success
		code    int
		excused string
	}{
		{name: "all succeed", ends: "s0w0.0 10;s0w1.0 11"},
		{name: "a tail", ends: "s0w0.0 10;s0w1.134 11 tail=1;s0w2.1 69.9 tail=1", excused: "s0w[1-2]"},
		{name: "strictly", ends: "s0w0.0 10;s0w1.134 11 tail=1", strict: true, blame: "s0w1", code: 134},
		{name: "an ordinary failure beside it", ends: "s0w0.0 10;s0w1.134 11 tail=1;s0w2.100 12", blame: "s0w2", code: 100, excused: "s0w1"},
		{name: "a minute later", ends: "s0w0.0 10;s0w1.134 70 tail=1", blame: "s0w1", code: 134},
		{name: "before worker 0's success", ends: "s0w0.0 10;s0w1.134 9.9 tail=1", blame: "s0w1", code: 134},
		{name: "worker 0 has failed", ends: "s0w0.1 10;s0w1.134 11 tail=1", blame: "s0w0", code: 1},
		{name: "worker 0 of another slice", ends: "s0w0.1 12;s1w0.0 10;s1w1.134 11 tail=1", blame: "s1w1", code: 134},
		{name: "others were stopped for it", ends: "s0w0.0 10;s0w1.134 11 tail=1;s0w2.143 12 reason=fail-fast: a worker failed", blame: "s0w1", code: 134},
		{name: "an end that nobody has seen", ends: "s0w0.0 10;s0w1.134 11 tail=1 lost=1", blame: "s0w1", code: 134},
		{name: "worker 0's end is not known", ends: "s0w0.0 10 lost=1;s0w1.134 11 tail=1", blame: "s0w0", code: 69},
		{name: "a status that is not known", ends: "s0w0.0 10;s0w1.unknown 11", blame: "s0w1", code: 69},
		{name: "no status", ends: "s0w0.0 10;s0w1 11", blame: "s0w1", code: 69},
		{name: "clocks that differ", ends: "s0w0.0 3610 skew=3600;s0w1.134 11 tail=1", excused: "s0w1"},
		{name: "first by corrected clocks", ends: "s0w0.1 3612 skew=3600;s0w1.2 13;s0w2.3 14", blame: "s0w0", code: 1},
		{name: "who was stopped is never first", ends: "s0w0.143 5 reason=fail-fast: a worker failed;s0w1.9 10", blame: "s0w1", code: 9},
		{name: "nor before one that did not start", ends: "s0w0.143 5 reason=fail-fast: a worker failed;s0w1.77 10 reason=no bucket", blame: "s0w1", code: 77},
	} {
		var p ends
		for end := range strings.SplitSeq(c.ends, ";") {
			name, rest, _ := strings.Cut(end, " ")
			at, fields, _ := strings.Cut(rest, " ")
			seconds, err := strconv.ParseFloat(at, 64)
			testkit.Must(t, err)
			key, value, _ := strings.Cut(fields, "=")
			if key != "reason" {
				fields = strings.ReplaceAll(fields, " ", "\n")
			} else {
				fields = key + "=" + value
			}
			p = append(p, [2]string{"r/ended/1/" + name, fmt.Sprintf("end=%d\n%s\n", int64(1.7e18+seconds*1e9), fields)})
		}
		s, err := openOn(t, p).State(t.Context(), "r")
		testkit.Must(t, err)
		s.StrictExit = c.strict
		blame, code := "", 0
		if first := s.Blame(); first != nil {
			blame, code = first.Worker.String(), first.Code
		}
		if excused := tpu.Fold(s.Excused()); blame != c.blame || code != c.code || excused != c.excused {
			t.Errorf("%s: %q is to blame, %d, excused %q; want %q, %d, %q", c.name, blame, code, excused, c.blame, c.code, c.excused)
		}
	}
}

// ends is a bucket with these objects: name and text.
type ends [][2]string

func (p ends) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	list := storage.Objects{}
	for _, o := range p {
		if strings.HasPrefix(o[0], r.URL.Query().Get("prefix")) {
			list.Items = append(list.Items, &storage.Object{Name: o[0]})
		}
		if strings.HasSuffix(r.URL.Path, "/o/"+o[0]) {
			_, _ = io.WriteString(w, o[1])
			return
		}
	}
	if !strings.HasSuffix(r.URL.Path, "/o") {
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(list)
}

// A page is a bucket with ends of workers. It answers when all ends have been requested.
type page struct {
	names []string
	asked atomic.Int64
	all   chan struct{}
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/o"):
		list := storage.Objects{}
		for _, name := range p.names {
			if strings.HasPrefix(name, r.URL.Query().Get("prefix")) {
				list.Items = append(list.Items, &storage.Object{Name: name})
			}
		}
		_ = json.NewEncoder(w).Encode(list)
	case strings.Contains(r.URL.Path, "/ended/"):
		if p.asked.Add(1) == int64(len(p.names)) {
			close(p.all)
		}
		select {
		case <-p.all:
			_, _ = io.WriteString(w, "reason=enough\n")
		case <-time.After(30 * time.Second):
			http.Error(w, "nobody asks for the others", http.StatusNotFound)
		}
	default:
		http.NotFound(w, r)
	}
}

// A log comes whole, and no piece is larger than requested.
func TestLogInPieces(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 9, 10, 11, 20, 25} {
		text := strings.Repeat("0123456789", 3)[:size]
		b := openOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "log", time.Time{}, strings.NewReader(text))
		}))
		var got strings.Builder
		most := 0
		n, err := b.LogInPieces(t.Context(), "r", tpu.WorkerID{}, 1, 0, 10, writes(func(p []byte) (int, error) {
			most = max(most, len(p))
			return got.Write(p)
		}))
		if err != nil || n != int64(size) || got.String() != text || most > 10 {
			t.Errorf("%d bytes: got %d, %q, with up to %d at once, %v", size, n, got.String(), most, err)
		}
	}
}

type writes func(p []byte) (int, error)

func (f writes) Write(p []byte) (int, error) { return f(p) }

// An attempt is given up if each worker that has come has ended, and none by its command.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	first, second := tpu.WorkerID{}, tpu.WorkerID{Worker: 1}
	stopped, failed, well := detach.End{Code: 143, Reason: "stopped by ann"}, detach.End{Code: 1}, detach.End{Reason: "x"}
	for name, c := range map[string]struct {
		s    detach.State
		want bool
	}{
		"nobody has come":            {detach.State{}, false},
		"all that came were stopped": {detach.State{Seen: []detach.Seen{{Worker: first}}, Ended: []detach.End{stopped}}, true},
		"another one has come":       {detach.State{Seen: []detach.Seen{{Worker: first}, {Worker: second}}, Ended: []detach.End{stopped}}, false},
		"its command failed":         {detach.State{Seen: []detach.Seen{{Worker: first}}, Ended: []detach.End{failed}}, false},
		"its command succeeded":      {detach.State{Seen: []detach.Seen{{Worker: first}}, Ended: []detach.End{well}}, false},
	} {
		if got := c.s.GivenUp(); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
