// Package simcmd has the commands of the simulator: sim up, sim fault and the others.
package simcmd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/options"
	"multihost/internal/remote"
	"multihost/internal/sim"
	"multihost/internal/sim/daemon"
	"multihost/internal/sim/worker"
)

// A Kit is what the program gives to the commands of the simulator.
type Kit struct {
	// Command completes a command with the kinds of errors with which it can end.
	Command func(cli.Command, ...fault.Kind) *cli.Command
	Group   func(cli.Command) *cli.Command
	Act     func(func(*Call) error) cli.ActionFunc
}

// A Call carries out one command line of the simulator.
type Call struct {
	*options.Call
	Lookup config.Lookup
	Stderr io.Writer
	Agent  func() ([]byte, error) // multihost-agent for this machine; nil: there is none

	Ready func() error                            // ends the reading of flags; returns what is wrong with them
	Note  func(text string) error                 // tells the user something
	Show  func(r event.Result) error              // shows a result
	Tell  func(text string, r event.Result) error // shows text, which may be empty, to people, and r to programs
}

// Command returns the command sim with all commands below it.
func Command(k Kit) *cli.Command {
	return k.Group(cli.Command{
		Name:  "sim",
		Usage: "a local Google Cloud with TPU slices, to try things without an account",
		Description: `  multihost sim up --background --slices=t:2xv5litepod-16
  eval "$(multihost sim env)"
  multihost run --tpu-prefix=t -- hostname
  multihost sim down`,
		Subcommands: []*cli.Command{
			k.up(), k.env(), k.status(), k.fault(), k.login(), k.down(),
		},
	})
}

func simDirFlag() cli.Flag {
	return &cli.StringFlag{Name: "sim-dir", Usage: "`DIR` of the simulator's state; default: in $XDG_RUNTIME_DIR"}
}

func simDir(c *Call) string {
	if dir := c.String("sim-dir"); dir != "" {
		return dir
	}
	return filepath.Join(config.RuntimeDir(c.Lookup), "sim")
}

// Simulatable returns an error for systems that cannot have simulated workers. These need
// /proc and a whole network of loopback addresses.
func Simulatable(system string) error {
	if system == "linux" {
		return nil
	}
	return &cmdline.UsageError{Err: fmt.Errorf("the simulator needs Linux, and this is %s", system),
		Advice: "use it on a Linux machine, in a container or in WSL; every other command works here on real slices"}
}

// ParseFaults reads the faults in the values of a flag.
func ParseFaults(flag string, texts []string) ([]sim.Fault, error) {
	var faults []sim.Fault
	for _, text := range texts {
		f, err := sim.ParseFault(text)
		if err != nil {
			return nil, &cmdline.UsageError{Err: fmt.Errorf("%s: %w", flag, err), Advice: "the faults are listed by: multihost sim fault --help"}
		}
		faults = append(faults, f)
	}
	return faults, nil
}

func (k Kit) up() *cli.Command {
	return k.Command(cli.Command{
		Name:  "up",
		Usage: "start the simulator; it stays in the foreground unless --background",
		Flags: []cli.Flag{
			simDirFlag(),
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:0", Usage: "`ADDRESS` of the API"},
			&cli.StringSliceFlag{Name: "slices", Usage: "slices that exist at the start, as `NAME:COUNTxTYPE`"},
			&cli.StringFlag{Name: "backend", Value: "process", Usage: "process or netns: what workers are made of (`KIND`); netns needs Linux and root"},
			&cli.IntFlag{Name: "ssh-port", Usage: "`PORT` of all workers; 0: port 22 if it can be used, otherwise a free port; gcloud's ssh and scp need 22"},
			&cli.DurationFlag{Name: "step", Value: 300 * time.Millisecond, Usage: "`TIME` that a resource stays in each state"},
			&cli.IntFlag{Name: "quota", Usage: "`CORES` of one generation that a zone may hold; 0: no limit"},
			&cli.StringSliceFlag{Name: "fault", Usage: "`FAULT` that the simulator has from its start"},
			&cli.BoolFlag{Name: "login", Usage: "accept only the credentials of the simulated user; the fault login-ended makes them invalid"},
			&cli.BoolFlag{Name: "background", Usage: "return when the simulator is ready"},
		},
		Action: k.Act(func(c *Call) error {
			c.NoWords()
			c.Refuse(Simulatable(runtime.GOOS))
			dir := simDir(c)
			cfg := simConfig(c, dir)
			asked := 0
			if _, typed := c.Values["ssh-port"]; typed { // ignore the variable: multihost sim env exports the port of another simulator
				if asked = c.Int("ssh-port"); asked < 0 || asked > 65535 {
					c.Refuse(cmdline.Usagef("--ssh-port=%d: it is a port from 1 to 65535, or 0", asked), "ssh-port")
				}
			}
			if err := c.Ready(); err != nil {
				return err
			}
			if running, err := sim.Open(dir); err == nil {
				return &cmdline.UsageError{Err: fmt.Errorf("a simulator runs already, at %s", running.URL()), Advice: "end it with: multihost sim down; or give another --sim-dir"}
			}
			var why, err error
			if cfg.SSHPort, why, err = daemon.Port(asked, worker.TryPort); err != nil {
				return err
			}
			if why != nil {
				if err := c.Note(fmt.Sprintf("%v; they answer at a free port, which gcloud's ssh and scp do not know", why)); err != nil {
					return err
				}
			}
			if c.Bool("background") {
				url, err := daemon.Background(c.Context, dir, daemonLine(c, dir, asked))
				if err != nil {
					return err
				}
				return simUp(c, url, dir, "type")
			}
			return daemon.Foreground(c.Context, cfg, func(url string) error { return simUp(c, url, dir, "in another terminal type") })
		}),
	}, fault.Usage, fault.IO)
}

// simConfig checks the flags before anything is started, so that the daemon need not report
// errors in them.
func simConfig(c *Call, dir string) sim.Config {
	c.OneOf("backend", c.String("backend"), "process", "netns")
	c.NotNegative(c, "quota")
	cfg := sim.Config{Dir: dir, Listen: c.String("listen"), Backend: c.String("backend"), Step: c.Duration("step"), Quota: c.Int("quota"), Login: c.Bool("login"), Agent: c.Agent}
	if _, err := net.ResolveTCPAddr("tcp", cfg.Listen); err != nil {
		c.Refuse(cmdline.Usagef("--listen=%s: want ADDRESS:PORT", cfg.Listen), "listen")
	}
	if cfg.Step <= 0 {
		c.Refuse(cmdline.Usagef("--step=%s: it must be more than 0", cfg.Step), "step")
	}
	var err error
	if texts := c.StringSlice("slices"); len(texts) > 0 {
		if cfg.Slices, err = sim.ParseSlices(strings.Join(texts, ",")); err != nil {
			c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--slices: %w", err)}, "slices")
		}
	}
	cfg.Faults, err = ParseFaults("--fault", c.StringSlice("fault"))
	c.Refuse(err, "fault")
	return cfg
}

// simUp shows that the simulator is ready, and what the user can type now.
func simUp(c *Call, url, dir, todo string) error {
	return c.Tell(fmt.Sprintf("simulator ready at %s; %s: eval \"$(multihost sim env)\"", url, todo), event.Result{Name: "sim_up", Data: Ready{url, dir}})
}

// daemonLine returns the command line of the daemon that sim up --background starts.
func daemonLine(c *Call, dir string, port int) []string {
	args := []string{"sim", "up", "--config=none", "--sim-dir=" + dir, fmt.Sprintf("--ssh-port=%d", port)} // no configuration file: the flags below have its values
	for _, name := range []string{"listen", "backend", "step", "quota", "login"} {
		args = append(args, fmt.Sprintf("--%s=%v", name, c.Flags.Value(name)))
	}
	for _, name := range []string{"slices", "fault"} {
		for _, v := range c.StringSlice(name) {
			args = append(args, "--"+name+"="+v)
		}
	}
	return args
}

// openSim finds the running simulator.
func openSim(c *Call) (*sim.Client, error) {
	if err := c.Ready(); err != nil {
		return nil, err
	}
	client, err := sim.Open(simDir(c))
	if errors.Is(err, sim.ErrNotRunning) {
		return nil, &cmdline.ConfigError{Err: err, Advice: "start one with: multihost sim up --background --slices=t:2xv5litepod-16"}
	}
	return client, err
}

func (k Kit) env() *cli.Command {
	return k.Command(cli.Command{
		Name:  "env",
		Usage: "print the variables with which multihost and gcloud use the simulator",
		Description: `For a shell: eval "$(multihost sim env)". To leave the simulator in that shell:
eval "$(multihost sim env --unset)". --unset works without a simulator, too.`,
		Flags: []cli.Flag{simDirFlag(), &cli.BoolFlag{Name: "unset", Usage: "print the commands that unset these variables"}},
		Action: k.Act(func(c *Call) error {
			c.NoWords()
			if c.Bool("unset") {
				if err := c.Ready(); err != nil {
					return err
				}
				return c.Show(event.Result{Name: "sim_env", Text: daemon.Unset(c.Lookup, simDir(c)), Data: map[string]string{}})
			}
			client, err := openSim(c)
			if err != nil {
				return err
			}
			env := client.Env()
			return c.Show(event.Result{Name: "sim_env", Text: daemon.Export(env), Data: env})
		}),
	}, fault.Usage, fault.Configuration)
}

func (k Kit) status() *cli.Command {
	return k.Command(cli.Command{
		Name:  "status",
		Usage: "show what exists in the simulator",
		Flags: []cli.Flag{simDirFlag()},
		Action: k.Act(func(c *Call) error {
			client, err := openSim(c)
			if err != nil {
				return err
			}
			status, err := client.Status(c.Context)
			if err != nil {
				return err
			}
			return c.Show(event.Result{Name: "sim_status", Text: daemon.StatusText(status), Data: status})
		}),
	}, fault.Usage, fault.Configuration)
}

func (k Kit) fault() *cli.Command {
	var b strings.Builder
	b.WriteString("multihost sim fault preempt node=t-1 makes one thing go wrong. clear NUMBER takes back\nthe fault with that number, clear NAME all faults of that name, clear alone all faults.\n\nFAULTS:\n")
	for _, f := range sim.Faults() {
		fmt.Fprintf(&b, "   %s %s\n      %s\n", f.Name, strings.Join(f.Args, "= ")+"=", f.What)
	}
	b.WriteString("\nARGUMENTS:\n")
	for _, a := range sim.FaultArgs() {
		fmt.Fprintf(&b, "   %-12s %s\n", a.Key, a.What)
	}
	return k.Command(cli.Command{
		Name:        "fault",
		Usage:       "make something go wrong in the simulator",
		ArgsUsage:   "NAME [KEY=VALUE…] | clear [WHICH]",
		Description: b.String(),
		Flags:       []cli.Flag{simDirFlag()},
		Action: k.Act(func(c *Call) error {
			words := c.Words
			text := ""
			for i, w := range words {
				if i > 0 {
					w = " " + remote.Quote(w)
				}
				text += w
			}
			if len(words) == 0 {
				c.Refuse(&cmdline.UsageError{Err: errors.New("which fault?"), Advice: "the faults are listed by: multihost sim fault --help"}, cmdline.Word)
			} else if words[0] != "clear" {
				_, err := ParseFaults("multihost sim fault", []string{text})
				c.Refuse(err, cmdline.Word)
			}
			client, err := openSim(c)
			if err != nil {
				return err
			}
			if words[0] == "clear" {
				which := strings.Join(words[1:], " ")
				if which == "" {
					which = "all"
				}
				n, err := client.Clear(c.Context, which)
				if err != nil {
					return err
				}
				if n == 0 && which != "all" {
					return cmdline.Usagef("no fault %q is set", which)
				}
				return c.Tell("cleared "+event.Count(n, "fault"), event.Result{Name: "sim_faults_cleared", Data: Cleared{n}})
			}
			id, err := client.Fault(c.Context, text)
			var refused *sim.RefusedError
			if errors.As(err, &refused) {
				return &cmdline.UsageError{Err: err, Advice: "what there is is listed by: multihost sim status"}
			}
			if err != nil {
				return err
			}
			return c.Tell(fmt.Sprintf("fault %d is set; take it back with: multihost sim fault clear %d", id, id),
				event.Result{Name: "sim_fault", Data: FaultSet{id, text}})
		}),
	}, fault.Usage, fault.Configuration)
}

func (k Kit) login() *cli.Command {
	return k.Command(cli.Command{
		Name:        "login",
		Usage:       "log the simulated user in again, after the fault login-ended",
		Description: "Stands in for gcloud auth application-default login; for a simulator started with --login.",
		Flags:       []cli.Flag{simDirFlag()},
		Action: k.Act(func(c *Call) error {
			client, err := openSim(c)
			if err != nil {
				return err
			}
			if err := client.Login(c.Context); err != nil {
				return &cmdline.UsageError{Err: err, Advice: "start it with: multihost sim up --login"}
			}
			return c.Tell("", event.Result{Name: "sim_login", Data: LoggedIn{true}})
		}),
	}, fault.Usage, fault.Configuration)
}

func (k Kit) down() *cli.Command {
	return k.Command(cli.Command{
		Name:  "down",
		Usage: "end the simulator and all its workers",
		Flags: []cli.Flag{simDirFlag()},
		Action: k.Act(func(c *Call) error {
			c.NoWords()
			if err := c.Ready(); err != nil {
				return err
			}
			if n, err := daemon.Sweep(); err != nil {
				return err
			} else if n > 0 {
				fmt.Fprintf(c.Stderr, "multihost: removed what %d killed simulators of --sim had left\n", n)
			}
			client, err := openSim(c)
			if errors.Is(err, sim.ErrNotRunning) {
				return c.Tell("no simulator is running", event.Result{Name: "sim_down", Data: Ended{false}})
			}
			if err != nil {
				return err
			}
			if err := client.Down(c.Context); err != nil {
				return err
			}
			if err := daemon.Remove(simDir(c)); err != nil {
				return err
			}
			return c.Tell("", event.Result{Name: "sim_down", Data: Ended{true}})
		}),
	}, fault.Usage)
}

// The results of the sim commands in JSON.
type (
	Ready struct {
		URL string `json:"url"`
		Dir string `json:"dir"`
	}
	FaultSet struct {
		ID    int    `json:"id"`
		Fault string `json:"fault"`
	}
	Cleared struct {
		Cleared int `json:"cleared"`
	}
	LoggedIn struct {
		LoggedIn bool `json:"logged_in"`
	}
	Ended struct {
		WasRunning bool `json:"was_running"`
	}
)
