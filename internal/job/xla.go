package job

import (
	"io/fs"
	"os"
	"strings"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/tpu"
	"multihost/internal/xla"
)

// xlaFlags puts the asked-for presets and flags into the command's environment
// and says what looks wrong in what the user has there already.
func (r *run) xlaFlags() error {
	user := func(name string) (value string, ok bool) {
		for _, v := range r.o.Env { // the last one wins, as in the command's environment
			if v.Name == name {
				value, ok = v.Value, true
			}
		}
		return value, ok
	}
	generation := ""
	if ty, err := tpu.ParseType(r.team.slices[0].Type); err == nil {
		generation = ty.Generation.Name
	}
	catalogue := xla.Load()
	env, err := catalogue.Environment(xla.Request{
		User: user, Presets: r.o.XLAPresets, Flags: r.o.XLAFlags, Generation: generation, Hosts: r.onHosts(),
	})
	if err != nil {
		return &Error{Stage: StageInput, Err: err}
	}
	_, has := user("LIBTPU_INIT_ARGS")
	findings := append(env.Findings, catalogue.ScanCommand(r.commandForScan(), r.files(), xla.Scan{
		Generation: generation, Given: has || len(env.Vars) > 0,
	})...)
	for _, f := range findings {
		if f.Severity > xla.Info {
			event.Notef(r.Sink, event.Warn, "look closer with: multihost xla check", "%s", f)
		}
	}
	for _, line := range env.Lines() {
		event.Notef(r.Sink, event.Info, "", "%s", line)
	}
	for _, v := range env.Vars {
		r.o.Env = append(r.o.Env, config.EnvVar{Name: v.Name, Value: v.Value})
	}
	return nil
}

func (r *run) commandForScan() string {
	if r.o.Script != "" {
		return r.o.Script
	}
	return strings.Join(r.o.Argv, " ")
}

// files is where the scripts that the command names are read; nil when they are
// not on this machine.
func (r *run) files() fs.FS {
	if r.o.Dir == "" {
		return nil
	}
	return os.DirFS(r.o.Dir)
}
