package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gcloud"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/tpu"
	"multihost/internal/ui"
	"multihost/internal/workers"
)

func qrCommand() *cli.Command {
	c := group(cli.Command{
		Name:  "qr",
		Usage: "make, watch, reset and delete queued resources: the requests that make slices",
		Subcommands: []*cli.Command{
			qrCreateCommand(), qrWaitCommand(), qrListCommand(), qrShowCommand(), qrDeleteCommand(), qrResetCommand(),
		},
	})
	return c
}

func tpuTypeFlag() cli.Flag {
	return &cli.StringFlag{Name: "tpu-type", Aliases: []string{"TPU_TYPE", "accelerator-type"}, Usage: "accelerator `TYPE` of a slice, such as v5litepod-16"}
}

func runtimeFlag() cli.Flag {
	return &cli.StringFlag{Name: "runtime-version", Aliases: []string{"VERSION"}, Usage: "`VERSION` of the image that the workers boot; default: that of the type"}
}

// requestFlags returns the flags that describe a queued resource: own, and those of
// gcloud's flags in package qr's table that own does not have.
func requestFlags(own ...cli.Flag) []cli.Flag {
	all := slices.Clone(own)
	for _, f := range qr.CreateFlags() {
		has := func(own cli.Flag) bool { return slices.Contains(own.Names(), f.Name) }
		switch {
		case slices.ContainsFunc(own, has):
		case f.Bool:
			all = append(all, &cli.BoolFlag{Name: f.Name, Usage: f.Usage})
		case f.Repeat:
			all = append(all, &cli.StringSliceFlag{Name: f.Name, Usage: f.Usage})
		default:
			all = append(all, &cli.StringFlag{Name: f.Name, Usage: f.Usage})
		}
	}
	return all
}

// readRequest adds to r the flags of requestFlags and gcloud's flags in extra.
func readRequest(c *Call, r qr.Request, extra string) qr.Request {
	if typeName := c.String("tpu-type"); typeName != "" {
		t, err := tpu.ParseType(typeName)
		if err != nil {
			c.Refuse(fmt.Errorf("--tpu-type: %w", err), "tpu-type")
		}
		r.Type = t
	}
	reader := qr.NewFlagReader(r, time.Now())
	all := qr.CreateFlags() // in the order of the line: of two that contradict each other, the later is wrong
	slices.SortStableFunc(all, func(a, b qr.Flag) int {
		return cmp.Compare(c.Place(a.Name), c.Place(b.Name))
	})
	for _, f := range all {
		own := slices.ContainsFunc(c.Command.Flags, func(own cli.Flag) bool { return own.Names()[0] == f.Name })
		if !own || !c.IsSet(f.Name) {
			continue
		}
		values := []string{fmt.Sprint(c.Value(f.Name))}
		if f.Repeat {
			values = c.StringSlice(f.Name)
		}
		for _, value := range values {
			if err := reader.Set(f.Name, value); err != nil {
				c.Refuse(flagError(err), f.Name)
			}
		}
	}
	if err := reader.Extra(extra); err != nil {
		c.Refuse(flagError(fmt.Errorf("--cqr-extra-args: %w", err)), "cqr-extra-args")
	}
	whole, wrong := reader.Request()
	for _, err := range wrong {
		flags := ownFlags(c, err.Flags)
		if slices.ContainsFunc(flags, func(name string) bool { return !slices.Contains(c.Order, name) }) { // all flags of err are given, so this one is in extra
			flags = append(flags, "cqr-extra-args")
		}
		c.Refuse(flagError(err), flags...)
	}
	if whole.Type.Name == "" {
		c.Refuse(&cmdline.UsageError{Err: errors.New("which accelerator type? --tpu-type is missing"), Advice: "add --tpu-type=v5litepod-16, for example"}, "tpu-type")
	}
	return whole
}

// refuseRequest refuses a request that is not valid. It lists the problems in the order
// of their flags on the line, without those that follow from a flag refused already.
func refuseRequest(c *Call, r qr.Request) {
	var invalid *qr.InvalidError
	if !errors.As(r.Validate(), &invalid) {
		return
	}
	bad := slices.DeleteFunc(invalid.Problems, func(w *qr.FlagError) bool { return c.Refused(ownFlags(c, w.Flags)...) })
	at := func(w *qr.FlagError) int { return c.Place(ownFlags(c, w.Flags)...) }
	slices.SortStableFunc(bad, func(a, b *qr.FlagError) int { return cmp.Compare(at(a), at(b)) })
	if len(bad) > 0 {
		c.Refuse(&qr.InvalidError{ID: r.ID, Problems: bad}, ownFlags(c, bad[0].Flags)...)
	}
}

// ownFlags maps flags of package qr to flags of this command. A flag of job that is
// nowhere on the line may be in --cqr-extra-args.
func ownFlags(c *Call, flags []string) (own []string) {
	id, job := cmdline.Word, c.Command.Name == "job"
	if job {
		id = "run-name"
	}
	for _, name := range flags {
		i := slices.IndexFunc(c.Command.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
		switch {
		case i >= 0:
			name = c.Command.Flags[i].Names()[0]
		case name == qr.IDFlag || job: // the run names the slices
			name = id
		}
		own = append(own, name)
	}
	if job && c.Place(own...) == len(c.Order) {
		own = append(own, "cqr-extra-args")
	}
	return own
}

// flagError returns a usage error; if a file that the flag names cannot be read, a
// configuration error.
func flagError(err error) error {
	if file := (*fs.PathError)(nil); errors.As(err, &file) {
		return &cmdline.ConfigError{Err: err}
	}
	return &cmdline.UsageError{Err: err}
}

func splitCommas(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func qrCreateCommand() *cli.Command {
	return command(cli.Command{
		Name:      "create",
		Usage:     "ask for one or several slices",
		ArgsUsage: "ID",
		Description: `Makes a queued resource and ends when the service has taken the request. Add
--wait to wait until every worker answers.

  multihost qr create train --node-count=2 --node-prefix=train \
      --tpu-type=v5litepod-16 --network=mtu9k

If the same request exists already, multihost uses it. Otherwise it prints one
line before it makes the request: what it asks for, the list price an hour, and
what ends the bill. --confirm asks you then; a no ends the command with status
130.`,
		Flags: slices.Concat(requestFlags(
			&cli.IntFlag{Name: "node-count", Value: 1, Usage: "make `N` slices"},
			tpuTypeFlag(), runtimeFlag(),
			&cli.BoolFlag{Name: "dry-run", Usage: "print the request and the equal gcloud command; change nothing"},
			confirmFlag(),
			&cli.BoolFlag{Name: "wait", Usage: "wait until every worker answers"},
			asyncFlag("end when the request is sent; do not wait until the service takes it"),
		), waitFlags(), sshFlags()),
		Action: withSession(func(s *session, c *call) error {
			r := qrRequest(&c.Call, s.machine(c))
			if c.Bool("async") && c.Bool("wait") {
				c.Refuse(usagef("--async and --wait exclude each other: give one of them"), "async", "wait")
			}
			limits := waitLimits(&c.Call)
			refuseConfirm(s, c)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			confirms(s, c, d)
			r.Metadata = withKey(r.Metadata, d.Access.Login, publicKey(d.Access))
			if err := r.Validate(); err != nil {
				return err
			}
			if s.dryRun {
				return s.qrPlan(c.Context, d, r)
			}
			defer warnOfLeftovers(s, c, d, r.ID)()
			if err := job.AskFor(c.Context, d, r.Neutral()); err != nil {
				return interruptible(c.Context, err)
			}
			create := s.queue.Create
			if c.Bool("async") {
				create = s.queue.Submit
			}
			res, created, err := create(c.Context, r)
			if created && err != nil {
				s.view.Emit(event.Note{Level: event.Warn, Text: fmt.Sprintf("queued resource %s exists, %s", r.ID, res.Neutral().Standing()),
					Hint: "delete it with: multihost qr delete " + r.ID + " --force"})
			}
			if err != nil {
				return interruptible(c.Context, err)
			}
			switch {
			case created && c.Bool("async"):
				s.view.Emit(event.Note{Level: event.Info, Text: "asked for queued resource " + res.ID,
					Hint: "see whether the service takes it with: multihost qr show " + res.ID + "; its slices are billed until: multihost qr delete " + res.ID + " --force"})
			case created: // if not, Create has reported the existing one
				s.view.Emit(event.Note{Level: event.Info, Text: fmt.Sprintf("created queued resource %s, state %s", res.ID, res.State),
					Hint: "wait for it with: multihost qr wait " + res.ID + "; its slices are billed until: multihost qr delete " + res.ID + " --force"})
			}
			if !c.Bool("wait") {
				return nil
			}
			return waitFor(s, c, d, res.ID, limits)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt, exitTerminate)
}

func qrRequest(c *Call, m Machine) qr.Request {
	id := c.OneWord("id", "")
	r := readRequest(c, qr.Request{ID: id}, "")
	if !c.IsSet("node-count") {
		r.NodeCount = 1
	}
	r.Mark(id, m.User)
	refuseRequest(c, r)
	return r
}

// jobRequest builds the queued resource of a job. MaxText's defaults apply if the user
// typed MaxText's flags.
func jobRequest(c *Call, m Machine, run string) provision.Request {
	upper := asMaxText(c)
	r := qr.Request{ID: run, NodeCount: c.Int("num-slices"), Autocheckpoint: c.Bool("enable-autocheckpoint")}
	if upper && !c.IsSet("num-slices") {
		r.NodeCount = 2
	}
	if r.NodeCount < 1 {
		c.Refuse(cmdline.Usagef("--num-slices=%d: at least 1 slice is needed", r.NodeCount), "num-slices")
	}
	if upper && c.String("tpu-type") == "" && c.String("type") == "" {
		r.Type, _ = tpu.ParseType("v4-8") // v4-8 is a known type: no error
	}
	if r.NodeCount > 1 {
		r.NodePrefix = run
	} else {
		r.NodeID = run
	}
	r = readRequest(c, r, c.String("cqr-extra-args"))
	r.Mark(run, m.User)
	r.MarkJob(run)
	refuseRequest(c, r)
	return r.Neutral()
}

func asyncFlag(usage string) cli.Flag { return &cli.BoolFlag{Name: "async", Usage: usage} }

func waitFlags() []cli.Flag { return flagsOf(waitOptions()) }

// waitLimits reads waitFlags.
func waitLimits(c *Call) qr.WaitOptions {
	return qr.WaitOptions{QueueLimit: waitTime(c, "queue-timeout"), ProvisionLimit: waitTime(c, "provision-timeout"), BootLimit: waitTime(c, "boot-timeout")}
}

// waitTime reads a limit of waiting; a time of 0 becomes qr.NoLimit.
func waitTime(c *Call, flag string) time.Duration {
	c.NotNegative(c, flag)
	return cmp.Or(c.Duration(flag), qr.NoLimit)
}

func qrWaitCommand() *cli.Command {
	return command(cli.Command{
		Name:      "wait",
		Usage:     "wait until every worker of a queued resource answers",
		ArgsUsage: "ID",
		Description: `Ready means: every slice READY and healthy, and every worker answers SSH. Ends
at once when the request fails, is suspended or is deleted.`,
		Flags: slices.Concat(waitFlags(), sshFlags()),
		Action: withSession(func(s *session, c *call) error {
			id, limits := idWord(&c.Call), waitLimits(&c.Call)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			return waitFor(s, c, d, id, limits)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt, exitTerminate)
}

func waitFor(s *session, c *call, d *workers.Deps, id string, o qr.WaitOptions) error {
	o.Probe = func(ctx context.Context, s tpu.Slice) error { return job.Probe(ctx, d, s) }
	_, slices, err := s.queue.Wait(c.Context, id, o)
	if err != nil {
		return interruptible(c.Context, err)
	}
	workers := 0
	for _, sl := range slices {
		workers += len(sl.Workers)
	}
	answer := "answer"
	if workers == 1 {
		answer = "answers"
	}
	s.view.Emit(event.Note{Level: event.Info, Text: fmt.Sprintf("queued resource %s is ready: %s, %s %s", id, event.Count(len(slices), "slice"), event.Count(workers, "worker"), answer)})
	return nil
}

func qrListCommand() *cli.Command {
	return command(cli.Command{
		Name:  "list",
		Usage: "list the queued resources of a zone",
		Description: `--filter and --sort-by take paths of the API's fields, as gcloud's do:

  multihost qr list --filter='state.state=(ACTIVE FAILED) AND name:train' --sort-by=~createTime

A word without an operator is searched for in all fields. The list is sorted
first, then filtered, then cut off after --limit.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "filter", Usage: "only the resources that match `EXPRESSION`, in gcloud's language of filters"},
			&cli.StringFlag{Name: "sort-by", Usage: "sort by the fields `PATH,~PATH,…`; ~: in descending order"},
			&cli.StringFlag{Name: "limit", Value: "unlimited", Usage: "show at most `NUMBER` resources, or unlimited"},
			&cli.IntFlag{Name: "page-size", Value: 1000, Usage: "ask for `N` resources in one call"},
			&cli.BoolFlag{Name: "uri", Usage: "print the address of each in the API, and nothing else"},
		},
		Action: withSession(func(s *session, c *call) error {
			c.NoWords()
			choice := readChoice(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			list, err := s.queue.ListPaged(c.Context, int64(c.Int("page-size")))
			if err != nil {
				return interruptible(c.Context, err)
			}
			list = choice.Of(list)
			if len(list) == 0 && s.view.Mode() != ui.JSON {
				which := ""
				if c.IsSet("filter") {
					which = " that --filter takes"
				}
				s.view.Emit(event.Note{Level: event.Info, Text: fmt.Sprintf("no queued resources%s in project %s, zone %s", which, s.cloud.Project(), s.cloud.Zone())})
			}
			if !c.Bool("uri") {
				s.view.Emit(event.Result{Name: "queued_resources", Text: qr.Table(list, time.Now()), Data: list})
				return nil
			}
			uris := []string{}
			for _, r := range list {
				uri, err := s.queue.URI(c.Context, r.ID)
				if err != nil {
					return err
				}
				uris = append(uris, uri)
			}
			s.view.Emit(event.Result{Name: "queued_resource_uris", Text: strings.Join(append(uris, ""), "\n"), Data: uris})
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func readChoice(c *Call) (ch qr.Choice) {
	var err error
	if ch.Filter, err = gcloud.ParseFilter(c.String("filter"), time.Now()); err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--filter: %w", err)}, "filter")
	}
	if ch.Keys, err = gcloud.ParseSortKeys(c.String("sort-by")); err != nil {
		c.Refuse(cmdline.Usagef("--sort-by: %w", err), "sort-by")
	}
	if ch.Limit, err = config.ParseLimit(c.String("limit")); err != nil || ch.Limit == 0 {
		c.Refuse(cmdline.Usagef("--limit=%s: it is a number from 1, or unlimited", c.String("limit")), "limit")
	}
	if size := c.Int("page-size"); size < 1 {
		c.Refuse(cmdline.Usagef("--page-size=%d: it must be 1 or more", size), "page-size")
	}
	return ch
}

func qrShowCommand() *cli.Command {
	return command(cli.Command{
		Name:      "show",
		Aliases:   []string{"describe"},
		Usage:     "show one queued resource and its slices",
		ArgsUsage: "ID",
		Action: withSession(func(s *session, c *call) error {
			id := idWord(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			res, err := s.queue.Get(c.Context, id)
			if err != nil {
				return interruptible(c.Context, missing(id, err))
			}
			s.view.Emit(event.Result{Name: "queued_resource", Text: qr.Detail(res, time.Now()), Data: res})
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func qrDeleteCommand() *cli.Command {
	return command(cli.Command{
		Name:      "delete",
		Usage:     "delete a queued resource; with --force also its slices",
		ArgsUsage: "ID",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "delete the slices too"},
			&cli.DurationFlag{Name: "delete-timeout", Value: 20 * time.Minute, Usage: "longest `TIME` to wait until it is gone"},
			asyncFlag("end when the service has taken the request; do not wait for the deletion"),
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be deleted; change nothing"},
		},
		Action: withSession(func(s *session, c *call) error {
			id := idWord(&c.Call)
			async := c.Bool("async")
			if _, typed := c.Typed["delete-timeout"]; typed && async {
				c.Refuse(usagef("--async and --delete-timeout exclude each other: --async does not wait"), "async", "delete-timeout")
			}
			if err := ready(c); err != nil {
				return err
			}
			if s.dryRun {
				return s.qrDeletePlan(c.Context, id, c.Bool("force"))
			}
			deleted, err := s.queue.Delete(c.Context, id, qr.DeleteOptions{Force: c.Bool("force"), Limit: c.Duration("delete-timeout"), Async: async})
			if err != nil {
				return interruptible(c.Context, err)
			}
			note := event.Note{Level: event.Info, Text: "deleted queued resource " + id}
			if async {
				note = event.Note{Level: event.Info, Text: "queued resource " + id + " is being deleted", Hint: "see whether it is gone with: multihost qr show " + id + "; its slices are billed until then"}
			}
			if !deleted { // the user may have meant another one, which is still billed
				note = event.Note{Level: event.Warn, Text: "queued resource " + id + " is not there: nothing to delete", Hint: "what there is: multihost qr list"}
			}
			s.view.Emit(note)
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt)
}

func qrResetCommand() *cli.Command {
	return command(cli.Command{
		Name:      "reset",
		Usage:     "reboot all workers of a queued resource",
		ArgsUsage: "ID",
		Description: `Reboots the VMs of all slices and ends when the service reports that this is
done. Everything that runs on the workers ends. Disks and addresses stay. Settings
of the kernel are lost until the next start or preflight applies them. The queued
resource must be ACTIVE.`,
		Flags: []cli.Flag{
			asyncFlag("end when the service has taken the request; do not wait for the reboot"),
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be rebooted; change nothing"},
		},
		Action: withSession(func(s *session, c *call) error {
			id := idWord(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			if s.dryRun {
				return s.qrResetPlan(c.Context, id)
			}
			reset, note := s.queue.Reset, event.Note{Level: event.Info, Text: "rebooted the workers of queued resource " + id, Hint: "wait until they answer with: multihost qr wait " + id}
			if c.Bool("async") {
				reset, note.Text = s.queue.SubmitReset, "the workers of queued resource "+id+" are being rebooted"
			}
			if err := reset(c.Context, id); err != nil {
				return interruptible(c.Context, missing(id, err))
			}
			s.view.Emit(note)
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt)
}

// missing replaces the API's not-found error by one that names the queued resource.
func missing(id string, err error) error {
	if gcp.ClassOf(err) == gcp.NotFound {
		return qr.Missing(id)
	}
	return err
}

// qrResetPlan shows what qr reset would reboot.
func (s *session) qrResetPlan(ctx context.Context, id string) error {
	res, err := s.queue.Get(ctx, id)
	if err != nil {
		return interruptible(ctx, missing(id, err))
	}
	names := []string{}
	for _, slice := range res.Slices {
		names = append(names, slice.Name)
	}
	text := fmt.Sprintf("would reboot all workers of queued resource %s (%s, of %s): %s\n", id, res.State, res.Owner(), strings.Join(names, ", "))
	if res.State != "ACTIVE" {
		text = fmt.Sprintf("queued resource %s is %s: only an ACTIVE one can be reset\n", id, res.State)
	}
	s.view.Emit(event.Result{Name: "reset_plan", Text: text, Data: map[string]any{"queued_resource": id, "resets": res.State == "ACTIVE", "slices": names}})
	return nil
}

// qrPlan shows what qr create would create.
func (s *session) qrPlan(ctx context.Context, d *workers.Deps, r qr.Request) error {
	mtu := job.WarnOfMTU(ctx, d, r.Neutral())
	res, _, err := s.queue.Create(ctx, r)
	var refused *gcp.ReadOnlyError
	if err == nil {
		s.view.Emit(event.Result{Name: "queued_resource_plan", Text: fmt.Sprintf("queued resource %s is there already, state %s: nothing to create\n", r.ID, res.State),
			Data: map[string]any{"exists": res}})
		return nil
	}
	if !errors.As(err, &refused) {
		return interruptible(ctx, err)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, refused.Body, "", "  "); err != nil {
		return fmt.Errorf("show request %q: %w", r.ID, err)
	}
	job.WouldAskFor(d, r.Neutral(), mtu)
	command := r.Gcloud(s.cloud.Project(), s.cloud.Zone())
	s.view.Emit(event.Result{
		Name: "queued_resource_plan",
		Text: fmt.Sprintf("would create queued resource %s:\n%s\nthe same with gcloud:\n%s\n", r.ID, strings.TrimSpace(text.String()), command),
		Data: map[string]any{"request": json.RawMessage(refused.Body), "gcloud": command},
	})
	return nil
}

// qrDeletePlan shows what qr delete would delete.
func (s *session) qrDeletePlan(ctx context.Context, id string, force bool) error {
	deleted, err := s.queue.Delete(ctx, id, qr.DeleteOptions{Force: force, Async: true})
	var refused *gcp.ReadOnlyError
	if err != nil && !errors.As(err, &refused) {
		return interruptible(ctx, err)
	}
	text, names := "queued resource "+id+" is not there: nothing to delete", []string{}
	switch {
	case deleted:
		text = "queued resource " + id + " is being deleted already"
	case refused != nil:
		res, err := s.queue.Get(ctx, id)
		if err != nil {
			return interruptible(ctx, err)
		}
		text = fmt.Sprintf("would delete queued resource %s (%s, of %s)", id, res.State, res.Owner())
		for _, slice := range res.Slices {
			names = append(names, slice.Name)
		}
		if len(names) > 0 {
			text += " with its slices " + strings.Join(names, ", ")
		}
	}
	s.view.Emit(event.Result{Name: "delete_plan", Text: text + "\n", Data: map[string]any{"queued_resource": id, "deletes": refused != nil, "slices": names}})
	return nil
}
