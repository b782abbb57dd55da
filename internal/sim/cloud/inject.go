package cloud

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/sim/wire"
	"multihost/internal/sim/worker"
)

// An ActiveFault is a fault that affects the cloud now.
type ActiveFault struct {
	Id   int
	Left int // how many uses are left; AllCalls: until cleared
	Fault
}

// Inject makes a fault active. id is for Clear. It is 0 for a fault that happens once and
// is over.
func (s *Cloud) Inject(f Fault) (id int, err error) {
	if err := f.Check(); err != nil {
		return 0, err
	}
	if strings.HasPrefix(f.Name, "worker-") {
		return s.Injection().injectWorkers(f)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	switch f.Name {
	case "preempt", "maintenance":
		return 0, s.Injection().injectNodes(f)
	case "foreign-node":
		return 0, s.Injection().injectForeign(f)
	case "login-ended":
		return 0, s.Identity().endLogin()
	case "quota":
		if f.Zone == "" {
			f.Zone = s.Config.Zone
		}
		s.State.Quota[f.Zone] = f.Cores
		return 0, nil
	case "qr-failed", "qr-suspended":
		if f.State == "" && s.Injection().strikeNow(f) {
			return 0, nil
		}
	case "api-disabled":
		f.Count = AllCalls
	}
	return s.Injection().addFault(f), nil
}

// addFault stores f. The caller holds s.Mu.
func (s Injection) addFault(f Fault) int {
	s.State.faultID++
	a := &ActiveFault{Id: s.State.faultID, Left: f.Count, Fault: f}
	if a.Left == 0 {
		a.Left = 1
	}
	s.State.Faults = append(s.State.Faults, a)
	return a.Id
}

// Clear ends the fault with this id, the faults with this name, or with "all" all faults.
// It returns their number.
func (s *Cloud) Clear(which string) (int, error) {
	id, _ := strconv.Atoi(which)
	matches := func(a *ActiveFault) bool { return which == "all" || a.Name == which || id > 0 && a.Id == id }
	s.Mu.Lock()
	var cleared []*ActiveFault
	for _, a := range s.State.Faults {
		if matches(a) {
			cleared = append(cleared, a)
		}
	}
	s.State.Faults = slices.DeleteFunc(s.State.Faults, matches)
	s.Slices().retryQueue()
	s.Mu.Unlock()
	var errs []error
	for _, a := range cleared {
		if kind, ok := strings.CutPrefix(a.Name, "worker-"); ok {
			for _, m := range s.Injection().machinesFor(a.Fault) {
				errs = append(errs, m.SetFault(worker.Fault{Kind: worker.Clear, Name: kind}))
			}
		}
	}
	return len(cleared), errors.Join(errs...)
}

func (s Injection) injectNodes(f Fault) error {
	nodes := Sorted(s.State.Nodes, func(_ string, n *Node) bool { return Glob(f.Node, n.Id) })
	if len(nodes) == 0 {
		return fmt.Errorf("inject fault %q: there is no node %q", f.Name, f.Node)
	}
	for _, n := range nodes {
		if f.Name == "preempt" {
			s.Slices().preempt(n, f.Vanish)
		} else {
			s.Slices().maintain(n)
		}
	}
	return nil
}

func (s Injection) injectForeign(f Fault) error {
	spec := SliceSpec{Name: f.Node, Count: 1, Type: f.Type, Foreign: true}
	if err := CheckSlices([]SliceSpec{spec}); err != nil {
		return err
	}
	zone := f.Zone
	if zone == "" {
		zone = s.Config.Zone
	}
	if !slices.Contains(s.Catalog().Zones(), zone) {
		return fmt.Errorf("inject fault %q: there is no zone %q", f.Name, zone)
	}
	nodes, err := s.Slices().addPreset(zone, spec)
	if err != nil {
		return err
	}
	s.NextStep(func() { s.Slices().BootNode(nodes[0], func(error) {}) })
	return nil
}

func (s Injection) injectWorkers(f Fault) (id int, err error) {
	w, err := f.forWorker()
	if err != nil {
		return 0, err
	}
	machines := s.machinesFor(f)
	if f.once() && len(machines) == 0 {
		return 0, fmt.Errorf("inject fault %q: there is no worker %q of node %q", f.Name, f.Worker, f.Node)
	}
	if !f.once() {
		s.Mu.Lock()
		id = s.addFault(f)
		s.Mu.Unlock()
	}
	// In parallel, because a rebooting machine may need time.
	errs := make([]error, len(machines))
	var group sync.WaitGroup
	for i, m := range machines {
		group.Go(func() { errs[i] = m.SetFault(w) })
	}
	group.Wait()
	return id, errors.Join(errs...)
}

// machinesFor returns the running workers that a worker fault affects.
func (s Injection) machinesFor(f Fault) []worker.Machine {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	var machines []worker.Machine
	for _, n := range Sorted(s.State.Nodes, func(_ string, n *Node) bool { return Glob(f.Node, n.Id) }) {
		for i, m := range n.Machines {
			if f.Worker == "" || f.Worker == strconv.Itoa(i) {
				machines = append(machines, m)
			}
		}
	}
	for _, g := range Sorted(s.State.Groups, func(_ string, g *Group) bool { return Glob(f.Node, g.Id) }) {
		for _, i := range g.Instances() {
			if i.Machine != nil && (f.Worker == "" || f.Worker == strconv.Itoa(i.Number)) {
				machines = append(machines, i.Machine)
			}
		}
	}
	return machines
}

// workerFaults returns the faults with which a new worker starts.
func (s Injection) workerFaults(nodeID string, i int) []worker.Fault {
	var faults []worker.Fault
	for _, a := range s.State.Faults {
		if !strings.HasPrefix(a.Name, "worker-") || !Glob(a.Node, nodeID) || a.Worker != "" && a.Worker != strconv.Itoa(i) {
			continue
		}
		if w, err := a.forWorker(); err == nil {
			faults = append(faults, w)
		}
	}
	return faults
}

// A RequestVerdict is the effect of the active faults on one request.
type RequestVerdict struct {
	Err   *wire.Error
	Delay time.Duration
	Drop  bool // cut the connection in place of an answer
	Skip  bool // do not carry out the request
}

// MeetFaults returns what the active faults do to a request, and uses these faults once. It
// takes the lock.
func (s Injection) MeetFaults(r *http.Request) RequestVerdict {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	v := RequestVerdict{Err: s.Identity().letIn(r)}
	if v.Err == nil {
		v.Err = s.Identity().disabled(r)
	}
	for _, a := range slices.Clone(s.State.Faults) {
		if !slices.Contains([]string{"api-error", "expired-token", "slow-api", "drop-request", "drop-reply"}, a.Name) {
			continue
		}
		if !Glob(a.Method, r.Method) || !Glob(a.Path, r.URL.Path) || v.Err != nil || v.Drop {
			continue
		}
		s.Use(a)
		switch a.Name {
		case "api-error":
			v.Err = a.apiError()
		case "expired-token":
			v.Err = wire.Errorf(http.StatusUnauthorized, "%s", refusedToken)
		case "slow-api":
			v.Delay += a.Delay
		case "drop-request":
			v.Drop, v.Skip = true, true
		case "drop-reply":
			v.Drop = true
		}
	}
	return v
}

func (f Fault) apiError() *wire.Error {
	text := f.Message
	if text == "" {
		text = map[int]string{
			http.StatusTooManyRequests:     "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service 'tpu.googleapis.com'.",
			http.StatusInternalServerError: "an internal error has occurred",
			http.StatusServiceUnavailable:  "The service is currently unavailable.",
		}[f.Code]
	}
	if text == "" {
		text = http.StatusText(f.Code)
	}
	e := wire.Errorf(f.Code, "%s", text)
	e.RetryAfter = f.RetryAfter
	return e
}

// Use uses fault a once, and removes it after the last use. The caller holds s.Mu.
func (s Injection) Use(a *ActiveFault) {
	if a.Left == AllCalls {
		return
	}
	if a.Left--; a.Left <= 0 {
		s.State.Faults = slices.DeleteFunc(s.State.Faults, func(b *ActiveFault) bool { return a == b })
	}
}

// find returns the first fault of that name for which match returns true. A nil match
// accepts all. The caller holds s.Mu.
func (s Injection) find(name string, match func(*ActiveFault) bool) *ActiveFault {
	for _, a := range s.State.Faults {
		if a.Name == name && (match == nil || match(a)) {
			return a
		}
	}
	return nil
}

func (s Injection) noCapacity(qr string) bool {
	return s.find("no-capacity", func(a *ActiveFault) bool { return Glob(a.QR, qr) && (a.Group == "" || a.QR != "") }) != nil
}

// GuestAttributesOff reports whether the workers of a node have no guest attributes.
func (s Injection) GuestAttributesOff(node string) bool {
	return s.find("no-guest-attributes", func(a *ActiveFault) bool { return Glob(a.Node, node) }) != nil
}

// TakeStuckDelete reports whether a fault makes the deletion of a queued resource stick. If
// so, that uses the fault once.
func (s Injection) TakeStuckDelete(qr string) bool {
	a := s.find("delete-stuck", func(a *ActiveFault) bool { return Glob(a.QR, qr) })
	if a != nil {
		s.Use(a)
	}
	return a != nil
}

func (s Injection) extraDelay() (d time.Duration) {
	for _, a := range s.State.Faults {
		if a.Name == "slow-operations" {
			d += a.Delay
		}
	}
	return d
}

// TakeOperationFault returns the error with which the next operation will fail, or nil.
func (s Injection) TakeOperationFault() *wire.Error {
	a := s.find("op-error", nil)
	if a == nil {
		return nil
	}
	s.Use(a)
	f := a.Fault
	if f.Code == 0 {
		f.Code = http.StatusBadRequest
	}
	if f.Message == "" && f.Code == http.StatusBadRequest {
		f.Message = "Cloud TPU received an invalid argument."
	}
	return f.apiError()
}

// TakeComputeOpFault returns the error text with which the next compute operation will end,
// or "".
func (s Injection) TakeComputeOpFault() string {
	a := s.find("compute-op-error", nil)
	if a == nil {
		return ""
	}
	s.Use(a)
	if a.Message == "" {
		return "Quota 'NETWORKS' exceeded.  Limit: 5.0 globally."
	}
	return a.Message
}

// strike applies a fault that waits for the present state of q. It reports whether there
// was one.
func (s Injection) strike(q *QueuedResource) bool {
	for _, a := range s.State.Faults {
		state := a.State
		switch {
		case a.Name == "qr-failed" && state == "":
			state = "WAITING_FOR_RESOURCES"
		case a.Name == "qr-suspended" && state == "":
			state = "PROVISIONING"
		case a.Name != "qr-failed" && a.Name != "qr-suspended":
			continue
		}
		if state == q.State() && Glob(a.QR, q.Id) {
			s.Use(a)
			s.hit(q, a.Fault)
			return true
		}
	}
	return false
}

// strikeNow applies f to the existing requests that match. It reports whether there were
// any.
func (s Injection) strikeNow(f Fault) bool {
	hit := false
	for _, q := range Sorted(s.State.Queued, nil) {
		if Glob(f.QR, q.Id) && !slices.Contains([]string{"FAILED", "SUSPENDING", "SUSPENDED", "DELETING"}, q.State()) {
			s.hit(q, f)
			hit = true
		}
	}
	return hit
}

func (s Injection) hit(q *QueuedResource, f Fault) {
	if f.Name == "qr-suspended" {
		if f.Initiator == "" {
			f.Initiator = "SERVICE"
		}
		s.Slices().suspend(q, f.Initiator)
		return
	}
	text := f.Message
	if text == "" {
		text = fmt.Sprintf("There is no more capacity in the zone %q; you can try in another zone where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x%016x]", q.Zone, NewID())
	}
	s.Slices().fail(q, wire.Errorf(http.StatusTooManyRequests, "%s", text))
}

// Glob reports whether text matches a pattern in which * stands for any text. "" matches
// everything.
func Glob(pattern, text string) bool {
	if pattern == "" {
		return true
	}
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	for _, part := range parts[:len(parts)-1] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}
