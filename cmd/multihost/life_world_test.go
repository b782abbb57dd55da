package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/sshkey"
)

// A lifeWorld is the cloud, the workers and the machines of one story, all in one bubble of
// testing/synctest.
type lifeWorld struct {
	story    lifeStory
	dir      string
	identity *sshkey.Identity
	keys     []ssh.Signer // keys of the workers, made once for all stories
	server   *sim.Server
	begin    time.Time
	real     *lifeReal // the real workers; nil: the workers are stand-ins, in fleet
	login    string
	port     int
	way      overssh.Way
	root     string // root of the API for the workers
	ctx      context.Context
	cancel   context.CancelFunc
	back     sync.WaitGroup // goroutines that end by themselves, at the latest with ctx

	machines []*lifeMachine
	disks    []func() // remove the small file systems

	endLimit   time.Duration // how long after the last deed every command must have ended
	goLimit    time.Duration // how long after endLimit everything that is left must be deleted
	quietLimit time.Duration // how long a command of multihost may wait without saying anything

	mu       sync.Mutex // guards the fields below
	history  lifeHistory
	fleet    map[string]*lifeVM // the newest worker of each place, by slice and worker
	all      []*lifeVM
	next     int
	apiCode  int       // HTTP status of all answers …
	apiUntil time.Time // … until this time
	slow     time.Time // until this time, each answer takes long
	drops    int       // how many of the next answers are lost
	losses   int       // how many of the next calls are lost before they arrive
	deletes  string    // who is deleting the queued resource
	reboots  string    // who is rebooting the workers of the queued resource
	made     bool      // the queued resource exists
}

// lifeStep is how long the cloud of a story takes for each change of a state.
const lifeStep = 10 * time.Second

func newLifeWorld(story lifeStory, dir string, kit *lifeKit) (*lifeWorld, error) {
	w := blankLifeWorld(story, dir, kit)
	return w, w.start(sim.Config{Step: lifeStep, Workers: (*lifeBackend)(w)})
}

func blankLifeWorld(story lifeStory, dir string, kit *lifeKit) *lifeWorld {
	w := &lifeWorld{story: story, dir: dir, identity: kit.identity, keys: kit.keys, begin: time.Now(), fleet: map[string]*lifeVM{},
		login: "quick", port: 22, way: overssh.Internal, root: "http://cloud", endLimit: 3 * time.Hour, goLimit: 2 * time.Hour, quietLimit: 90 * time.Second}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// start makes the cloud and the machines.
func (w *lifeWorld) start(cfg sim.Config) (err error) {
	cfg.Dir, cfg.Listen = filepath.Join(w.dir, "sim"), "none"
	if w.server, err = sim.Start(w.ctx, cfg); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(w.dir, "src"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(w.dir, "src", "train.py"), []byte("pass\n"), 0o600); err != nil {
		return err
	}
	for _, name := range []string{"laptop", "desk"} {
		w.machines = append(w.machines, newLifeMachine(w, name))
	}
	return nil
}

// close ends everything in the bubble.
func (w *lifeWorld) close() error {
	for _, m := range w.machines {
		m.switchOff()
	}
	w.cancel()
	w.back.Wait()
	if w.real != nil {
		w.real.front.Close()
	}
	for _, unmount := range w.disks {
		unmount()
	}
	return errors.Join((*lifeBackend)(w).Close(), w.server.Close())
}

// note adds a fact to the history.
func (w *lifeWorld) note(f lifeFact) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(f)
}

func (w *lifeWorld) noteLocked(f lifeFact) {
	f.at = time.Since(w.begin)
	w.history = append(w.history, f)
}

func (w *lifeWorld) facts() lifeHistory {
	w.mu.Lock()
	h := slices.Clone(w.history)
	w.mu.Unlock()
	if w.real != nil {
		h = append(h, w.real.facts()...)
		slices.SortStableFunc(h, func(a, b lifeFact) int { return cmp.Compare(a.at, b.at) })
	}
	return h
}

// cut ends the connections of a command of multihost to all workers.
func (w *lifeWorld) cut(who string, silently bool) {
	if w.real != nil {
		w.real.cut(who)
	}
	for _, vm := range w.vms() {
		vm.cut(who, silently)
	}
}

func (w *lifeWorld) vms() []*lifeVM {
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.fleet))
	w.mu.Unlock()
	slices.SortFunc(all, func(a, b *lifeVM) int { return strings.Compare(a.id, b.id) })
	return slices.DeleteFunc(all, func(vm *lifeVM) bool {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		return vm.removed
	})
}

// remover says who is taking workers away now.
func (w *lifeWorld) remover() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deletes != "" {
		return w.deletes
	}
	return byCloud
}

// rebooter says who is rebooting workers now.
func (w *lifeWorld) rebooter() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reboots != "" {
		return w.reboots
	}
	return byCloud
}

// lifeBackend makes workers for the simulator's API.
type lifeBackend lifeWorld

func (b *lifeBackend) Port() int { return 22 }

func (b *lifeBackend) Close() error {
	w := (*lifeWorld)(b)
	w.mu.Lock()
	all := slices.Clone(w.all)
	w.mu.Unlock()
	for _, vm := range all {
		vm.goDown()
	}
	return nil
}

func (b *lifeBackend) Start(_ context.Context, spec worker.Spec) (worker.Machine, error) {
	w := (*lifeWorld)(b)
	w.mu.Lock()
	n := w.next
	w.next++
	w.mu.Unlock()
	vm := &lifeVM{world: w, spec: spec, addr: fmt.Sprintf("127.91.%d.%d", n/250, n%250+1), key: w.keys[n%len(w.keys)],
		id: lifeID(spec), runs: map[string]*lifeRun{}, synced: map[string]string{}}
	vm.boot()
	if w.story.onGCE {
		tellPlace(spec)
	}
	w.mu.Lock()
	w.fleet[vm.place()] = vm
	w.all = append(w.all, vm)
	w.mu.Unlock()
	return vm, nil
}

// lifeID names a worker: its slice, the id of the slice, and the number of the worker if it
// is not 0.
func lifeID(spec worker.Spec) string {
	id := fmt.Sprintf("%s/%s", spec.Node, spec.NodeUID[max(0, len(spec.NodeUID)-8):])
	if spec.Index > 0 {
		id += fmt.Sprintf(".%d", spec.Index)
	}
	return id
}

// dial connects a command of multihost to a worker by its address.
func (w *lifeWorld) dial(ctx context.Context, p *lifeProcess, addr string) (net.Conn, error) {
	if w.real != nil {
		return w.real.dial(ctx, p, addr)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	away := "hang"
	var vm *lifeVM
	for _, v := range w.vms() {
		if v.addr == host {
			vm = v
			v.mu.Lock()
			away = v.away
			v.mu.Unlock()
		}
	}
	if p.cutOff() {
		away = "hang"
	}
	if away == "freeze" {
		near, _ := newLifePipe(addr)
		return near, nil
	}
	if away == "" {
		if conn, ok := vm.accept(p.name); ok {
			return conn, nil
		}
		away = "refuse"
	}
	if away == "refuse" {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A lifeWay connects a command of multihost to the API. RoundTrip makes one call.
type lifeWay struct {
	world   *lifeWorld
	process *lifeProcess
}

func (l *lifeWay) RoundTrip(req *http.Request) (*http.Response, error) {
	offline := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	if req.Body == nil {
		req.Body = http.NoBody
	}
	defer req.Body.Close()
	if l.process.cutOff() {
		return nil, offline
	}
	if err := l.world.dawdle(req.Context()); err != nil {
		return nil, err
	}
	lost := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	if l.world.loses(&l.world.losses) {
		return nil, lost
	}
	answer := l.world.call(req, l.process.name)
	if err := l.world.dawdle(req.Context()); err != nil {
		return nil, err
	}
	if l.process.cutOff() {
		return nil, offline
	}
	if l.world.loses(&l.world.drops) {
		return nil, lost
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: answer.Code, Status: http.StatusText(answer.Code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: answer.Header(),
		Body: io.NopCloser(answer.Body), ContentLength: int64(answer.Body.Len()), Request: req,
	}, nil
}

// A lifeQueue makes slices without their startup script, which workers of a story do not
// need. Encoding the script would take a tenth of the time.
type lifeQueue struct{ provision.Provider }

func (q lifeQueue) Unwrap() provision.Provider { return q.Provider }

func (q lifeQueue) Create(ctx context.Context, r provision.Request) (provision.Resource, bool, error) {
	if r.OwnMetadata[worker.StartupScript] != "" {
		r.OwnMetadata = maps.Clone(r.OwnMetadata)
		r.OwnMetadata[worker.StartupScript] = "#!/bin/sh"
	}
	return q.Provider.Create(ctx, r)
}

func (w *lifeWorld) apiIsAway() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.apiUntil)
}

// dawdle waits for half of the time that a slow call of the API takes.
func (w *lifeWorld) dawdle(ctx context.Context) error {
	w.mu.Lock()
	slow := time.Now().Before(w.slow)
	w.mu.Unlock()
	if slow {
		select {
		case <-time.After(15 * time.Second):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// loses reports whether the next message is lost on its way: the counter n is not 0. It then
// counts n down.
func (w *lifeWorld) loses(n *int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *n == 0 {
		return false
	}
	*n--
	return true
}

// call sends a request of the given actor to the API.
func (w *lifeWorld) call(req *http.Request, who string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	if w.apiIsAway() {
		answer.Header().Set("Content-Type", "application/json")
		answer.WriteHeader(w.apiCode)
		fmt.Fprintf(answer, `{"error": {"code": %d, "message": "It came at a bad time."}}`, w.apiCode)
		return answer
	}
	body, _ := io.ReadAll(req.Body)
	effect := w.story.provider().does(req, body)
	w.mu.Lock()
	switch effect {
	case deletesSlices:
		w.deletes = who
	case rebootsSlices:
		w.reboots = who
	}
	w.mu.Unlock()
	deleted := lifeFact{kind: factDeleted, who: who}
	if effect == deletesSlices {
		deleted.attempt, deleted.partial = w.onlyThere("m")
		deleted.said = w.saidBy(who)
	}
	r := *req // httptest.NewRequest would parse the request again
	r.RequestURI, r.RemoteAddr, r.Body = req.URL.RequestURI(), "192.0.2.1:1234", io.NopCloser(bytes.NewReader(body))
	w.server.ServeHTTP(answer, &r)
	if answer.Code != http.StatusOK {
		return answer
	}
	switch effect {
	case makesSlices, makesMore:
		w.mu.Lock()
		w.deletes, w.made = "", true
		if effect == makesSlices {
			w.noteLocked(lifeFact{kind: factMade, who: who, workers: lifeSlices * w.story.perSlice()})
		}
		w.mu.Unlock()
		if w.story.ttl > 0 && effect == makesSlices {
			w.later(w.story.ttl-2*time.Second, func() { w.note(lifeFact{kind: factExpired}) })
		}
	case deletesOther:
		w.note(lifeFact{kind: factForeign, who: who, text: who + " deletes " + req.URL.Path})
	case deletesSlices:
		w.note(deleted)
	}
	return answer
}

// ask sends a request to the API past all faults.
func (w *lifeWorld) ask(method, path string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	w.server.ServeHTTP(answer, httptest.NewRequest(method, path, http.NoBody))
	return answer
}

// deleteByLease deletes the slices as agent.Client does. It returns an HTTP status, which
// is 403 if the slices belong to another run.
func (w *lifeWorld) deleteByLease(t lifeTerms) int {
	if w.ctx.Err() != nil || w.apiIsAway() { // the story is over, or nobody answers
		return http.StatusServiceUnavailable
	}
	for _, d := range t.deletions {
		answer := w.ask(http.MethodGet, strings.TrimPrefix(d.Read, w.root))
		if answer.Code == http.StatusNotFound {
			continue
		}
		if answer.Code != http.StatusOK {
			return answer.Code
		}
		var part any
		if json.Unmarshal(answer.Body.Bytes(), &part) != nil || !d.Proof.In(part) {
			return http.StatusForbidden
		}
		if code := w.deletedBy(byLease, d.Method, strings.TrimPrefix(d.URL, w.root)); code != http.StatusOK {
			return code
		}
	}
	return http.StatusOK
}

// A lifeResource is what the API says about the queued resource.
type lifeResource struct {
	exists bool
	state  string
	billed bool // it has slices that exist
}

func (w *lifeWorld) resource() lifeResource {
	exists, state := w.story.provider().read(w)
	if !exists {
		return lifeResource{}
	}
	r := lifeResource{exists: true, state: state, billed: w.real != nil && w.real.standing()}
	for _, vm := range w.vms() {
		vm.mu.Lock()
		r.billed = r.billed || !vm.removed
		vm.mu.Unlock()
	}
	return r
}

// inject sets a fault of the simulator.
func (w *lifeWorld) inject(text string) error {
	fault, err := sim.ParseFault(text)
	if err == nil {
		_, err = w.server.Inject(fault)
	}
	return err
}

// A lifeKit has the keys that all stories share, because making keys is slow.
type lifeKit struct {
	identity *sshkey.Identity
	keys     []ssh.Signer
}

var errStoryOver = errors.New("the story is over")
