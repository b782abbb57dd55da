//go:build unix

package detached

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"multihost/internal/agent"
)

// A disk has the files that survive a reboot. They are in the worker's own directory, and
// below the home of the login in a directory for each attempt. Names of files:
//
//	lock      held by the one program that runs
//	boots     the time of each boot
//	me        slice and worker
//	right     whether this worker may delete
//	login     the user that the command runs as
//	runs      directory of the attempts
//	kit.tar.gz, code.tar.gz, unpacked
//	seen.N    when attempt N was last seen running
//	told.N    the end of attempt N, which the others know
//	kept.N    since when the slices are kept after attempt N
//	down, down.N  the machine was told to end, and why, while attempt N had not ended
type disk struct {
	state string
	runs  string // "": not known yet
}

func (d disk) path(name string) string { return filepath.Join(d.state, name) }

func (d disk) attempt(n int, name string) string {
	return filepath.Join(d.runs, strconv.Itoa(n), name)
}

// remember writes a file that survives a reboot. On a full disk it does nothing.
func (d disk) remember(name, text string) {
	_ = agent.WriteFile(d.path(name), []byte(text+"\n"), 0o644)
}

// recall returns the first line of a file, or "" if the file does not exist.
func (d disk) recall(name string) string {
	text, _ := os.ReadFile(d.path(name))
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// touch stores the time as the modification time of an empty file. An empty file fits even
// on a full disk.
func touch(path string, now time.Time) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	f.Close()
	_ = os.Chtimes(path, now, now)
}

// newest returns the newest attempt of which this worker has a record, or 0.
func (d disk) newest() int {
	entries, _ := os.ReadDir(d.runs)
	newest := 0
	for _, e := range entries {
		if n := number(e.Name()); e.IsDir() && n > newest {
			newest = n
		}
	}
	return newest
}

// number returns the number in a name, or 0.
func number(name string) int {
	n, err := strconv.Atoi(name)
	if err != nil || n < 0 || strconv.Itoa(n) != name {
		return 0
	}
	return n
}

// told returns the newest attempt whose end the other workers know, or 0.
func (d disk) told() int {
	paths, _ := filepath.Glob(d.path("told.*"))
	newest := 0
	for _, path := range paths {
		newest = max(newest, number(strings.TrimPrefix(filepath.Base(path), "told.")))
	}
	return newest
}

func (d disk) record(n int) Record {
	text, err := os.ReadFile(d.attempt(n, "exit"))
	if err != nil || len(text) == 0 {
		return nil
	}
	return parseRecord(string(text))
}

func (d disk) exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// stopped reports whether the attempt has got an order to stop, and why.
func (d disk) stopped(n int) (reason string, yes bool) {
	text, err := os.ReadFile(d.attempt(n, "stop"))
	if err != nil || len(text) == 0 {
		return "", false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line, true
}

// started returns when the command of an attempt started, or zero if that is not known.
func (d disk) started(n int) time.Time {
	text, _ := os.ReadFile(d.attempt(n, "started"))
	words := strings.Fields(string(text))
	if len(words) < 3 {
		return time.Time{}
	}
	at, err := strconv.ParseInt(words[2], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(at/int64(time.Second), 0)
}

// here returns the state of an attempt on the disk. The parameter is has the state of the
// attempt's command, and proc the root of /proc.
func (d disk) here(n int, is life, proc string) attemptHere {
	a := attemptHere{life: is, record: d.record(n), told: d.exists(d.path("told." + strconv.Itoa(n)))}
	_, a.stopped = d.stopped(n)
	if name := "down." + strconv.Itoa(n); d.exists(d.path(name)) {
		cause := d.recall(name)
		a.down = &cause
	}
	supervisor, _ := os.ReadFile(d.attempt(n, "supervisor"))
	if words := strings.Fields(string(supervisor)); len(words) > 2 {
		a.bootOf = words[2]
	}
	boot, _ := os.ReadFile(proc + "/proc/sys/kernel/random/boot_id")
	a.bootIs = strings.TrimSpace(string(boot))
	return a
}

// After quickDeaths attempts in a row that ended with a reboot within quickDeath of their
// start, no further attempt begins.
const (
	quickDeaths = 3
	quickDeath  = time.Minute
)

// quick reports whether attempt n and the ones before it, quickDeaths in all, each ended
// with a reboot soon after its start.
func (d disk) quick(n int) bool {
	for i := n; i > n-quickDeaths; i-- {
		started := d.started(i)
		if i < 1 || started.IsZero() {
			return false
		}
		if seen, err := os.Stat(d.path("seen." + strconv.Itoa(i))); err == nil && seen.ModTime().Sub(started) > quickDeath {
			return false
		}
	}
	return true
}

// If a machine still runs goingLasts after an order to shut down, the order is void.
const goingLasts = 3 * time.Minute

// goingDown reports whether the machine has got an order to shut down in the last
// goingLasts.
func (d disk) goingDown(now time.Time) bool {
	at, err := os.Stat(d.path("down"))
	if err != nil {
		return false
	}
	if now.Sub(at.ModTime()).Abs() < goingLasts {
		return true
	}
	d.forgetDown()
	paths, _ := filepath.Glob(d.path("down.*"))
	for _, path := range paths {
		os.Remove(path)
	}
	return false
}

func (d disk) forgetDown() { os.Remove(d.path("down")) }

// look reads the state on the disk after a boot.
func (d disk) look() onDisk {
	o := onDisk{told: d.told()}
	if o.told > 0 {
		text, _ := os.ReadFile(d.path("told." + strconv.Itoa(o.told)))
		r := parseRecord(string(text))
		o.toldCode, o.toldReason = r.get("code"), r.get("reason")
	}
	if d.runs == "" {
		return o
	}
	if o.newest = d.newest(); o.newest > 0 {
		o.stopping, _ = d.stopped(o.newest)
		o.quick = d.quick(o.newest)
	}
	return o
}
