package main

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/shlex"
	"golang.org/x/crypto/ssh"

	"multihost/internal/testkit"
)

// A villain is a worker that somebody else has taken over: an SSH server that lets the
// runner in and answers each operation as it likes. Without a lie, the villain answers like
// a worker on which a run prints "hello" and ends with 0.
type villain struct {
	listener net.Listener
	signer   ssh.Signer
	done     sync.WaitGroup

	mu     sync.Mutex
	op     string // the operation that it lies about; "" is none
	lie    lie
	asked  map[string]int // number of requests, by operation
	served map[net.Conn]bool
	code   string // digest of the code in the newest sync
}

// A lie turns the honest answer to an operation into a false one. With endless, the villain
// repeats the answer for ever. With hangUp, it cuts the connection afterwards.
type lie struct {
	name    string
	tell    func(nonce, honest string) string
	endless bool
	hangUp  bool
}

const escapes = "\x1b]0;pwned\x07\x1b[2J\u009b31m\u202egnp\x7f\x00\xff"

var numbers = regexp.MustCompile(`\b[0-9]+\b`)

// records returns every line that a worker can put into an answer, with the worst text in
// each field.
func records(nonce, text string) string {
	return strings.ReplaceAll(strings.NewReplacer("N ", nonce+" ", "T", text).Replace(
		"N run T 1\nN dir T\nN phase exited\nN supervisor T T T\nN started T T\nN exit reason T\nN exit signal T\nN exit code T\n"+
			"N login T\nN owner T\nN command T\nN mine 1\nN survivor 1 1 1 T T T 1 1 T T\nN holder 1 0 1 T T:T T 1 0 T T\n"), "\n\n", "\n")
}

func lies() []lie {
	every := func(value string) func(string, string) string {
		return func(_, honest string) string { return numbers.ReplaceAllString(honest, value) }
	}
	return []lie{
		{name: "garbage", tell: func(string, string) string { return escapes + "\n" + escapes }},
		{name: "silence", tell: func(string, string) string { return "" }},
		{name: "huge numbers", tell: every("9223372036854775807")},
		{name: "negative numbers", tell: every("-1")},
		{name: "no numbers", tell: every("../../evil")},
		{name: "escapes", tell: func(nonce, honest string) string { return honest + records(nonce, escapes) }},
		{name: "an error of escapes", tell: func(nonce, _ string) string {
			return nonce + " error " + escapes + "\nmultihost-clock:" + escapes + "\n"
		}},
		{name: "names", tell: func(nonce, honest string) string { return records(nonce, "../../../evil") + honest }},
		{name: "another run", tell: func(nonce, honest string) string {
			return honest + nonce + " run evil 999999999\n" + nonce + " phase running\n" + nonce + " dir /\n" + nonce + " login $(touch evil)\n"
		}},
		{name: "another attempt", tell: func(nonce, honest string) string {
			return honest + nonce + " run victim 999999999\n" + nonce + " phase running\n" + nonce + " supervisor 1 1 1700000000000000000\n"
		}},
		{name: "no end", endless: true, tell: func(nonce, honest string) string { return strings.Repeat(honest+records(nonce, "x"), 50) }},
		{name: "an endless line", endless: true, tell: func(string, string) string { return strings.Repeat(escapes, 1000) }},
		{name: "a cut", hangUp: true, tell: func(_, honest string) string { return honest[:len(honest)/2] }},
	}
}

func startVillain(t *testing.T) *villain {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	v := &villain{asked: map[string]int{}, served: map[net.Conn]bool{}}
	if v.signer, err = ssh.NewSignerFromKey(key); err != nil {
		t.Fatal(err)
	}
	if v.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	v.done.Go(func() {
		for {
			c, err := v.listener.Accept()
			if err != nil {
				return
			}
			v.mu.Lock()
			v.served[c] = true
			v.mu.Unlock()
			v.done.Go(func() { v.serve(c) })
		}
	})
	t.Cleanup(func() {
		v.listener.Close()
		v.mu.Lock()
		for c := range v.served {
			c.Close()
		}
		v.mu.Unlock()
		v.done.Wait()
	})
	return v
}

func (v *villain) set(op string, l lie) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.op, v.lie, v.asked = op, l, map[string]int{}
}

// begin notes an operation and returns the lie about it.
func (v *villain) begin(op string) (lie, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked[op]++
	return v.lie, v.op == op
}

func (v *villain) serve(c net.Conn) {
	defer c.Close()
	config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil },
		BannerCallback: func(ssh.ConnMetadata) string { return escapes }}
	config.AddHostKey(v.signer)
	_, channels, requests, err := ssh.NewServerConn(c, config)
	if err != nil {
		return
	}
	v.done.Go(func() { ssh.DiscardRequests(requests) })
	for open := range channels {
		ch, requests, err := open.Accept()
		if err != nil {
			return
		}
		v.done.Go(func() {
			defer ch.Close()
			for r := range requests {
				if r.Type == "exec" {
					r.Reply(true, nil)
					v.done.Go(func() { ssh.DiscardRequests(requests) })
					v.exec(c, ch, string(r.Payload[4:4+binary.BigEndian.Uint32(r.Payload)]))
					return
				}
				r.Reply(false, nil)
			}
		})
	}
}

// exec answers one operation.
func (v *villain) exec(c net.Conn, ch ssh.Channel, line string) {
	op, nonce, args := operation(line)
	l, lying := v.begin(op)
	answer := func(w io.Writer, honest string) bool {
		honest = strings.ReplaceAll(honest, "N ", nonce+" ")
		if !lying {
			_, err := io.WriteString(w, honest)
			return err == nil
		}
		for {
			if _, err := io.WriteString(w, l.tell(nonce, honest)); err != nil {
				return false
			}
			if !l.endless {
				break
			}
		}
		if l.hangUp {
			c.Close()
		}
		return true
	}
	now := time.Now().UnixNano()
	attempt := "1"
	if len(args) > 1 {
		attempt = args[1]
	}
	ended := fmt.Sprintf("N run victim "+attempt+"\nN dir /home/x\nN phase exited\nN supervisor 0 0 %d\nN started 4711 %d\nN exit code 0\nN exit size 6\nN exit end %d\n", now, now, now)
	ok := true
	switch op {
	case "clock":
		for in := bufio.NewReader(ch); ; {
			if _, err := in.ReadString('\n'); err != nil {
				return
			}
			if !answer(ch, fmt.Sprintf("multihost-clock:%d\n", time.Now().UnixNano())) || lying {
				return
			}
		}
	case "check":
		if len(args) >= 2 {
			v.mu.Lock()
			v.code = args[1]
			v.mu.Unlock()
		}
		ok = answer(ch, "N differs\n")
	case "plan":
		ok = answer(ch, "N hash "+sumOfHello+"\nN missing 1\n")
	case "receive":
		ok = answer(ch, "N filled 0\n")
	case "list":
		ok = answer(ch, fmt.Sprintf("N now %d\n", now)+ended+"N mine 1\nN login x\nN owner me\nN command echo\n")
	case "free":
		ok = answer(ch, "N devices 1\nN blind 0\nN lock none\n")
	case "arm":
		v.mu.Lock()
		code := v.code
		v.mu.Unlock()
		if ok = answer(ch, "N synced "+code+"\nN armed\n"); ok && !lying {
			var got bytes.Buffer
			for buf := make([]byte, 32<<10); !bytes.HasSuffix(got.Bytes(), []byte("go\n")); {
				n, err := ch.Read(buf)
				if err != nil {
					return
				}
				got.Write(buf[:n])
			}
			op = "order" // the program of order also reads an answer
			l, lying = v.begin(op)
			ok = answer(ch, fmt.Sprintf("N started 4711 %d\n", now))
		}
	case "follow":
		log := "hello\n"
		if len(args) > 2 && args[2] != "0" { // from an offset, only the rest of the log
			log = ""
		}
		ok = answer(ch, "N stream 6\n"+log) && answer(ch.Stderr(), ended+"N end\n")
	case "digest":
		ok = answer(ch, "N digest 6 "+sumOfHello+"\n")
	case "stop":
		ok = answer(ch, ended+"N counts 0 0\nN blind 0\n")
	case "exec":
		ok = answer(ch, "N stream\nhello\n") && answer(ch.Stderr(), "N stream\nwarned\nN exit 0 0 0\n")
	case "status", "release":
		ok = answer(ch, fmt.Sprintf("%sN now %d\nN log 6 1700000000.5\nN disk 5 10 4096\nN processes 0 0\n", ended, now))
	case "preflight":
		ok = answer(ch, "N info numa_nodes\t1\nN end\n")
	}
	if ok {
		ch.SendRequest("exit-status", false, []byte{0, 0, 0, 0})
	}
}

// sumOfHello is the SHA-256 of "hello\n". This text is the log, and also the content of the
// only file that the test syncs.
const sumOfHello = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"

func operation(line string) (op, nonce string, args []string) {
	words, err := shlex.Split(line)
	if err != nil {
		return "?", "", nil
	}
	for i, w := range words {
		if name, ok := strings.CutPrefix(w, "multihost-"); ok && i+3 < len(words) && !strings.Contains(w, ":") {
			if name == "sync" && i+4 < len(words) {
				return words[i+4], words[i+3], words[i+5:]
			}
			return name, words[i+3], words[i+4:]
		}
	}
	if strings.Contains(line, "multihost-clock:") {
		return "clock", "", nil
	}
	return "?", "", nil
}

// A worker may answer anything to any operation of any command. The command must still end
// soon, with bounded memory. It must write nothing outside of the run's directory and send
// nothing harmful to the terminal. make test tries a third of the lies, a different third
// for each operation.
func TestAHostileWorkerHarmsNobody(t *testing.T) {
	v := startVillain(t)
	dir := t.TempDir()
	home, state, code := filepath.Join(dir, "home"), filepath.Join(dir, "state"), filepath.Join(dir, "code")
	for _, d := range []string{home, code} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(code, "hello"), []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	host := "--hosts=x@" + v.listener.Addr().String()
	invoke := func(args ...string) (status int, stdout, stderr string) {
		t.Helper()
		var out, errs standardStream
		p := process{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, home: home, leave: make(chan struct{}),
			lookup: func(string) (string, bool) { return "", false }}
		ended := make(chan int, 1)
		go func() {
			ended <- p.run(append(args, host, "--state-dir="+state, "--connect-timeout=5s"))
		}()
		select {
		case status = <-ended:
		case <-time.After(scriptWait):
			v.mu.Lock()
			defer v.mu.Unlock()
			t.Fatalf("%s of %s: %q has not ended; it says:\n%s", v.lie.name, v.op, args, errs.String())
		}
		return status, out.String(), errs.String()
	}
	run := []string{"run", "--run-name=victim", "--script-dir=" + code, "--preflight=off", "--numa=off", "--stream=all", "--lost-timeout=1s", "--command=echo hello"}

	// Without a lie, the commands must accept the villain's answers. Otherwise the rest of
	// this test would test nothing.
	v.set("", lie{})
	if status, out, errs := invoke(run...); status != 0 || !strings.Contains(out, "hello") {
		t.Fatalf("run ended with %d:\n%s%s", status, out, errs)
	}
	if status, out, errs := invoke("logs", "--verify", "victim"); status != 0 {
		t.Fatalf("logs --verify ended with %d:\n%s%s", status, out, errs)
	}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	told := 0
	for _, command := range []struct {
		args []string
		ops  []string
	}{
		{run, []string{"clock", "check", "plan", "receive", "list", "free", "arm", "order", "follow", "stop"}},
		{[]string{"ps", "--all"}, []string{"list"}},
		{[]string{"logs", "victim", "--follow", "--lost-timeout=1s"}, []string{"list", "follow"}},
		{[]string{"logs", "victim", "--verify"}, []string{"status", "digest"}},
		{[]string{"stop", "victim"}, []string{"list"}},
		{[]string{"preflight", "check"}, []string{"preflight"}},
		{[]string{"exec", "--command=echo hello", "--timeout=2s", "--grace=100ms"}, []string{"exec"}},
		{[]string{"attach", "victim", "--lost-timeout=1s"}, []string{"list"}},
	} {
		v.set("", lie{})
		if status, _, errs := invoke(run...); status != 0 {
			t.Fatalf("honest run ended with %d:\n%s", status, errs)
		}
		for _, op := range command.ops {
			for _, l := range lies() {
				if op == "follow" && (l.endless || l.hangUp && command.args[0] == "logs") {
					continue // a log without end is legal, and multihost reconnects after each cut
				}
				if told++; told%3 != 0 && !testkit.All(t) {
					continue
				}
				if command.args[0] == "run" || command.args[0] == "logs" && command.args[2] == "--follow" {
					if err := os.RemoveAll(filepath.Join(state, "runs")); err != nil {
						t.Fatal(err)
					}
				}
				v.set(op, l)
				args := command.args
				if op != "list" { // alternate between text and JSON
					// From a single worker, exec shows all output as text.
					json := len(l.name)%2 == 0 || command.args[0] == "exec" && l.endless
					args = append(args[:len(args):len(args)], "--output="+map[bool]string{true: "json", false: "text"}[json])
				}
				_, out, errs := invoke(args...)
				story := fmt.Sprintf("%s of %s in %q", l.name, op, args)
				v.mu.Lock()
				reached := v.asked[op]
				v.mu.Unlock()
				if reached == 0 {
					t.Errorf("%s: never asked; it says:\n%s", story, errs)
				}
				for name, text := range map[string]string{"stdout": out, "stderr": errs} {
					if command.args[0] == "logs" && name == "stdout" || slices.Contains(args, "--output=text") && command.args[0] == "exec" {
						continue // these bytes go into a file: the log, or the output of exec on a single worker
					}
					if i := strings.IndexFunc(text, acts); i >= 0 {
						t.Errorf("%s: %s has %q", story, name, text[max(0, i-80):min(len(text), i+20)])
					}
					most := 1 << 20
					if command.args[0] == "exec" {
						most = 16 << 20 // limit in bytes: 4 MiB of output, as JSON
					}
					if len(text) > most {
						t.Errorf("%s: %d bytes on %s", story, len(text), name)
					}
				}
				if op == "digest" && !strings.Contains(out, "NOT EQUAL") && !strings.Contains(out, `"same":false`) && l.name != "escapes" && l.name != "another run" && l.name != "another attempt" && l.name != "names" &&
					strings.Contains(out, "equal") {
					t.Errorf("%s: verified:\n%s", story, out)
				}
				onlyOurFiles(t, story, dir)
				if t.Failed() {
					return
				}
			}
		}
	}
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapAlloc > before.HeapAlloc+64<<20 {
		t.Errorf("heap grew from %d to %d MiB", before.HeapAlloc>>20, after.HeapAlloc>>20)
	}
}

// A standardStream takes several writers at once, as a file does.
type standardStream struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *standardStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *standardStream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// acts reports whether a terminal acts on r.
func acts(r rune) bool {
	return r != '\n' && r != '\t' && (r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069)
}

var ourFiles = regexp.MustCompile(`^(\.|code(/hello)?|home(/\.ssh(/google_compute_engine(\.pub)?)?)?|state(/known_hosts(\.lock)?|/hashes(/[0-9a-f]+\.(manifest|hashes))?|/runs(/victim(/run\.json|/events\.jsonl|/present|/attempt-\d+(/output_slice_0000_worker_0000\.txt|/\.arrivals_slice_0000_worker_0000)?|/output_slice_0000_worker_0000\.txt|/\.arrivals_slice_0000_worker_0000)?)?)?)$`)

// onlyOurFiles fails the test if dir has files that belong to no run, or that other users
// can read.
func onlyOurFiles(t *testing.T, story, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !ourFiles.MatchString(name) {
			t.Errorf("%s: %q was made", story, name)
		}
		if strings.HasPrefix(name, "state") && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %q has mode %v", story, name, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
