package submit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"multihost/internal/detach"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/teardown"
)

// lookBack looks for a run of this name in the bucket. If the run has not ended and its slices
// have gone or were never created, this start continues it. lookBack returns an error if the
// run has ended, is still active, belongs to another user, or was started with other options.
func (r *departure) lookBack(ctx context.Context, request provision.Request) error {
	was, err := r.bucket.Earlier(ctx, r.job.Run)
	if was == nil || err != nil {
		return err
	}
	const another = "choose another --run-name or --bucket-dir"
	refuse := func(advice, format string, args ...any) error {
		return &stage.Error{Stage: stage.Input, Text: (&detach.ExistsError{URL: r.bucket.URL(r.job.Run)}).Error() + ": " + fmt.Sprintf(format, args...), Advice: advice}
	}
	follow := fmt.Sprintf("follow it with: multihost attach %s --bucket-name=%s", r.job.Run, r.bucket.Name())
	if dir := r.bucket.Dir(); dir != "" {
		follow += " --bucket-dir=" + dir
	}
	if was.Project != r.Project || was.Zone != r.Zone {
		return refuse(another, "it was started in project %s, zone %s", was.Project, was.Zone)
	}
	if how := was.Ended(); how != "" {
		return refuse(another+"; its logs: multihost logs "+r.job.Run, "%s", how)
	}
	// Read the queued resource after the bucket. Then the workers in the bucket belong to
	// this queued resource or to an earlier one.
	res, err := r.Cloud.Get(ctx, request.ID)
	gone := gcp.ClassOf(err) == gcp.NotFound
	switch {
	case err != nil && !gone:
		return err
	case !gone && (!r.owns(res) || res.Labels[provision.LabelUser] != request.Labels[provision.LabelUser]):
		return refuse(another, "%s is of %s", provision.NameOf(r.Cloud, res.ID), res.Owner())
	case userOf(was.Owner) != userOf(r.Owner):
		return refuse(another, "it is of %s", was.Owner)
	case res.Life == provision.Suspending:
		return refuse("type the same command again in a minute", "the slices of %s are being taken away (%s)", provision.NameOf(r.Cloud, res.ID), res.State)
	case !gone && !res.Dead() && res.Life != provision.Deleting:
		return refuse(follow, "%s is there, state %s", provision.NameOf(r.Cloud, res.ID), res.State)
	}
	if diffs := r.differs(was.Description); len(diffs) > 0 {
		return refuse("type the command as it was, or "+another, "it has lost its slices and can go on, but was started with other options: %s", strings.Join(diffs, "; "))
	}
	r.earlier, r.lost = was, res
	r.desc.Attempt = was.Next()
	return nil
}

// loss returns what happened to the slices of the earlier start, in words.
func (r *departure) loss() string {
	if r.lost.State == "" {
		return fmt.Sprintf("%s is gone", provision.NameOf(r.Cloud, r.job.Resource))
	}
	return fmt.Sprintf("%s is %s", provision.NameOf(r.Cloud, r.lost.ID), r.lost.State)
}

// differs names the flags in which the earlier run differs from the requested one. A run may
// continue in another tier or network, with another time to live and other code. Everything
// that its checkpoint depends on must be the same.
func (r *departure) differs(was detach.Description) (diffs []string) {
	text := func(flag, has, asked string) {
		if has != asked {
			diffs = append(diffs, fmt.Sprintf("%s: it has %q, you asked for %q", flag, has, asked))
		}
	}
	if was.Kind != "" && was.Kind != r.desc.Kind {
		diffs = append(diffs, fmt.Sprintf("--provider: it is on a %s, you asked for a %s", was.Kind, r.desc.Kind))
	}
	text("--tpu-type", was.Type, r.desc.Type)
	text("--num-slices", fmt.Sprint(len(was.Nodes)), fmt.Sprint(len(r.desc.Nodes)))
	text("--user", was.Login, r.desc.Login)
	if was.Venv != "" {
		text("--venv", was.Venv, r.desc.Venv)
	}
	switch {
	case was.CommandSum == r.desc.CommandSum:
	case was.Command == r.desc.Command:
		diffs = append(diffs, "--command: it begins like the one that you asked for, and then differs")
	default:
		text("--command", was.Command, r.desc.Command)
	}
	if was.EnvSum != r.desc.EnvSum {
		diffs = append(diffs, "--env, --secret-env: other names or values")
	}
	return diffs
}

// clear deletes the dead queued resource of an earlier start, and objects that would mislead
// the workers of this start. It returns an error if another start has become the current one.
func (r *departure) clear(ctx context.Context) error {
	if r.earlier == nil {
		return nil
	}
	if err := r.overtaken(r.bucket.Holds(ctx, r.job)); err != nil {
		return err
	}
	res, err := r.Cloud.Get(ctx, r.job.Resource)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
	case err != nil:
		return err
	case !r.owns(res) || !res.CreateTime.Equal(r.lost.CreateTime) || !res.Dead() && res.Life != provision.Deleting:
		return r.overtaken(&detach.ExistsError{URL: r.bucket.URL(r.job.Run)})
	default:
		if _, err := r.Cloud.Delete(ctx, res.ID, provision.DeleteOptions{OnlyRun: r.job.Run, Limit: teardown.Limit}); err != nil {
			return &stage.Error{Stage: stage.Teardown, Err: err, Advice: "type the same command again, and it goes on from here"}
		}
	}
	return r.overtaken(r.bucket.Renew(ctx, r.job, r.desc.Attempt))
}

// overtaken returns err, or an error with advice if err means that another start of the run is
// the current one.
func (r *departure) overtaken(err error) error {
	var other *detach.ExistsError
	if !errors.As(err, &other) {
		return err
	}
	return &stage.Error{Stage: stage.Input, Err: err, Advice: "that one goes on: follow it with: multihost attach " + r.job.Run + "; or choose another --run-name or --bucket-dir"}
}

// owns reports whether a queued resource belongs to a run of this name.
func (r *departure) owns(res provision.Resource) bool {
	return res.IsOf(r.job.Run)
}

// userOf returns the user in an owner USER@MACHINE. The user may repeat the command on
// another machine.
func userOf(owner string) string {
	user, _, _ := strings.Cut(owner, "@")
	return user
}

// digest returns a single hash of several texts.
func digest(texts []string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:])
}
