package attempt

import (
	"io/fs"
	"os"
	"slices"
	"strings"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/mask"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/xla"
)

// xlaFlags returns the variables with the requested presets and flags on slices of an
// accelerator type. The first call warns of likely mistakes in the user's own flags.
func (r *Run) xlaFlags(accelerator string) ([]config.EnvVar, error) {
	if r.flags != nil {
		return r.flags, nil
	}
	user := func(name string) (string, bool) { return config.ValueOf(r.O.Env, name) }
	generation := ""
	if ty, err := tpu.ParseType(accelerator); err == nil {
		generation = ty.Generation.Name
	}
	catalogue := xla.Load()
	env, err := catalogue.Environment(xla.Request{
		User: user, Presets: r.O.XLAPresets, Flags: r.O.XLAFlags, Generation: generation, Hosts: r.OnHosts(),
	})
	if err != nil {
		return nil, &stage.Error{Stage: stage.Input, Err: err}
	}
	_, has := user("LIBTPU_INIT_ARGS")
	findings := append(env.Findings, catalogue.ScanCommand(r.commandForScan(), r.files(), xla.Scan{
		Generation: generation, Given: has || len(env.Vars) > 0,
	})...)
	secret := r.secretFlags(env.Vars)
	for _, f := range findings {
		if f.Severity > xla.Info {
			event.Notef(r.Sink, event.Warn, "look closer with: multihost xla check", "%s", mask.MaskSecrets(f.String(), secret))
		}
	}
	for _, line := range env.Lines() {
		event.Notef(r.Sink, event.Info, "", "%s", mask.MaskSecrets(line, secret))
	}
	r.flags = make([]config.EnvVar, len(env.Vars))
	for i, v := range env.Vars {
		r.flags[i] = config.EnvVar{Name: v.Name, Value: v.Value, Secret: slices.ContainsFunc(secret, func(s config.EnvVar) bool { return s.Name == v.Name })}
	}
	return r.flags, nil
}

// secretFlags returns secret words that may be in the values of vars. They come from the
// user's secret variables of the same names: every word, and both halves of each
// NAME=VALUE. Longer words come first.
func (r *Run) secretFlags(vars []xla.Var) []config.EnvVar {
	var words []config.EnvVar
	for _, v := range r.O.Env {
		if !v.Secret || !slices.ContainsFunc(vars, func(made xla.Var) bool { return made.Name == v.Name }) {
			continue
		}
		for _, word := range strings.Fields(v.Value) {
			name, value, _ := strings.Cut(word, "=")
			for _, part := range []string{word, name, strings.TrimLeft(name, "-"), value} {
				words = append(words, config.EnvVar{Name: v.Name, Value: part, Secret: true})
			}
		}
	}
	slices.SortStableFunc(words, func(a, b config.EnvVar) int { return len(b.Value) - len(a.Value) })
	return words
}

func (r *Run) commandForScan() string {
	if r.O.Script != "" {
		return r.O.Script
	}
	return strings.Join(r.O.Argv, " ")
}

// files returns where to read the scripts that the command names, or nil if they are not on
// this machine.
func (r *Run) files() fs.FS {
	if r.O.Dir == "" {
		return nil
	}
	return os.DirFS(r.O.Dir)
}
