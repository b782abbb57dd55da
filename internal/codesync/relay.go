package codesync

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/remote"
)

// A Target is a worker that PushAll copies the tree to.
type Target struct {
	Conn  remote.Conn
	Slice int    // workers of one slice are near each other
	Addr  string // host:port for the other workers; "": not known
}

// PushAll is Push for all workers of a run at the same time. This machine sends contents
// that many workers lack to the first worker of each slice, or to Options.RelayFanout
// workers. From there they go from worker to worker, in the form of a tree. Each worker
// passes contents on while it receives more.
//
// A worker logs in to its source with remote.Cmd.LoginTo. It gets no key, and accepts only
// the host key that this machine has verified. Every worker checks the hash of each
// content, whatever its source. Nothing is left behind, even if this process dies. If a
// worker cannot fetch (no route between the workers, no agent forwarding, OpenSSH before
// 8.9, a hop that takes too long), this machine sends it the files.
//
// Results are in the order of targets. The errors are those of Push.
func (t *Tree) PushAll(ctx context.Context, targets []Target, run string) ([]Report, []error) {
	all := make([]*receiver, len(targets))
	for i, target := range targets {
		all[i] = &receiver{Target: target}
	}
	if checkRun(run) != nil {
		for _, r := range all {
			r.err = fmt.Errorf("sync to run directory %q: not a run name", run)
		}
	} else {
		t.report(func(p *progress) { p.started += len(targets) })
		t.pushAll(ctx, all, run)
	}
	reports, errs := make([]Report, len(all)), make([]error, len(all))
	for i, r := range all {
		reports[i], errs[i] = r.rep, r.err
	}
	return reports, errs
}

// A receiver is one worker during a PushAll.
type receiver struct {
	Target
	ans    answer
	rep    Report
	err    error
	direct bool // the worker gets its files from this machine
	done   bool // the worker has the tree, or its error is final

	parent *receiver     // source of the worker; nil: this machine
	ended  chan struct{} // closed when the worker has everything or has failed
	whole  bool          // the worker has everything; read it only after ended is closed
}

// relayWaves is how many times PushAll arranges workers in trees. The second time is for
// workers whose source failed.
const relayWaves = 2

func (t *Tree) pushAll(ctx context.Context, all []*receiver, run string) {
	todo := slices.Clone(all)
	for wave := 0; len(todo) > 0; wave++ {
		// Wait for all answers. If one worker has something of the user's at this place,
		// make nothing on the others. Only all answers together show which workers lack the
		// same contents. The wait costs no time, because the command starts on no worker
		// before all have their files.
		each(todo, func(r *receiver) { t.look(ctx, r, run) })
		if slices.ContainsFunc(todo, (*receiver).refused) {
			return
		}
		each(todo, func(r *receiver) { t.tell(ctx, r, run) })
		todo = slices.DeleteFunc(todo, func(r *receiver) bool { return r.done })
		trees, rest, err := t.arrange(ctx, todo, wave < relayWaves)
		if err != nil {
			for _, r := range todo {
				r.err = err
			}
			return
		}
		var work sync.WaitGroup
		for _, tree := range trees {
			work.Go(func() { t.pass(ctx, tree, run) })
		}
		work.Go(func() {
			each(rest, func(r *receiver) {
				asked := &r.ans
				if r.err != nil {
					asked = nil
				}
				var rep Report
				rep, r.err = t.deliver(ctx, r.Conn, run, asked, asked == nil)
				rep.Uploaded += r.rep.Uploaded
				r.rep, r.done = rep, true
			})
		})
		work.Wait()
		again := ctx.Err() == nil
		for _, tree := range trees {
			t.judge(tree, again)
		}
		todo = slices.DeleteFunc(todo, func(r *receiver) bool { return r.done })
		if !again {
			return
		}
	}
}

func each(list []*receiver, f func(*receiver)) {
	var all sync.WaitGroup
	for _, r := range list {
		all.Go(func() { f(r) })
	}
	all.Wait()
}

// look asks one worker whether it has the tree. After an error of look or tell, deliver
// retries.
func (t *Tree) look(ctx context.Context, r *receiver, run string) {
	if r.direct {
		return
	}
	r.parent = nil
	r.ans, r.err = t.check(ctx, r.Conn, run, &r.rep)
}

// refused reports whether the user has something at the run's place.
func (r *receiver) refused() bool {
	var foreign *ForeignError
	return errors.As(r.err, &foreign)
}

// tell sends the manifest to one worker after look. The worker answers which contents it
// lacks.
func (t *Tree) tell(ctx context.Context, r *receiver, run string) {
	if r.direct || r.err != nil {
		return
	}
	if r.ans.word != "same" {
		r.ans, r.err = t.plan(ctx, r.Conn, run, r.ans, &r.rep)
	}
	if r.err == nil && t.filled(r.ans, &r.rep) {
		r.finish(t)
	}
}

func (r *receiver) finish(t *Tree) {
	r.done, r.err = true, nil
	t.report(func(p *progress) { p.done++ })
}

// A tree has the workers that one upload reaches. members[0] gets the contents from this
// machine.
type tree struct {
	pack    *pack
	release func()
	members []*receiver
}

// branching is how many workers fetch from one. It is small, because sshd drops logins
// during ten authentications at the same time. With 4, 64 workers are three hops deep.
const branching = 4

// arrange puts workers that lack the same contents into trees, if that saves time. The
// result rest has the other workers. Each tree holds its pack until pass releases it. If
// the parameter again is false, arrange makes no trees.
func (t *Tree) arrange(ctx context.Context, todo []*receiver, again bool) (trees []*tree, rest []*receiver, err error) {
	groups := map[string][]*receiver{}
	for _, r := range todo {
		if r.err != nil || r.direct || !again || t.opts.Relay == RelayOff || !r.ans.relays || r.Addr == "" || r.Conn.HostKey() == "" {
			rest = append(rest, r)
			continue
		}
		key := strings.Join(r.ans.missing, "")
		groups[key] = append(groups[key], r)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		group := groups[key]
		slices.SortStableFunc(group, func(a, b *receiver) int { return cmp.Compare(a.Slice, b.Slice) })
		parts := split(group, t.opts.RelayFanout)
		if len(parts) == len(group) {
			rest = append(rest, group...)
			continue
		}
		p, release, err := t.acquire(ctx, group[0].ans.missing)
		if err != nil {
			return nil, nil, err
		}
		if saved := p.data.size * int64(len(group)-len(parts)); t.opts.Relay != RelayOn && saved < relayFrom {
			release()
			rest = append(rest, group...)
			continue
		}
		release = releaseAfter(len(parts), release)
		for _, part := range parts {
			for i, r := range part[1:] {
				r.parent = part[i/branching]
			}
			trees = append(trees, &tree{pack: p, release: release, members: part})
		}
	}
	return trees, rest, nil
}

// releaseAfter returns a function whose n-th call calls release.
func releaseAfter(n int, release func()) func() {
	var mu sync.Mutex
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if n--; n == 0 {
			release()
		}
	}
}

// split cuts a group that is sorted by slice into n equal parts, or into one part for each
// slice if n is 0.
func split(group []*receiver, n int) (parts [][]*receiver) {
	if n <= 0 {
		for from := 0; from < len(group); {
			to := from + 1
			for to < len(group) && group[to].Slice == group[from].Slice {
				to++
			}
			parts = append(parts, group[from:to])
			from = to
		}
		return parts
	}
	n = min(n, len(group))
	for i := range n {
		parts = append(parts, group[i*len(group)/n:(i+1)*len(group)/n])
	}
	return parts
}

// pass sends the contents to all members of a tree. It returns when each member has
// everything or has failed. Until then all members serve.
func (t *Tree) pass(ctx context.Context, tr *tree, run string) {
	defer tr.release()
	size := tr.pack.data.size
	t.report(func(p *progress) { p.total += size })
	token := rand.Text()
	transfer := []string{token, strconv.FormatInt(size, 10), remote.Bash(serveScript, token)}
	over := make(chan struct{}) // closed when no member needs a source
	ctx, cancelAll := context.WithCancel(ctx)
	defer cancelAll()
	for _, r := range tr.members {
		r.ended, r.whole = make(chan struct{}), false
	}
	var steps sync.WaitGroup
	for _, r := range tr.members {
		ended := sync.OnceFunc(func() { close(r.ended) })
		s := step{rep: &r.rep, filled: func() {
			r.whole = true
			ended()
		}}
		if r.parent == nil {
			s.args = append(t.args("feed", run, tr.pack.form()), transfer...)
			s.stdin = io.MultiReader(tr.pack.data.reader(), untilClosed{ctx, over})
			steps.Go(func() {
				defer ended()
				r.ans, r.err = t.exec(ctx, r.Conn, s)
			})
			continue
		}
		steps.Go(func() {
			defer ended()
			host, port, err := net.SplitHostPort(r.parent.Addr)
			if err != nil {
				r.err = fmt.Errorf("relay from %s: %w", r.parent.Conn.Name(), err)
				return
			}
			s.args = append(append(t.args("fetch", run, tr.pack.form()), transfer...),
				host, port, r.parent.Conn.User(), r.parent.Conn.HostKey())
			s.stdin, s.loginTo, s.patient = untilClosed{ctx, over}, r.parent.Conn, true
			hop, cancel := context.WithCancelCause(ctx)
			steps.Go(func() {
				err := t.watchHop(hop, r, tr.members[0], size)
				if cause := context.Cause(ctx); cause != nil {
					err = cause // the source may have seen the end before this hop did
				}
				cancel(err)
			})
			r.ans, r.err = t.exec(hop, r.Conn, s)
			cancel(nil)
		})
	}
	for _, r := range tr.members {
		<-r.ended
	}
	close(over)
	// Workers that have the contents need not answer. A dead connection must not delay the
	// others.
	defer time.AfterFunc(30*time.Second, cancelAll).Stop()
	steps.Wait()
}

// watchHop returns nil when a hop is over. It returns an error if the source has failed, or
// if the hop takes too long after the first worker of the tree has everything.
func (t *Tree) watchHop(ctx context.Context, r, root *receiver, size int64) error {
	limit := cmp.Or(t.opts.HopLimit, 30*time.Second+time.Duration(size/4e6)*time.Second)
	var late <-chan time.Time
	rootEnded, sourceEnded := root.ended, r.parent.ended
	for {
		select {
		case <-r.ended:
			<-ctx.Done() // the worker serves others until its step ends
			return nil
		case <-ctx.Done():
			return nil
		case <-sourceEnded:
			if sourceEnded = nil; !r.parent.whole {
				return fmt.Errorf("%s has failed", r.parent.Conn.Name())
			}
		case <-rootEnded:
			rootEnded = nil
			timer := time.NewTimer(limit)
			defer timer.Stop()
			late = timer.C
		case <-late:
			return fmt.Errorf("took longer than %v", limit)
		}
	}
}

// untilClosed is an empty input that ends when over is closed or ctx ends.
type untilClosed struct {
	ctx  context.Context
	over <-chan struct{}
}

func (u untilClosed) Read([]byte) (int, error) {
	select {
	case <-u.over:
	case <-u.ctx.Done():
	}
	return 0, io.EOF
}

// judge marks the members of a tree that are done, and decides how the others get their
// files. If only a member's source failed, another tree sends the member its files. If its
// own hop failed, or no hop of the tree worked, this machine sends them. If again is false,
// there is no further tree.
func (t *Tree) judge(tr *tree, again bool) {
	hops := 0
	for _, r := range tr.members[1:] {
		if r.whole {
			hops++
		}
	}
	var failed []string
	var why error
	for _, r := range tr.members {
		var said *WorkerError
		switch {
		case r.whole:
			// The answer counts even if the connection broke later.
			r.rep.SentFiles, r.rep.SentBytes = tr.pack.files, tr.pack.data.size
			if r.parent != nil {
				r.rep.From = r.parent.Conn.Name()
			}
			t.filled(answer{word: "filled", removed: r.ans.removed}, &r.rep)
			r.finish(t)
			continue
		case errors.As(r.err, &said) && !errors.Is(r.err, errBroken), r.refused():
			r.done = true // another sender would find the same full disk
			continue
		}
		r.direct = r.parent == nil || r.parent.whole || hops == 0
		if why == nil {
			why = r.err // sources come before their receivers
		}
		failed = append(failed, r.Conn.Name())
	}
	if len(failed) > 0 && again {
		event.Notef(t.opts.Sink, event.Warn, "where workers may not log in to each other, --relay=off saves the try",
			"sync: passing files on to %s failed (%v); trying again", namesOf(failed), why)
	}
}

// namesOf lists at most five names and counts the others.
func namesOf(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
