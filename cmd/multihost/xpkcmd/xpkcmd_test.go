package xpkcmd_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/shlex"
	"github.com/urfave/cli/v2"

	"multihost/cmd/multihost/xpkcmd"
	"multihost/internal/cmdline"
	"multihost/internal/fault"
	"multihost/internal/gke"
	"multihost/internal/options"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/workload"
)

// A reading is what a documented command line asks for.
type reading struct {
	path     string
	cluster  gke.Options
	workload options.Workload
}

// read reads a command line of XPK as a shell with these variables does. The command is not
// carried out.
func read(t *testing.T, line string) (r reading, err error) {
	t.Helper()
	for name, value := range map[string]string{
		"YOUR_CLUSTER_NAME": "team", "NUM_SLICES": "2", "ACCELERATOR_TYPE": "v5litepod-16", "ZONE": "us-west4-a", "PROJECT": "p", "CLUSTER_ARGUMENTS": "--network=mtu9k --subnetwork=mtu9k",
		"YOUR_IMAGE_NAME": "runner", "YOUR_RUN_NAME": "train", "MAXTEXT_OUTPUT_PATH": "gs://b/out", "MAXTEXT_DATASET_PATH": "gs://b/data",
	} {
		line = strings.ReplaceAll(line, "${"+name+"}", value)
	}
	words, err := shlex.Split(line)
	testkit.Must(t, err)
	for words[0] != "cluster" && words[0] != "workload" { // xpk, or python3 xpk.py
		words = words[1:]
	}
	var parsed *cmdline.Line
	machine := options.Machine{Lookup: func(string) (string, bool) { return "", false }, Home: t.TempDir(), User: "ann"}
	app := &cli.App{Name: "multihost", Flags: options.GlobalFlags(), Commands: []*cli.Command{xpkcmd.Command(xpkcmd.Kit{
		Command:  func(c cli.Command, _ ...fault.Kind) *cli.Command { return &c },
		Follower: func(c cli.Command, _ ...fault.Kind) *cli.Command { return &c },
		Group:    func(c cli.Command) *cli.Command { return &c },
		Act: func(func(*xpkcmd.Call) error) cli.ActionFunc {
			return func(of *cli.Context) error {
				c := &options.Call{Flags: of, Line: parsed}
				switch r.path = strings.Join(parsed.Path[1:], " "); r.path {
				case "cluster create":
					r.cluster = options.XPKCluster(c, machine)
				case "workload create":
					r.workload = options.XPKWorkload(c, machine)
				case "cluster delete":
					options.XPKClusterName(c)
				case "workload list":
					options.XPKClusterName(c)
					options.XPKFilter(c)
					options.XPKWaiting(c)
				case "workload delete":
					options.XPKClusterName(c)
					options.XPKFilter(c)
				}
				return parsed.Refusal()
			}
		},
	})}}
	program := cmdline.Program{App: app, Rules: options.Rules(cmdline.CompleteRules{}), Lookup: machine.Lookup, Home: machine.Home, Dir: t.TempDir()}
	if parsed, err = program.Parse(append([]string{"xpk"}, words...)); err != nil {
		return r, err
	}
	return r, parsed.Run(context.Background(), app)
}

// documentedClusters are the command lines in the documents of MaxText and XPK that make a
// cluster. Each has the cluster's network and the tier of its slices.
var documentedClusters = []struct{ line, network, tier string }{
	{`python3 xpk/xpk.py cluster create --cluster ${YOUR_CLUSTER_NAME} --num-slices=${NUM_SLICES} --tpu-type=${ACCELERATOR_TYPE} --zone=${ZONE} --project=${PROJECT} --custom-cluster-arguments="--network=mtu9k --subnetwork=mtu9k"`, "mtu9k", "on-demand"},
	{`python3 xpk/xpk.py cluster create --cluster ${YOUR_CLUSTER_NAME} --num-slices=${NUM_SLICES} --tpu-type=${ACCELERATOR_TYPE} --zone=${ZONE} --project=${PROJECT}`, "default", "on-demand"},
	{`python3 xpk/xpk.py cluster create --cluster ${YOUR_CLUSTER_NAME} --tpu-type ${ACCELERATOR_TYPE} --num-slices ${NUM_SLICES} --custom-cluster-arguments="${CLUSTER_ARGUMENTS}"`, "mtu9k", "on-demand"},
	{`xpk cluster create --cluster team --tpu-type=v5litepod-16 --num-slices=2 --spot`, "default", "spot"},
	{`xpk cluster create --cluster team --tpu-type=v5litepod-16 --num-slices=2 --on-demand --host-maintenance-interval=AS_NEEDED`, "default", "on-demand"},
	{`xpk cluster create --force --cluster team --device-type=v5litepod-4x4 --num-slices=2 --flex --quiet`, "default", "flex-start"},
	{`python3 xpk.py cluster create --cluster team --tpu-type=v5litepod-16 --num-slices=2 --custom-tpu-nodepool-arguments="--reservation-affinity=specific --reservation=r"`, "default", "reserved"},
}

// A documented command line makes the cluster that XPK makes.
func TestDocumentedClusters(t *testing.T) {
	s := simcloud.Start(t, sim.Config{})
	for _, tt := range documentedClusters {
		r, err := read(t, tt.line)
		if err != nil {
			t.Errorf("%s: %v", tt.line, err)
			continue
		}
		plan, err := gke.New(s.GCP, nil).Plan(t.Context(), r.cluster)
		testkit.Must(t, err)
		bodies := map[string]map[string]any{}
		for _, step := range plan.Steps {
			if step.Request != nil {
				var body map[string]any
				testkit.Must(t, json.Unmarshal(step.Request, &body))
				bodies[step.Name] = body
			}
		}
		cluster := bodies["team"]
		pool, _ := cluster["nodePools"].([]any)[0].(map[string]any)
		got := map[string]any{
			"network": cluster["network"], "channel": cluster["releaseChannel"].(map[string]any)["channel"], "dataplane": cluster["networkConfig"].(map[string]any)["datapathProvider"],
			"cpu nodes": pool["initialNodeCount"], "cpu machine": pool["config"].(map[string]any)["machineType"], "slices": len(bodies) - 1,
		}
		want := map[string]any{"network": tt.network, "channel": "RAPID", "dataplane": "ADVANCED_DATAPATH", "cpu nodes": 6.0, "cpu machine": "e2-standard-16", "slices": 2}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.line, diff)
		}
		slice := bodies["team-np-1"]
		if config := slice["config"].(map[string]any); config["machineType"] != "ct5lp-hightpu-4t" || slice["placementPolicy"].(map[string]any)["tpuTopology"] != "4x4" || string(r.cluster.Tier) != tt.tier || config["spot"] == true != (tt.tier == "spot") {
			t.Errorf("%s: %v", tt.line, slice)
		}
	}
}

// documentedWorkloads are command lines that submit a workload, with its command.
var documentedWorkloads = []struct {
	line, command, image string
	slices               int
}{
	{`python3 /xpk/xpk.py workload create --cluster ${YOUR_CLUSTER_NAME} --docker-image gcr.io/${PROJECT}/${YOUR_IMAGE_NAME} --workload ${YOUR_RUN_NAME} --tpu-type=${ACCELERATOR_TYPE} --num-slices=${NUM_SLICES} --command "bash MaxText/configs/largest_job/128b.sh OUTPUT_PATH=${MAXTEXT_OUTPUT_PATH} DATASET_PATH=${MAXTEXT_DATASET_PATH}"`,
		"bash MaxText/configs/largest_job/128b.sh OUTPUT_PATH=gs://b/out DATASET_PATH=gs://b/data", "gcr.io/p/runner", 2},
	{`xpk workload create --cluster ${YOUR_CLUSTER_NAME} --docker-image gcr.io/${PROJECT}/${YOUR_IMAGE_NAME} --workload ${YOUR_RUN_NAME} --tpu-type=${ACCELERATOR_TYPE} --num-slices=${NUM_SLICES} --command "bash src/maxtext/configs/tpu/v5p/128b.sh OUTPUT_PATH=${MAXTEXT_OUTPUT_PATH} DATASET_PATH=${MAXTEXT_DATASET_PATH} PLATFORM=gke"`,
		"bash src/maxtext/configs/tpu/v5p/128b.sh OUTPUT_PATH=gs://b/out DATASET_PATH=gs://b/data PLATFORM=gke", "gcr.io/p/runner", 2},
	{`xpk workload create --workload train --command "echo goodbye" --cluster team --tpu-type=v5litepod-16`, "echo goodbye", "python:3.10", 1},
	{`xpk workload create --cluster team --workload train --base-docker-image maxtext_base_image --tpu-type v5litepod-16 --num-slices 1 --command "python3 -m MaxText.train base.yml" --zone us-west4-a --project p --priority=medium -tgps 30`,
		"python3 -m MaxText.train base.yml", "maxtext_base_image", 1},
}

// A documented command line makes the JobSet that XPK makes, with our agent as its process.
func TestDocumentedWorkloads(t *testing.T) {
	t.Parallel()
	for _, tt := range documentedWorkloads {
		r, err := read(t, tt.line)
		if err != nil {
			t.Errorf("%s: %v", tt.line, err)
			continue
		}
		js, err := workload.JobSet(r.workload.Spec)
		testkit.Must(t, err)
		job := js.Spec.ReplicatedJobs[0]
		pod := job.Template.Spec.Template.Spec
		c := pod.Containers[0]
		got := map[string]any{
			"name": js.Name, "namespace": js.Namespace, "queue": js.Labels["kueue.x-k8s.io/queue-name"], "slices": int(job.Replicas), "workers": int(*job.Template.Spec.Parallelism),
			"priority": pod.PriorityClassName, "container": c.Name, "image": c.Image, "command": c.Command[len(c.Command)-1], "chips": c.Resources.Limits.Name("google.com/tpu", "").Value(),
			"accelerator": pod.NodeSelector["cloud.google.com/gke-tpu-accelerator"], "topology": pod.NodeSelector["cloud.google.com/gke-tpu-topology"],
			"restarts": int(js.Spec.FailurePolicy.MaxRestarts), "ttl": int(*js.Spec.TTLSecondsAfterFinished), "grace": int(*pod.TerminationGracePeriodSeconds), "scheduler": pod.SchedulerName,
			"exclusive": js.Annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"],
		}
		want := map[string]any{
			"name": "train", "namespace": "default", "queue": "multislice-queue", "slices": tt.slices, "workers": 4,
			"priority": "medium", "container": "jax-tpu", "image": tt.image, "command": tt.command, "chips": int64(4),
			"accelerator": "tpu-v5-lite-podslice", "topology": "4x4", "restarts": 0, "ttl": 43200, "grace": 30, "scheduler": "default-scheduler",
			"exclusive": "cloud.google.com/gke-nodepool",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.line, diff)
		}
		if r.workload.Base == strings.Contains(tt.line, "--docker-image") {
			t.Errorf("%s: files are added: %v", tt.line, r.workload.Base)
		}
	}
}

// The simulator sets --registry-endpoint. Without it, images of simulated workloads would be
// read from real registries and pushed there.
func TestRegistryEndpoint(t *testing.T) {
	t.Parallel()
	r, err := read(t, "xpk workload create --cluster team --workload w --command true --tpu-type=v4-8 --registry-endpoint=http://127.0.0.1:1/registry")
	if err != nil || r.workload.Registries == nil || r.workload.Registries.Host != "127.0.0.1:1" {
		t.Errorf("%v, %v", r.workload.Registries, err)
	}
}

// The other documented command lines are read, or refused by name.
func TestOtherDocumentedLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{ // part of the error; "": none
		"xpk cluster list": "", "xpk cluster delete --cluster team": "", "xpk cluster delete --cluster team --force --quiet": "",
		"xpk workload list --cluster team": "", "xpk workload list --cluster team --filter-by-status=FINISHED --filter-by-job=ann": "",
		"xpk workload list --cluster team --wait-for-job-completion=train --timeout=300":                                                       "",
		"xpk workload delete --workload train --cluster team":                                                                                  "",
		"xpk workload delete --cluster team --filter-by-status=QUEUED --filter-by-job=ann":                                                     "",
		"xpk cluster create --cluster team --tpu-type=v5litepod-16 --private --authorized-networks 1.2.3.0/24":                                 "--private is not served",
		"xpk cluster create --cluster team --tpu-type=v5litepod-16 --enable-autoprovisioning":                                                  "--enable-autoprovisioning is not served",
		"xpk cluster create --cluster team --device-type=h100-80gb-8 --num-nodes=4":                                                            "has no TPU chips",
		"xpk cluster create-pathways --cluster team":                                                                                           `unknown command "create-pathways"`,
		"xpk cluster describe --cluster team":                                                                                                  `unknown command "describe"`,
		"xpk workload create --cluster team --workload w --command true --tpu-type=v4-8 --storage=s":                                           "--storage is not served",
		"xpk workload create --cluster team --workload w --command true --tpu-type=v4-8 --use-pathways":                                        "--use-pathways is not served",
		"xpk workload create --cluster team --workload w --command true --tpu-type=v4-8 --no-use-parallel-containers --spot --skip-validation": "",
		"xpk workload create --cluster team --workload w --command true --device-type=n2-standard-32-4":                                        "has no TPU chips",
		"xpk workload create --cluster team --workload w --tpu-type=v4-8":                                                                      "a workload needs a command",
		"xpk workload list": "--cluster is missing",
	} {
		_, err := read(t, line)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", line, err, want)
		case err != nil && fault.Of(err) != fault.Usage:
			t.Errorf("%s: kind %v of %v", line, fault.Of(err), err)
		}
	}
}
