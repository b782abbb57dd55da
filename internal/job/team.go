package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/event"
	"multihost/internal/iap"
	"multihost/internal/qr"
	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
)

// Access says how workers are reached.
type Access struct {
	Login          string
	OSLogin        qr.OSLoginOptions
	AgentSocket    string
	Identity       *sshfan.Identity // nil in a dry run if the key does not exist yet
	KeyFile        string           // file of the Identity
	KnownHosts     string           // file of pinned host keys
	Port           int              // SSH port, 22
	Way            Way              // which address to use; "" is Auto
	Jump           []sshfan.JumpHost
	SSHConfig      *sshfan.SSHConfig
	UserKnownHosts []string   // files with the host keys of bastions
	IAP            *iap.Proxy // nil: no tunnel
	Passphrase     func(path string) (string, error)
	// Dial opens the connections under SSH, except through IAP; nil: plain TCP.
	Dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	ConnectTimeout time.Duration
	RetryFor       time.Duration // how long a worker may take to answer at all
	MaxDials       int
}

// authRetry is how long a slice that is READY may refuse our key. Its agent fetches new
// keys within seconds; after authRetry the key counts as wrong.
const authRetry = 45 * time.Second

// team is the workers of a run with an open connection to each. ids[i] is reached by
// conns[i]. Index i is the process number.
type team struct {
	slices []tpu.Slice
	ids    []tpu.WorkerID
	conns  []remote.Conn
	fleet  *sshfan.Fleet // nil: no worker is connected

	// away[i] says why worker ids[i] could not be reached when the team was made; its
	// connection is opened when it is used. nil: all were reached.
	away []error

	readOnly bool // the fleet only reads
	breaks   breaks
}

// isAway reports whether worker i could not be reached when the team was made.
func (t *team) isAway(i int) bool { return t.away != nil && t.away[i] != nil }

// reached returns how many workers were reached when the team was made.
func (t *team) reached() int {
	n := len(t.ids)
	for i := range t.ids {
		if t.isAway(i) {
			n--
		}
	}
	return n
}

func (t *team) close() {
	if t.fleet != nil {
		t.fleet.Close()
	}
}

// slice returns the slice of worker i.
func (t *team) slice(i int) tpu.Slice { return t.slices[t.ids[i].Slice] }

// address returns the worker's address inside the network.
func (t *team) address(i int) string { return t.slice(i).Workers[t.ids[i].Worker].Internal }

// each calls f for every worker concurrently, without a limit, and waits for all: f on
// one worker may need all the others. It shows the progress of the phase, and from which
// workers nothing is heard.
func (t *team) each(ctx context.Context, sink event.Sink, phase string, f func(ctx context.Context, i int) error) []error {
	errs := make([]error, len(t.ids))
	progress := &count{phase: phase, over: make([]bool, len(t.ids))}
	if phase != "" {
		heard := &heardSink{Sink: sink, waits: progress.waits, last: event.Progress{Phase: phase, Total: len(t.ids)}}
		progress.sink = heard
		defer t.listen(heard)()
	}
	var wg sync.WaitGroup
	for i := range t.ids {
		wg.Go(func() {
			errs[i] = f(ctx, i)
			if phase != "" {
				progress.finish(i)
			}
		})
	}
	wg.Wait()
	return errs
}

// discover finds the slices that prefix names. It returns an error if the set may be
// incomplete or wrong, unless partial allows it.
func (d *Deps) discover(ctx context.Context, prefix string, only tpu.Numbers, partial bool) (tpu.Selection, error) {
	nodes, err := d.Cloud.Slices(ctx)
	if err != nil {
		return tpu.Selection{}, fmt.Errorf("list slices in %q: %w", d.Zone, err)
	}
	sel, err := tpu.SelectNumbered(nodes, prefix, only, partial)
	if err != nil {
		return sel, err
	}
	if len(sel.Slices) > 0 && sel.Slices[0].Name != prefix && only == nil { // a family: check that the set is complete
		if missing := d.missingFromQueue(ctx, sel); missing != "" {
			sel.Problems = append(sel.Problems, missing)
		}
	}
	if len(sel.Problems) == 0 {
		return sel, nil
	}
	problems := tpu.FoldProblems(sel.Problems)
	if partial && len(sel.Slices) > 0 {
		for _, p := range problems {
			event.Notef(d.Sink, event.Warn, "", "%s; going on without it (--allow-partial)", p)
		}
		return sel, nil
	}
	return sel, &Error{
		Stage:  StageDiscover,
		Text:   strings.Join(problems, "; "),
		Advice: "look at the slices with: multihost qr list; to run on those that are ready all the same, add --allow-partial",
	}
}

// missingFromQueue asks the queued resource how many slices there should be: a gap at the
// end of the family does not show in the names.
func (d *Deps) missingFromQueue(ctx context.Context, sel tpu.Selection) string {
	if !sel.Slices[0].MultiSlice || sel.Slices[0].QueuedResource == "" || d.Queue == nil {
		return ""
	}
	res, err := d.Queue.Get(ctx, sel.Slices[0].QueuedResource)
	if err != nil || res.NodeCount <= len(sel.Slices) {
		return ""
	}
	return fmt.Sprintf("queued resource %q has %d slices, only %d are here", res.ID, res.NodeCount, len(sel.Slices))
}

// connect opens one connection to every worker of sel. only, if not nil, limits it to
// some workers. After an error no connection stays open.
func (d *Deps) connect(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool) (*team, error) {
	t, failed, err := d.dial(ctx, sel, only, true)
	if err != nil {
		return nil, err
	}
	if len(failed) == 0 {
		return t, nil
	}
	defer t.close()
	ids := sel.Workers()
	if only != nil {
		ids = slices.DeleteFunc(ids, func(id tpu.WorkerID) bool { return !only(id) })
	}
	errs := make([]error, len(ids))
	for i, id := range ids {
		errs[i] = failed[id]
	}
	return nil, workersError(StageConnect, ids, errs)
}

// dial is connect for callers that can work with some of the workers: the team has the
// workers that were reached, and failed says why the others were not. With sendKeys, the
// user's key is added to the slices' metadata first; without, only after a worker has
// refused it.
func (d *Deps) dial(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool, sendKeys bool) (*team, map[tpu.WorkerID]error, error) {
	return d.dialFor(ctx, sel, only, sendKeys, d.Access.RetryFor)
}

// dialFor is dial with another limit for how long a worker may take to answer.
func (d *Deps) dialFor(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool, sendKeys bool, retryFor time.Duration) (*team, map[tpu.WorkerID]error, error) {
	t, err := d.dialAll(ctx, sel, only, sendKeys, retryFor)
	if err != nil {
		return nil, nil, err
	}
	reached := &team{slices: t.slices, fleet: t.fleet, readOnly: t.readOnly}
	failed := map[tpu.WorkerID]error{}
	for i, id := range t.ids {
		if t.isAway(i) {
			failed[id] = t.away[i]
			continue
		}
		reached.ids = append(reached.ids, id)
		reached.conns = append(reached.conns, t.conns[i])
	}
	return reached, failed, nil
}

// dialAll is dialFor, but keeps the workers that were not reached in the team.
func (d *Deps) dialAll(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool, sendKeys bool, retryFor time.Duration) (*team, error) {
	var err error
	logins := map[string]string{} // by slice name, where it differs from Access.Login
	if sendKeys {
		if logins, _, err = d.sendKeys(ctx, sel.Slices); err != nil {
			return nil, err
		}
	}
	way := d.way(ctx, sel)
	refusal := min(retryFor, authRetry)
	if !sendKeys {
		refusal = time.Millisecond // the first refusal means that the key must be sent
	}
	sshConfig := d.Access.SSHConfig
	if way == IAP { // the addresses are then names of VMs, which no Host rule is meant for
		sshConfig = nil
	}
	roster := newRoster()
	t := &team{slices: sel.Slices, readOnly: d.ReadOnly}
	for _, id := range sel.Workers() {
		if only == nil || only(id) {
			t.ids = append(t.ids, id)
		}
	}
	hosts := make([]sshfan.Host, len(t.ids))
	for i, id := range t.ids {
		hosts[i] = d.host(way, logins[sel.Slices[id.Slice].Name], sel.Slices[id.Slice], id, roster)
	}
	fleet, err := sshfan.New(sshfan.Config{
		Identity:       d.Access.Identity,
		KnownHosts:     d.Access.KnownHosts,
		ReadOnly:       d.ReadOnly,
		MaxDials:       d.Access.MaxDials,
		ConnectTimeout: d.Access.ConnectTimeout,
		RetryFor:       retryFor,
		AuthRetryFor:   refusal,
		ShellTimeout:   min(retryFor, shellLimit),
		Jump:           d.Access.Jump,
		SSHConfig:      sshConfig,
		AgentSocket:    d.Access.AgentSocket,
		UserKnownHosts: d.Access.UserKnownHosts,
		Passphrase:     d.Access.Passphrase,
		Dial:           d.dialer(way),
		Sink:           d.Sink,
		Fold: func(waiting []int) string {
			ids := make([]tpu.WorkerID, len(waiting))
			for i, w := range waiting {
				ids[i] = t.ids[w]
			}
			return tpu.Fold(ids)
		},
		AcceptCommand: func(name string) string {
			id, err := tpu.ParseWorkerID(name)
			if err != nil {
				return ""
			}
			return fmt.Sprintf("multihost hostkey forget s0w%d --tpu-prefix=%s", id.Worker, sel.Slices[id.Slice].Name)
		},
	})
	if err != nil {
		return nil, err
	}
	conns, errs := fleet.Open(ctx, hosts)
	if refusedKey(errs) && ctx.Err() == nil {
		// Another writer of the slice's metadata may have dropped our key.
		if !sendKeys {
			fleet.Close()
			return d.dialAll(ctx, sel, only, true, retryFor)
		}
		if _, changed, err := d.sendKeys(ctx, unlisted(sel.Slices)); err == nil && changed {
			conns, errs = fleet.Open(ctx, hosts)
		}
	}
	if !d.ReadOnly {
		if err := d.Cloud.KeepHostKeys(); err != nil {
			event.Notef(d.Sink, event.Debug, "", "%v", err)
		}
	}
	for _, c := range conns {
		t.conns = append(t.conns, c)
	}
	greet(ctx, t.conns, errs)
	if ctx.Err() != nil {
		fleet.Close()
		return nil, context.Cause(ctx)
	}
	t.fleet = fleet
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		t.away = errs
	}
	return t, nil
}

// shellLimit is how long a login may take to run its first command.
const shellLimit = 30 * time.Second

// mostTries is how often a step is tried if the connection breaks during it.
const mostTries = 3

// again runs an idempotent f again when the connection breaks while it runs. It runs f at
// most mostTries times, and calls tell, if not nil, before each retry.
func again(ctx context.Context, tell func(error), f func() error) error {
	for n := 1; ; n++ {
		err := f()
		if n == mostTries || !errors.Is(err, remote.ErrConnectionLost) || ctx.Err() != nil {
			return err
		}
		if tell != nil {
			tell(err)
		}
	}
}

// breaks are connections that broke and were not yet reported.
type breaks struct {
	mu sync.Mutex
	of map[string][]tpu.WorkerID // by what is to be said
}

// broke returns a function that warns that the connection to worker i broke during a
// step, which is tried again. The first worker of a kind waits for others before it
// warns, so that workers lost together are reported in one line.
func (d *Deps) broke(ctx context.Context, t *team, i int, during string) func(error) {
	return func(err error) {
		text := fmt.Sprintf("the connection broke during the %s (%s); trying again", during, lostText(errors.New(causeText(err, t.ids[i]))))
		t.breaks.mu.Lock()
		if t.breaks.of == nil {
			t.breaks.of = map[string][]tpu.WorkerID{}
		}
		first := len(t.breaks.of[text]) == 0
		t.breaks.of[text] = append(t.breaks.of[text], t.ids[i])
		t.breaks.mu.Unlock()
		if !first {
			return
		}
		select {
		case <-d.Clock.After(outagePause):
		case <-ctx.Done():
		}
		t.breaks.mu.Lock()
		ids := t.breaks.of[text]
		delete(t.breaks.of, text)
		t.breaks.mu.Unlock()
		event.Notef(d.Sink, event.Warn, "", "%s: %s", tpu.FoldShort(ids), text)
	}
}

// lostText returns why the connection was lost.
func lostText(err error) string {
	text := err.Error()
	if _, why, found := strings.Cut(text, remote.ErrConnectionLost.Error()+": "); found {
		return why
	}
	return text
}

// greet runs a first command on every connected worker. This measures the clocks. It also
// finds logins that accept us but run nothing, before anything is done on any worker. A
// failure becomes the worker's error.
func greet(ctx context.Context, conns []remote.Conn, errs []error) {
	var wg sync.WaitGroup
	for i, c := range conns {
		if errs[i] != nil {
			continue
		}
		wg.Go(func() {
			errs[i] = again(ctx, nil, func() error {
				_, err := c.MeasureClock(ctx)
				return err
			})
		})
	}
	wg.Wait()
}

// clockLimit is how far a worker's clock may be off before a warning is shown.
const clockLimit = 10 * time.Second

// tellClocks warns about workers whose clock is off, because certificates and tokens are
// refused then. multihost corrects the times that it shows.
func (t *team) tellClocks(sink event.Sink) {
	type group struct {
		offset  time.Duration // offset of the first worker
		workers []tpu.WorkerID
	}
	var groups []*group
	for i, c := range t.conns {
		offset := c.ClockOffset()
		at := slices.IndexFunc(groups, func(g *group) bool { return (g.offset - offset).Abs() < clockLimit })
		if at < 0 {
			at = len(groups)
			groups = append(groups, &group{offset: offset})
		}
		groups[at].workers = append(groups[at].workers, t.ids[i])
	}
	for _, g := range groups {
		if g.offset.Abs() < clockLimit {
			continue
		}
		whose, hint := "of "+tpu.Fold(g.workers), "on the worker: timedatectl; sudo systemctl restart chrony"
		if len(groups) == 1 && len(t.ids) > 1 {
			whose, hint = "of all workers", "the clock of this machine is the wrong one: timedatectl"
		}
		way := "ahead of"
		if g.offset < 0 {
			way = "behind"
		}
		event.Notef(sink, event.Warn, hint, "the clock %s is %s %s this machine's; what is shown is corrected, but certificates and tokens may be refused",
			whose, event.Duration(g.offset.Abs().Round(time.Second)), way)
	}
}

// pin names the machine that a host key belongs to. It never uses a cloud worker's
// address, which may belong to another machine tomorrow.
func pin(s tpu.Slice, id tpu.WorkerID) string {
	if s.UID == "" { // a host that no cloud knows has nothing but its address
		w := s.Workers[id.Worker]
		return "host/" + net.JoinHostPort(w.Internal, strconv.Itoa(w.Port))
	}
	return s.UID + "/" + strconv.Itoa(id.Worker)
}

func (d *Deps) host(way Way, login string, s tpu.Slice, id tpu.WorkerID, roster *roster) sshfan.Host {
	login = cmp.Or(s.Workers[id.Worker].Login, login, d.Access.Login)
	host := sshfan.Host{
		Name: id.String(),
		User: login,
		Pin:  pin(s, id),
		Addr: d.addresses(way, s, id, roster),
		Keys: func(ctx context.Context) ([]string, error) {
			keys, _, err := d.Cloud.HostKeys(ctx, s, id.Worker)
			if errors.Is(err, qr.ErrNoGuestAttributes) {
				return nil, sshfan.ErrNoHostKeys
			}
			return keys, err
		},
		Doubt: func() bool { return d.Cloud.DoubtHostKeys(s, id.Worker) },
		Cloud: !d.onHosts(),
	}
	if host.Cloud {
		host.Slice = s.Name
	}
	return host
}

// addresses returns a function that returns the address from discovery the first time. On
// every later dial it asks the API, because an address can change when a VM reboots.
func (d *Deps) addresses(way Way, s tpu.Slice, id tpu.WorkerID, roster *roster) func(context.Context) (string, error) {
	var asked atomic.Bool
	return func(ctx context.Context) (string, error) {
		now := s
		if asked.Swap(true) {
			fresh, known := roster.lookUp(ctx, d, s.Name)
			switch {
			case !known:
				// The API may be unreachable while the worker is not.
			case fresh.UID != s.UID:
				return "", fmt.Errorf("slice %q was recreated: its id was %s and is %s", s.Name, s.UID, fresh.UID)
			case len(fresh.Workers) > id.Worker:
				now = fresh
			}
		}
		return d.address(ctx, way, now, id)
	}
}

// sendKeys adds the user's public key to every slice that lacks it. It returns the login
// to use, by slice name, and whether it changed anything.
func (d *Deps) sendKeys(ctx context.Context, all []tpu.Slice) (logins map[string]string, changed bool, err error) {
	if d.Logins != nil {
		return d.Logins, false, nil
	}
	logins = map[string]string{}
	var mu sync.Mutex // guards logins and changed
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, s := range all {
		if len(s.Workers) == 0 {
			continue // the slice is gone: there is nothing to log in to
		}
		group.Go(func() error {
			user, wrote, err := d.Cloud.Login(ctx, s, d.Access.Login, d.Access.Identity.PublicKey(), d.Access.OSLogin)
			if err != nil {
				return fmt.Errorf("add the SSH key of %q to slice %q: %w", d.Access.Login, s.Name, err)
			}
			mu.Lock()
			logins[s.Name], changed = user, changed || wrote
			mu.Unlock()
			if wrote {
				event.Notef(d.Sink, event.Info, "", "added the SSH key of %s to slice %s", user, s.Name)
			}
			return nil
		})
	}
	err = group.Wait()
	return logins, changed, err
}

// unlisted returns the slices without the keys from the list call, so that the keys are
// read again.
func unlisted(all []tpu.Slice) []tpu.Slice {
	all = slices.Clone(all)
	for i := range all {
		all[i].Metadata = maps.Clone(all[i].Metadata)
		delete(all[i].Metadata, "ssh-keys")
	}
	return all
}

func refusedKey(errs []error) bool {
	for _, err := range errs {
		if errors.Is(err, remote.ErrKeyRefused) {
			return true
		}
	}
	return false
}
