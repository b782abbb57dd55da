package sshfan

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed" // the bootstrap
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// A Program is a bash script for workers. It is sent to a worker once, which
// keeps it under ~/.multihost/kit. Later commands, also of other runners, name it
// by its SHA-256. A runner uses what a worker keeps only if its hash was right when
// the runner connected, and a command runs it only if it still has its length. A
// run that finds everything in place sends a few hundred bytes an operation in
// place of twenty thousand, and no command starts a process to hash its script.
//
// A worker that does not keep it (a full disk, a home that cannot be written,
// somebody who cleans up) is sent it again, which costs a round trip, and from
// then on with each command of that Conn: most of them would lack it again.
type Program struct {
	name  string
	parts []string

	text   func() string
	digest func() string // hexadecimal SHA-256 of the text
	packed func() []byte
}

// NewProgram returns the script that consists of the parts, one after another.
// The worker's process list shows it as "multihost-NAME". It runs in an
// environment of its own: see [OwnEnvironment].
func NewProgram(name string, parts ...string) *Program {
	p := &Program{name: name, parts: parts}
	p.text = sync.OnceValue(func() string { return strings.TrimRight(strings.Join(p.parts, "\n"), "\n") })
	p.digest = sync.OnceValue(func() string {
		sum := sha256.Sum256([]byte(p.text()))
		return hex.EncodeToString(sum[:])
	})
	p.packed = sync.OnceValue(func() []byte {
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is known
		_, _ = io.WriteString(z, p.text())                    // to memory
		_ = z.Close()
		return b.Bytes()
	})
	return p
}

// Text is the script.
func (p *Program) Text() string { return p.text() }

// Cmd is the command that runs the script with args; stdin is the script's own
// standard input, or nil. Run sends what the worker lacks.
func (p *Program) Cmd(stdin io.Reader, args ...string) Cmd {
	return Cmd{Stdin: stdin, program: &programCall{p, args}}
}

// Whole is the command with all in Line and Stdin, for whoever runs it without a
// Conn. The worker keeps the script unless the command is ReadOnly.
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

// unkept is the digest of a script that the worker does not keep.
const unkept = "-"

// A programCall is what a Cmd was made of.
type programCall struct {
	*Program
	args []string
}

func (c *programCall) line(size int, digest string) string {
	return bash(bootstrap(), "multihost-"+c.name, append([]string{strconv.Itoa(size), digest}, c.args...))
}

// ahead is an input that has the script before it.
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

// OwnEnvironment returns the beginning of every script of ours that a login shell
// starts. It removes from the environment what start-up files of the login
// export, but for a fixed list, and sets LC_ALL=C; environment.sh has the reasons.
// The bash that runs it must have the options of [Bash].
var OwnEnvironment = sync.OnceValue(func() string { return withoutComments(environmentFile) })

// bootstrap is the program of bootstrap.sh.
var bootstrap = sync.OnceValue(func() string { return OwnEnvironment() + withoutComments(bootstrapFile) })

// withoutComments is a script without what is for people.
func withoutComments(script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if text := strings.TrimSpace(line); text != "" && text[0] != '#' {
			b.WriteString(text + "\n")
		}
	}
	return b.String()
}

// Bash returns the command line that runs the text of a bash script in an
// environment of its own, with args as its positional parameters. The script
// travels within the command line: see [Script].
func Bash(script string, args ...string) string {
	return bash(OwnEnvironment()+script, "bash", args)
}

func bash(script, name string, args []string) string {
	return Quote(append([]string{"bash", "--norc", "--noprofile", "-p", "-c", script, name}, args...)...)
}

const (
	lacksStatus = 83 // of bootstrap.sh, with the text
	lacksText   = "multihost-kit: lacks "
	tornStatus  = 74 // the script did not arrive whole
)

// ErrProgramGone is the error of a command that was not run, since somebody has
// removed the kit of the worker's login meanwhile, and whose input cannot be
// read again. Later tries on that Conn send the script.
var ErrProgramGone = errors.New("~/.multihost/kit was removed on the worker")

// runProgram is Run for programs.
func (c *Conn) runProgram(ctx context.Context, cmd Cmd) (Status, error) {
	s := cmd.program
	if c.keeps(s.Program) {
		input := &replay{r: cmd.Stdin}
		said := &firstWords{w: cmd.Stderr}
		named := cmd
		named.Line, named.Stderr = s.line(-len(s.text()), s.digest()), said
		if cmd.Stdin != nil {
			named.Stdin = input.reader()
		}
		if sameWriter(cmd.Stdout, cmd.Stderr) {
			named.Stdout = said
		}
		status, err := c.run(ctx, named)
		if err != nil || status.Code != lacksStatus || !bytes.Contains(said.text, []byte(lacksText)) {
			return status, err
		}
		c.noteLacking(s.Program)
		if cmd.Stdin != nil {
			again := input.reader()
			if again == nil {
				return Status{}, fmt.Errorf("run on %s: %w", c.host.Name, ErrProgramGone)
			}
			cmd.Stdin = again
		}
	}
	keep := !c.fleet.cfg.ReadOnly
	status, err := c.run(ctx, cmd.whole(keep))
	if err == nil && status.Code != tornStatus && keep {
		c.noteSent(s.Program)
	}
	return status, err
}

// keeps reports whether the worker has the script, as far as is known.
func (c *Conn) keeps(p *Program) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.lacking[p] && c.kit[p.digest()]
}

// noteSent notes that the worker was sent the script. That it has kept it is seen
// when it is used.
func (c *Conn) noteSent(p *Program) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kit == nil {
		c.kit = make(map[string]bool)
	}
	c.kit[p.digest()] = true
}

// noteLacking notes that the worker does not keep the script, however often it is
// sent: an input that cannot be read again would fail every second time.
func (c *Conn) noteLacking(p *Program) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lacking == nil {
		c.lacking = make(map[*Program]bool)
	}
	c.lacking[p] = true
}

// mostKit bounds what is remembered of a worker's kit: it keeps 100 scripts.
const mostKit = 100

// foundKit notes which scripts the worker keeps. sums is what sha256sum prints of
// them, on one line. A script whose name is not the beginning of its hash is none
// of ours any more.
func (c *Conn) foundKit(sums string) {
	words := strings.Fields(sums)
	kit := make(map[string]bool)
	for i := 0; i+1 < len(words) && len(kit) < mostKit; i++ {
		if sum, name := words[i], words[i+1]; len(sum) == 2*sha256.Size && name == sum[:16] {
			kit[sum] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kit = kit
}

// A replay reads an input that may have to be read once more from its beginning.
type replay struct {
	r    io.Reader
	turn sync.Mutex // held by who reads r, which may take for ever

	mu   sync.Mutex
	kept []byte
	err  error
	over bool // more has come than is kept
}

// mostReplayed is more than any operation sends before the worker answers, but
// for contents of files, whose script was used just before.
const mostReplayed = 16 << 10

// reader returns a reader of the whole input, or nil when that cannot be.
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
	// A Read of the session before, which was under way, has brought it.
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

// known is what has been read before.
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

// firstWords passes on what is written and keeps the beginning.
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
