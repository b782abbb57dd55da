package options

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/gcloud"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/qr/createflags"
	"multihost/internal/tpu"
)

// TypeFlag names the accelerator type of the slices.
func TypeFlag() cli.Flag {
	return &cli.StringFlag{Name: "tpu-type", Aliases: []string{"TPU_TYPE", "accelerator-type"}, Usage: "accelerator `TYPE` of a slice, such as v5litepod-16"}
}

// RuntimeFlag names the image that the workers boot.
func RuntimeFlag() cli.Flag {
	return &cli.StringFlag{Name: "runtime-version", Aliases: []string{"VERSION"}, Usage: "`VERSION` of the image that the workers boot; default: that of the type"}
}

// RequestFlags returns the flags that describe a queued resource: those in own, and the
// gcloud flags of package qr's table that are not in own.
func RequestFlags(own ...cli.Flag) []cli.Flag {
	all := slices.Clone(own)
	for _, f := range createflags.All() {
		has := func(own cli.Flag) bool { return slices.Contains(cmdline.Names(own), f.Name) }
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

// readRequest adds to r the values of RequestFlags, and of gcloud's flags in extra.
func readRequest(c *Call, r qr.Request, extra string) qr.Request {
	if typeName := c.String("tpu-type"); typeName != "" {
		t, err := tpu.ParseType(typeName)
		if err != nil {
			c.Refuse(fmt.Errorf("--tpu-type: %w", err), "tpu-type")
		}
		r.Type = t
	}
	reader := createflags.NewReader(r, time.Now())
	all := createflags.All() // in the order on the line: of two flags that contradict each other, the later one is wrong
	slices.SortStableFunc(all, func(a, b createflags.Flag) int {
		return cmp.Compare(c.Place(a.Name), c.Place(b.Name))
	})
	for _, f := range all {
		own := slices.ContainsFunc(c.Command.Flags, func(own cli.Flag) bool { return cmdline.Name(own) == f.Name })
		if !own || !c.IsSet(f.Name) || f.Name == "topology" && c.String("machine-type") != "" {
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
		if slices.ContainsFunc(flags, func(name string) bool { return !slices.Contains(c.Order, name) }) { // all flags of err are on the line, so this one is in extra
			flags = append(flags, "cqr-extra-args")
		}
		c.Refuse(flagError(err), flags...)
	}
	if whole.Type.Name == "" {
		c.Refuse(&cmdline.UsageError{Err: errors.New("which accelerator type? --tpu-type is missing"), Advice: "add --tpu-type=v5litepod-16, for example"}, "tpu-type")
	}
	return whole
}

// refuseRequest refuses an invalid request. It lists the problems in the order of their
// flags on the line, without those that follow from a refused flag.
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

// ownFlags maps flags of package qr to flags of this command. A flag of job that is not on
// the line may come from --cqr-extra-args.
func ownFlags(c *Call, flags []string) (own []string) {
	id, job := cmdline.Word, c.Command.Name == "job"
	if job {
		id = "run-name"
	}
	for _, name := range flags {
		i := slices.IndexFunc(c.Command.Flags, func(f cli.Flag) bool { return slices.Contains(cmdline.Names(f), name) })
		switch {
		case i >= 0:
			name = cmdline.Name(c.Command.Flags[i])
		case name == qr.IDFlag || job: // a run or job gives its slices their names
			name = id
		}
		own = append(own, name)
	}
	if job && c.Place(own...) == len(c.Order) {
		own = append(own, "cqr-extra-args")
	}
	return own
}

// flagError returns a usage error, or a configuration error if a file that the flag names
// cannot be read.
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

// QueuedResource reads the request that qr create makes.
func QueuedResource(c *Call, m Machine) qr.Request {
	id := c.OneWord("id", "")
	r := readRequest(c, qr.Request{ID: id}, "")
	if !c.IsSet("node-count") {
		r.NodeCount = 1
	}
	r.Mark(id, m.User)
	refuseRequest(c, r)
	return r
}

// jobRequest builds the queued resource of a job, with MaxText's defaults if the user typed
// MaxText's flags.
func jobRequest(c *Call, m Machine, run string) provision.Request {
	upper := asMaxText(c)
	r := qr.Request{ID: run, NodeCount: c.Int("num-slices"), Autocheckpoint: c.Bool("enable-autocheckpoint")}
	if upper && !c.IsSet("num-slices") {
		r.NodeCount = 2
	}
	if r.NodeCount < 1 {
		c.Refuse(cmdline.Usagef("--num-slices=%d: at least 1 slice is needed", r.NodeCount), "num-slices")
	}
	r.Type = machineType(c)
	if upper && c.String("tpu-type") == "" && c.String("type") == "" && r.Type.Name == "" {
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
	SlicesDeadline(c)
	on, _ := Provider(c, r.Type)
	settings := forCompute(c, on)
	if on == OnGCE {
		return jobOnCompute(c, r, settings)
	}
	refuseRequest(c, r)
	return r.Neutral()
}

// AsyncFlag makes a command end before the service has done what the command asks for.
func AsyncFlag(usage string) cli.Flag { return &cli.BoolFlag{Name: "async", Usage: usage} }

// WaitFlags limit how long a command waits for slices. See WaitLimits.
func WaitFlags() []cli.Flag { return FlagsOf(WaitOptions()) }

// WaitLimits reads WaitFlags.
func WaitLimits(c *Call) qr.WaitOptions {
	return qr.WaitOptions{QueueLimit: waitTime(c, "queue-timeout"), ProvisionLimit: waitTime(c, "provision-timeout"), BootLimit: waitTime(c, "boot-timeout")}
}

// SliceLimits returns the result of WaitLimits together with that of SlicesDeadline.
func SliceLimits(c *Call) provider.WaitOptions {
	o := WaitLimits(c)
	o.SlicesLimit = SlicesDeadline(c)
	return o
}

// waitTime reads how long a wait may take. 0 becomes qr.NoLimit.
func waitTime(c *Call, flag string) time.Duration {
	c.NotNegative(c, flag)
	return cmp.Or(c.Duration(flag), qr.NoLimit)
}

// Choice reads which queued resources qr list shows.
func Choice(c *Call) (ch qr.Choice) {
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
