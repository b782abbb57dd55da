package sim

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/sim/worker"
)

// An activeFault is a fault in force.
type activeFault struct {
	id   int
	left int // uses left; AllCalls: until cleared
	Fault
}

// Inject puts a fault in force. The id is for Clear; it is 0 for a fault that happens
// once and is over.
func (s *Cloud) Inject(f Fault) (id int, err error) {
	if err := f.check(); err != nil {
		return 0, err
	}
	if strings.HasPrefix(f.Name, "worker-") {
		return s.injectWorkers(f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.Name {
	case "preempt", "maintenance":
		return 0, s.injectNodes(f)
	case "foreign-node":
		return 0, s.injectForeign(f)
	case "login-ended":
		return 0, s.endLogin()
	case "quota":
		if f.Zone == "" {
			f.Zone = s.cfg.Zone
		}
		s.state.quota[f.Zone] = f.Cores
		return 0, nil
	case "qr-failed", "qr-suspended":
		if f.State == "" && s.strikeNow(f) {
			return 0, nil
		}
	case "api-disabled":
		f.Count = AllCalls
	}
	return s.addFault(f), nil
}

// addFault stores f. The caller holds s.mu.
func (s *Cloud) addFault(f Fault) int {
	s.state.faultID++
	a := &activeFault{id: s.state.faultID, left: f.Count, Fault: f}
	if a.left == 0 {
		a.left = 1
	}
	s.state.faults = append(s.state.faults, a)
	return a.id
}

// Clear ends the fault with this id, or those with this name, or all for "all". It
// returns their number.
func (s *Cloud) Clear(which string) (int, error) {
	id, _ := strconv.Atoi(which)
	matches := func(a *activeFault) bool { return which == "all" || a.Name == which || id > 0 && a.id == id }
	s.mu.Lock()
	var cleared []*activeFault
	for _, a := range s.state.faults {
		if matches(a) {
			cleared = append(cleared, a)
		}
	}
	s.state.faults = slices.DeleteFunc(s.state.faults, matches)
	s.retryQueue()
	s.mu.Unlock()
	var errs []error
	for _, a := range cleared {
		if kind, ok := strings.CutPrefix(a.Name, "worker-"); ok {
			for _, m := range s.machinesFor(a.Fault) {
				errs = append(errs, m.SetFault(worker.Fault{Kind: worker.Clear, Name: kind}))
			}
		}
	}
	return len(cleared), errors.Join(errs...)
}

func (s *Cloud) injectNodes(f Fault) error {
	nodes := sorted(s.state.nodes, func(_ string, n *node) bool { return glob(f.Node, n.id) })
	if len(nodes) == 0 {
		return fmt.Errorf("inject fault %q: there is no node %q", f.Name, f.Node)
	}
	for _, n := range nodes {
		if f.Name == "preempt" {
			s.preempt(n, f.Vanish)
		} else {
			s.maintain(n)
		}
	}
	return nil
}

func (s *Cloud) injectForeign(f Fault) error {
	spec := SliceSpec{Name: f.Node, Count: 1, Type: f.Type, Foreign: true}
	if err := checkSlices([]SliceSpec{spec}); err != nil {
		return err
	}
	zone := f.Zone
	if zone == "" {
		zone = s.cfg.Zone
	}
	if !slices.Contains(s.zones(), zone) {
		return fmt.Errorf("inject fault %q: there is no zone %q", f.Name, zone)
	}
	nodes, err := s.addPreset(zone, spec)
	if err != nil {
		return err
	}
	s.nextStep(func() { s.bootNode(nodes[0], func(error) {}) })
	return nil
}

func (s *Cloud) injectWorkers(f Fault) (id int, err error) {
	w, err := f.forWorker()
	if err != nil {
		return 0, err
	}
	machines := s.machinesFor(f)
	if f.once() && len(machines) == 0 {
		return 0, fmt.Errorf("inject fault %q: there is no worker %q of node %q", f.Name, f.Worker, f.Node)
	}
	if !f.once() {
		s.mu.Lock()
		id = s.addFault(f)
		s.mu.Unlock()
	}
	// Do this in parallel: a machine that reboots may take its time.
	errs := make([]error, len(machines))
	var group sync.WaitGroup
	for i, m := range machines {
		group.Go(func() { errs[i] = m.SetFault(w) })
	}
	group.Wait()
	return id, errors.Join(errs...)
}

// machinesFor returns the running workers that a worker fault affects.
func (s *Cloud) machinesFor(f Fault) []worker.Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	var machines []worker.Machine
	for _, n := range sorted(s.state.nodes, func(_ string, n *node) bool { return glob(f.Node, n.id) }) {
		for i, m := range n.machines {
			if f.Worker == "" || f.Worker == strconv.Itoa(i) {
				machines = append(machines, m)
			}
		}
	}
	return machines
}

// workerFaults returns the faults that a new worker starts with.
func (s *Cloud) workerFaults(nodeID string, i int) []worker.Fault {
	var faults []worker.Fault
	for _, a := range s.state.faults {
		if !strings.HasPrefix(a.Name, "worker-") || !glob(a.Node, nodeID) || a.Worker != "" && a.Worker != strconv.Itoa(i) {
			continue
		}
		if w, err := a.forWorker(); err == nil {
			faults = append(faults, w)
		}
	}
	return faults
}

// A requestVerdict is the effect of the faults in force on one request.
type requestVerdict struct {
	err   *apiError
	delay time.Duration
	drop  bool // cut the connection instead of answering
	skip  bool // do not carry out the request
}

func (s *Cloud) meetFaults(r *http.Request) requestVerdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := requestVerdict{err: s.letIn(r)}
	if v.err == nil {
		v.err = s.disabled(r)
	}
	for _, a := range slices.Clone(s.state.faults) {
		if !slices.Contains([]string{"api-error", "expired-token", "slow-api", "drop-request", "drop-reply"}, a.Name) {
			continue
		}
		if !glob(a.Method, r.Method) || !glob(a.Path, r.URL.Path) || v.err != nil || v.drop {
			continue
		}
		s.use(a)
		switch a.Name {
		case "api-error":
			v.err = a.apiError()
		case "expired-token":
			v.err = errorf(http.StatusUnauthorized, "%s", refusedToken)
		case "slow-api":
			v.delay += a.Delay
		case "drop-request":
			v.drop, v.skip = true, true
		case "drop-reply":
			v.drop = true
		}
	}
	return v
}

func (f Fault) apiError() *apiError {
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
	e := errorf(f.Code, "%s", text)
	e.RetryAfter = f.RetryAfter
	return e
}

// use counts one use of fault a and removes the fault after its last one. The caller
// holds s.mu.
func (s *Cloud) use(a *activeFault) {
	if a.left == AllCalls {
		return
	}
	if a.left--; a.left <= 0 {
		s.state.faults = slices.DeleteFunc(s.state.faults, func(b *activeFault) bool { return a == b })
	}
}

// find returns the first fault with that name that match accepts; a nil match accepts
// all. The caller holds s.mu.
func (s *Cloud) find(name string, match func(*activeFault) bool) *activeFault {
	for _, a := range s.state.faults {
		if a.Name == name && (match == nil || match(a)) {
			return a
		}
	}
	return nil
}

func (s *Cloud) noCapacity(qr string) bool {
	return s.find("no-capacity", func(a *activeFault) bool { return glob(a.QR, qr) }) != nil
}

func (s *Cloud) guestAttributesOff(node string) bool {
	return s.find("no-guest-attributes", func(a *activeFault) bool { return glob(a.Node, node) }) != nil
}

func (s *Cloud) takeStuckDelete(qr string) bool {
	a := s.find("delete-stuck", func(a *activeFault) bool { return glob(a.QR, qr) })
	if a != nil {
		s.use(a)
	}
	return a != nil
}

func (s *Cloud) extraDelay() (d time.Duration) {
	for _, a := range s.state.faults {
		if a.Name == "slow-operations" {
			d += a.Delay
		}
	}
	return d
}

// takeOperationFault returns the error with which the operation about to begin will fail,
// or nil.
func (s *Cloud) takeOperationFault() *apiError {
	a := s.find("op-error", nil)
	if a == nil {
		return nil
	}
	s.use(a)
	f := a.Fault
	if f.Code == 0 {
		f.Code = http.StatusBadRequest
	}
	if f.Message == "" && f.Code == http.StatusBadRequest {
		f.Message = "Cloud TPU received an invalid argument."
	}
	return f.apiError()
}

// takeComputeOpFault returns the error text with which the compute operation about to
// begin will end, or "".
func (s *Cloud) takeComputeOpFault() string {
	a := s.find("compute-op-error", nil)
	if a == nil {
		return ""
	}
	s.use(a)
	if a.Message == "" {
		return "Quota 'NETWORKS' exceeded.  Limit: 5.0 globally."
	}
	return a.Message
}

// strike applies a fault that waited for q's present state. It reports whether there was
// one.
func (s *Cloud) strike(q *queuedResource) bool {
	for _, a := range s.state.faults {
		state := a.State
		switch {
		case a.Name == "qr-failed" && state == "":
			state = "WAITING_FOR_RESOURCES"
		case a.Name == "qr-suspended" && state == "":
			state = "PROVISIONING"
		case a.Name != "qr-failed" && a.Name != "qr-suspended":
			continue
		}
		if state == q.state() && glob(a.QR, q.id) {
			s.use(a)
			s.hit(q, a.Fault)
			return true
		}
	}
	return false
}

// strikeNow applies f to the existing requests that it matches. It reports whether there
// were any.
func (s *Cloud) strikeNow(f Fault) bool {
	hit := false
	for _, q := range sorted(s.state.queued, nil) {
		if glob(f.QR, q.id) && !slices.Contains([]string{"FAILED", "SUSPENDING", "SUSPENDED", "DELETING"}, q.state()) {
			s.hit(q, f)
			hit = true
		}
	}
	return hit
}

func (s *Cloud) hit(q *queuedResource, f Fault) {
	if f.Name == "qr-suspended" {
		if f.Initiator == "" {
			f.Initiator = "SERVICE"
		}
		s.suspend(q, f.Initiator)
		return
	}
	text := f.Message
	if text == "" {
		text = fmt.Sprintf("There is no more capacity in the zone %q; you can try in another zone where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x%016x]", q.zone, newID())
	}
	s.fail(q, errorf(http.StatusTooManyRequests, "%s", text))
}

// glob compares text with a pattern in which * matches any text. The empty pattern
// matches everything.
func glob(pattern, text string) bool {
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
