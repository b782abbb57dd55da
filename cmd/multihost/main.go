// Command multihost makes Google Cloud TPU slices, runs a training job on every worker
// and brings the logs back.
package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"multihost/internal/config"
	"multihost/internal/job"
	"multihost/internal/sim/netns"
	"multihost/internal/ui"
)

func main() {
	if netns.MaybeInit(os.Args) {
		return
	}
	ballast := make([]byte, leastHeap)
	status := mainStatus()
	runtime.KeepAlive(ballast)
	os.Exit(status)
}

// leastHeap is the size of an allocation that counts as heap but is never touched, so it
// uses no memory. With it the heap of a run of a few hundred workers grows to twice this
// size before it is collected. Without it, collecting takes a seventh of such a run's
// CPU.
const leastHeap = 48 << 20

// mainStatus is main without the exit, so that tests can run the program as a command of
// their own.
func mainStatus() int { return ownProgram().run(os.Args[1:]) }

// ownProgram returns the program with the streams and environment of this process.
func ownProgram() *program {
	p := &program{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		lookup: lookupEnv,
		leave:  make(chan struct{}),
	}
	p.home = homeDir()
	p.dir, _ = os.Getwd() // fails if the directory was deleted
	return p
}

// homeDir returns the user's home directory, even if the environment has no HOME, as in
// cron and containers; "" if there is none.
func homeDir() string {
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return home
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		return u.HomeDir
	}
	return ""
}

// lookupEnv is os.LookupEnv, except that USER is the current user's name if it is not
// set, as in cron and containers.
func lookupEnv(key string) (string, bool) {
	v, ok := os.LookupEnv(key)
	if key == "USER" && v == "" {
		if u, err := user.Current(); err == nil {
			return u.Username, true
		}
	}
	return v, ok
}

// program is one invocation of multihost with all that it gets from outside.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         config.Lookup
	home           string
	dir            string // the working directory; "": unknown

	inv   *invocation
	view  *ui.Renderer // the last one that was made
	json  bool
	leave chan struct{} // closed when the user wants to leave at once

	interrupts onInterrupt
}

func (p *program) run(argv []string) int {
	// A write to a closed pipe must be an error to handle, not the end of the program:
	// the reader of the output may go away while the run goes on. SIGPIPE is caught, not
	// ignored, because the programs that we start would inherit that it is ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := p.watchSignals(context.Background())
	defer stop()

	err := p.dispatch(ctx, argv)
	code := exitCode(err)
	var status *statusError
	if err == nil || errors.As(err, &status) || p.told(err) {
		return code
	}
	if !p.json || ui.PrintErrorJSON(p.stdout, time.Now(), err, hintOf(err), code) != nil {
		ui.PrintError(p.stderr, p.color(p.stderr), err, hintOf(err))
	}
	return code
}

// told reports whether the verdict of the run, the last thing on the screen, has said
// all that the error says.
func (p *program) told(err error) bool {
	said := err.Error()
	if e, ok := err.(*job.Error); ok { // the verdict needs no stage; an error that wraps this one says more
		said = cmp.Or(e.Text, said)
	}
	return p.view != nil && !p.json && hintOf(err) == "" && strings.Contains(p.view.Verdict(), said)
}

func (p *program) dispatch(ctx context.Context, argv []string) error {
	if len(argv) > 0 && argv[0] == "__complete" { // the completion scripts call this
		p.complete(ctx, argv[1:])
		return nil
	}
	app := p.app()
	inv, err := p.arrange(app, argv)
	if err != nil {
		p.json = slices.Contains(argv, "--output=json")
		return err
	}
	p.inv = inv
	p.json = inv.value("output") == "json" // also for an error before anything is shown
	if inv.help != noHelp {
		showHelp(p.stdout, p.lookup, app, inv.helpPath, inv.help)
		return nil
	}
	err = inv.blame(app.RunContext(ctx, append([]string{"multihost"}, inv.args...)))
	var told *job.Error // says what may still run or exist, which the cause does not
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.As(err, &told) {
		return context.Cause(ctx)
	}
	return err
}
