// Package launch starts a command on a worker so that it belongs to the worker
// and not to the connection. It also follows the command, reports its state, stops it
// and cleans up after it.
//
// On the worker, a small supervisor owns the command and the worker's exclusive lock, and
// records how the command ended. It is one embedded bash script, in a session of its own.
// The command is in a second session. The command's output goes into one pipe, as over ssh,
// so that the command may open /dev/stderr. A relay process beside the supervisor moves the
// output to a file. The promises are
//
//   - a command is started at most once for each [Ref], even if the connection breaks at
//     any moment;
//   - when the end of a command is reported, its log has all output from before the end.
//     The log also gets the later output of background processes, and [Follow] writes the
//     part that is there at that moment;
//   - neither a full disk nor the death of the supervisor or of the relay breaks the
//     command's output. Up to 8 KiB are lost when a relay is killed or its write fails;
//   - a lost connection never touches a command that was started, and nothing
//     is started when the connection is lost before [Armed.ReleaseAt];
//   - at most one run of all logins lives on a worker ([BusyError]);
//   - the program receives the arguments and variables byte for byte as given;
//   - no part of the command's environment, script or arguments is on a command line before
//     the command itself runs. On disk they are only in files of mode 0600 (start.sh reads
//     the environment's file, which is then removed).
//
// Arming and releasing are separate so that a caller can first arm every worker and then
// release them all with one write each, for the same moment:
//
//	armed, err := launch.Arm(ctx, conn, spec)
//	…
//	started, err := armed.ReleaseAt(ctx, moment)
//	exit, err := launch.Follow(ctx, conn, spec.Ref(), 0, file, launch.FollowOptions{})
//
// The functions are safe for concurrent use, also for the same run, also from
// several machines.
//
// What is kept on the worker: when a run ends, its supervisor prunes the ended attempts of
// the same login. The 20 newest attempts stay if they were armed within the last 30 days.
// While less than a tenth of the disk is free, only the 3 newest stay. A living run always
// stays.
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
//   - An operation uses one process if one is enough, and functions of bash instead of
//     programs. A run of true with nothing new starts at most 40 processes on a worker,
//     including those of sshd and sudo.
//   - The lock of a worker is held by the supervisor and by the process that waits for
//     the command. So a worker whose supervisor was killed stays busy while the
//     command lives.
//   - The file "started" can be made only once, so a second start is impossible.
//   - setsid --fork --wait reports the wait status of the command on a pipe that nobody
//     else has after the start. The wait status distinguishes a death by signal from an
//     exit with 128+n.
//   - The command's output is a pipe and not a file, because a program that opens
//     /dev/stderr would truncate a file. The relay ignores signals, and is replaced when it
//     dies. It reads on when the disk is full or --max-log is reached, and counts the bytes
//     that it drops. The supervisor writes the file "exit" only after the pipe is empty.
//   - Processes are found in the real /proc by private paths. These are the device file, or
//     MULTIHOST_RUN_DIR in their environment.
//   - A start and a sync of one directory exclude each other without a common lock. Such a
//     lock would cost a process for each start. Arm makes its supervisor visible before it
//     reads the digest of the code. A sync removes the digest before it looks for a
//     supervisor. So at least one of them sees the other.
//   - Armed workers wait in the process that becomes the command, after all slow work. They
//     all start at the same moment. This moment is 0.1 s plus 1 ms a worker ahead, at most
//     2 s. The clocks for that moment are measured over the waiting sessions, when the
//     workers do nothing else.
//   - Versions of packages are read while the supervisor starts, with the interpreter
//     and the environment of the command. So they cost no round trip. Nothing is
//     imported, because jax would take the TPU.
//   - The arm script reads a secret of Secret Manager into the file of the environment,
//     which is emptied before the command starts. No other place would hold the secret for
//     a shorter time. This machine never sees the value. So it cannot mask the value, and
//     says so.
//   - A command of Exec belongs to its connection, unlike a run. When stdin of the worker's
//     script ends, the script ends the command's session, every process with the command's
//     mark in its environment, and their descendants. So no later cleanup is needed.
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

// Label returns the reference as people read it: "train-1 (attempt 2)".
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

// EnvVar is one variable of the command's environment. A Secret value is
// masked wherever the package shows the command.
type EnvVar struct {
	Name, Value string
	Secret      bool
}

// A StoredSecret is a variable whose value the worker reads from Secret Manager
// with its own token. No lasting file holds the value, and this program never sees it.
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
	Owner   string // who started it, for people: "ann@laptop"
	Slices  int    // how many slices the run has, for Info.Slices; 0: unknown

	// WorkDir is where the command runs, relative to the home directory or
	// absolute. It is made when missing. Empty means Run.
	WorkDir string

	// Argv is the program and its arguments; Script is a bash script. Exactly
	// one of the two is set.
	Argv   []string
	Script string

	// Env is set, in order, after the variables that Unset names were removed.
	Env   []EnvVar
	Unset []string

	// Stored are variables that are set after the variables of Env. The worker reads their
	// values itself during Arm, shortly before the command starts.
	Stored []StoredSecret

	// Wrap is put before the command: {"numactl", "--membind=0"}.
	Wrap []string

	// Processes is how many processes of the command run, if it is more than 1. They are
	// numbered from FirstProcess in MULTIHOST_PROCESS_ID and JAX_PROCESS_ID, and from 0 in
	// MULTIHOST_LOCAL_ID. When one fails, the others are ended, with Grace between TERM and
	// KILL. The command's wait status is the wait status of the first process that failed.
	Processes    int
	FirstProcess int
	Grace        time.Duration

	// MaxLog limits the log to this many bytes of the command's output; 0 means
	// DefaultMaxLog, a negative number means no limit. Output beyond the limit is counted
	// in Exit.Dropped. Only the last 64 KiB of this output are kept, in the file "dropped"
	// beside the log. The command does not notice. On a disk that is nearly full (less than
	// 2 % or 1 GB free) the log takes 1 MiB more. Output beyond that is dropped until space
	// is freed. Then the log goes on.
	MaxLog int64

	// Python is an interpreter whose version and packages Armed.Versions returns. The
	// worker looks it up in the command's directory and environment. "" asks for no
	// versions. Code asks for a digest of the code in the directory, too.
	Python string
	Code   bool

	// Venv says that the command runs in the virtual environment of MakeVenv. It only
	// sets Info.Venv: the variables are in Env.
	Venv bool

	// Synced is the digest that package codesync gave to the code that it synced into the
	// run's directory. It is "" if codesync synced nothing. If the directory holds other
	// code, the command is not started.
	Synced string
}

// DefaultMaxLog is a fifth of the boot disk of a TPU VM.
const DefaultMaxLog = 20_000_000_000

// Ref returns the reference of the command.
func (s Spec) Ref() Ref { return Ref{s.Run, s.Attempt} }

// Environment returns the variables that start.sh sets in addition to the login's. Later
// entries override earlier ones. In it, "~" stands for the home directory.
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
	Starting Phase = "starting" // the supervisor is armed; the command was not started
	Running  Phase = "running"
	Exited   Phase = "exited"
	Aborted  Phase = "aborted" // the command was never started and will not be
	Lost     Phase = "lost"    // nobody saw how it ended: a reboot, or the supervisor was killed
)

// Ended reports whether the command's own process is gone or never started.
func (p Phase) Ended() bool { return p == Exited || p == Aborted || p == Lost }

// Exit is how a command ended.
type Exit struct {
	Code    int       // exit code; 128+n when a signal ended it
	Signal  string    // "KILL" when a signal ended it, else ""
	End     time.Time // time of the end by the worker's clock; zero if nobody saw the end
	LogSize int64     // bytes of its log when it ended
	Dropped int64     // bytes of output that are not in its log: see Spec.MaxLog
	Reason  string    // who stopped it and why; "" when it ended by itself
	OOM     bool      // the kernel killed it, or one of its processes, for lack of memory
	Lost    bool      // nobody saw how it ended; Code is 255
	Process string    // MULTIHOST_LOCAL_ID of the process that failed first, if there are several processes
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
	Supervised bool          // the supervisor lives
	Armed      time.Time     // worker clock
	Started    time.Time     // worker clock; zero before the start
	Now        time.Time     // worker clock at the time of the answer
	LogSize    int64         // bytes of its log now
	LogTime    time.Time     // worker clock of the last output
	LogLimit   int64         // bytes that its log can grow to; -1 when there is no limit
	Dropped    int64         // bytes of output that are not in its log
	Disk       Disk          // the disk that holds the output
	Left       int           // processes of the run that are alive
	CPU        time.Duration // processor time that they and their ended children have used
	Exit       *Exit         // set when Phase is Exited or Lost
}

// A Disk is the space of a worker's disk that users other than root may use. The zero
// Disk means that nothing is known of it.
type Disk struct {
	Free, Size int64 // bytes
}

// Low reports whether less than a tenth of the disk is free. Output is still kept
// until less than a fiftieth, or less than 1 GB, is free.
func (d Disk) Low() bool { return d.Size > 0 && d.Free < d.Size/10 }

// Info is a run in the list of a worker.
type Info struct {
	Ref
	Phase      Phase
	Mine       bool   // the run belongs to the login that asks
	Login      string // the login that runs it on the worker
	Owner      string // Spec.Owner
	Dir        string // attempt directory
	Command    string // first line, secrets masked
	Venv       bool   // Spec.Venv
	Slices     int    // Spec.Slices; 0 if the worker does not tell it
	Armed      time.Time
	Started    time.Time
	Now        time.Time
	PID        int
	Supervisor int
	Exit       *Exit
	Followers  int    // how many processes follow its output here without FollowOptions.Look; only for Mine and Running
	Verdict    string // how the attempt ended on all workers; "" where KeepVerdict was not called
	Seen       bool   // KeepSeen was called
	Stopped    Stopped
}

// Stopped is the mark that a stop with StopOptions.Mark left with an attempt. The zero
// value means that there is no mark.
type Stopped struct {
	At     time.Time // time of the stop by the worker's clock
	Reason string
}

// Age returns how long ago the run was armed, by the worker's own clock.
func (i Info) Age() time.Duration { return i.Now.Sub(i.Armed) }

// Alive reports whether the run holds the worker.
func (i Info) Alive() bool { return i.Phase == Starting || i.Phase == Running }

// Process describes a process on a worker for people.
type Process struct {
	PID       int
	User      string
	Age       time.Duration
	Command   string
	Container string // id of the container that it runs in, or ""
	Engine    string // what runs the container: "docker", "libpod" (podman), "containerd", …
	Run       Ref    // the multihost run that it belongs to, or zero
	RunAlive  bool   // that run still lives
	Mine      bool   // it belongs to the login that asks
	Device    string
}

// StopReport is the result of Stop on one worker.
type StopReport struct {
	Phase     Phase // phase after the stop
	Found     int   // processes that were signalled
	Killed    int   // how many of them needed SIGKILL
	Survivors []Process
	Devices   []Process // all processes that hold a TPU device now, of any user
	Blind     string    // why root is not available, so that holders of other users are not seen; "" when root is available
	Exit      *Exit
	Unmarked  bool // the mark of StopOptions.Mark could not be written
}

// Free reports whether nothing of the run is left.
func (r StopReport) Free() bool { return len(r.Survivors) == 0 }
