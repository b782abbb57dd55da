package netns

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"multihost/internal/sim/worker"
)

// The code of this file and of guestroot_linux.go runs as process 1 of a machine of the
// netns backend.

// initName is argument 0 of process 1. By this name, the program knows that it is process
// 1, and the simulator finds machines that were left.
const initName = "multihost-worker-init"

const (
	sshdPort    = 22
	refuserPort = 2022 // port of an sshd that accepts no key
)

// A guestRequest is one line that process 1 reads.
type guestRequest struct {
	Op     string // boot, keys, faults, kill, refuse, shutdown
	Boot   *bootRequest
	Faults *guestFaults
	Keys   map[string][]string // authorized keys by login
	Signal int
}

// bootRequest describes a machine.
type bootRequest struct {
	Disk        string            // directory that survives reboots
	Tools       map[string]string // paths by name
	SSHD        []string          // more lines for sshd_config
	Hostname    string
	Interface   string
	IP, Gateway string
	Hosts       map[string]string // other machines, by name
	Listen      string            // address of sshd
	Devices     []string
	Env         []string
	Script      string // root runs this before anybody can log in
	Metadata    bool
	BootID      string
	guestFaults
}

// guestFaults are the faults simulated inside the machine.
type guestFaults struct {
	Troubles []worker.Fault // faults of the kinds in inGuest
	Missing  []string
	Denied   []string
	SlowExec float64           // seconds
	HostKeys map[string]string // private keys by type
}

// A guestReply is the line that answers a request.
type guestReply struct {
	Error string `json:",omitempty"`
	Busy  bool   `json:",omitempty"` // the shutdown script still runs
}

// A guestScript is a script of the metadata for root. Its text may be empty.
type guestScript struct {
	name string
	text []byte
}

func initArgs(root, hostname string) []string { return []string{initName, root, hostname} }

// If the netns backend has started this program as process 1 of a machine, MaybeInit does
// the work of process 1. It returns true when the machine is no longer needed; the program
// must then exit. Programs that use New, tests included, must call it before anything else,
// with os.Args.
func MaybeInit(args []string) (handled bool) {
	if len(args) == 0 || args[0] != initName || os.Getpid() != 1 {
		return false
	}
	// All processes that this thread starts inherit its state, such as dropped
	// capabilities.
	runtime.LockOSThread()
	p := &process1{
		waiting: make(map[int]chan syscall.WaitStatus),
		died:    make(chan int, 16),
		scripts: make(chan guestScript),
		replies: json.NewEncoder(os.NewFile(4, "replies")),
	}
	p.serve(os.NewFile(3, "requests"))
	return true
}

// process1 is the first process of a machine. It starts the others, collects those that
// have ended, and carries out the simulator's requests.
type process1 struct {
	boot    bootRequest
	replies *json.Encoder
	sshd    int // process id, or 0
	refuser int
	missing []string // names of missing settings
	denied  []string

	troubles  []worker.Fault // active faults
	readOnly  bool           // /home is read-only
	smallDisk bool           // /home is a small disk
	smallTmp  bool

	scripts chan guestScript
	ending  chan struct{} // closed when the shutdown script has ended; nil before its request
	died    chan int      // process ids of ended daemons

	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus // guarded by mu
}

// serve handles requests until the simulator closes its end or dies.
func (p *process1) serve(from io.Reader) {
	// Without handlers these signals would end process 1 and the machine. If process 1
	// ignored them, everything on the machine would.
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2)
	go p.reap(signals)
	requests := make(chan guestRequest)
	go func() {
		defer close(requests)
		dec := json.NewDecoder(bufio.NewReader(from))
		for {
			var req guestRequest
			if dec.Decode(&req) != nil {
				return
			}
			requests <- req
		}
	}()
	for {
		select {
		case req, ok := <-requests:
			if !ok {
				return
			}
			var reply guestReply
			if err := p.do(req); err != nil {
				reply.Error = err.Error()
			}
			if p.ending != nil {
				select {
				case <-p.ending:
				default:
					reply.Busy = true
				}
			}
			if p.replies.Encode(reply) != nil {
				return
			}
		case pid := <-p.died:
			if pid == p.sshd {
				// Restart it as a service manager would.
				if p.startSSHD() != nil {
					p.sshd = 0
				}
			} else if pid == p.refuser {
				p.refuser = 0
			}
		case s := <-p.scripts:
			p.runScript(s)
		}
	}
}

func (p *process1) do(req guestRequest) error {
	switch req.Op {
	case "boot":
		p.boot = *req.Boot
		return p.bootUp()
	case "keys":
		return p.setLogins(req.Keys)
	case "faults":
		return p.setFaults(*req.Faults)
	case "kill":
		// To all processes except process 1.
		if err := unix.Kill(-1, syscall.Signal(req.Signal)); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil
	case "refuse":
		if p.refuser != 0 {
			return nil
		}
		var err error
		p.refuser, err = p.startDaemon(refuserPort, "-p", fmt.Sprint(refuserPort), "-o", "ListenAddress=127.0.0.1",
			"-o", "PidFile=none", "-o", "AuthorizedKeysFile=none")
		return err
	case "shutdown":
		if p.ending == nil {
			p.ending = make(chan struct{})
			go p.fetchScript(worker.ShutdownScript)
		}
		return nil
	}
	return fmt.Errorf("unknown request %q", req.Op)
}

// reap collects ended processes, including orphans.
func (p *process1) reap(signals <-chan os.Signal) {
	for sig := range signals {
		if sig != syscall.SIGCHLD {
			continue
		}
		for {
			var st syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &st, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if pid <= 0 {
				break
			}
			p.mu.Lock()
			done := p.waiting[pid]
			delete(p.waiting, pid)
			p.mu.Unlock()
			if done != nil {
				done <- st
			}
		}
	}
}

// spawn starts a program with its output in a file. It must be called on the locked thread.
// The channel receives the status.
func (p *process1) spawn(output string, argv ...string) (int, <-chan syscall.WaitStatus, error) {
	out, err := os.OpenFile(output, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return 0, nil, err
	}
	defer out.Close()
	in, err := os.Open("/dev/null")
	if err != nil {
		return 0, nil, err
	}
	defer in.Close()
	done := make(chan syscall.WaitStatus, 1)
	// Hold the lock until the process is registered: otherwise reap might miss it.
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=" + worker.LoginPath, "HOME=/root", "LANG=C.UTF-8"},
		Files: []uintptr{in.Fd(), out.Fd(), out.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, nil, fmt.Errorf("start %q: %w", argv[0], err)
	}
	p.waiting[pid] = done
	return pid, done, nil
}

// run runs a program to its end. Its error has the program's output.
func (p *process1) run(argv ...string) error {
	output := filepath.Join("/run", filepath.Base(argv[0])+".out")
	defer os.Remove(output)
	_, done, err := p.spawn(output, argv...)
	if err != nil {
		return err
	}
	if st := <-done; st != 0 {
		text, _ := os.ReadFile(output)
		return fmt.Errorf("%s ended with status %d: %s", argv[0], st.ExitStatus(), bytes.TrimSpace(text))
	}
	return nil
}

func (p *process1) ipBatch(lines ...string) error {
	const script = "/run/network"
	if err := os.WriteFile(script, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	defer os.Remove(script)
	return p.run(p.boot.Tools["ip"], "-batch", script)
}

// bootUp sets up the machine. When it returns, sshd answers.
func (p *process1) bootUp() error {
	b := p.boot
	if err := enterRoot(b); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(b.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	syscall.Umask(0o022)
	// The limit of Ubuntu. The simulator may have raised its own.
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil {
		limit.Max = min(limit.Max, 1<<20)
		limit.Cur = min(limit.Max, 1024)
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // lowering is always allowed
	}
	if err := writeEtc(b); err != nil {
		return fmt.Errorf("write /etc: %w", err)
	}
	err := p.ipBatch(
		"link set lo up",
		fmt.Sprintf("addr add %s/32 dev %s", b.IP, b.Interface),
		"link set "+b.Interface+" up",
		fmt.Sprintf("route add %s dev %s proto dhcp scope link src %s metric 100", b.Gateway, b.Interface, b.IP),
		fmt.Sprintf("route add default via %s dev %s proto dhcp src %s metric 100", b.Gateway, b.Interface, b.IP),
	)
	if err != nil {
		return fmt.Errorf("set up network: %w", err)
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	if b.Script != "" {
		if err := p.run("/bin/bash", "-c", b.Script); err != nil {
			return fmt.Errorf("run boot script: %w", err)
		}
	}
	if err := p.setFaults(b.guestFaults); err != nil {
		return err
	}
	if p.sshd == 0 {
		if err := p.startSSHD(); err != nil {
			return err
		}
	}
	if b.Metadata {
		go p.fetchScript(worker.StartupScript)
	}
	return nil
}

func (p *process1) startSSHD() (err error) {
	p.sshd, err = p.startDaemon(sshdPort)
	return err
}

// startDaemon starts an sshd and returns when it listens.
func (p *process1) startDaemon(port int, args ...string) (int, error) {
	const log = "/var/log/sshd.log"
	pid, done, err := p.spawn(log, append([]string{p.boot.Tools["sshd"], "-D", "-e"}, args...)...)
	if err != nil {
		return 0, err
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !listens(port) {
		select {
		case <-tick.C:
		case <-done:
			text, _ := os.ReadFile(log)
			return 0, fmt.Errorf("sshd ended: %s", bytes.TrimSpace(text[max(0, len(text)-500):]))
		}
	}
	go func() {
		<-done
		p.died <- pid
	}()
	return pid, nil
}

// listens reports whether a TCP port is open on loopback or on all addresses.
func listens(port int) bool {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return false
	}
	// This is how the kernel writes 0.0.0.0 and 127.0.0.1.
	any, local := fmt.Sprintf("00000000:%04X", port), fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32([]byte{127, 0, 0, 1}), port)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 3 && (f[1] == any || f[1] == local) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// fetchScript gets a script from the metadata server, for serve to run.
func (p *process1) fetchScript(name string) {
	text, err := metadataAttribute(name)
	if err != nil {
		text = nil
	}
	p.scripts <- guestScript{name, text}
}

// metadataAttribute returns a value of the metadata, or nothing if there is none.
func metadataAttribute(name string) ([]byte, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+metadataAddr+"/computeMetadata/v1/instance/attributes/"+name, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Metadata-Flavor", "Google")
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil
	}
	return io.ReadAll(resp.Body)
}

// runScript runs a script as the guest agent does: as root, in /, at every boot or at
// shutdown. Its log stays on the machine.
func (p *process1) runScript(s guestScript) {
	done, err := p.startScript(s)
	if s.name != worker.ShutdownScript {
		return
	}
	ending := p.ending
	if err != nil {
		close(ending)
		return
	}
	go func() {
		<-done
		close(ending)
	}()
}

func (p *process1) startScript(s guestScript) (<-chan syscall.WaitStatus, error) {
	if len(s.text) == 0 {
		return nil, errors.New("there is none")
	}
	dir, err := os.MkdirTemp("", "metadata-scripts")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, s.name)
	if err := worker.WriteProgram(file, s.text); err != nil {
		return nil, err
	}
	_, done, err := p.spawn("/var/log/"+s.name+".log", "/bin/bash", "-c", file)
	return done, err
}

// setFaults replaces the active faults inside the machine by f.
func (p *process1) setFaults(f guestFaults) error {
	if err := p.setTroubles(f.Troubles); err != nil {
		return err
	}
	if err := writeSSHRC(f.SlowExec); err != nil {
		return err
	}
	changed, err := writeHostKeys(f.HostKeys)
	if err != nil {
		return err
	}
	if changed && p.sshd != 0 {
		old := p.sshd
		p.sshd = 0
		if err := unix.Kill(old, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		for pid := range p.died {
			if pid == old {
				break
			}
			p.refuser = 0 // the only other daemon
		}
		if err := p.startSSHD(); err != nil {
			return err
		}
	}
	for _, name := range p.missing {
		if err := restoreMissing(name); err != nil {
			return err
		}
	}
	for _, name := range p.denied {
		if err := unix.Unmount(deniedPath(name), unix.MNT_DETACH); err != nil {
			return fmt.Errorf("allow %s: %w", name, err)
		}
	}
	p.missing, p.denied = nil, nil
	for _, name := range f.Missing {
		if err := makeMissing(name); err != nil {
			return err
		}
		p.missing = append(p.missing, name)
	}
	for _, name := range f.Denied {
		if err := bindReadOnly(deniedPath(name)); err != nil {
			return err
		}
		p.denied = append(p.denied, name)
	}
	return nil
}

// dropCapabilities drops the capabilities with which root of a machine could change
// something outside of the machine, for all processes started from now on.
func dropCapabilities() error {
	for _, c := range []uintptr{
		unix.CAP_SYS_ADMIN, unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_TIME, unix.CAP_MKNOD, unix.CAP_SYSLOG,
		unix.CAP_MAC_ADMIN, unix.CAP_MAC_OVERRIDE, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_WAKE_ALARM, unix.CAP_BLOCK_SUSPEND,
		unix.CAP_LINUX_IMMUTABLE, unix.CAP_CHECKPOINT_RESTORE, unix.CAP_AUDIT_CONTROL, unix.CAP_AUDIT_READ, unix.CAP_SYS_PACCT,
	} {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: the kernel lacks this capability
			return err
		}
	}
	return nil
}
