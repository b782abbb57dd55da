package main

import (
	agentprogram "multihost/internal/agent/program"
	"multihost/internal/detach"
	"multihost/internal/gc"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/ops"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/settings"
	"multihost/internal/submit"
	"multihost/internal/workers"
)

// deps holds what commands work with: clients, files and functions. Each package below
// internal gets only the part that it needs.
type deps struct {
	*workers.Reach
	*record.Keeper
	detach.Source
	Networks job.Networks
	Roots    gcp.Roots        // roots of the APIs that the workers call
	Agents   agentprogram.Set // multihost-agent for each architecture

	// Checked is called before the first request, after all checks that need no request. It
	// may be nil.
	Checked func()
}

// jobDeps returns the part of d that runs and jobs need.
func jobDeps(d *deps) job.Deps {
	return job.Deps{Reach: d.Reach, Keeper: d.Keeper, Networks: d.Networks, Roots: d.Roots, Agents: d.Agents, Checked: d.Checked}
}

// submitDeps returns the part of d that a job without runner needs.
func submitDeps(d *deps) submit.Deps {
	return submit.Deps{Reach: d.Reach, Keeper: d.Keeper, Source: d.Source, Networks: d.Networks, Agents: d.Agents, Checked: d.Checked}
}

// settingsDeps returns the part of d that the preflight and the announcement of a request
// need.
func settingsDeps(d *deps) settings.Deps {
	return settings.Deps{Reach: d.Reach, Networks: d.Networks}
}

// runsDeps returns the part of d that commands on runs need.
func runsDeps(d *deps) runs.Deps {
	return runs.Deps{Reach: d.Reach, Keeper: d.Keeper, Source: d.Source, Agents: d.Agents}
}

// opsDeps returns the part of d that commands on chosen workers need.
func opsDeps(d *deps) ops.Deps { return ops.Deps{Reach: d.Reach, Keeper: d.Keeper} }

// gcDeps returns the part of d that the search for leftovers needs.
func gcDeps(d *deps) gc.Deps { return gc.Deps{Reach: d.Reach, StateDir: d.StateDir} }
