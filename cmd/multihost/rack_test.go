package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/sim/worker"
	"multihost/internal/sshkey"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A rack is a provider that no cloud has. Its slices are boxes in memory. It has words of
// its own for the states of an order of boxes, and repairs boxes by itself.
type rack struct {
	fleet *quickWorkers

	mu     sync.Mutex // guards the fields below
	next   int        // number of boxes that were made
	orders map[string]*order
	calls  []string // calls that changed something
	looks  int      // how often the job has looked at the order since strike made machines fail
}

// An order is what a rack has made for one request.
type order struct {
	request provision.Request
	word    string
	made    time.Time
	boxes   []*quickVM
}

// The words of a rack for the states of an order.
var rackLives = map[string]provision.Life{
	"ORDERED": provision.Waiting, "UNPACKING": provision.Provisioning, "HUMMING": provision.Active,
	"MENDING": provision.Recovering, "CARRIED_OFF": provision.Suspended,
}

var _ provision.Provider = (*rack)(nil)

// see brings an order one step further and describes it. The caller holds r.mu.
func (r *rack) see(o *order) provision.Resource {
	res := provision.Resource{ID: o.request.ID, Commands: r.Undoing(o.request.ID).Commands, Life: rackLives[o.word], State: o.word,
		Type: o.request.Type.Name, Tier: o.request.Asks(), NodeCount: o.request.NodeCount, Nodes: o.request.NodeNames(),
		Labels: o.request.Labels, CreateTime: o.made, Reclaimable: true}
	switch o.word {
	case "ORDERED":
		o.word = "UNPACKING"
	case "UNPACKING":
		for _, name := range res.Nodes {
			r.next++
			vm, err := r.fleet.Start(context.Background(), worker.Spec{Node: name, NodeUID: fmt.Sprintf("box-%d", r.next), Index: 0, Hostname: name})
			if err != nil {
				panic(err)
			}
			o.boxes = append(o.boxes, vm.(*quickVM))
		}
		o.word = "HUMMING"
	case "MENDING":
		if r.looks++; r.looks > 45 { // the job looks about 30 times before it begins to wait
			for _, box := range o.boxes {
				if box.isUp() {
					continue
				}
				if err := box.boot(); err != nil {
					panic(err)
				}
			}
			o.word = "HUMMING"
		}
	}
	res.Slices = r.slicesOf(o)
	return res
}

func (r *rack) slicesOf(o *order) (all []tpu.Slice) {
	for i, box := range o.boxes {
		s := tpu.Slice{Index: i, Name: box.spec.Node, UID: box.spec.NodeUID, Created: o.made, Type: o.request.Type.Name, QueuedResource: o.request.ID,
			Labels: o.request.Labels, State: "LIT", Condition: tpu.Usable, Workers: []tpu.Worker{{Internal: box.addr}}}
		if !box.isUp() {
			s.State, s.Condition = "DARK", tpu.Unclear
		}
		if o.word == "CARRIED_OFF" {
			s.State, s.Condition = "MISSING", tpu.Taken
		}
		all = append(all, s)
	}
	return all
}

func (r *rack) Get(_ context.Context, id string) (provision.Resource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.orders[id]
	if o == nil {
		return provision.Resource{}, fmt.Errorf("look at order %q: %w", id, provision.ErrNotFound)
	}
	return r.see(o), nil
}

func (r *rack) List(ctx context.Context) (all []provision.Resource, err error) {
	r.mu.Lock()
	ids := []string{}
	for id := range r.orders {
		ids = append(ids, id)
	}
	r.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		res, err := r.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		all = append(all, res)
	}
	return all, nil
}

func (r *rack) Create(_ context.Context, q provision.Request) (provision.Resource, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.orders[q.ID]; o != nil {
		return r.see(o), false, nil
	}
	r.calls = append(r.calls, "create")
	o := &order{request: q, word: "ORDERED", made: time.Now()}
	r.orders[q.ID] = o
	return r.see(o), true, nil
}

func (r *rack) Restart(context.Context, string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, "restart")
	return nil
}

func (r *rack) Delete(_ context.Context, id string, o provision.DeleteOptions) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.orders[id]
	switch {
	case have == nil:
		return false, nil
	case have.request.Labels[provision.LabelRun] != provision.LabelValue(o.OnlyRun):
		return false, errors.New("it is another's order")
	}
	r.calls = append(r.calls, "delete "+have.word)
	for _, box := range have.boxes {
		box.goDown()
	}
	delete(r.orders, id)
	return true, nil
}

func (r *rack) Slices(context.Context) (all []tpu.Slice, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.orders {
		all = append(all, r.slicesOf(o)...)
	}
	return all, nil
}

func (r *rack) HostKeys(_ context.Context, s tpu.Slice, _ int) ([]string, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.orders {
		for _, box := range o.boxes {
			for kind, key := range box.HostKeys() {
				if box.spec.NodeUID == s.UID {
					return []string{kind + " " + key}, box.spec.Hostname, nil
				}
			}
		}
	}
	return nil, "", provision.ErrNoHostKeys
}

func (r *rack) Admit(_ context.Context, _ tpu.Slice, l provision.Login) (string, bool, error) {
	return l.Name, false, nil
}

func (r *rack) Undoing(id string, _ ...string) provision.Undoing {
	at := "https://rack.example/orders/" + id
	return provision.Undoing{
		Commands: provision.Commands{Kind: "order", List: "rack ls", Show: "rack show " + id, Wait: "rack wait " + id, Gone: "rack rm " + id, Delete: "rack rm " + id},
		Parts:    []provision.Part{{Look: at, Labels: "/stickers", Going: provision.Field{Path: "/wish", Value: "LEAVE"}, Delete: at, Probe: at + "-probe"}},
		Peers:    provision.Peers{Read: "https://rack.example/boxes/{slice}/notes", Told: "/notes/*"},
	}
}

// strike makes machines of an order fail. The parameter word is the state that the rack then
// shows: it takes all of them away, or repairs the last one.
func (r *rack) strike(id, word string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.orders[id]
	o.word, r.looks = word, 0
	boxes := o.boxes
	if word == "MENDING" {
		boxes = boxes[len(boxes)-1:]
	}
	for _, box := range boxes {
		box.goDown()
	}
}

// A job works with another kind of provider. The same code requests slices, waits for them,
// runs the command, recovers from a loss and deletes the slices. If the provider repairs
// slices itself, the job waits and does not delete them. No text mentions queued resources.
func TestAJobOnAnotherProvider(t *testing.T) {
	besideOthers(t)
	for _, tt := range []struct {
		story, word string
		calls       string
		attempts    int
	}{
		{"nothing happens", "", "create, delete HUMMING", 1},
		{"the boxes are carried off", "CARRIED_OFF", "create, delete CARRIED_OFF, create, delete HUMMING", 2},
		{"the rack mends them", "MENDING", "create, delete HUMMING", 2},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			identity, err := sshkey.Create(filepath.Join(dir, "key"))
			testkit.Must(t, err)
			fleet, err := newQuickWorkers()
			testkit.Must(t, err)
			var struck atomic.Bool
			struck.Store(tt.word == "")
			fleet.until = func(*quickVM) <-chan struct{} {
				if struck.Load() {
					return atOnce
				}
				return never
			}
			var back sync.WaitGroup
			defer back.Wait()
			boxes := &rack{fleet: fleet, orders: map[string]*order{}}
			starts, notes := 0, &testkit.Recorder{}
			typed := &stage.Invocation{Clock: testkit.NewFastClock(), Sink: event.SinkFunc(func(e event.Event) {
				notes.Emit(e)
				if _, ok := e.(event.Release); !ok {
					return
				}
				if starts++; starts == 1 && tt.word != "" {
					struck.Store(true)
					back.Go(func() { boxes.strike("m", tt.word) })
				}
			})}
			d := &deps{
				Reach: &workers.Reach{Invocation: typed, Place: provision.Place{Project: "p", Zone: "cellar"}, Cloud: boxes, Access: overssh.Access{Login: "quick", Identity: identity, KnownHosts: filepath.Join(dir, "known_hosts"), Port: fleet.Port(), Way: overssh.Internal,
					ConnectTimeout: time.Second, RetryFor: time.Second, MaxDials: 8}},
				Keeper: &record.Keeper{Of: typed, StateDir: dir, Owner: "ann@laptop", ExitStatus: exitCode},
			}
			d.Agents = noAgent()
			overSSH(d, nil)
			ty, err := tpu.ParseType("v5litepod-4")
			testkit.Must(t, err)
			o := job.JobOptions{
				Request: provision.Request{ID: "m", NodeCount: 2, Nodes: []string{"m-0", "m-1"}, Type: ty, Tier: provision.Spot},
				Run: attempt.Options{Prefix: "m", Run: "m", Dir: filepath.Join(dir, "src"), Script: "train", Preflight: "apply", NUMA: preflight.NUMAOff,
					FailFast: true, Grace: time.Second, SyncTimeout: time.Minute, StartLimit: time.Minute, Patience: follow.Patience{Lost: time.Minute, Log: time.Minute}},
				Budget: job.Budget{Preemptions: -1, Restarts: 1}, Lease: time.Hour,
			}
			testkit.Must(t, os.MkdirAll(o.Run.Dir, 0o700))
			testkit.Must(t, os.WriteFile(filepath.Join(o.Run.Dir, "train.py"), []byte("pass\n"), 0o600))
			o.Request.Mark("m", "ann")
			o.Request.MarkJob("m")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			out, err := job.Job(ctx, jobDeps(d), o)
			if err != nil || out.Code != 0 || starts != tt.attempts {
				t.Errorf("it ended with %+v, %v after %d attempts", out, err, starts)
			}
			if mended := slices.ContainsFunc(notes.Events(), func(e event.Event) bool {
				p, ok := e.(event.Phase)
				return ok && p.Name == provision.PhaseRecover && p.State == event.Done
			}); mended != (tt.word == "MENDING") {
				t.Errorf("it was waited for that the rack mends them: %v", mended)
			}
			if got := strings.Join(boxes.calls, ", "); got != tt.calls {
				t.Errorf("calls %q, want %q", got, tt.calls)
			}
			for _, e := range notes.Events() {
				if text := fmt.Sprintf("%+v", e); strings.Contains(text, "queued resource") || strings.Contains(text, "multihost qr") {
					t.Errorf("it speaks of queued resources: %T %s", e, text)
				}
			}
			if t.Failed() {
				for _, e := range notes.Events() {
					t.Logf("%T %+v", e, e)
				}
			}
		})
	}
}

// The terms of the lease that workers get have only addresses of their own provider.
func TestTheTermsOfAnotherProvider(t *testing.T) {
	t.Parallel()
	boxes := &rack{orders: map[string]*order{}}
	if got := boxes.Undoing("m").Parts[0]; !strings.HasPrefix(got.Delete, got.Look) {
		t.Errorf("a worker would delete %s after it has read %s", got.Delete, got.Look)
	}
	if _, err := boxes.Get(t.Context(), "m"); gcp.ClassOf(err) != gcp.NotFound {
		t.Errorf("an order that is not there: %v", err)
	}
}
