package options

import (
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/attempt"
	"multihost/internal/cmdline"
	"multihost/internal/codesync"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/network"
)

// selectOptions select the slices that a command works on.
func selectOptions() []Option {
	return []Option{
		{flag: &cli.StringFlag{Name: "tpu-prefix", Aliases: []string{"TPU_PREFIX"}, Usage: "the slice named `P`, or the slices P-0, P-1, …"},
			with: withWorkers, plan: "slices", unneeded: ofRun},
		{flag: SlicesFlag(),
			with: withWorkers, bad: "x", plan: "slices", unneeded: ofRun},
		{flag: &cli.BoolFlag{Name: "allow-partial", Usage: "use the slices that are ready, even if others are missing or not ready"},
			with: withWorkers, plan: "slices", unneeded: ofRun},
	}
}

// HostOptions name machines that no cloud API knows. They replace slices.
func HostOptions() []Option {
	return []Option{
		{flag: &cli.StringFlag{Name: "hosts", Usage: "machines in place of slices, as `[USER@]HOST[:PORT],…`; their order gives the worker numbers"},
			with: inSession, bad: "a b", plan: "slices", unneeded: ofRun},
		{flag: &cli.StringFlag{Name: "hosts-file", Usage: "`FILE` with the machines of --hosts, one in each line"},
			with: inSession, bad: "/no/such", plan: "slices", unneeded: ofRun},
	}
}

// PatienceOptions set how long a worker of a run may be away or silent.
func PatienceOptions() []Option {
	return []Option{
		{flag: &cli.DurationFlag{Name: "lost-timeout", Value: 10 * time.Minute, Usage: "give up a worker that cannot be followed for this `TIME`: the run ends with status 69 and the command goes on; 0: no limit"},
			read: asTime(func(o *options) *time.Duration { return &o.Run.Patience.Lost }), bad: "-1s", plan: "limits.lost_ns", try: "9s", unneeded: notWatched},
		{flag: &cli.DurationFlag{Name: "log-timeout", Value: 30 * time.Minute, Usage: "longest `TIME` to wait, after the command has ended, until the logs on this machine are whole (its disk may be full); after that time a run ends with status 74, and a job keeps its slices for --lease; 0: do not wait"},
			read: asTime(func(o *options) *time.Duration { return &o.Run.Patience.Log }), bad: "-1s", unplanned: "it matters only if logs are not whole", try: "9s", key: "log_timeout"},
		{flag: &cli.DurationFlag{Name: "quiet-after", Value: 10 * time.Minute, Usage: "report a worker that has printed nothing for this `TIME`, and whether its process is alive; 0: never"},
			read: asTime(func(o *options) *time.Duration { return &o.Run.Patience.Quiet }), bad: "-1s", unplanned: "it only changes what is shown here", unneeded: notWatched},
	}
}

// sharedOptions set what to run and how, for run and for job.
func sharedOptions() []Option {
	return []Option{
		{flag: dryRunFlag(),
			with: inSession, unplanned: "it asks for the plan", unneeded: "it asks for the plan"},
		{flag: &cli.StringFlag{Name: "command", Aliases: []string{"COMMAND"}, Usage: "bash `SCRIPT` that every worker runs; or give a program after --"},
			read: readCommand, bad: " ", plan: "start.script", try: "false", key: kit},
		{flag: &cli.StringFlag{Name: "run-name", Aliases: []string{"RUN_NAME"}, Usage: "`NAME` of the run and of its directory on the workers; default: login, time and a random part"},
			read: readRunName, bad: "/", plan: "run", try: "another", key: "run"},
		{flag: &cli.StringFlag{Name: "script-dir", Aliases: []string{"SCRIPT_DIR"}, Value: ".", Usage: "`DIR` to copy to every worker; the command runs in the copy"},
			read: readScriptDir, bad: "/no/such", plan: "files.dir", key: "code_sum"},
		{flag: &cli.BoolFlag{Name: "no-ignore", Usage: "copy also the files that .gitignore and .multihostignore leave out, and the files that multihost wrote there"},
			read: asBool(func(o *options) *bool { return &o.Run.NoIgnore }), plan: "files.ignored", key: "code_sum"},
		{flag: &cli.BoolFlag{Name: "adopt", Usage: "copy also into a directory ~/NAME of the workers that no run made: files of the same names are replaced, the others stay"},
			read: asBool(func(o *options) *bool { return &o.Run.Adopt }), unplanned: "it matters only for a directory that is there", try: "true", key: "adopt"},
		{flag: &cli.IntFlag{Name: "scp-timeout-secs", Aliases: []string{"SCP_TIMEOUT_SECS"}, Value: 600, Usage: "give up when the copy to a worker makes no progress for `SECONDS`"},
			read: readSyncTimeout, bad: "0", unplanned: "it is a limit without progress, and not for the whole copy", unneeded: noUpload},
		{flag: &cli.StringFlag{Name: "relay", Value: "auto", Usage: "auto, on or off: `WHETHER` workers pass new files on to each other; auto: if that saves this machine an upload of 32 MiB or more"},
			read: asOneOf(func(o *options) *codesync.Relay { return &o.Run.Relay }, codesync.RelayAuto, codesync.RelayOn, codesync.RelayOff), bad: "x", unplanned: "the same files arrive", unneeded: noUpload},
		{flag: &cli.IntFlag{Name: "relay-fanout", Usage: "when workers pass files on, send them from this machine to `N` workers; 0: to one of each slice"},
			read: asNumber(func(o *options) *int { return &o.Run.RelayFanout }), bad: "-1", unplanned: "the same files arrive", unneeded: noUpload},
		{flag: &cli.StringSliceFlag{Name: "env", Usage: "set the environment variable `NAME=VALUE` for the command"},
			with: "secret-env", bad: "1", plan: "workers.env", try: "A=1", key: kit},
		{flag: &cli.StringSliceFlag{Name: "env-file", Usage: "set the variables of the NAME=VALUE lines in `FILE` for the command"},
			with: "secret-env", bad: "/no/such", plan: "workers.env", key: kit},
		{flag: &cli.StringSliceFlag{Name: "secret-env", Usage: "pass this machine's variable `NAME` to the command and mask its value in all output; NAME=sm://PROJECT/SECRET[/VERSION]: the workers read the value from Secret Manager, and it is not masked"},
			read: readEnvironment, bad: "MH_NONE", plan: "workers.env", try: "A=sm://my-project/a", key: "secrets"},
		{flag: preflightFlag(),
			read: asOneOf(func(o *options) *string { return &o.Run.Preflight }, preflightModes()...), bad: "x", plan: "preflight.mode", try: "check", key: "preflight"},
		{flag: &cli.StringFlag{Name: "skew", Value: "warn", Usage: "check, warn or off: what to do if workers differ in Python, jax, jaxlib, libtpu or the code of --use-existing-folder (`MODE`); check: do not start"},
			read: asOneOf(func(o *options) *attempt.SkewMode { return &o.Run.Skew }, attempt.SkewCheck, attempt.SkewWarn, attempt.SkewOff), bad: "x", unplanned: "the workers are compared when they start", key: refused},
		{flag: &cli.StringFlag{Name: "platform", Aliases: []string{"PLATFORM"}, Value: "gce", Usage: "gce or gke: where the workers run (`PLATFORM`)"},
			read: readPlatform, bad: "x", plan: "preflight.platform", try: "gke", key: kit},
		{flag: &cli.BoolFlag{Name: "install", Usage: "install numactl and ethtool on workers that lack them"},
			read: asBool(func(o *options) *bool { return &o.Run.Install }), plan: "preflight.install", try: "true", key: kit},
		{flag: &cli.BoolFlag{Name: "venv", Usage: "run the command in a Python virtual environment, which each worker makes once for the run; jobs with MaxText's flags do so by default"},
			read: asBool(func(o *options) *bool { return &o.Run.Venv }), plan: "start.venv", try: "true", key: "venv"},
		{flag: &cli.StringFlag{Name: "numa", Value: "auto", Usage: "auto, bind, preferred or off: how the command is bound to NUMA nodes (`MODE`)"},
			read: readNUMA, bad: "x", plan: "workers.wrap", key: "numa"},
		{flag: &cli.StringSliceFlag{Name: "xla-preset", Usage: "add the compiler flags of the presets or groups `NAME`,… to LIBTPU_INIT_ARGS; see multihost xla presets"},
			with: "xla-flag", bad: "x", plan: "workers.env", try: "v5e/16b", key: kit},
		{flag: &cli.StringSliceFlag{Name: "xla-flag", Usage: "add one compiler flag, as `FLAG=VALUE`"},
			read: readXLA, bad: "=1", plan: "workers.env", try: "xla_tpu_scoped_vmem_limit_kib=98304", key: kit},
		{flag: &cli.StringFlag{Name: "log-dir", Usage: "local `DIR` for the workers' logs; default: in the state directory"},
			read: asText(func(o *options) *string { return &o.Run.LogDir }), plan: "logs.dir", try: "logs", key: refused},
		{flag: &cli.StringFlag{Name: "max-log", Value: "20GB", Usage: "keep at most `SIZE` of output on a worker, such as 500MB; none: no limit"},
			read: readMaxLog, bad: "x", plan: "limits.max_log_bytes", try: "5MB", key: kit},
		{flag: &cli.StringFlag{Name: "stream", Value: "first", Usage: "first, all or none: whose output is shown (`WHO`); the log files hold all of it"},
			with: inSession, bad: "x", unplanned: "it only changes what is shown here", unneeded: notWatched},
		{flag: TimestampsFlag(),
			with: inSession, unplanned: "it only changes what is shown here", unneeded: notWatched},
		{flag: &cli.BoolFlag{Name: "detach", Usage: "end when the command has started, and leave it running"},
			read: asBool(func(o *options) *bool { return &o.Run.Detach }), plan: "command", unneeded: "it asks for a job without runner"},
		{flag: &cli.DurationFlag{Name: "timeout", Usage: "stop the command after this `TIME`"},
			read: asTime(func(o *options) *time.Duration { return &o.Run.Timeout }), bad: "-1s", plan: "limits.command_ns", try: "9s", key: "timeout"},
		{flag: &cli.DurationFlag{Name: "start-timeout", Value: 5 * time.Minute, Usage: "longest `TIME` until every worker has started the command; 0: no limit"},
			read: asTime(func(o *options) *time.Duration { return &o.Run.StartLimit }), bad: "-1s", plan: "limits.start_ns", try: "9s", key: refused},
		{flag: &cli.BoolFlag{Name: "fail-fast", Value: true, Usage: "stop the command on all workers when it fails on one"},
			read: asBool(func(o *options) *bool { return &o.Run.FailFast }), plan: "limits.fail_fast", try: "false", key: "fail_fast"},
		{flag: GraceFlag(),
			read: asTime(func(o *options) *time.Duration { return &o.Run.Grace }), bad: "-1s", plan: "limits.grace_ns", try: "9s", key: "grace"},
		{flag: InterruptFlag("stop"),
			read: readInterrupt, bad: "x", unplanned: "it says what a signal does", unneeded: notWatched},
		{flag: &cli.BoolFlag{Name: "replace", Usage: "stop the run that is active on these slices, and start this one"},
			read: asBool(func(o *options) *bool { return &o.Run.Replace }), plan: "stops", key: refused},
		{flag: &cli.StringFlag{Name: "kill-stale", Value: "orphans", Usage: "orphans or all: `WHICH` processes that hold the TPU may be killed; orphans: what your ended runs left; all: anybody's"},
			read: asOneOf(func(o *options) *launch.FreePolicy { return &o.Run.KillStale }, launch.FreeOrphans, launch.FreeAll), bad: "x", plan: "free.policy", try: "all", key: "kill_stale"},
		{flag: &cli.BoolFlag{Name: "strict-exit", Usage: "fail if any worker ends with an error, even after worker 0 has succeeded"},
			read: asBool(func(o *options) *bool { return &o.Run.StrictExit }), unplanned: "it matters only after a failure", try: "true", key: "tail_words"},
		{flag: &cli.StringFlag{Name: "notify", Usage: "run `PROGRAM` with its arguments, without a shell, at start, restart, failure and end; it gets the event on its standard input, as JSON"},
			with: withNotify, bad: "'", unplanned: "it only tells others", key: refused},
		{flag: &cli.StringFlag{Name: "notify-url", Usage: "post the events of --notify to `URL`: https, or http on this machine"},
			with: withNotify, bad: "x", unplanned: "it only tells others", key: refused},
	}
}

// WatchingOptions set how the training of a run is watched.
func WatchingOptions() []Option {
	return []Option{
		{flag: patternFlag(),
			with: "on-stall", bad: "(", unplanned: "it says how logs are read", unneeded: notWatched},
		{flag: &cli.StringFlag{Name: "stall-timeout", Value: "auto", Usage: "`TIME` without a training step after which the run has stalled; auto: ten median step times, at least 10m; off: never"},
			with: "on-stall", bad: "x", unplanned: "it matters only after a stall", unneeded: notWatched},
		{flag: &cli.StringFlag{Name: "on-stall", Value: string(follow.StallReport), Usage: "report, dump, restart or stop: what to do when the run has stalled (`ACTION`); dump: collect the stacks of all workers"},
			read: readWatch, bad: "x", unplanned: "it matters only after a stall", key: refused},
	}
}

// restartsOption sets the budget of a run and of a job.
func restartsOption() Option {
	return Option{flag: &cli.IntFlag{Name: "max-restarts", Usage: "start the command again up to `N` times when it fails; not after exit codes 126 and 127, and not after three failures in a row right after the start"},
		read: asNumber(func(o *options) *int { return &o.Run.MaxRestarts }), bad: "-1", plan: "limits.max_restarts", try: "2", key: refused}
}

// ownRunOptions are for run alone.
func ownRunOptions() []Option {
	return []Option{
		{flag: &cli.IntFlag{Name: "processes-per-worker", Value: 1, Usage: "start `K` processes of the command on each worker, for example one for each GPU"},
			read: readProcesses, bad: "0", plan: "start.processes_per_worker", unneeded: ofRun},
		{flag: &cli.BoolFlag{Name: "use-existing-folder", Aliases: []string{"USE_EXISTING_FOLDER"}, Usage: "copy nothing; run the command in the directory that an earlier run named --run-name left on the workers"},
			read: asBool(func(o *options) *bool { return &o.Run.UseExisting }), plan: "files", unneeded: ofRun},
	}
}

// requestOptions say which slices a job requests, and from which provider.
func requestOptions() []Option {
	return []Option{
		{flag: &cli.IntFlag{Name: "num-slices", Aliases: []string{"NUM_SLICES", "node-count"}, Value: 1, Usage: "make `N` slices"},
			with: withRequest, bad: "0", plan: "slices", try: "2", key: "slices"},
		{flag: TypeFlag(),
			with: withRequest, bad: "v4-17", plan: "slices.type", try: "v5litepod-32", key: "workers"},
		{flag: ProviderFlag(),
			with: withRequest, bad: "x", plan: "slices", key: request},
	}
}

// ownJobOptions are for job alone.
func ownJobOptions() []Option {
	return slices.Concat(requestOptions(), computeOptions(), []Option{
		{flag: RuntimeFlag(),
			with: withRequest, plan: "queued_resource.request", try: "x", key: request},
		{flag: &cli.StringFlag{Name: "bucket-name", Aliases: []string{"BUCKET_NAME"}, Usage: "with --detach: Cloud Storage `BUCKET` with the code, state and logs of the job, which then needs no runner"},
			with: withBucket, plan: "upload.url", key: "bucket"},
		{flag: &cli.StringFlag{Name: "bucket-dir", Aliases: []string{"BUCKET_DIR"}, Usage: "`DIR` in the bucket"},
			with: withBucket, plan: "upload.url", try: "d", key: "prefix"},
		{flag: &cli.DurationFlag{Name: "upload-every", Value: time.Minute, Usage: "`TIME` between two uploads of a worker's log to the bucket"},
			with: withBucket, unplanned: "it says how fresh logs are in the bucket", try: "5s", key: "period"},
		{flag: &cli.BoolFlag{Name: "cloud-logging", Usage: "send the logs of a job without runner to Cloud Logging, too, with Google's Ops Agent"},
			with: withBucket, bad: "true", unplanned: "it sends logs elsewhere, too", try: "true", key: "cloud_logging"},
		{flag: &cli.DurationFlag{Name: "ttl", Usage: "delete the slices this `TIME` after they were requested, whatever runs on them; default: never"},
			read: asTerm(func(o *options) *time.Duration { return &o.TTL }), bad: "1s", plan: "limits.ttl_ns", try: "9h", key: "ttl"},
		{flag: &cli.DurationFlag{Name: "lease", Value: 30 * time.Minute, Usage: "if this machine is gone and nobody is attached, let the workers delete the slices this `TIME` after the command has ended, or after their boot if it has not started; 0: never"},
			read: asTerm(func(o *options) *time.Duration { return &o.Lease }), bad: "1s", plan: "limits.lease_ns", try: "9h", key: refused},
		{flag: &cli.StringFlag{Name: "cqr-extra-args", Aliases: []string{"CQR_EXTRA_ARGS"}, Usage: "more `FLAGS` of gcloud's queued-resources create, in one string"},
			with: withRequest, bad: "x", plan: "queued_resource.request", try: "--spot", key: request},
		{flag: &cli.BoolFlag{Name: "enable-autocheckpoint", Aliases: []string{"ENABLE_AUTOCHECKPOINT", "autocheckpoint-enabled"}, Usage: "let the service trigger a checkpoint before maintenance"},
			with: withRequest, plan: "queued_resource.request", try: "true", key: request},
		{flag: &cli.BoolFlag{Name: "network-create", Usage: "make the network if it does not exist: the one that --network names, or mtu9k without --network"},
			with: withRequest, plan: "network", unneeded: "the network is made before"},
		{flag: &cli.StringFlag{Name: "ssh-source-ranges", Value: network.IAPRange, Usage: "addresses `CIDR,…` that may reach port 22 in a network that --network-create makes; if yours is not among them, workers are reached through Identity-Aware Proxy"},
			with: withRequest, plan: "network", unneeded: "the network is made before"},
		{flag: ConfirmFlag(),
			with: inSession, bad: "true", unplanned: "a dry run asks nothing", unneeded: "it asks before"},
		restartsOption(),
		{flag: &cli.StringFlag{Name: "max-preemptions", Value: "unlimited", Usage: "start again when slices or hosts are lost, up to `NUMBER` times, or unlimited"},
			read: readPreemptions, bad: "x", plan: "limits.max_preemptions", try: "3", key: refused},
		{flag: &cli.BoolFlag{Name: "keep", Usage: "keep the slices at the end"},
			read: asBool(func(o *options) *bool { return &o.Keep }), plan: "end.keeps", try: "true", key: "keep"},
		{flag: &cli.GenericFlag{Name: "keep-on-failure", Value: &cmdline.Optional{}, Usage: "keep the slices after a failure; with =`TIME`, keep them for that time"},
			read: readKeepOnFailure, bad: "x", plan: "end.keep_for_ns", try: "9h", key: "keep_for"},
		{flag: SlicesDeadlineFlag(30 * time.Minute),
			with: withRequest, bad: "-1s", plan: "limits.slices_ns", key: "gather"},
	})
}

// WaitOptions limit how long a command waits for slices.
func WaitOptions() []Option {
	return []Option{
		{flag: &cli.DurationFlag{Name: "queue-timeout", Usage: "longest `TIME` to wait for capacity; default: no limit"},
			read: asWaitTime(func(o *options) *time.Duration { return &o.QueueLimit }), bad: "-1s", plan: "limits.queue_ns", try: "9s", key: refused},
		{flag: &cli.DurationFlag{Name: "provision-timeout", Value: 30 * time.Minute, Usage: "longest `TIME` until the slices are made, once there is capacity; 0: no limit"},
			read: asWaitTime(func(o *options) *time.Duration { return &o.ProvisionLimit }), bad: "-1s", plan: "limits.provision_ns", try: "9s", key: refused},
		{flag: &cli.DurationFlag{Name: "boot-timeout", Value: 15 * time.Minute, Usage: "longest `TIME` until all workers answer, once the slices are made; 0: no limit"},
			read: asWaitTime(func(o *options) *time.Duration { return &o.BootLimit }), bad: "x", plan: "limits.boot_ns", try: "9s", key: refused},
	}
}

// LoginOptions set how to reach workers.
func LoginOptions() []Option {
	return []Option{
		{flag: &cli.BoolFlag{Name: "internal-ip", Aliases: []string{"INTERNAL_IP"}, Usage: "reach workers by their internal addresses; same as --ip=internal"},
			with: inSession, plan: "login.way", try: "true", unneeded: noLogin},
		{flag: &cli.StringFlag{Name: "ip", Value: "auto", Usage: "auto, internal, external or iap: how workers are reached (`WAY`); auto: by their external addresses, or else through Identity-Aware Proxy"},
			with: inSession, bad: "x", plan: "login.way", try: "iap", unneeded: noLogin},
		{flag: &cli.StringFlag{Name: "ssh-proxy-jump", Usage: "bastions between this machine and the workers, as `[USER@]HOST[:PORT],…`"},
			with: inSession, bad: "@", plan: "login.jump", try: "a@b", unneeded: noLogin},
		{flag: &cli.StringFlag{Name: "ssh-config", Usage: "ssh configuration `FILE` for bastions and addresses; default: none"},
			with: inSession, bad: "/no/such", plan: "login.jump", unneeded: noLogin},
		{flag: &cli.StringFlag{Name: "iap-endpoint", Hidden: true, Usage: "`URL` of the IAP relay"},
			with: inSession, unplanned: "it is for tests", unneeded: noLogin},
		{flag: &cli.StringFlag{Name: "user", Usage: "`LOGIN` on the workers; default: your login on this machine, never root"},
			with: inSession, bad: "root", plan: "login.user", try: "other", key: "login"},
		{flag: &cli.StringFlag{Name: "identity-file", Usage: "`FILE` of your private key; default: ~/.ssh/google_compute_engine, which is made if it is missing"},
			with: inSession, plan: "login.file", unneeded: noLogin},
		{flag: &cli.StringFlag{Name: "known-hosts", Usage: "`FILE` with the host keys of the workers; default: known_hosts in the state directory"},
			with: inSession, unplanned: "it says which machines are trusted", unneeded: noLogin},
		{flag: &cli.IntFlag{Name: "ssh-port", Value: 22, Usage: "`PORT` of the workers' SSH server"},
			with: inSession, bad: "0", unplanned: "it is the same for all workers", unneeded: noLogin},
		{flag: &cli.DurationFlag{Name: "connect-timeout", Value: 2 * time.Minute, Usage: "longest `TIME` until a worker must answer, with all retries"},
			with: inSession, bad: "0s", plan: "limits.connect_ns", try: "9s", unneeded: noLogin},
		{flag: &cli.IntFlag{Name: "max-dials", Value: 1024, Usage: "set up at most `N` SSH connections at the same time; connections that are already open do not count"},
			with: inSession, bad: "0", unplanned: "it says how fast workers are reached", unneeded: noLogin},
	}
}
