// Package launch starts a command that belongs to the worker and not to the connection. It
// also follows the command, reports its state, stops it and cleans up.
//
// On the worker, a small supervisor owns the command and the worker's exclusive lock, and
// records how the command ended. It is one embedded bash script, in a session of its own.
// The command is in a second session. The command's output goes into one pipe, as over ssh,
// so that the command may open /dev/stderr. A relay process beside the supervisor moves the
// output to a file. The promises:
//
//   - A command is started at most once for each [Ref], even if the connection breaks at
//     any moment.
//   - When the end of a command is reported, its log has all output up to the end. The log
//     also gets later output of background processes. [Follow] writes the part of it that
//     exists at that moment.
//   - Neither a full disk nor the death of the supervisor or of the relay breaks the
//     command's output. If a relay is killed or its write fails, up to 8 KiB are lost.
//   - A lost connection never touches a command that was started. If the connection is lost
//     before [Armed.ReleaseAt], nothing is started.
//   - At most one run of all logins is active on a worker ([BusyError]).
//   - The program receives arguments and variables byte for byte.
//   - No part of the command's environment, script or arguments is on a command line before
//     the command itself runs. On disk they are only in files of mode 0600. The supervisor
//     empties the environment's file before the command starts, and removes it later.
//
// Arming and releasing are separate. So a caller can first arm every worker and then
// release them all with one write each, for the same moment:
//
//	armed, err := launch.Arm(ctx, conn, spec)
//	…
//	started, err := armed.ReleaseAt(ctx, moment)
//	exit, err := launch.Follow(ctx, conn, spec.Ref(), 0, file, launch.FollowOptions{})
//
// The functions are safe for concurrent use, even for the same run and from several
// machines.
//
// When a run ends, its supervisor removes ended attempts of the same login. It keeps the 20
// newest attempts if they were armed within the last 30 days. While less than a tenth of
// the disk is free, it keeps only the 3 newest. It never removes an active run.
//
// On the worker:
//
//	~/<run>/                             the command's working directory (package codesync)
//	~/.multihost/runs/<run>/<attempt>/   command, output.log, started, exit (by rename), dropped, lost, relay
//	~/.multihost/venv/<run>/             the virtual environment of --venv; .whole in it marks a complete one
//	~/.multihost/kit/                    our scripts by hash (package remote)
//	~/.multihost/lease/, agent/          packages lease and agent
//	/tmp/.multihost/                     index of the runs that every login can read; the worker's lock; leases
//
// # Decisions
//
//   - An operation on the worker uses one process if possible, and bash functions instead of
//     programs.
//     A run of the command "true", with no files to copy, starts at most 40 processes on a
//     worker, including those of sshd and sudo.
//   - The supervisor and the process that waits for the command both hold the lock of the
//     worker. So a worker whose supervisor was killed stays busy while the command lives.
//   - The file "started" can be made only once, so a second start is impossible.
//   - setsid --fork --wait reports the wait status of the command on a pipe that no other
//     process has after the start. The wait status distinguishes a death by signal from an
//     exit with 128+n.
//   - The command's output is a pipe, because a program that opens /dev/stderr would empty
//     a file. The relay ignores signals, and the supervisor replaces a dead relay. On a
//     full disk, or at --max-log, the relay reads on and counts the bytes that it drops.
//     The supervisor writes the file "exit" only after the pipe is empty.
//   - Scripts find processes in the real /proc by paths that nobody else uses: the device
//     file, or MULTIHOST_RUN_DIR in the environment.
//   - A start and a sync of one directory exclude each other without a common lock, which
//     would cost a process for each start. Arm makes its supervisor visible before it reads
//     the digest of the code. A sync removes the digest before it looks for a supervisor.
//     So at least one of them sees the other.
//   - Armed workers wait in the process that becomes the command, after all slow work. They
//     all start at the same moment. This machine chooses it 0.1 s ahead plus 1 ms for each
//     worker, at most 2 s. Before that, it measures the workers' clocks over the waiting
//     sessions, while the workers do nothing else.
//   - While the supervisor starts, the arm script reads the versions of packages, with the
//     interpreter and the environment of the command. So the versions cost no round trip.
//     The arm script imports no package, because importing jax would take the TPU.
//   - The arm script reads a secret of Secret Manager into the file of the environment,
//     which is emptied before the command starts. No other place would hold the secret for
//     a shorter time. This machine never sees the value, so it cannot mask the value, and
//     says so.
//   - A command of Exec belongs to its connection, unlike a run. When stdin of the worker's
//     script ends, the script ends the command's session, every process with the command's
//     mark in its environment, and their descendants. So nothing is left to clean up.
package launch

import (
	"fmt"
	"strconv"
	"time"

	"multihost/internal/config"
)

// A Ref names one attempt of one run.
type Ref struct {
	Run     string
	Attempt int
}

// Label returns the reference for people: "train-1 (attempt 2)".
func (r Ref) Label() string {
	if r.Attempt <= 1 {
		return r.Run
	}
	return fmt.Sprintf("%s (attempt %d)", r.Run, r.Attempt)
}

const mostAttempts = 1e9

func (r Ref) check() error {
	if err := config.CheckRunName(r.Run); err != nil {
		return err
	}
	if r.Attempt < 1 || r.Attempt > mostAttempts {
		return fmt.Errorf("run %q: attempt %d: want 1 or more", r.Run, r.Attempt)
	}
	return nil
}

func (r Ref) args() []string { return []string{r.Run, strconv.Itoa(r.Attempt)} }

// EnvVar is one variable of the command's environment. The package masks a Secret value
// wherever it shows the command.
type EnvVar struct {
	Name, Value string
	Secret      bool
}

// A StoredSecret is a variable whose value the worker reads from Secret Manager with its
// own token. No file keeps the value, and this program never sees it.
type StoredSecret struct {
	Name                 string
	Root                 string // URL of the API, without its version
	Project, ID, Version string
}

func (s StoredSecret) url() string {
	return fmt.Sprintf("%s/v1/projects/%s/secrets/%s/versions/%s:access", s.Root, s.Project, s.ID, s.Version)
}

// Spec is a command to start on one worker.
type Spec struct {
	Run     string
	Attempt int    // from 1
	Owner   string // who started the run: "ann@laptop"
	Slices  int    // number of slices of the run; 0: unknown

	// WorkDir is the directory of the command, relative to the home directory or absolute.
	// It is made if missing. Empty means Run.
	WorkDir string

	// Argv is the program and its arguments. Script is a bash script. Exactly one of the
	// two is set.
	Argv   []string
	Script string

	// Env is set, in order, after the removal of the variables in Unset.
	Env   []EnvVar
	Unset []string

	// Stored are variables that are set after Env. The worker reads their values during
	// Arm, shortly before the command starts.
	Stored []StoredSecret

	// Wrap goes in front of the command: {"numactl", "--membind=0"}.
	Wrap []string

	// Processes is how many processes of the command run, if more than 1. Their numbers
	// begin with FirstProcess in MULTIHOST_PROCESS_ID and JAX_PROCESS_ID, and with 0 in
	// MULTIHOST_LOCAL_ID. When one process fails, the others get TERM, and after Grace
	// KILL. The command's wait status is the wait status of the first process that failed.
	Processes    int
	FirstProcess int
	Grace        time.Duration

	// MaxLog limits the command's output in the log, in bytes. 0 means DefaultMaxLog, and a
	// negative number means no limit. Exit.Dropped counts the output beyond the limit. Its
	// last 64 KiB are in the file "dropped" beside the log. The command does not notice the
	// limit. On a disk that is nearly full (less than 2 % and less than 1 GB free) the log
	// takes 1 MiB more. Further output is dropped until space is free. Then the log continues.
	MaxLog int64

	// Python is an interpreter. Armed.Versions returns its version and its packages'
	// versions. The worker looks it up in the command's directory and environment. "" asks
	// for no versions. Code also asks for a digest of the code in the directory.
	Python string
	Code   bool

	// Venv says that the command runs in the virtual environment of MakeVenv. It sets only
	// Info.Venv: the variables are in Env.
	Venv bool

	// Synced is the digest of the code that package codesync synced into the run's
	// directory, or "" without a sync. If the directory has other code, the command is not
	// started.
	Synced string
}

// DefaultMaxLog is a fifth of the boot disk of a TPU VM.
const DefaultMaxLog = 20_000_000_000

// Ref returns the reference of the command.
func (s Spec) Ref() Ref { return Ref{s.Run, s.Attempt} }

// Environment returns the variables that start.sh sets besides the login's. Later entries
// override earlier ones. "~" stands for the home directory.
func (s Spec) Environment() []EnvVar {
	return append([]EnvVar{
		{Name: "PYTHONUNBUFFERED", Value: "1"}, // unless the login sets another value
		{Name: "MULTIHOST_RUN", Value: s.Run},
		{Name: "MULTIHOST_ATTEMPT", Value: strconv.Itoa(s.Attempt)},
		{Name: "MULTIHOST_RUN_DIR", Value: fmt.Sprintf("~/.multihost/runs/%s/%d", s.Run, s.Attempt)},
	}, s.Env...)
}

// Phase is the state of a command.
type Phase string

// The phases of a command.
const (
	Unknown  Phase = "unknown"  // this worker knows no such run
	Starting Phase = "starting" // the supervisor is armed; the command has not started
	Running  Phase = "running"
	Exited   Phase = "exited"
	Aborted  Phase = "aborted" // the command never started and never will
	Lost     Phase = "lost"    // nobody saw the end, because of a reboot or a killed supervisor
)

// Ended reports whether the command's own process is gone or never started.
func (p Phase) Ended() bool { return p == Exited || p == Aborted || p == Lost }

// Exit is how a command ended.
type Exit struct {
	Code    int       // exit code; 128+n if signal n ended the command
	Signal  string    // for example "KILL" if a signal ended the command, else ""
	End     time.Time // by the worker's clock; zero if nobody saw the end
	LogSize int64     // bytes of the log at the end
	Dropped int64     // bytes of output that are not in the log: see Spec.MaxLog
	Reason  string    // who stopped the command and why; "" if it ended by itself
	OOM     bool      // the kernel killed the command, or one of its processes, for lack of memory
	Lost    bool      // nobody saw the end; Code is 255
	Process string    // MULTIHOST_LOCAL_ID of the first process that failed, if there are several
}

// String describes the end in a few words: "exit code 1", "killed by SIGKILL".
func (e Exit) String() string {
	var s string
	switch {
	case e.Lost:
		s = "lost"
	case e.OOM && e.Signal != "":
		s = "killed by SIG" + e.Signal + " (out of memory)"
	case e.OOM:
		s = "exit code " + strconv.Itoa(e.Code) + " (a process of it was killed: out of memory)"
	case e.Signal != "":
		s = "killed by SIG" + e.Signal
	default:
		s = "exit code " + strconv.Itoa(e.Code)
	}
	if e.Process != "" {
		s += " in process " + e.Process
	}
	if e.Reason != "" {
		s += " (" + e.Reason + ")"
	}
	return s
}

// State is a worker's knowledge of a run.
type State struct {
	Ref
	Phase      Phase
	Dir        string        // directory of the attempt on the worker
	PID        int           // pid of the command, and its session
	Supervisor int           // pid of the supervisor
	Supervised bool          // the supervisor is running
	Armed      time.Time     // worker clock
	Started    time.Time     // worker clock; zero before the start
	Now        time.Time     // worker clock at the answer
	LogSize    int64         // present bytes of the log
	LogTime    time.Time     // worker clock at the last output
	LogLimit   int64         // largest length of the log, in bytes; -1: no limit
	Dropped    int64         // bytes of output that are not in the log
	Disk       Disk          // the disk that holds the output
	Left       int           // living processes of the run
	CPU        time.Duration // processor time of these processes and their ended children
	Exit       *Exit         // set if Phase is Exited or Lost
}

// A Disk is the space of a worker's disk that users other than root may use. The zero
// Disk means that nothing is known of it.
type Disk struct {
	Free, Size int64 // bytes
}

// Low reports whether less than a tenth of the disk is free. The log still takes output
// until less than a fiftieth and less than 1 GB is free.
func (d Disk) Low() bool { return d.Size > 0 && d.Free < d.Size/10 }

// Info is a run in a worker's list of runs.
type Info struct {
	Ref
	Phase      Phase
	Mine       bool   // the run belongs to the login that made the list
	Login      string // login of the run on the worker
	Owner      string // Spec.Owner
	Dir        string // directory of the attempt
	Command    string // first line, secrets masked
	Venv       bool   // Spec.Venv
	Slices     int    // Spec.Slices; 0: not known
	Armed      time.Time
	Started    time.Time
	Now        time.Time
	PID        int
	Supervisor int
	Exit       *Exit
	Followers  int    // number of processes that follow the output here without FollowOptions.Look; only if Mine and Running
	Verdict    string // how the attempt ended on all workers; "" without a call of KeepVerdict
	Seen       bool   // KeepSeen was called
	Stopped    Stopped
}

// Stopped is the mark that a stop with StopOptions.Mark left in an attempt. The zero value
// is no mark.
type Stopped struct {
	At     time.Time // time of the stop by the worker's clock
	Reason string
}

// Age returns how long ago the run was armed, by the worker's own clock.
func (i Info) Age() time.Duration { return i.Now.Sub(i.Armed) }

// Alive reports whether the run is active: it holds the worker.
func (i Info) Alive() bool { return i.Phase == Starting || i.Phase == Running }

// Process describes a process on a worker for people.
type Process struct {
	PID       int
	User      string
	Age       time.Duration
	Command   string
	Container string // id of its container, or ""
	Engine    string // program that runs the container: "docker", "libpod" (podman), "containerd", …
	Run       Ref    // its multihost run, or zero
	RunAlive  bool   // the run is active
	Mine      bool   // the process belongs to the login that asks
	Device    string
}

// StopReport is the result of Stop on one worker.
type StopReport struct {
	Phase     Phase // after the stop
	Found     int   // processes that got a signal
	Killed    int   // processes that needed SIGKILL
	Survivors []Process
	Devices   []Process // all processes that hold a TPU device now, of any user
	Blind     string    // why root is not available, so that holders of other users are invisible; "": root is available
	Exit      *Exit
	Unmarked  bool // the mark of StopOptions.Mark could not be written
}

// Free reports whether nothing of the run is left.
func (r StopReport) Free() bool { return len(r.Survivors) == 0 }
