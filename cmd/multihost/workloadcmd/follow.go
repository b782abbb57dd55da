package workloadcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/image"
	"multihost/internal/options"
	"multihost/internal/preflight"
	"multihost/internal/settings"
	"multihost/internal/tpu"
	"multihost/internal/workload"
	"multihost/internal/workloads"
)

// A Plan is what workload create would make.
type Plan struct {
	Name      string         `json:"name"`
	Namespace string         `json:"namespace"`
	Slices    int            `json:"slices"`
	Workers   int            `json:"workers"` // number of workers of all slices
	Image     string         `json:"image"`   // before layers are added
	Object    map[string]any `json:"object"`  // the JobSet in the form that the server would keep
}

// planOf returns the plan for a workload whose JobSet is js.
func planOf(js any, s workload.Spec, namespace string) (p Plan, err error) {
	p = Plan{Name: s.Name, Namespace: namespace, Slices: s.Slices, Workers: s.Slices * s.Workers(), Image: s.Image}
	text, err := json.Marshal(js)
	if err == nil {
		err = json.Unmarshal(text, &p.Object)
	}
	return p, err
}

// String describes the plan for people.
func (p Plan) String() string {
	return fmt.Sprintf("would make workload %s in namespace %s: %s, %s, image %s\nthe cluster accepts it\n", p.Name, p.Namespace, event.Count(p.Slices, "slice"), event.Count(p.Workers, "worker"), p.Image)
}

// follow shows the output of a workload until the workload ends. After an interrupt, the
// workload runs on. The parameter later tells the user what to type in that case.
func (c *Call) follow(cluster *workloads.Cluster, name, later string) error {
	o, err := cluster.Follow(c.Context, name, workloads.FollowOptions{Output: func(_ int, p workload.Pod, _ string) (io.WriteCloser, error) {
		return output{c.View, p.Worker}, nil
	}})
	if c.Context.Err() != nil {
		event.Notef(c.Sink, event.Warn, later, "workload %s goes on without this machine", name)
		return context.Cause(c.Context)
	}
	if err != nil {
		return err
	}
	for _, text := range o.Incomplete {
		event.Notef(c.Sink, event.Warn, "", "the output is not complete: %s", text)
	}
	level := event.Info
	if o.Code() != 0 {
		level = event.Warn
	}
	event.Notef(c.Sink, level, "", "workload %s: %s", name, o)
	if o.Code() != 0 {
		return c.Status(o.Code())
	}
	return nil
}

// output shows the output of a worker.
type output struct {
	to     event.Sink
	worker tpu.WorkerID
}

func (o output) Write(p []byte) (int, error) {
	o.to.Emit(event.Output{Slice: o.worker.Slice, Worker: o.worker.Worker, Data: p})
	return len(p), nil
}

func (o output) Close() error { return nil }

// defaultRepository returns the repository for images of a user. The registry writes a
// project of a domain, such as example.com:p, as a path.
func defaultRepository(project, user string) string {
	return "gcr.io/" + strings.Replace(project, ":", "/", 1) + "/" + user + "-runner"
}

// preflightOf returns what the preflight does in the containers of a workload.
func preflightOf(s workload.Spec) preflight.Options {
	o := preflight.Options{Platform: preflight.GKE, BetweenSlices: settings.MTUBetween(s.Slices), ExpectChips: cmp.Or(s.Chips(), preflight.NoDevices)}
	if s.Preflight == preflight.Check.String() {
		o.Mode = preflight.Check
	}
	return o
}

// push adds multihost-agent and the user's files to the image, and returns the name of the
// new image.
func (c *Call) push(ctx context.Context, o options.Workload) (string, error) {
	agent, err := c.Agents().For("amd64")
	if err != nil {
		return "", err
	}
	program, err := agent.Unpack()
	if err != nil {
		return "", err
	}
	layer, err := image.Executable(workload.AgentFile, program)
	if err != nil {
		return "", err
	}
	layers := []*image.Layer{layer}
	if o.Spec.Preflight != "" {
		script, err := image.Executable(workload.PreflightFile, []byte(preflight.Kit(preflightOf(o.Spec))))
		if err != nil {
			return "", err
		}
		layers = append(layers, script)
	}
	if o.Base {
		tree, err := codesync.Scan(ctx, codesync.Options{Dir: o.Dir, Sink: c.Sink, ReadOnly: true})
		if err != nil {
			return "", err
		}
		files, err := image.Files(ctx, tree, "")
		if err != nil {
			return "", err
		}
		defer files.Close()
		layers = append(layers, files)
	}
	client := image.Client{UserAgent: c.UserAgent, Endpoint: o.Registries}
	repository := o.Repository
	if c.Cloud != nil {
		client.Token = c.Cloud.Token
		repository = cmp.Or(repository, defaultRepository(c.Cloud.Project(), c.Machine.User))
	}
	base, err := client.Find(ctx, o.Spec.Image)
	if err != nil {
		return "", err
	}
	pushed, err := client.Push(ctx, base, repository, layers...)
	if err != nil {
		return "", err
	}
	event.Notef(c.Sink, event.Info, "", "image %s", pushed.Ref)
	return pushed.Ref, nil
}
