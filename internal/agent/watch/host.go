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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"multihost/internal/agent"
)

// A Host is this worker, with its metadata server and its cloud. Its methods act for one
// login.
type Host struct {
	Tmp      string // parent directory of /tmp; "": the root directory
	Home     string
	Login    int // number of this login
	Keeper   int // process that restarts this one when it dies; 0: none
	Metadata *agent.Metadata
	Client   *agent.Client
	Out      io.Writer                            // for answers to a runner, or for the log of a watch
	Uptime   func() (time.Duration, error)        // time since the boot
	Spawn    func(run string, log *os.File) error // starts a watch as a process of its own, which writes to log
	Idle     func()                               // called before each wait of a watch; may be nil
}

func (h *Host) index(name string) string { return filepath.Join(h.Tmp+Index, name) }
func (h *Host) own(name string) string   { return filepath.Join(h.Home, ownFolder, name) }

// prepare makes two directories: our own, and one for all logins, as package launch makes
// it.
func (h *Host) prepare() error {
	dir := h.index("")
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.Mkdir(dir, 0o777); err == nil {
			err = os.Chmod(dir, 0o777|os.ModeSticky)
		}
		if err == nil || errors.Is(err, os.ErrExist) {
			info, err = os.Lstat(dir)
		}
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("make %s: it is no directory", dir)
	}
	return os.MkdirAll(h.own(""), 0o700)
}

func (h *Host) Note(text string) {
	fmt.Fprintf(h.Out, "%s multihost: %s\n", time.Now().UTC().Format("2006-01-02T15:04:05Z"), text)
}

// terms returns the terms of the run on the disk.
func (h *Host) terms(run string) Terms {
	t := Defaults()
	t.Run = run
	t.Read(readSome(h.own(run + termsEnd)))
	return t
}

func (h *Host) save(t Terms) error {
	return agent.WriteFile(h.own(t.Run+termsEnd), []byte(t.Text()), 0o644)
}

// mostTerms limits the bytes that are read of a file that any login can write.
const mostTerms = 64 << 10

func readSome(path string) string {
	text, _ := readOwned(path)
	return text
}

// readOwned is readSome, and also returns the owner of the file, or -1 if the owner is not
// known. It follows no link.
func readOwned(path string) (text string, owner int) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return "", -1
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", -1
	}
	all, err := io.ReadAll(io.LimitReader(f, mostTerms))
	if err != nil {
		return "", -1
	}
	return string(all), int(info.Sys().(*syscall.Stat_t).Uid)
}

// lease returns the valid lines of a lease. Some lines are valid only if a trusted login
// owns the file.
func (h *Host) lease(path string) string {
	text, owner := readOwned(path)
	if owner == 0 || owner == h.Login {
		return text
	}
	return ofAnybody(text)
}

// numbered returns the regular files of the index whose names consist of prefix and the
// number of a login.
func (h *Host) numbered(prefix string) (files []os.FileInfo) {
	names, _ := filepath.Glob(h.index(prefix + "[0-9]*"))
	for _, name := range names {
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
			files = append(files, info)
		}
	}
	return files
}

// newest returns the path of the newest lease file, or "" if there is none. The text sight
// changes whenever a lease changes.
func (h *Host) newest(run string) (path, sight string) {
	var last time.Time
	for _, f := range h.numbered(run + leaseOf) {
		sight += fmt.Sprintf("%s %d\n", f.Name(), f.ModTime().UnixNano())
		if path == "" || f.ModTime().After(last) {
			path, last = h.index(f.Name()), f.ModTime()
		}
	}
	return path, sight
}

// isFree reports whether no process holds the lock of a file. It does not create the file:
// in a sticky directory that all can write, the kernel refuses that for another login's
// file.
func isFree(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// watched returns the file of the active watch, of any login. The watch and its keeper hold
// the lock of this file. The file names their processes and the time of the first boot.
func (h *Host) watched(run string) (path string, ok bool) {
	for _, f := range h.numbered(run + WatchFile) {
		if path = h.index(f.Name()); f.Size() > 0 && !isFree(path) {
			return path, true
		}
	}
	return "", false
}

// entry is the newest attempt of a run in the index.
type entry struct {
	path string // "": no attempt
	code string
	pid  int
}

func (h *Host) entry(run string) (e entry) {
	names, _ := filepath.Glob(h.index("[0-9]*-" + run + "-[0-9]*" + entryEnd)) // a run's name has no special characters
	newest := uint64(0)
	for _, name := range names {
		login, rest, _ := strings.Cut(filepath.Base(name), "-"+run+"-")
		_, err := strconv.ParseUint(login, 10, 64)
		attempt, err2 := strconv.ParseUint(strings.TrimSuffix(rest, entryEnd), 10, 32)
		if err != nil || err2 != nil {
			continue // of another run, whose name ends like ours
		}
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() && attempt > newest {
			newest, e.path = attempt, name
		}
	}
	if e.path == "" {
		return e
	}
	for line := range strings.Lines(readSome(e.path)) {
		switch key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "="); key {
		case entryCode:
			e.code = value
		case entryStarted:
			pid, _, _ := strings.Cut(value, " ")
			e.pid, _ = strconv.Atoi(pid) // 0 stops nothing
		}
	}
	return e
}

// Look returns the state of a run on this worker. It updates *seen for the next Look.
func (h *Host) Look(run string, seen *string) (Sight, error) {
	up, err := h.Uptime()
	if err != nil {
		return Sight{}, err
	}
	s := Sight{Up: up, Now: time.Now()}
	path, sight := h.newest(run)
	s.Leased = path != ""
	if sight != *seen {
		*seen, s.Renewed = sight, s.Leased
		if s.Renewed {
			s.Lease = h.lease(path)
		}
	}
	lock := h.index(busyLock)
	if _, err := os.Stat(lock); err == nil && !isFree(lock) {
		s.Busy = true
		return s, nil
	}
	e := h.entry(run)
	s.Begun, s.Code = e.path != "", e.code
	return s, nil
}

// Uptime returns the time since the boot of this machine.
func Uptime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	word, _, _ := strings.Cut(string(text), " ")
	return time.ParseDuration(word + "s")
}

// Watch watches a run. It returns nil when nothing is left to watch, or another watch is
// active. It returns agent.ErrForeign if the resource belongs to another run, otherwise the
// context's error. lock is an open file that holds the watch's lock, if this watch
// continues another one. If lock is nil, Watch takes the lock itself.
func (h *Host) Watch(ctx context.Context, run string, lock *os.File) error {
	if lock == nil {
		var err error
		if lock, err = h.Lock(ctx, run); lock == nil {
			return err
		}
	}
	return h.watch(ctx, run, lock, func() Terms { return h.terms(run) })
}

// Lock returns the open file that holds the lock of the run's watch, or nil if another
// watch is active. The caller closes the file.
func (h *Host) Lock(ctx context.Context, run string) (*os.File, error) {
	if !runName.MatchString(run) {
		return nil, fmt.Errorf("no run is called %q", run)
	}
	if err := h.prepare(); err != nil {
		return nil, err
	}
	return takeLock(ctx, h.index(watchFile(run, h.Login)))
}

// watch is Watch, but its terms need not be on the disk. It closes lock.
func (h *Host) watch(ctx context.Context, run string, lock *os.File, terms func() Terms) error {
	defer lock.Close()
	if err := h.prepare(); err != nil {
		return err
	}
	born := h.firstBoot(run)
	path := h.index(watchFile(run, h.Login))
	// package launch reads the process numbers, so that it does not stop these processes
	// with the run. On a full disk the watch continues without this text. The text is in
	// the locked file itself: another login may own the directory, and could put a link in
	// the place of another file.
	text := fmt.Sprintf("%d %s %d\n", os.Getpid(), startTime(os.Getpid()), born.Unix())
	if h.Keeper > 0 {
		text = fmt.Sprintf("%d %s %d\n", h.Keeper, startTime(h.Keeper), born.Unix()) + text
	}
	if readSome(path) != text {
		err := lock.Truncate(0)
		if err == nil {
			_, err = lock.WriteString(text)
		}
		if err != nil {
			h.Note(err.Error())
		}
	}
	up, err := h.Uptime()
	if err != nil {
		return err
	}
	h.Note("watching run " + run)
	w := &watcher{Host: h, m: NewMachine(terms(), born, up)}
	for {
		end, err := w.round(ctx)
		if err != nil {
			return err
		}
		if end != nil {
			return h.leave(path, *end)
		}
		if h.Idle != nil {
			h.Idle()
		}
		if err := agent.Sleep(ctx, seconds(w.m.Terms.Look)); err != nil {
			return err
		}
	}
}

func (h *Host) leave(path string, end End) error {
	if end.Foreign {
		return agent.ErrForeign
	}
	return os.Remove(path)
}

// firstBoot returns the time of the first boot, which the first watch notes on the disk. If
// the disk is full, it returns the present time.
func (h *Host) firstBoot(run string) time.Time {
	path, now := h.own(run+".born"), time.Now()
	text := readSome(path)
	if text == "" {
		if err := agent.WriteFile(path, []byte(strconv.FormatInt(now.Unix(), 10)+"\n"), 0o644); err != nil {
			h.Note(err.Error())
		}
		return now
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 || n >= 1e12 {
		h.Note(fmt.Sprintf("read %s: it has no time", path))
		return now
	}
	return time.Unix(n, 0)
}

// takeLock returns the open file that holds the lock, or nil if another process holds it. A
// link is an error.
func takeLock(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	for range 100 { // another process that calls isFree holds the lock for a moment
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || agent.Sleep(ctx, 50*time.Millisecond) != nil {
			break
		}
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ctx.Err()
	}
	return nil, err
}

// startTime returns the start of a process in the kernel's unit.
func startTime(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "0"
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	if fields := strings.Fields(rest); len(fields) > 19 {
		return fields[19]
	}
	return "0"
}

// A watcher carries out the actions of a Machine.
type watcher struct {
	*Host
	m    *Machine
	seen string
}

// round looks once and carries out all actions that follow. At the end of the watch, end is
// not nil.
func (w *watcher) round(ctx context.Context) (end *End, err error) {
	s, err := w.Look(w.m.Terms.Run, &w.seen)
	if err != nil {
		return nil, err
	}
	for todo := w.m.Look(s); len(todo) > 0; {
		a := todo[0]
		if over, ok := a.(End); ok {
			return &over, nil
		}
		more, err := w.do(ctx, a)
		if err != nil {
			return nil, err
		}
		todo = append(todo[1:], more...)
	}
	return nil, nil
}

func (w *watcher) do(ctx context.Context, a Action) ([]Action, error) {
	switch a := a.(type) {
	case Note:
		w.Note(a.Text)
	case Save:
		_ = w.save(w.m.Terms) // on a full disk the lease file still has them
	case Share:
		err := w.Metadata.Publish(ctx, "lease", fmt.Sprintf("run=%s state=%s at=%d", w.m.Terms.Run, a.State, time.Now().Unix()))
		return w.m.Shared(err), ctx.Err()
	case Stop:
		w.Stop(w.m.Terms.Run)
	case Ask:
		told, workers, err := w.Client.Told(ctx, w.m.Terms.Peers, a.Node)
		return w.m.Heard(reports(told, w.m.Terms.Run), workers, err, time.Now()), ctx.Err()
	case Pause:
		if a.Most > 0 {
			if err := agent.Sleep(ctx, rand.N(a.Most)); err != nil {
				return nil, err
			}
		}
		s, err := w.Look(w.m.Terms.Run, &w.seen)
		if err != nil {
			return nil, err
		}
		return w.m.Again(s), nil
	case Delete:
		err := w.m.Terms.undoes()
		if err == nil {
			err = w.Client.Delete(ctx, w.m.Terms.Delete)
		}
		return w.m.Deleted(err), ctx.Err()
	}
	return nil, nil
}

var report = regexp.MustCompile(`^run=(\S+) state=([a-z]+) at=([0-9]{1,11})$`)

// reports returns the reports of the workers of a slice about a run.
func reports(told []string, run string) (all []Report) {
	for _, text := range told {
		m := report.FindStringSubmatch(text)
		if m == nil || m[1] != run {
			continue
		}
		at, _ := strconv.ParseInt(m[3], 10, 64) // it is a number
		all = append(all, Report{m[2], time.Unix(at, 0)})
	}
	return all
}

// Stop sends TERM to the command of a run. It signals only processes of the login that
// wrote the run's entry, because any login can write an entry. If the command does not end,
// it ends with the deletion of its VM.
func (h *Host) Stop(run string) {
	e := h.entry(run)
	info, err := os.Stat(e.path)
	if err != nil || e.pid <= 1 {
		return
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		about, err := os.Stat(dir)
		if err != nil || about.Sys().(*syscall.Stat_t).Uid != owner || sessionOf(dir) != e.pid {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGTERM) // the process may have ended
	}
}

func sessionOf(dir string) int {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest) // state, parent, group, session
	if len(fields) < 4 {
		return 0
	}
	session, _ := strconv.Atoi(fields[3])
	return session
}
