package options

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/fault"
	"multihost/internal/follow"
	"multihost/internal/hosts"
	"multihost/internal/launch"
	"multihost/internal/ops"
	"multihost/internal/preflight"
	"multihost/internal/remote"
	"multihost/internal/runs"
	"multihost/internal/tpu"
	"multihost/internal/workers"

	"github.com/urfave/cli/v2"
)

// WorkersFlags select some of the workers of the slices.
func WorkersFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "workers", Usage: "only the workers that `PATTERN` names: s0w3, s0w*, s[0-1]w[0-3], separated by commas; default: all"},
		&cli.StringFlag{Name: "exclude-workers", Usage: "leave out the workers that `PATTERN` names"},
	}
}

// QuickFlags are the flags of commands whose user waits for the result: their
// --connect-timeout is 30 seconds.
func QuickFlags() []cli.Flag {
	ssh := SSHFlags()
	for _, f := range ssh {
		if d, ok := f.(*cli.DurationFlag); ok && d.Name == "connect-timeout" {
			d.Value = 30 * time.Second
		}
	}
	return slices.Concat(SelectFlags(), HostFlags(), ssh)
}

// Workers reads which slices or hosts the command works on.
func Workers(c *Call, onHosts bool) (w workers.Workers) {
	w.Prefix, w.Slices, w.Partial = c.String("tpu-prefix"), Slices(c), c.Bool("allow-partial")
	switch {
	case onHosts && w.Prefix != "":
		c.Refuse(cmdline.Usagef("give either --tpu-prefix or --hosts, not both"), "tpu-prefix", "hosts", "hosts-file")
	case onHosts:
		w.Prefix = hosts.HostsPrefix
	case w.Prefix == "":
		c.Refuse(&cmdline.UsageError{Err: errors.New("which slices? --tpu-prefix is missing"), Advice: "add --tpu-prefix=NAME; multihost slices list shows what is there; machines without a cloud are named with --hosts"})
	}
	return w
}

func parsePattern(c *Call, flag string) tpu.Pattern {
	text := c.String(flag)
	if text == "" {
		return tpu.Pattern{}
	}
	pattern, err := tpu.ParsePattern(text)
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--%s: %w", flag, err)}, flag)
	}
	return pattern
}

// Exec reads the options of exec.
func Exec(c *Call, onHosts bool) ops.ExecOptions {
	if len(c.Words) > 0 {
		word := c.Words[0]
		err := strayWord(c, word)
		if _, is := tpu.ParsePattern(word); is == nil {
			err = &cmdline.UsageError{Err: err, Advice: "to choose workers: " + remote.CommandLine("--workers="+word)}
		}
		c.Refuse(err, cmdline.Word)
	}
	o := ops.ExecOptions{Argv: c.Argv, Sudo: c.Bool("sudo"), Grace: c.Duration("grace"), Timeout: c.Duration("timeout"), LogDir: c.String("log-dir")}
	script := c.String("command")
	switch {
	case refuseCommand(c, script):
	case script != "":
		o.Argv = []string{"bash", "-c", script}
	}
	for _, word := range o.Argv {
		if len(word) >= launch.LongestWord {
			c.Refuse(cmdline.Usagef("a word of the command has %d bytes, Linux takes %d; multihost cp brings longer scripts", len(word), launch.LongestWord-1), "command", cmdline.Dashes)
		}
	}
	c.NotNegative(c, "timeout", "grace")
	o.Workers = Workers(c, onHosts)
	o.Only, o.Except = parsePattern(c, "workers"), parsePattern(c, "exclude-workers")
	return o
}

// refuseCommand refuses a command line with nothing to run, or with both a script and words
// after --. It reports whether it did. script is the value of --command.
func refuseCommand(c *Call, script string) bool {
	var err error
	switch argv := c.Argv; {
	case strings.TrimSpace(script) == "" && len(argv) == 0, len(argv) > 0 && argv[0] == "":
		err = &cmdline.UsageError{Err: errors.New("nothing to run"), Advice: "add --command='SCRIPT', or -- PROGRAM ARG…"}
	case script != "" && len(argv) > 0:
		err = cmdline.Usagef("give either --command or words after --, not both")
	}
	c.Refuse(err, "command", cmdline.Dashes)
	return err != nil
}

// Attach reads the options of attach. secrets has the values of the run's secret variables.
func Attach(c *Call, secrets config.Lookup) runs.AttachOptions {
	o := runs.AttachOptions{
		Prefix: c.String("tpu-prefix"), Grace: c.Duration("grace"), StrictExit: c.Bool("strict-exit"), Watch: Watch(c), Secret: secrets,
		Patience: follow.Patience{Lost: c.Duration("lost-timeout"), Quiet: c.Duration("quiet-after"), Log: c.Duration("log-timeout")},
	}
	if o.Watch.OnStall == follow.StallRestart {
		c.Refuse(cmdline.Usagef("--on-stall=restart: only the command that started the run can start it again; stop ends it"), "on-stall")
	}
	c.NotNegative(c, "lost-timeout", "log-timeout", "quiet-after")
	checkOnInterrupt(c)
	return o
}

// Copy reads which files to copy. up reports whether they go to workers.
func Copy(c *Call, onHosts bool) (o ops.CopyOptions, up bool) {
	o.Workers, o.Except = Workers(c, onHosts), parsePattern(c, "exclude-workers")
	words := slices.Concat(c.Words, c.Argv)
	if len(words) < 2 {
		c.Refuse(&cmdline.UsageError{Err: errors.New("multihost cp needs a source and a destination"), Advice: "type: multihost cp FILE all:FILE, or multihost cp s0w0:FILE FILE"}, cmdline.Word, cmdline.Dashes)
		return o, false
	}
	files, err := tpu.ParseCopy(words)
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("multihost cp: %w", err)}, cmdline.Word, cmdline.Dashes)
	}
	o.Sources, o.Dest, o.Only = files.Sources, files.Dest, files.Workers
	return o, files.Up
}

// sliceName matches the names of slices.
var sliceName = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)

// LoginTo reads which worker to log in to. As for gcloud, the name of a slice stands for
// its only worker.
func LoginTo(c *Call, onHosts bool) (w workers.Workers) {
	if words := c.Words; len(words) > 1 && !c.Dashed {
		line := []string{"multihost", "ssh", words[0]}
		if prefix, typed := c.Values["tpu-prefix"]; typed {
			line = append(line, "--tpu-prefix="+prefix)
		}
		line = append(append(line, "--"), words[1:]...)
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("multihost ssh takes one worker, but got %q too", words[1]),
			Advice: "what is to run there comes after --: " + remote.CommandLine(line...)}, cmdline.Word)
	}
	name := c.OneWord("worker", "")
	only, wrong := tpu.ParsePattern(name)
	_, prefixed := c.Typed["tpu-prefix"]
	slice := wrong != nil && !onHosts && sliceName.MatchString(name)
	hint := ""
	if login, rest, at := strings.Cut(name, "@"); at {
		hint = "the login is a flag: " + remote.CommandLine("multihost", "ssh", rest, "--user="+login)
	}
	switch {
	case slice && !prefixed:
		w.Prefix = name
		only, _ = tpu.ParsePattern("all")
		Slices(c)
	case slice && tpu.LikelyPattern(name) == "":
		c.Refuse(&cmdline.UsageError{Err: wrong, Advice: "of a slice of that name: multihost ssh s0w0 --tpu-prefix=" + name}, cmdline.Word)
		Slices(c)
	default:
		if wrong != nil {
			c.Refuse(&cmdline.UsageError{Err: wrong, Advice: hint}, cmdline.Word)
		}
		w = Workers(c, onHosts)
	}
	w.Only, w.Partial = only, c.Bool("allow-partial")
	return w
}

// MeantWorker adds a hint to an error about a missing slice: the worker that the user may
// have meant.
func MeantWorker(name string, err error) error {
	var none *tpu.NoSlicesError
	likely := tpu.LikelyPattern(name)
	if !errors.As(err, &none) || none.Prefix != name || likely == "" || len(none.Present) == 0 {
		return err
	}
	return &NoSliceError{Err: err, Advice: "slices here: " + strings.Join(none.Present, ", ") + "; a worker of one of them: multihost ssh " + likely + " --tpu-prefix=" + none.Present[0]}
}

// A NoSliceError is an error about missing slices, with a better hint than that of the
// cause.
type NoSliceError struct {
	Err    error
	Advice string // what to type
}

func (e *NoSliceError) Error() string { return e.Err.Error() }
func (e *NoSliceError) Unwrap() error { return e.Err }

// Fault returns fault.Unknown: the cause decides.
func (e *NoSliceError) Fault() fault.Kind { return fault.Unknown }

// Hint returns what to type.
func (e *NoSliceError) Hint() string { return e.Advice }

// PrefixFlag selects slices for a command that otherwise looks at all slices.
func PrefixFlag() cli.Flag {
	return &cli.StringFlag{Name: "tpu-prefix", Aliases: []string{"TPU_PREFIX"}, Usage: "look only at the slices that `P` names"}
}

// Platform parses the value of --platform, or of the word PLATFORM=….
func Platform(c *Call, text, flag string) preflight.Platform {
	on, err := preflight.ParsePlatform(text)
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--platform: %w", err)}, flag)
	}
	return on
}

// PlatformFlag says where the workers run. See Platform.
func PlatformFlag() cli.Flag {
	return &cli.StringFlag{Name: "platform", Aliases: []string{"PLATFORM"}, Value: "gce", Usage: "gce or gke: where the workers run (`PLATFORM`)"}
}

// PreflightFlags are the flags of preflight apply and preflight check.
func PreflightFlags() []cli.Flag {
	return slices.Concat(SelectFlags(), HostFlags(), []cli.Flag{
		PlatformFlag(),
		&cli.BoolFlag{Name: "require", Usage: "end with status 76 if any setting is not as wanted"},
		&cli.BoolFlag{Name: "install", Usage: "install numactl and ethtool on workers that lack them"},
	}, SSHFlags())
}

// CutPlatform reads PLATFORM=…, the argument of preflight.sh.
func CutPlatform(word string) (string, bool) { return strings.CutPrefix(word, "PLATFORM=") }
