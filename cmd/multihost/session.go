package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"time"

	"multihost/cmd/multihost/simcmd"
	"multihost/internal/access"
	"multihost/internal/held"
	"multihost/internal/hosts"
	"multihost/internal/overssh"
	"multihost/internal/pods"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/workers"

	agentprogram "multihost/internal/agent/program"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/iap"
	"multihost/internal/journal"
	"multihost/internal/network"
	"multihost/internal/options"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/sim/daemon"
	"multihost/internal/sshkey"
	"multihost/internal/ui"
)

// session holds what a command works with: view, cloud, state directory. The command calls
// close at its end.
type session struct {
	view     *ui.Renderer
	journal  *journal.Journal
	sink     event.Sink  // the view and the journal
	cloud    *gcp.Client // nil with hosts or without a project; unset says why
	unset    error
	roots    gcp.Roots
	queue    *qr.Client // for the qr commands
	compute  *gce.Provider
	all      *provider.Joined // slices of queue and of compute
	keys     *provider.Keys   // slices with their host keys: those of all, or only of its first provider
	held     *held.Provider   // slices of the cluster that flags name; replaces the clouds
	pods     *pods.Dialer     // reaches the workers of held slices
	cluster  *record.Cluster  // the cluster of held
	hosts    hosts.HostList   // set by --hosts or by the run's record; replaces the clouds
	networks *network.Client
	clusters *gke.Client
	account  string
	gcloud   config.Gcloud // gcloud's configuration, changed by flags
	stateDir string
	dryRun   bool // change nothing
	lookup   config.Lookup
	sim      *sim.Server
	endSim   func()
	leave    <-chan struct{}
	typed    map[string]string // the flags typed on the command line

	loginNote    string // which login is used, and why
	endQuestions func() // cancels an open question, because closing the view waits for its answer
}

// open reads the configuration and starts the view. It calls an API only to learn the
// address of the cluster of --cluster. The caller must then call ready, which reports what
// is wrong with the flags.
func open(c *call) (*session, error) {
	if v := c.String("stream"); v != "" {
		c.OneOf("stream", v, "first", "all", "none")
	}
	return openOn(c, newView(c))
}

// openOn does what open does, with an existing view.
func openOn(c *call, view *ui.Renderer) (*session, error) {
	s := &session{view: view, lookup: c.lookup, typed: c.Typed, leave: c.leave, dryRun: c.Bool("dry-run")}
	if c.home == "" {
		s.closeView()
		return nil, &configError{Err: errors.New("the home directory is not known"), Advice: "set HOME to an absolute path"}
	}
	s.journal = journal.New(gcp.SystemClock.Now)
	s.sink = event.Tee(s.view, s.journal)
	if c.Sound() {
		options.TellFile(c.Line, s.view)
	}
	if err := s.fill(c); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// newView starts the view that the flags ask for.
func newView(c *call) *ui.Renderer {
	c.view = ui.New(ui.Options{
		Mode: viewMode(c), Stdout: c.stdout, Stderr: c.stderr, Stream: ui.Stream(c.String("stream")), Debug: c.Bool("debug"),
		Clock: options.TakesLong(c.Line), Timestamps: c.Bool("timestamps"), Color: ui.Colors(c.lookup, c.stderr), Width: func() int { return ui.Columns(c.lookup, c.stderr) },
	})
	return c.view
}

func (s *session) close() {
	if s.endQuestions != nil {
		s.endQuestions()
	}
	if s.cloud != nil {
		s.cloud.Close()
	}
	if s.held != nil {
		s.held.Client.Close()
	}
	if s.sim != nil {
		s.endSim()
	}
	s.closeView()
}

// closeView waits until all output is written. If the user wants to leave at once, it waits
// no longer than viewLimit: the reader may have stopped reading.
func (s *session) closeView() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.view.Close()
	}()
	select {
	case <-done:
		return
	case <-s.leave:
	}
	select {
	case <-done: // the view has written everything, so the error of the command comes last
	case <-time.After(viewLimit):
	}
}

// viewLimit is how long multihost waits for a reader of the output if the user wants to
// leave at once.
const viewLimit = time.Second

func viewMode(c *call) ui.Mode {
	switch output := c.String("output"); {
	case output == "json":
		c.json = true
		return ui.JSON
	case output == "text", c.Command.Name == "metrics" && (output == "table" || output == "csv"):
	default:
		c.Refuse(usagef("--output=%s: it is text or json", output), "output")
	}
	if c.Bool("quiet") {
		return ui.Quiet
	}
	if term, _ := c.lookup("TERM"); term == "dumb" {
		return ui.Plain
	}
	return ui.Auto
}

func (s *session) fill(c *call) error {
	if c.Bool("sim") {
		if err := s.startSim(c); err != nil {
			return err
		}
	}
	g := options.Gcloud(&c.Call, s.machine(c))
	s.account, s.gcloud = g.Account, g
	s.stateDir = c.String("state-dir")
	if s.stateDir == "" {
		s.stateDir = config.StateDir(s.lookup, c.home)
	}
	s.hosts = options.Hosts(&c.Call, s.stateDir)
	var err error
	if s.roots, err = access.Roots(g); err != nil {
		c.Refuse(&configError{Err: err})
	}
	k := options.Kube(&c.Call, s.machine(c), s.stateDir)
	if k.Named && k.Cluster == "" {
		if err := useCluster(s, k); err == nil {
			return nil
		} else {
			c.Refuse(err, "kubeconfig", "context")
		}
	}
	if s.hosts != nil || g.Project == "" && (options.Diagnoses(c.Line) || c.Refused("project")) {
		return nil
	}
	if g.Project == "" {
		s.unset = access.ErrNoProject
	}
	s.checkPlace(c, g)
	if s.unset != nil {
		return nil
	}
	s.cloud = access.Cloud(g, access.Options{ReadOnly: s.dryRun, Lookup: s.lookup, UserAgent: "multihost/" + version(), Sink: s.sink})
	s.queue = qr.New(s.cloud)
	s.compute = gce.New(s.cloud, s.roots.Compute)
	s.makeOn(options.OnTPU)
	s.networks = network.New(s.cloud, qr.LifeOf)
	s.clusters = gke.New(s.cloud, nil)
	if k.Cluster == "" || !c.Sound() {
		return nil
	}
	at, err := s.clusters.Endpoint(c.Context, k.Cluster)
	if err != nil {
		return interruptible(c.Context, err)
	}
	k.Config.Server, k.Config.CA, k.Config.Token = at.Server, at.CA, access.Tokens{Cloud: s.cloud}
	return useCluster(s, k)
}

// useCluster makes the session work on the slices of a cluster.
func useCluster(s *session, k options.KubeChoice) error {
	held, dialer, of, err := access.Pods(k.Config, k.Flags, access.Options{ReadOnly: s.dryRun, UserAgent: "multihost/" + version(), Sink: s.sink})
	if err != nil {
		return err
	}
	of.Name = k.Cluster
	s.held, s.pods, s.cluster, s.all = held, dialer, of, provider.Join(s.sink, held)
	s.use(s.all)
	return nil
}

// makeOn sets the provider that makes new slices. The session still finds slices of all
// providers.
func (s *session) makeOn(on string) {
	if s.cloud == nil {
		return
	}
	s.all = provider.Join(s.sink, s.queue.Provider(s.roots.TPU), s.compute)
	if on == options.OnGCE {
		s.all = provider.Join(s.sink, s.compute, s.queue.Provider(s.roots.TPU))
	}
	s.use(s.all)
}

// makeOnly removes all providers but the first. So a command that makes and deletes slices
// does not touch another provider's resource of the same name.
func (s *session) makeOnly() {
	if s.all != nil {
		s.use(s.all.Unwrap())
	}
}

func (s *session) use(p provision.Provider) {
	s.keys = provider.KeepKeys(p, gcp.SystemClock, filepath.Join(s.stateDir, "hostkeys.json"))
}

// checkPlace refuses a wrong project or zone. It also refuses the command if the command
// needs one that is not set.
func (s *session) checkPlace(c *call, g config.Gcloud) {
	need := access.Need{Project: !options.ReadsFiles(c.Line) && !options.InKubeconfig(c.Line), Zone: !options.Zoneless(c.Line) && !options.InKubeconfig(c.Line) && !options.Diagnoses(c.Line) && !c.Refused("zone")}
	for _, p := range access.Check(g, need) {
		if p.Flag == "" {
			c.Refuse(p.Err)
		} else {
			c.Refuse(asUsage(p.Err), p.Flag)
		}
	}
	if _, typed := s.typed["access-token-file"]; typed && s.unset == nil && !options.Diagnoses(c.Line) { // report a typo even if no token is needed
		c.Refuse(gcp.CheckTokenFile(g.AccessTokenFile), "access-token-file")
	}
}

// startSim starts the simulator unless something on the command line has been refused.
func (s *session) startSim(c *call) error {
	c.Refuse(simcmd.Simulatable(runtime.GOOS), "sim")
	var specs []sim.SliceSpec
	for _, text := range c.StringSlice("sim-slices") {
		list, err := sim.ParseSlices(text)
		if err != nil {
			c.Refuse(&usageError{Err: fmt.Errorf("--sim-slices: %w", err)}, "sim-slices")
		}
		specs = append(specs, list...)
	}
	c.OneOf("sim-backend", c.String("sim-backend"), "process", "netns")
	faults, err := simcmd.ParseFaults("--sim-fault", c.StringSlice("sim-fault"))
	c.Refuse(err, "sim-fault")
	if !c.Sound() {
		return nil
	}
	server, end, err := daemon.ForOne(c.Context, sim.Config{Slices: specs, Backend: c.String("sim-backend"), Step: c.Duration("sim-step"), Faults: faults, Agent: agents().Here()})
	if err != nil {
		return err
	}
	s.sim, s.endSim = server, end
	env, outer := server.Env(), s.lookup
	s.lookup = func(key string) (string, bool) {
		if v, ok := env[key]; ok {
			return v, true
		}
		return outer(key)
	}
	return nil
}

// leastTerm is the shortest time that --ttl and --lease accept. Workers delete the slices
// of a silent runner after that time, and a runner that is cut off for a moment must not
// lose its slices. Tests shorten it, because their scripts cannot wait a minute.
var leastTerm = time.Minute

// machine returns the facts about this machine and user that options need besides the
// command line.
func (s *session) machine(c *call) options.Machine {
	login, note := config.LocalUser(s.lookup, s.account)
	return options.Machine{Lookup: s.lookup, Home: c.home, StateDir: s.stateDir, User: login, UserNote: note, Account: s.account, LeastTerm: leastTerm}
}

// slices returns the provider of slices, or nil without a cloud.
func (s *session) slices() provision.Provider {
	if s.keys == nil {
		return nil
	}
	return s.keys
}

// deps returns what the packages below internal need for commands that contact no worker.
func (s *session) deps(c *call) *deps {
	typed := &stage.Invocation{Sink: s.sink, Clock: gcp.SystemClock, Leave: c.leave}
	d := &deps{
		Reach:  &workers.Reach{Invocation: typed, ReadOnly: s.dryRun},
		Keeper: &record.Keeper{Of: typed, Journal: s.journal, StateDir: s.stateDir, Owner: owner(), ExitStatus: exitCode},
		Roots:  s.roots,
	}
	switch {
	case s.hosts != nil:
		d.Cloud = s.hosts
	case s.held != nil:
		if s.cloud != nil {
			d.Place = provision.Place{Project: s.cloud.Project(), Zone: s.cloud.Zone()}
		}
		d.Cloud, d.Cluster, d.ClusterFlags = s.keys, s.cluster, s.held.Flags
	case s.cloud != nil: // otherwise doctor reports that there is no project
		d.Cloud, d.Networks, d.Agents = s.keys, s.networks, agents()
		d.Place = provision.Place{Project: s.cloud.Project(), Zone: s.cloud.Zone()}
		d.OpenBucket = func(ctx context.Context, bucket, dir string) (*detach.Bucket, error) {
			return detach.Open(ctx, s.cloud, bucket, dir)
		}
	}
	return d
}

// agents returns the multihost-agent programs that are embedded in multihost. Tests replace
// the variable.
var agents = agentprogram.Embedded

// workers calls access and login, for commands that log in to workers.
func (s *session) workers(c *call) (*deps, error) {
	c.Refuse(s.unset)
	d, err := s.access(c)
	if err != nil {
		return nil, err
	}
	return d, s.login(c, d)
}

// login adds the user's key to d, which access has returned.
func (s *session) login(c *call, d *deps) (err error) {
	switch {
	case s.unset != nil:
		return s.unset
	case s.held != nil:
		d.Dialer, d.Access.Login, d.Access.KeyFile = s.pods, s.pods.User, "" // pods need no key
		return nil
	}
	s.tellLogin()
	d.Access.Identity, err = s.identity(c)
	overSSH(d, nil)
	return err
}

// overSSH makes d reach workers over SSH, with Access as it is now. If logins is not nil,
// it has the login to use for each slice. In that case multihost does not change the keys
// on the workers. Pods are not reached over SSH: overSSH then does nothing.
func overSSH(d *deps, logins map[string]string) {
	if d.Cluster == nil {
		d.Dialer = &overssh.SSH{Access: d.Access, Cloud: d.Cloud, Zone: d.Zone, Clock: d.Clock, Logins: logins}
	}
}

// access returns deps for commands that reach workers. The deps have no key: login adds it.
// access reads the last flags and calls ready.
func (s *session) access(c *call) (*deps, error) {
	d := s.deps(c)
	d.Bucket, d.BucketDir = c.String("bucket-name"), c.String("bucket-dir")
	d.Access, s.loginNote = options.Access(&c.Call, s.machine(c), s.key(c))
	if s.cloud != nil {
		d.Access.IAP = &iap.Proxy{Endpoint: s.machine(c).Setting(&c.Call, "iap-endpoint"), Project: s.cloud.Project(), Token: s.cloud.Token}
	}
	overSSH(d, nil)
	return d, ready(c)
}

// tellLogin says which login is used, if that may surprise the user.
func (s *session) tellLogin() {
	if s.loginNote != "" {
		s.view.Emit(event.Note{Level: event.Info, Text: s.loginNote})
	}
}

// identity loads the user's key. If there is none, it makes gcloud's default key, or
// returns nil in a dry run.
func (s *session) identity(c *call) (*sshkey.Identity, error) {
	key := s.key(c)
	id, made, err := key.Ensure(s.dryRun)
	if made && s.sim == nil {
		s.view.Emit(event.Note{Level: event.Info, Text: "made the SSH key " + key.Path})
	}
	var in *stage.Interrupted
	if errors.As(err, &in) {
		return nil, in
	}
	if err != nil {
		return nil, &configError{Err: err}
	}
	return id, nil
}

// publicKey returns the user's public key in the form for workers.
func publicKey(a overssh.Access) string {
	if a.Identity == nil { // in a dry run
		return "(public key of " + a.KeyFile + ", to be made)"
	}
	return a.Identity.PublicKey()
}

func (s *session) key(c *call) access.Key {
	key := options.Key(&c.Call, s.machine(c))
	key.Passphrase = func(path string) (string, error) {
		return ui.ReadPassphrase(c.Context, c.stdin, s.view.Stderr(), path)
	}
	return key
}

// owner returns USER@MACHINE of this process, for the records on workers.
func owner() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
