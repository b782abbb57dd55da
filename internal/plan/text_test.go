package plan

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"multihost/internal/announce"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A cloud makes queued resources and shows its requests.
type cloud struct{ provision.Provider }

func (cloud) Undoing(string, ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "queued resource"}}
}

func (cloud) Preview(provision.Request) ([]byte, string) {
	return []byte(`{"from":"preview"}`), "gcloud create"
}

// whole returns the plan of a job whose workers answer, with one of everything.
func whole() Plan {
	hourly, none, some, size := 2.5, 0, 3, int64(2048)
	p := Plan{
		Command: "job", Run: "r", Attempt: 2, Project: "p", Zone: "us-central2-b", Asked: true,
		Network:  &network.Plan{Actions: []network.Action{{Verb: network.Create, Resource: "network", Name: "mtu9k", Gcloud: "gcloud networks"}, {Resource: "firewall", Name: "ssh", Reason: "it is there"}}},
		Resource: &ResourceChange{ID: "r", Do: ResourceCreate, Tier: "spot", Request: json.RawMessage(`{"node":"r"}`), Gcloud: "gcloud create", Name: "queued resource r"},
		Login:    Login{User: "ann", Key: "ssh-ed25519 A", File: "~/.ssh/k", Way: overssh.IAP, Jump: "bastion"},
		Stops:    []RunOnWorkers{{Run: "old", Attempt: 1, Owner: "bob", Workers: "s0w0", Command: "train", Why: "replaced by r of ann"}},
		Files:    &Files{Dir: "/code", To: "~/r", Count: 3, Bytes: size, Digest: "abc", Ignored: []string{".git"}},
		Preflight: &PreflightPlan{Mode: "apply", Notes: []string{"bound to node 0"}, Changes: []SettingChange{
			{Setting: "rto_min", To: "5ms", Workers: "s0w[0-1]"}, {Setting: "tcp_rmem", From: "4096", To: "8192", Workers: "s0w0", Reason: "denied"}}},
		Free:   FreePlan{Policy: "all", Stopped: []Stopped{{Worker: "s0w0", PID: 7, User: "bob", Command: "python old.py"}}},
		Start:  StartPlan{Script: "cat a\ncat b\n", Directory: "~/r", Venv: "~/venv", Processes: 1, Unset: []string{"MEGASCALE_PORT"}},
		Limits: Limits{Command: time.Hour, Grace: time.Second, Connect: time.Minute, Restarts: 1, Preemptions: -1, TTL: 24 * time.Hour, Lease: time.Hour},
		Logs:   LogPlan{Files: []string{"first.txt", "last.txt"}, Remote: "~/log"},
		End:    EndPlan{Deletes: "r", Keeps: "after a failure (--keep-on-failure)", KeepFor: time.Hour},
		Cost:   CostPlan{Hourly: &hourly, Tier: "spot"},
	}
	p.Slices = []PlannedSlice{{Name: "r", Type: "v4-16", Topology: "2x2x2", Workers: 2, Network: "mtu9k", State: "to be made"}}
	p.Workers = []PlannedWorker{
		{Worker: "s0w0", Env: map[string]string{"SAME": "x", "ID": "0"}, Wrap: []string{"numactl"}, Files: &some, Bytes: &size, Removed: &some},
		{Worker: "s0w1", Env: map[string]string{"SAME": "x", "ID": "1"}, Files: &none, Bytes: &size, Removed: &none},
	}
	return p
}

func TestThePlanForPeople(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		change func(p *Plan)
		want   []string
		not    string
	}{
		{"one of everything", func(*Plan) {}, []string{
			"plan of multihost job: run r, attempt 2, project p, zone us-central2-b; nothing was changed",
			"+ network    network mtu9k\n             gcloud networks\n= network    firewall ssh: it is there\n",
			"+ request    queued resource r: 1 slice of v4-16, spot\n             waits for capacity without limit,",
			"+ slices     r (v4-16 2x2x2, network mtu9k)\n             2 workers: s0w[0-1]\n",
			"= login      as ann with ~/.ssh/k, through Identity-Aware Proxy behind bastion\n",
			"- run        old (attempt 1) of bob on s0w0 is stopped: replaced by r of ann\n",
			"+ files      3 files, 2.0 kB, of /code to ~/r\n             s0w0: 3 new, 2.0 kB before compression; 3 files of the last sync removed\n             s0w1: nothing new\n",
			"not sent: .git", "~ preflight  2 settings changed (--preflight=apply)\n             rto_min: nothing → 5ms on s0w[0-1]\n             tcp_rmem stays 4096 on s0w0: denied\n             bound to node 0\n",
			"+ venv       Python virtual environment ~/venv", "- TPU        pid 7 of bob on s0w0, which holds it, is ended (--kill-stale=all)\n",
			"+ command    a bash script, in ~/r on s0w[0-1] at once, once all are ready\n                 cat a\n                 cat b\n             run by numactl on s0w0\n",
			"= limits     stopped after 1h00m; a failure stops no other worker; ", "may be lost for any time; all have started within any time\n             started again after up to 1 failure and any number of losses\n",
			"- time       the slices are deleted ", "= lease      if this machine is gone, the workers delete the slices 1h after the command has ended (--lease)",
			"+ logs       first.txt\n             … last.txt\n", "- end        queued resource r is deleted with its slices; it stays for 1h00m after a failure (--keep-on-failure)\n",
			"  ID=0 on s0w0 … 1 on s0w1\n  SAME=x\n  not set: MEGASCALE_PORT\n", "request of queued resource r\n  {\n    \"node\": \"r\"\n  }\n", "the same with gcloud\n  gcloud create\n",
		}, ""},
		{"the resource is there", func(p *Plan) {
			p.Resource.Do, p.Resource.State, p.Resource.Owner, p.Resource.Why = ResourceUse, "ACTIVE", "bob", "it is being repaired"
		}, []string{"= request    queued resource r is there (state ACTIVE, of bob)\n             it is being repaired\n"}, "waits for capacity"},
		{"its VMs are rebooted", func(p *Plan) { p.Resource.Do, p.Resource.Why = ResourceReset, "slice r is silent" }, []string{"~ request    queued resource r is there (state ); its VMs are rebooted: slice r is silent\n"}, ""},
		{"it is made again", func(p *Plan) { p.Resource.Do, p.Resource.Why = ResourceRecreate, "it has failed" }, []string{"is deleted: it has failed\n+            then it is asked for again: 1 slice of v4-16, spot\n"}, ""},
		{"a command is taken over", func(p *Plan) {
			p.TakesOver = &RunOnWorkers{Run: "r", Attempt: 2, Workers: "s0w[0-1]", Command: "train"}
		}, []string{"= run        attempt 2 of r on s0w[0-1] is followed; nothing is sent, set or started\n             train\n"}, "+ command"},
		{"a command is left running", func(p *Plan) { p.TakesOver = &RunOnWorkers{Why: "it lives"} }, []string{" stays: it lives; nothing is sent"}, "+ command"},
		{"a key is made", func(p *Plan) { p.Login.Key, p.Asked, p.Why = "", false, "there is no key" }, []string{"+ login      the SSH key ~/.ssh/k is made\n", "the workers were not asked what they have: there is no key\n", "~ preflight  settings are made as wanted (--preflight=apply)\n"}, "s0w0: 3 new"},
		{"a key is added", func(p *Plan) { p.Login.Adds = "the metadata" }, []string{"+ login      the SSH key ~/.ssh/k is added to the metadata\n"}, ""},
		{"little", func(p *Plan) {
			p.Network, p.Resource, p.Files, p.Preflight, p.Stops, p.Free, p.Limits, p.End = nil, nil, nil, nil, nil, FreePlan{}, Limits{FailFast: true}, EndPlan{}
			p.Start = StartPlan{Argv: []string{"a b", "c"}, Processes: 2}
		}, []string{"= files      nothing is sent; ~/r is used as it is\n", "= preflight  off\n", "no process that has to be ended holds a TPU device", "a program, without a shell, 2 processes on each", "'a b' c\n", "no time limit; the first failure stops all workers", "never started again", "= end        the slices stay\n"}, "request of"},
		{"settings are only read", func(p *Plan) { p.Preflight = &PreflightPlan{Mode: "check"} }, []string{"= preflight  settings are only read\n"}, ""},
		{"all settings are right", func(p *Plan) { p.Preflight.Changes = nil }, []string{"= preflight  all settings are as wanted\n"}, ""},
		{"a job without runner", func(p *Plan) { p.Upload = &Upload{URL: "gs://b/r", Objects: []string{"job", "code"}} }, []string{"+ upload     gs://b/r: job, code\n", "+ logs       in gs://b/r\n"}, "login"},
		{"the slices are kept", func(p *Plan) { p.End = EndPlan{Keeps: "--keep"} }, []string{"= end        queued resource r stays and is billed: --keep\n"}, ""},
		{"the slices are deleted", func(p *Plan) { p.End = EndPlan{Deletes: "r"} }, []string{"- end        queued resource r is deleted with its slices, however the command ends\n"}, ""},
		{"the workers delete them", func(p *Plan) {
			p.End = EndPlan{Deletes: "r", Leaves: true}
			p.Limits.Lease = 30 * time.Minute
		}, []string{"- end        queued resource r is deleted with its slices by its workers 30m after the command has ended (--lease)\n"}, ""},
		{"the workers delete them at the end of their time", func(p *Plan) {
			p.End = EndPlan{Deletes: "r", Leaves: true}
			p.Limits.Lease, p.Limits.TTL = 0, 2*time.Hour
		}, []string{"= end        queued resource r stays and is billed until its workers delete it 2h after its request (--ttl): this command leaves"}, "stays and is billed: "},
		{"nobody deletes them", func(p *Plan) {
			p.End = EndPlan{Deletes: "r", Leaves: true}
			p.Limits.Lease, p.Limits.TTL = 0, 0
		}, []string{"= end        queued resource r stays and is billed: this command leaves"}, "is deleted with its slices"},
		{"a job without runner deletes them", func(p *Plan) {
			p.Upload, p.End = &Upload{URL: "gs://b/r"}, EndPlan{Deletes: "r", Leaves: true}
		}, []string{"- end        queued resource r is deleted with its slices by its workers, however the command ends\n"}, ""},
		{"the workers have no right", func(p *Plan) { p.MayDelete = &announce.DeletionRight{May: announce.MayNotDelete, Why: "no role"} }, []string{"= right      the workers may not delete the slices: no role\n"}, ""},
		{"their right is not known", func(p *Plan) { p.MayDelete = &announce.DeletionRight{May: announce.MayUnknown, Why: "denied"} }, []string{"whether the workers may delete the slices is not known: denied\n"}, ""},
		{"losses are limited", func(p *Plan) { p.Limits.Restarts, p.Limits.Preemptions = 0, 2 }, []string{"started again after up to 2 losses\n"}, ""},
		{"no lease", func(p *Plan) { p.Limits.Lease, p.Limits.MaxRun = 0, time.Hour }, []string{
			"- time       the slices are taken away 1h after they begin to run, whatever runs (--max-run-duration)\n",
		}, "if this machine is gone, the workers delete"},
		{"one loss", func(p *Plan) { p.Limits.Restarts, p.Limits.Preemptions = 0, 1 }, []string{"started again after up to 1 loss\n"}, ""},
		{"a long text in the request", func(p *Plan) {
			p.Resource.Request = json.RawMessage(fmt.Sprintf(`{"script":%q}`, strings.Repeat("x", longest+1)))
		}, nil, "the same with gcloud"},
	} {
		p := whole()
		tt.change(&p)
		text := p.String()
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: it lacks %q:\n%s", tt.story, want, text)
			}
		}
		if tt.not != "" && strings.Contains(text, tt.not) {
			t.Errorf("%s: it has %q:\n%s", tt.story, tt.not, text)
		}
	}
}

// The plan shows the refused request, or the one that the provider would make. A program
// that reads the plan learns when the slices end, as people do.
func TestLimitsInThePlansJSON(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]Limits{
		`{}`:                           {},
		`{"lease_ns":60000000000}`:     {Lease: time.Minute},
		`{"max_run_ns":3600000000000}`: {MaxRun: time.Hour},
		`{"ttl_ns":1,"max_run_ns":2}`:  {TTL: 1, MaxRun: 2},
	} {
		text, err := json.Marshal(l)
		testkit.Must(t, err)
		var got, fields map[string]any
		testkit.Must(t, json.Unmarshal(text, &got))
		testkit.Must(t, json.Unmarshal([]byte(want), &fields))
		for _, key := range []string{"ttl_ns", "lease_ns", "max_run_ns"} {
			if got[key] != fields[key] {
				t.Errorf("%+v: %s is %v, want %v", l, key, got[key], fields[key])
			}
		}
	}
}

func TestTheRequestInAPlan(t *testing.T) {
	t.Parallel()
	r := provision.Request{ID: "r", Tier: provision.Spot}
	for _, tt := range []struct {
		do      string
		refused *gcp.ReadOnlyError
		want    string
	}{
		{ResourceCreate, &gcp.ReadOnlyError{Body: []byte(`{"from":"refusal"}`)}, `{"from":"refusal"}`},
		{ResourceRecreate, nil, `{"from":"preview"}`},
		{ResourceUse, nil, ""},
	} {
		c := ChangeOf(cloud{}, "z", tt.do, provision.Resource{State: "ACTIVE", Nodes: []string{"r"}}, r, tt.refused)
		if string(c.Request) != tt.want || (c.Gcloud != "") != (tt.want != "") || c.ID != "r" || c.State != "ACTIVE" || c.Tier != "spot" || c.Name != "queued resource r" {
			t.Errorf("%s: %+v", tt.do, c)
		}
	}
}

func TestTheSlicesOfARequest(t *testing.T) {
	t.Parallel()
	ty, err := tpu.ParseType("v4-16")
	testkit.Must(t, err)
	all := Expected(provision.Request{ID: "r", NodeCount: 2, Nodes: []string{"r-0", "r-1"}, Type: ty}, "p", "z")
	if len(all) != 2 || all[1].Index != 1 || !all[1].MultiSlice || len(all[1].Workers) != 2 || all[1].Workers[1].Internal != "<address of s1w1>" {
		t.Errorf("%+v", all)
	}
}
