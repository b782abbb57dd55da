package options

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/image"
	"multihost/internal/tpu"
	"multihost/internal/workload"
)

// ImageAsIs is the --image-repository for an image that has multihost-agent.
const ImageAsIs = "none"

// ClusterChoiceFlags are the flags of KubeOptions for commands with NeededKube.
func ClusterChoiceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "cluster", Usage: "`NAME` of a cluster of Google Kubernetes Engine in the region of --zone"},
		&cli.StringFlag{Name: "context", Usage: "in place of --cluster: the context `NAME` of --kubeconfig"},
		&cli.StringFlag{Name: "kubeconfig", Usage: "in place of --cluster: `FILE` of kubectl with clusters; its current context is used unless --context names another; default with --context: $KUBECONFIG or ~/.kube/config"},
		&cli.StringFlag{Name: "namespace", Usage: "`NAMESPACE` in the cluster; default: that of the context, or default"},
	}
}

// WorkloadNameFlag names a workload, as the command's word does.
func WorkloadNameFlag() cli.Flag {
	return &cli.StringFlag{Name: "workload", Usage: "`NAME` of the workload, in place of the argument NAME"}
}

// registryFlag is for simulators: all registries are at one address.
func registryFlag() cli.Flag {
	return &cli.StringFlag{Name: "registry-endpoint", Hidden: true, Usage: "`URL` that gets the requests to all registries"}
}

// WorkloadFlags describe a workload.
func WorkloadFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{WorkloadNameFlag()}, ClusterChoiceFlags(), []cli.Flag{
		&cli.StringFlag{Name: "command", Aliases: []string{"COMMAND"}, Usage: "`COMMAND` that bash runs on every worker"},
		TypeFlag(),
		&cli.IntFlag{Name: "num-slices", Aliases: []string{"NUM_SLICES"}, Value: 1, Usage: "run on `N` slices"},
		&cli.IntFlag{Name: "num-nodes", Usage: "`N` pods in each slice, without --tpu-type"},
		&cli.StringFlag{Name: "docker-image", Usage: "`IMAGE` that has all of the program"},
		&cli.StringFlag{Name: "base-docker-image", Usage: "`IMAGE` that gets the files of --script-dir in /app"},
		&cli.StringFlag{Name: "script-dir", Aliases: []string{"SCRIPT_DIR"}, Value: ".", Usage: "`DIR` with the files for --base-docker-image; the command runs in the copy"},
		&cli.StringFlag{Name: "image-repository", Usage: "`REPOSITORY` that gets the image with multihost-agent added; none: --docker-image has it already; default: gcr.io/PROJECT/USER-runner"},
		registryFlag(),
		&cli.StringSliceFlag{Name: "env", Usage: "set the environment variable `NAME=VALUE` for the command"},
		&cli.StringFlag{Name: "queue", Value: workload.DefaultQueue, Usage: "local `QUEUE` of Kueue that admits the workload"},
		&cli.StringFlag{Name: "priority", Value: workload.DefaultPriority, Usage: "priority `CLASS` of the workload"},
		&cli.StringSliceFlag{Name: "resource", Usage: "`NAME=QUANTITY` that each worker needs besides TPU chips, such as nvidia.com/gpu=8"},
		&cli.StringSliceFlag{Name: "node-selector", Usage: "`KEY=VALUE` of a label that the nodes must have, besides those of --tpu-type"},
		preflightFlag(),
		&cli.IntFlag{Name: "max-restarts", Usage: "start the command again up to `N` times when a worker is lost or ends with 42 or 127 to 255"},
		&cli.StringFlag{Name: "restart-on-exit-codes", Usage: "further exit `CODES` after which the command starts again: 1,2"},
		&cli.IntFlag{Name: "ttl-seconds-after-finished", Aliases: []string{"ttl"}, Value: workload.DefaultTTL, Usage: "delete the workload `SECONDS` after its end; -1: never"},
		&cli.IntFlag{Name: "termination-grace-period-seconds", Aliases: []string{"termination-grace-period"}, Value: workload.DefaultGrace, Usage: "`SECONDS` that the command has between TERM and KILL"},
		&cli.StringFlag{Name: "stream", Value: "first", Usage: "first, all or none: whose output is shown (`WHO`)"},
		&cli.BoolFlag{Name: "detach", Usage: "end when the cluster has the workload, and follow nothing"},
		dryRunFlag(),
		&cli.BoolFlag{Name: "confirm", Usage: "ask on the terminal before the workload is made; Enter means no"},
	})
}

// WorkloadName returns the name of a workload: the only word of a command, or --workload.
func WorkloadName(c *Call) string {
	name := c.String("workload")
	switch {
	case name != "" && len(c.Words) > 0:
		c.Refuse(cmdline.Usagef("give the name of the workload once: %q or --workload=%s", c.Words[0], name), cmdline.Word, "workload")
		return name
	case name != "":
		return name
	}
	return c.OneWord("name", "list them with: multihost workload list")
}

// A Workload is what WorkloadFlags ask for.
type Workload struct {
	Spec       workload.Spec
	Base       bool     // add the files of Dir to Spec.Image
	Dir        string   // --script-dir
	Registries *url.URL // gets the requests to all registries; nil: each its own
	Repository string   // repository for the image; "": the default; ImageAsIs: the image stays as it is

	NamedQueue, NamedPriority bool // the user has named them; otherwise they are defaults, which a cluster may lack
}

// WorkloadOf reads WorkloadFlags, without the flags of the cluster.
func WorkloadOf(c *Call, m Machine) Workload {
	s := workload.Spec{
		Name: WorkloadName(c), Namespace: c.String("namespace"), Slices: c.Int("num-slices"), Pods: c.Int("num-nodes"), Command: c.String("command"),
		Queue: c.String("queue"), Priority: c.String("priority"), MaxRestarts: c.Int("max-restarts"),
		TTL: c.Int("ttl-seconds-after-finished"), Grace: c.Int("termination-grace-period-seconds"),
	}
	readWorkloadEnv(c, &s)
	return readWorkload(c, s, cmdline.Word)
}

// readWorkload completes a Spec with the flags that workload create and a job in a cluster
// have in common. named is the flag, or cmdline.Word, that names the workload.
func readWorkload(c *Call, s workload.Spec, named string) Workload {
	w := Workload{NamedQueue: c.IsSet("queue"), NamedPriority: c.IsSet("priority")}
	s.Preflight = c.String("preflight")
	c.OneOf("preflight", s.Preflight, preflightModes()...)
	if s.Preflight == "off" {
		s.Preflight = ""
	}
	w.readRegistry(c)
	w.readImage(c, &s)
	readWorkloadType(c, &s)
	readWorkloadLists(c, &s)
	sound := workload.Spec{Name: "w", Slices: 1, Pods: 1, Command: "true", Image: "i"}
	for _, one := range []struct {
		flag string
		set  func(*workload.Spec)
	}{
		{"namespace", func(o *workload.Spec) { o.Namespace = s.Namespace }},
		{"num-slices", func(o *workload.Spec) { o.Slices = s.Slices }},
		{"command", func(o *workload.Spec) { o.Command = s.Command }},
		{"queue", func(o *workload.Spec) { o.Queue = s.Queue }},
		{"priority", func(o *workload.Spec) { o.Priority = s.Priority }},
		{"max-restarts", func(o *workload.Spec) { o.MaxRestarts = s.MaxRestarts }},
		{"restart-on-exit-codes", func(o *workload.Spec) { o.RestartOn = s.RestartOn }},
		{"ttl-seconds-after-finished", func(o *workload.Spec) { o.TTL = s.TTL }},
		{"termination-grace-period-seconds", func(o *workload.Spec) { o.Grace = s.Grace }},
		{"resource", func(o *workload.Spec) { o.Resources = s.Resources }},
		{"node-selector", func(o *workload.Spec) { o.NodeSelector = s.NodeSelector }},
	} {
		spec := sound
		one.set(&spec)
		if err := spec.Check(); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, one.flag)
		}
	}
	if c.Sound() {
		if err := s.Check(); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, named, "workload", "tpu-type", "num-nodes")
		}
	}
	w.Spec = s
	return w
}

func (w *Workload) readImage(c *Call, s *workload.Spec) {
	whole, base := c.String("docker-image"), c.String("base-docker-image")
	s.Image, w.Base = cmp.Or(whole, base), base != ""
	switch {
	case whole != "" && base != "":
		c.Refuse(cmdline.Usagef("--docker-image and --base-docker-image exclude each other: give one of them"), "docker-image", "base-docker-image")
	case w.Base && w.Repository == ImageAsIs:
		c.Refuse(cmdline.Usagef("--base-docker-image gets files, so it needs a repository: leave out --image-repository=%s", ImageAsIs), "base-docker-image", "image-repository")
	}
	if w.Base {
		w.Dir = scriptDir(c)
	}
}

// readRegistry reads --image-repository and --registry-endpoint.
func (w *Workload) readRegistry(c *Call) {
	w.Repository = c.String("image-repository")
	if w.Repository != "" && w.Repository != ImageAsIs {
		if err := image.CheckRepository(w.Repository); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, "image-repository")
		}
	}
	w.Registries = registries(c)
}

// registries reads registryFlag; nil: each registry is where its name says.
func registries(c *Call) *url.URL {
	text := c.String("registry-endpoint")
	if text == "" {
		return nil
	}
	to, err := url.Parse(text)
	if err != nil || to.Host == "" {
		c.Refuse(cmdline.Usagef("--registry-endpoint=%s: want a URL", text), "registry-endpoint")
	}
	return to
}

func readWorkloadType(c *Call, s *workload.Spec) {
	text := c.String("tpu-type")
	if text == "" {
		return
	}
	t, err := tpu.ParseType(text)
	if err == nil {
		_, err = tpu.NodesOf(t)
	}
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "tpu-type")
	}
	s.Type = t
}

// readWorkloadEnv reads the variables of the command.
func readWorkloadEnv(c *Call, s *workload.Spec) {
	vars, err := config.ParseEnvAssignments(c.StringSlice("env"))
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "env")
	}
	for _, v := range vars {
		refuseVariable(c, "env", v.Name, v.Value)
		s.Env = append(s.Env, workload.Variable{Name: v.Name, Value: v.Value})
	}
}

// readWorkloadLists reads flags with several values.
func readWorkloadLists(c *Call, s *workload.Spec) {
	for _, text := range c.StringSlice("resource") {
		r, err := workload.ParseResource(text)
		if err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, "resource")
			continue
		}
		s.Resources = append(s.Resources, r)
	}
	selector, err := workload.ParseSelector(c.StringSlice("node-selector"))
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "node-selector")
	}
	s.NodeSelector = selector
	codes := c.String("restart-on-exit-codes")
	if codes == "" {
		return
	}
	for text := range strings.SplitSeq(codes, ",") {
		code, err := strconv.Atoi(text)
		if err != nil {
			c.Refuse(cmdline.Usagef("--restart-on-exit-codes=%s: want numbers with commas between them, such as 1,2", codes), "restart-on-exit-codes")
			return
		}
		s.RestartOn = append(s.RestartOn, code)
	}
}
