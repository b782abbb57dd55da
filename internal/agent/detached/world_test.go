//go:build unix

package detached

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"multihost/internal/agent"
)

// A world has what one worker calls, in memory: a metadata server, a bucket, the API that
// deletes slices, and programs that do what a test says. It lives in a bubble of package
// synctest.
type world struct {
	t     *testing.T
	dir   string
	begin time.Time
	keys  map[string]string
	out   bytes.Buffer

	mu       sync.Mutex
	values   map[string]string  // values of the metadata server
	objects  map[string]*stored // objects by name below r/
	refuse   func(method, name string) int
	resource string // resource to delete; "": it is gone
	secrets  map[string]string
	note     func(text string) // called with each act of the worker
	tokens   int

	program func(p Program) (Output, bool) // answers in place of the defaults below
	end     map[int]time.Duration          // how long commands run …
	record  map[int]string                 // … and how they end; "": with exit code 0
	began   map[int]time.Time
	log     map[int]string
}

type stored struct {
	data       []byte
	generation int64
	updated    time.Time
}

func inWorld(t *testing.T, story func(w *world)) {
	t.Helper()
	inWorldAt(t, t.TempDir(), story)
}

// inWorldAt is inWorld with the worker's files in dir.
func inWorldAt(t *testing.T, dir string, story func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, dir: dir, begin: time.Now(), objects: map[string]*stored{}, note: func(string) {}, resource: `{"name": "q", "l": "r"}`,
			end: map[int]time.Duration{}, record: map[int]string{}, began: map[int]time.Time{}, log: map[int]string{}}
		w.values = map[string]string{"attributes/tpu-env": "WORKER_ID: '0'\nNODE_ID: 'r'\n", "network-interfaces/0/ip": "10.0.0.2", "attributes/worker-network-endpoints": "x:y:10.0.0.1,x:y:10.0.0.2",
			"attributes/ssh-keys": "ann:ssh-ed25519 AAAA ann"}
		w.keys = map[string]string{"run": "r", "nodes": "r", "prefix": "r/", "claim": "c", "bucket": "b", "storage": "https://S", "upload": "https://U", "secretmanager": "https://sm/v1",
			"code_sum": "none", "resource": "q", "preflight": "off", "deletion": `{"read": "https://tpu/q", "method": "DELETE", "url": "https://tpu/q?force=true", "proof": {"path": "/l", "value": "r"}, "probe": "https://tpu/none"}`}
		w.kit(map[string]string{"bootstrap": "b", "arm": "a", "status": "s", "stop": "s", "free": "f", "venv": "v", "preflight": "p", "unpack": "u",
			"meta": "m", "argv": "dir\x00script\x00bash\x00", "env": "A=1\x00", "script": "true\n", "limit": "9\n"})
		story(w)
	})
}

// kit puts the files of a kit into the bucket.
func (w *world) kit(files map[string]string) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	pack := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		_ = pack.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(files[name]))})
		_, _ = io.WriteString(pack, files[name])
	}
	pack.Close()
	z.Close()
	w.put("starts/c/kit.tar.gz", b.Bytes())
	sum := sha256.Sum256(b.Bytes())
	w.keys["kit_sum"] = hex.EncodeToString(sum[:])
}

func (w *world) put(name string, data []byte) {
	old := w.objects[name]
	next := &stored{data: data, generation: 1, updated: time.Now()}
	if old != nil {
		next.generation = old.generation + 1
	}
	w.objects[name] = next
}

// text returns an object, or "" if it does not exist.
func (w *world) text(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.objects[name]; o != nil {
		return string(o.data)
	}
	return ""
}

func (w *world) since() int { return int(time.Since(w.begin).Seconds()) }

func (w *world) config() Config {
	var text strings.Builder
	for key, value := range w.keys {
		fmt.Fprintf(&text, "%s=%s\n", key, value)
	}
	w.mu.Lock()
	w.values["attributes/multihost-job"] = text.String()
	w.mu.Unlock()
	return Config{Home: w.dir, Root: w.dir, Proc: w.dir, Metadata: &agent.Metadata{Transport: w}, Transport: w, System: w, Out: &w.out}
}

// run runs the worker from a boot on. It returns when the worker has nothing left to do,
// when the slices are deleted, or after the given time.
func (w *world) run(during time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), during)
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for ctx.Err() == nil {
			w.mu.Lock()
			over := w.resource == ""
			w.mu.Unlock()
			if over {
				cancel()
			}
			_ = agent.Sleep(ctx, time.Second)
		}
	}()
	if err := Run(ctx, w.config()); err != nil && ctx.Err() == nil {
		w.t.Errorf("it ends with %v\n%s", err, w.out.String())
	}
	cancel()
	<-gone
}

// worker returns a worker that is ready to run a command, for tests of its parts.
func (w *world) worker() *doer {
	w.t.Helper()
	cfg := w.config()
	x := &worker{cfg: cfg, client: &agent.Client{Metadata: cfg.Metadata, Transport: w}}
	for _, step := range []func() error{func() error { return x.identify(w.t.Context()) }, x.open, x.boot} {
		if err := step(); err != nil {
			w.t.Fatal(err)
		}
	}
	x.user, x.home, x.disk.runs = user{"root", w.dir}, w.dir, filepath.Join(w.dir, "runs")
	x.kit, _ = readKit("")
	return &doer{worker: x, start: starter{worker: x}, end: ender{worker: x}}
}

func (w *world) attempt(d *doer, n int, name, text string) {
	w.t.Helper()
	path := d.disk.attempt(n, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	answer := httptest.NewRecorder()
	answer.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	switch r.URL.Host {
	case agent.MetadataHost:
		w.metadata(answer, r, string(body))
	case "S", "U":
		w.bucket(answer, r, body)
	case "tpu":
		w.tpu(answer, r)
	case "sm":
		if text, ok := w.secrets[r.URL.Path]; ok {
			fmt.Fprint(answer, text)
		} else {
			http.Error(answer, `{"error": {"message": "no such secret"}}`, http.StatusNotFound)
		}
	}
	if answer.Code == 0 {
		return nil, errors.New("connection refused")
	}
	return answer.Result(), nil
}

func (w *world) metadata(answer *httptest.ResponseRecorder, r *http.Request, body string) {
	path := strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/instance/")
	value, ok := w.values[path]
	switch {
	case w.refused(answer, r.Method, path):
	case strings.HasSuffix(path, "/token"):
		w.tokens++
		fmt.Fprint(answer, `{"access_token": "t"}`)
	case r.Method == http.MethodPut:
		w.values[path] = body
	case ok:
		fmt.Fprint(answer, value)
	default:
		http.NotFound(answer, r)
	}
}

func (w *world) refused(answer *httptest.ResponseRecorder, method, name string) bool {
	if w.refuse == nil {
		return false
	}
	code := w.refuse(method, name)
	if code < 0 {
		answer.Code = 0
	} else if code > 0 {
		http.Error(answer, `{"error": {"message": "refused"}}`, code)
	}
	return code != 0
}

func (w *world) tpu(answer *httptest.ResponseRecorder, r *http.Request) {
	switch {
	case w.refused(answer, r.Method, strings.TrimPrefix(r.URL.Path, "/")):
	case r.URL.Path != "/q" || w.resource == "":
		http.NotFound(answer, r)
	case r.Method == http.MethodDelete:
		w.resource = ""
		w.note("deleted")
	default:
		fmt.Fprint(answer, w.resource)
	}
}

// bucket has the part of Cloud Storage's JSON API that workers use.
func (w *world) bucket(answer *httptest.ResponseRecorder, r *http.Request, body []byte) {
	query := r.URL.Query()
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/b/b/o"), "/")
	if r.URL.Host == "U" {
		name = query.Get("name")
	} else if name == "" {
		name = query.Get("prefix")
	}
	name, compose := strings.CutSuffix(strings.TrimPrefix(name, "r/"), "/compose")
	if w.refused(answer, r.Method, name) {
		return
	}
	old := w.objects[name]
	if want := query.Get("ifGenerationMatch"); want != "" {
		generation := int64(0)
		if old != nil {
			generation = old.generation
		}
		if want != strconv.FormatInt(generation, 10) {
			http.Error(answer, "{}", http.StatusPreconditionFailed)
			return
		}
	}
	switch {
	case query.Has("prefix"):
		w.list(answer, name)
	case compose:
		var request struct {
			SourceObjects []struct{ Name string }
		}
		_ = json.Unmarshal(body, &request)
		var all []byte
		for _, source := range request.SourceObjects {
			all = append(all, w.objects[strings.TrimPrefix(source.Name, "r/")].data...)
		}
		w.put(name, all)
	case r.Method == http.MethodPost:
		w.put(name, body)
		w.note(name)
	case old == nil:
		http.Error(answer, `{"error": {"message": "no such object"}}`, http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(w.objects, name)
		w.note("removed " + name)
	case query.Get("alt") == "media":
		answer.Header().Set("X-Goog-Generation", strconv.FormatInt(old.generation, 10))
		_, _ = answer.Write(old.data)
	default:
		_ = json.NewEncoder(answer).Encode(described(name, old))
	}
}

func described(name string, o *stored) map[string]string {
	return map[string]string{"name": "r/" + name, "size": strconv.Itoa(len(o.data)), "generation": strconv.FormatInt(o.generation, 10), "updated": o.updated.UTC().Format(time.RFC3339Nano)}
}

func (w *world) list(answer io.Writer, prefix string) {
	items := []map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(w.objects)) {
		if strings.HasPrefix(name, prefix) {
			items = append(items, described(name, w.objects[name]))
		}
	}
	_ = json.NewEncoder(answer).Encode(map[string]any{"items": items})
}

func (w *world) Run(ctx context.Context, p Program) (Output, error) {
	var in []byte
	if p.Stdin != nil {
		in, _ = io.ReadAll(p.Stdin)
	}
	if ctx.Err() != nil {
		return Output{Code: -1}, nil
	}
	if w.program != nil {
		if out, ok := w.program(p); ok {
			return out, nil
		}
	}
	op := slices.IndexFunc(p.Args, func(word string) bool { return strings.HasPrefix(word, "multihost-") })
	if op < 0 {
		if strings.Contains(p.Args[len(p.Args)-1], "$HOME") {
			return Output{Out: []byte(w.dir)}, nil
		}
		return Output{}, nil
	}
	return Output{Out: []byte(w.operate(strings.TrimPrefix(p.Args[op], "multihost-"), p.Args[op+2], p.Args[op+3:], in))}, nil
}

func (w *world) operate(name, nonce string, args []string, in []byte) string {
	if name == "free" || name == "venv" {
		return ""
	}
	n, _ := strconv.Atoi(args[1])
	dir := filepath.Join(w.dir, ".multihost/runs/r", args[1])
	end := func(record string) {
		if record == "" {
			record = fmt.Sprintf("code=0\nsignal=\nend=%d\nsize=0\noom=0\nlost=0\ndropped=0\nreason=\n", time.Now().UnixNano())
		}
		_ = os.WriteFile(filepath.Join(dir, "exit"), []byte(record), 0o600)
	}
	_, missing := os.Stat(filepath.Join(dir, "exit"))
	switch name {
	case "arm":
		w.began[n] = time.Now()
		_ = os.MkdirAll(dir, 0o700)
		_ = os.WriteFile(filepath.Join(dir, "started"), fmt.Appendf(nil, "7 1 %d 8\n", time.Now().UnixNano()), 0o600)
		_ = os.WriteFile(filepath.Join(dir, "output.log"), []byte(w.log[n]), 0o600)
		_ = os.WriteFile(filepath.Join(dir, "armed"), in, 0o600)
		return nonce + " started 7 1\n"
	case "stop":
		if missing != nil {
			_ = os.WriteFile(filepath.Join(dir, "stop"), []byte(args[3]+"\n"), 0o600)
			end(fmt.Sprintf("code=143\nsignal=TERM\nend=%d\nsize=0\noom=0\nlost=0\ndropped=0\nreason=%s\n", time.Now().UnixNano(), args[3]))
		}
		return nonce + " counts 0 0\n"
	}
	began, ok := w.began[n]
	switch {
	case !ok:
		return nonce + " phase unknown\n"
	case missing != nil && time.Since(began) < w.end[n]:
		return nonce + " phase running\n"
	case missing != nil:
		end(w.record[n])
	}
	return nonce + " phase exited\n"
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
