package job

import (
	"cmp"
	"context"

	"multihost/internal/launch"
	"multihost/internal/stage"
)

// checkJob is CheckInput for a job, whose workers need an agent for its lease.
func (r *Runner) checkJob(ctx context.Context, o JobOptions) error {
	return cmp.Or(r.CheckInput(ctx, o.Request.Type.Name), leaseTerms(r.Deps, o).Check(r.Agents))
}

// CheckInput finds errors before the first request: what the workers could not start, a
// directory that cannot be read, a log directory that cannot be written. Slices cost
// money from the moment they exist. accelerator is their type if it is known, otherwise
// "".
func (r *Runner) CheckInput(ctx context.Context, accelerator string) error {
	if err := r.checkCommand(); err != nil {
		return err
	}
	if err := r.Access.Check(); err != nil {
		return err
	}
	if err := r.scan(ctx); err != nil {
		return err
	}
	if err := r.probeLogDir(); err != nil {
		return err
	}
	if accelerator != "" {
		if _, err := r.xlaFlags(accelerator); err != nil {
			return err
		}
		return r.checkCommand()
	}
	return nil
}

// checkCommand makes package launch validate the command as far as it is known.
func (r *Runner) checkCommand() error {
	s := launch.Spec{
		Run: r.O.Run, Attempt: 1, Owner: r.Owner, WorkDir: r.O.Run, Argv: r.O.Argv, Script: r.O.Script, MaxLog: r.O.MaxLog,
		Env: LaunchEnv(r.O.Env), Stored: r.stored(),
	}
	if r.Flags != nil {
		s.Env = append(s.Env, LaunchEnv(*r.Flags)...)
	}
	if n := r.O.Processes; n > 1 {
		s.Processes, s.Grace = n, r.O.Grace
	}
	if err := s.Validate(); err != nil {
		return &stage.Error{Stage: stage.Input, Err: err}
	}
	return nil
}

// ChecksDone reports that everything is right as far as can be known without a request.
func (r *Runner) ChecksDone() {
	if r.Checked != nil {
		r.Checked()
	}
}
