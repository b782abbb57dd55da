//go:build linux

package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
)

// say writes a line of the answer to a runner. The line begins with the runner's nonce.
func (h *Host) say(nonce string, words ...any) {
	fmt.Fprintln(h.Out, append([]any{nonce}, words...)...)
}

// errRun is an error about a run's name.
func errRun(run string) error { return fmt.Errorf("no run is called %s", run) }

// Boot begins a watch after a boot, with the terms of the metadata. Terms from a runner
// override these, even if they came before the reboot. If lock is not nil, it holds the
// lock of the watch of run, and Boot continues this watch in this process. Otherwise Boot
// starts a watch as a process of its own. While the metadata server does not answer, Boot
// uses the terms on the disk.
func (h *Host) Boot(ctx context.Context, run string, lock *os.File) error {
	text, err := h.Metadata.Value(ctx, "attributes/multihost-lease")
	for err != nil {
		err = fmt.Errorf("the metadata server does not tell of a lease: %w", err)
		switch known := h.known(); {
		case lock == nil && len(known) > 0:
			return h.startAll(ctx, known, err)
		case lock == nil, ctx.Err() != nil:
			return err
		case slices.Contains(known, run):
			return h.Watch(ctx, run, lock)
		}
		_ = agent.Sleep(ctx, seconds(Defaults().Look)) // nobody else watches, so Boot continues
		text, err = h.Metadata.Value(ctx, "attributes/multihost-lease")
	}
	t := Defaults()
	t.Read(text)
	if t.Run == "" {
		return errors.New("the metadata has no lease")
	}
	if err := h.prepare(); err != nil {
		return err
	}
	kept := readSome(h.own(t.Run + termsEnd))
	t.Read(kept)
	if path, _ := h.newest(t.Run); path != "" {
		t.Read(h.lease(path))
		t.Adopted = true
	}
	err = h.save(t)
	if err != nil {
		err = fmt.Errorf("write %s: %w", h.own(t.Run+termsEnd), err)
	}
	if lock != nil { // nobody else watches, so Boot continues
		if err != nil {
			h.Note(err.Error())
		}
		return h.watch(ctx, t.Run, lock, func() Terms { return t })
	}
	if err != nil && kept == "" { // a full disk is no error: it has nearly the same terms
		return err
	}
	return h.start(ctx, t.Run)
}

func (h *Host) known() (runs []string) {
	names, _ := filepath.Glob(h.own("*" + termsEnd))
	for _, name := range names {
		if run := strings.TrimSuffix(filepath.Base(name), termsEnd); runName.MatchString(run) && readSome(name) != "" {
			runs = append(runs, run)
		}
	}
	return runs
}

// startAll starts a watch for each of these runs. The parameter why is the error that made
// the metadata useless. startAll joins its own errors with this error.
func (h *Host) startAll(ctx context.Context, runs []string, why error) error {
	h.Note(why.Error())
	if err := h.prepare(); err != nil {
		return err
	}
	var all error
	for _, run := range runs {
		all = errors.Join(all, h.start(ctx, run))
	}
	return all
}

// Arm reads a runner's terms from its input, and answers with the state of the lease. It
// also finds out what this worker may do, unless the parameter only is true.
func (h *Host) Arm(ctx context.Context, nonce string, in io.Reader, only bool) error {
	whole, err := io.ReadAll(io.LimitReader(in, mostTerms))
	text, found := strings.CutSuffix(strings.TrimRight(string(whole), "\n"), "\nend")
	if err != nil || !found { // a part of the terms would have another meaning
		return errors.New("the terms did not arrive whole")
	}
	t := Defaults()
	t.Read(text + "\n")
	if t.Run == "" {
		return errRun(t.Run)
	}
	if err := h.prepare(); err != nil {
		return err
	}
	if err := h.writeLease(t.Run, text+"\n"); err != nil {
		return err
	}
	t.Adopted = true
	if err := h.save(t); err != nil {
		return fmt.Errorf("write %s: %w", h.own(t.Run+termsEnd), err)
	}
	// Without a limit, the watch that boot started ends by itself.
	if t.Lease > 0 || t.TTL > 0 {
		if err := h.start(ctx, t.Run); err != nil {
			return err
		}
	}
	if !only {
		h.testRight(ctx, nonce, t)
	}
	return h.tell(nonce, t.Run)
}

// testRight answers whether this worker may delete the resource, share its state and read
// the state of other workers.
func (h *Host) testRight(ctx context.Context, nonce string, t Terms) {
	// Thousands of workers ask at the same time.
	_ = agent.Sleep(ctx, rand.N(2*time.Duration(max(t.Total, 1))*time.Millisecond))
	err := h.Client.MayDelete(ctx, t.Delete)
	if err == nil {
		h.say(nonce, "right yes")
	} else {
		h.sayRefused(ctx, nonce, "right no", err)
	}
	if t.Total < 2 {
		return
	}
	if err := h.Metadata.Publish(ctx, "armed", "run="+t.Run); err != nil {
		h.say(nonce, "apart", status(err))
		return
	}
	if len(t.Nodes) > 0 {
		if err := h.Client.MayRead(ctx, t.Peers, t.Nodes[0]); err != nil {
			h.sayRefused(ctx, nonce, "deaf", err)
		}
	}
}

// sayRefused answers that a call failed. It gives the HTTP status and the reason. If a
// missing permission may be the cause, it also gives the worker's service account.
func (h *Host) sayRefused(ctx context.Context, nonce, what string, err error) {
	account := ""
	if agent.StatusOf(err) != 0 { // if the status is 0, no missing permission is the cause
		account, _ = h.Metadata.Value(ctx, "service-accounts/default/email")
	}
	if account == "" || strings.ContainsAny(account, " \t\n") {
		account = "-"
	}
	h.say(nonce, what, status(err), account, strings.ReplaceAll(err.Error(), "\n", " "))
}

// status returns the HTTP status of a refused call, with three digits.
func status(err error) string { return fmt.Sprintf("%03d", agent.StatusOf(err)) }

// writeLease replaces this login's lease file. A reader sees either the old text or the new
// one.
func (h *Host) writeLease(run, text string) error {
	path := h.index(leaseFile(run, h.Login))
	// agent.WriteFile does not write an unchanged text, but here an unchanged text is a
	// renewal.
	part, err := os.CreateTemp(h.index(""), "."+leaseFile(run, h.Login)+".*")
	if err != nil {
		return err
	}
	_, err = part.WriteString(text)
	err = errors.Join(err, part.Chmod(0o644), part.Close())
	if err == nil {
		err = os.Rename(part.Name(), path)
	}
	if err != nil {
		os.Remove(part.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Renew notes that a runner is active, and that it may be silent for hold seconds. If
// nobody has armed the worker, Renew does nothing.
func (h *Host) Renew(nonce, run, hold string) error {
	if !runName.MatchString(run) {
		return errRun(run)
	}
	if path, _ := h.newest(run); path != "" {
		var b strings.Builder
		for line := range strings.Lines(h.lease(path)) {
			if !strings.HasPrefix(line, "hold=") {
				b.WriteString(line)
			}
		}
		if err := h.writeLease(run, b.String()+"hold="+hold+"\n"); err != nil {
			return err
		}
	}
	return h.tell(nonce, run)
}

// Tell answers with the current terms, and whether a watch runs.
func (h *Host) Tell(nonce, run string) error {
	if !runName.MatchString(run) {
		return errRun(run)
	}
	return h.tell(nonce, run)
}

func (h *Host) tell(nonce, run string) error {
	t := Defaults()
	path, _ := h.newest(run)
	if path != "" {
		t.Read(readSome(path))
	}
	now := time.Now()
	born, held := now, "no"
	if file, ok := h.watched(run); ok {
		if words := strings.Fields(readSome(file)); len(words) > 2 {
			if n, err := strconv.ParseInt(words[2], 10, 64); err == nil && n > 0 {
				born = time.Unix(n, 0)
			}
		}
		if path != "" {
			held = "yes"
		}
	}
	h.say(nonce, "lease", held, t.Lease, t.TTL, int64(now.Sub(t.begin(born))/time.Second), t.Keep, t.KeepFor)
	return nil
}

// start starts a watch unless one runs.
func (h *Host) start(ctx context.Context, run string) error {
	if _, ok := h.watched(run); ok {
		return nil
	}
	log, err := os.OpenFile(h.own(run+".log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := h.Spawn(run, log); err != nil {
		return fmt.Errorf("start the watch: %w", err)
	}
	for range 200 {
		if _, ok := h.watched(run); ok {
			return nil
		}
		if err := agent.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	last := lastLine(h.own(run + ".log"))
	if strings.HasSuffix(last, " multihost: dismissed") { // a watch without a limit ends at once
		return nil
	}
	return fmt.Errorf("the watch did not start: %s", last)
}

func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return lines[len(lines)-1]
}
