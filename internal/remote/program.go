package remote

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed" // the bootstrap
	"encoding/hex"
	"io"
	"strconv"
	"strings"
	"sync"

	"multihost/internal/fault"
)

// A Program is a bash script for workers. A worker receives it once and keeps it under
// ~/.multihost/kit. Later commands, also those of other runners, name the script by its
// SHA-256. A runner uses a kept script only if its hash was right when the runner connected.
// A command runs the script only if it still has the right length. With a kept script, an
// operation sends a few hundred bytes, not twenty thousand. No command starts a process to
// hash its script.
//
// A worker may be unable to keep the script: its disk is full, nobody can write to the
// home, or somebody cleans up. Then the script is sent again, which costs a round trip.
// From then on, that Conn sends the script with each command, because most commands would
// miss it.
type Program struct {
	name  string
	parts []string

	text   func() string
	digest func() string // hexadecimal SHA-256 of the text
	packed func() []byte
}

// NewProgram returns the script made of the parts, one after another. The worker's process
// list shows it as "multihost-NAME". It runs in an environment of its own (see
// [OwnEnvironment]).
func NewProgram(name string, parts ...string) *Program {
	p := &Program{name: name, parts: parts}
	p.text = sync.OnceValue(func() string { return strings.TrimRight(strings.Join(p.parts, "\n"), "\n") })
	p.digest = sync.OnceValue(func() string {
		sum := sha256.Sum256([]byte(p.text()))
		return hex.EncodeToString(sum[:])
	})
	p.packed = sync.OnceValue(func() []byte {
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
		_, _ = io.WriteString(z, p.text())                    // writing to memory does not fail
		_ = z.Close()
		return b.Bytes()
	})
	return p
}

// Text returns the script.
func (p *Program) Text() string { return p.text() }

// Cmd returns the command that runs the script with args. stdin is the script's standard
// input, or nil. Run sends the script if the worker lacks it.
func (p *Program) Cmd(stdin io.Reader, args ...string) Cmd {
	return Cmd{Stdin: stdin, program: &programCall{p, args}}
}

// Whole returns the command with the script in Line and Stdin, for callers that run it
// without a Conn. The worker keeps the script unless the command is ReadOnly.
func (c Cmd) Whole() Cmd { return c.whole(!c.ReadOnly) }

func (c Cmd) whole(keep bool) Cmd {
	call := c.program
	if call == nil {
		return c
	}
	name := call.digest()
	if !keep {
		name = unkept
	}
	c.Line, c.Stdin, c.program = call.line(len(call.packed()), name), call.ahead(c.Stdin), nil
	return c
}

// unkept is the digest for a script that bootstrap.sh must not keep.
const unkept = "-"

// A programCall is the Program and the arguments of a Cmd.
type programCall struct {
	*Program
	args []string
}

func (c *programCall) line(size int, digest string) string {
	return bash(bootstrap(), "multihost-"+c.name, append([]string{strconv.Itoa(size), digest}, c.args...))
}

// ahead returns a reader of the compressed script and then of input. It can be closed if
// input can.
func (p *Program) ahead(input io.Reader) io.Reader {
	script := bytes.NewReader(p.packed())
	if input == nil {
		return script
	}
	both := io.MultiReader(script, input)
	if c, ok := input.(io.Closer); ok {
		return struct {
			io.Reader
			io.Closer
		}{both, c}
	}
	return both
}

var (
	//go:embed environment.sh
	environmentFile string
	//go:embed bootstrap.sh
	bootstrapFile string
)

// OwnEnvironment returns the beginning of every script of ours that a login shell starts.
// It removes all variables that start-up files of the login export, except a fixed list,
// and sets LC_ALL=C. environment.sh has the reasons. bash must run with the options of
// [Bash].
var OwnEnvironment = sync.OnceValue(func() string { return withoutComments(environmentFile) })

// bootstrap returns the text of environment.sh and bootstrap.sh, without comments.
var bootstrap = sync.OnceValue(func() string { return OwnEnvironment() + withoutComments(bootstrapFile) })

// withoutComments returns a script without comment lines, empty lines and indentation.
func withoutComments(script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if text := strings.TrimSpace(line); text != "" && text[0] != '#' {
			b.WriteString(text + "\n")
		}
	}
	return b.String()
}

// Bash returns the command line that runs the text of a bash script in an environment of
// its own. args are its positional parameters. The script is a part of the command line
// (see [Script]).
func Bash(script string, args ...string) string {
	return bash(OwnEnvironment()+script, "bash", args)
}

func bash(script, name string, args []string) string {
	return Quote(append([]string{"bash", "--norc", "--noprofile", "-p", "-c", script, name}, args...)...)
}

const (
	lacksStatus = 83 // exit status of bootstrap.sh if the script is missing, after it has printed lacksText
	lacksText   = "multihost-kit: lacks "
	tornStatus  = 74 // exit status of bootstrap.sh if the script did not arrive whole
)

// ErrProgramGone reports a command that was not run: somebody has removed the kit of the
// worker's login, and the input of the command cannot be read again. Later commands on that
// Conn send the script.
var ErrProgramGone = fault.New(fault.Unavailable, "~/.multihost/kit was removed on the worker")

// A kit holds what is known about the scripts on a worker. Its methods are safe for
// concurrent use.
type kit struct {
	mu      sync.Mutex
	sums    map[string]bool   // SHA-256 hashes of the scripts
	lacking map[*Program]bool // scripts that were missing although they were in sums
}

// has reports whether the worker is known to have the script.
func (k *kit) has(p *Program) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.lacking[p] && k.sums[p.digest()]
}

// sent records that the worker got the script. The next use shows whether the worker has kept
// the script.
func (k *kit) sent(p *Program) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sums == nil {
		k.sums = make(map[string]bool)
	}
	k.sums[p.digest()] = true
}

// lacks records that the worker has not kept a script. From then on each command sends it.
// Otherwise, of the commands whose input cannot be read again, every second one would fail.
func (k *kit) lacks(p *Program) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lacking == nil {
		k.lacking = make(map[*Program]bool)
	}
	k.lacking[p] = true
}

// mostKit limits the number of hashes in a kit. A worker keeps at most 100 scripts.
const mostKit = 100

// found records which scripts the worker keeps. sums is the output of sha256sum for them,
// on one line. A script whose name does not begin its hash is no longer ours, and is
// ignored.
func (k *kit) found(sums string) {
	words := strings.Fields(sums)
	kept := make(map[string]bool)
	for i := 0; i+1 < len(words) && len(kept) < mostKit; i++ {
		if sum, name := words[i], words[i+1]; len(sum) == 2*sha256.Size && name == sum[:16] {
			kept[sum] = true
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sums = kept
}

// A replay is an input that may have to be read again from its beginning.
type replay struct {
	r    io.Reader
	turn sync.Mutex // held while reading r, which may block for ever

	mu   sync.Mutex
	kept []byte
	err  error
	over bool // r has delivered more than mostReplayed bytes, so none are kept
}

// mostReplayed is more bytes than any operation sends before the worker answers, except
// contents of files. The script that receives files was used just before, so it is not
// missing.
const mostReplayed = 16 << 10

// reader returns a reader of the whole input, or nil if its beginning is no longer kept.
func (p *replay) reader() io.Reader {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil
	}
	return &replayReader{of: p}
}

type replayReader struct {
	of *replay
	at int
}

func (r *replayReader) Read(b []byte) (int, error) {
	if n, err := r.known(b); n > 0 || err != nil {
		return n, err
	}
	p := r.of
	p.turn.Lock()
	defer p.turn.Unlock()
	// A Read of the previous session may have delivered bytes meanwhile.
	if n, err := r.known(b); n > 0 || err != nil {
		return n, err
	}
	n, err := p.r.Read(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; p.over || len(p.kept)+n > mostReplayed {
		p.over, p.kept, r.at = true, nil, 0
	} else {
		p.kept = append(p.kept, b[:n]...)
		r.at += n
	}
	return n, err
}

// known returns what was read before: bytes, or the error of the last Read.
func (r *replayReader) known(b []byte) (int, error) {
	p := r.of
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.at < len(p.kept) {
		n := copy(b, p.kept[r.at:])
		r.at += n
		return n, nil
	}
	return 0, p.err
}

// firstWords is a writer that passes everything on to w and keeps the beginning.
type firstWords struct {
	w    io.Writer // may be nil
	text []byte
}

func (f *firstWords) Write(p []byte) (int, error) {
	const most = 4 << 10
	if room := most - len(f.text); room > 0 {
		f.text = append(f.text, p[:min(room, len(p))]...)
	}
	if f.w == nil {
		return len(p), nil
	}
	return f.w.Write(p)
}
