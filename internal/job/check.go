package job

import (
	"cmp"
	"context"

	"multihost/internal/launch"
)

// checkJob is checkInput for a job, whose workers need an agent for its lease.
func (r *run) checkJob(ctx context.Context, o JobOptions) error {
	return cmp.Or(r.checkInput(ctx, o.Request.Type.Name), r.leaseTerms(o).Check(r.Agents))
}

// checkInput finds errors before the first request: what the workers could not start, a
// directory that cannot be read, a log directory that cannot be written. Slices cost
// money from the moment they exist. accelerator is their type if it is known, otherwise
// "".
func (r *run) checkInput(ctx context.Context, accelerator string) error {
	if err := r.checkCommand(); err != nil {
		return err
	}
	if err := r.Access.check(); err != nil {
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
func (r *run) checkCommand() error {
	s := launch.Spec{
		Run: r.o.Run, Attempt: 1, Owner: r.Owner, WorkDir: r.o.Run, Argv: r.o.Argv, Script: r.o.Script, MaxLog: r.o.MaxLog,
		Env: launchEnv(r.o.Env), Stored: r.stored(),
	}
	if r.flags != nil {
		s.Env = append(s.Env, launchEnv(*r.flags)...)
	}
	if n := r.o.Processes; n > 1 {
		s.Processes, s.Grace = n, r.o.Grace
	}
	if err := s.Validate(); err != nil {
		return &Error{Stage: StageInput, Err: err}
	}
	return nil
}

// checked reports that everything is right as far as can be known without a request.
func (r *run) checked() {
	if r.Checked != nil {
		r.Checked()
	}
}
