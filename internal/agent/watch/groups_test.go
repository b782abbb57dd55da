//go:build linux

package watch

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"multihost/internal/agent"
	"multihost/internal/testkit"
)

// ofGroups returns terms of a job with two slices of two VMs. Each VM has its own guest
// attributes.
func ofGroups(change func(*Terms)) Terms {
	const at = "https://compute" + testkit.LeaseVMs
	return terms(func(t *Terms) {
		t.Nodes, t.Total, t.Delete, t.Look = []string{"train-0", "train-1"}, 4, nil, 60
		t.Peers = agent.Peers{
			List: at + "/instanceGroupManagers/{slice}/listManagedInstances", Names: "/managedInstances/*/instance", States: "/managedInstances/*/instanceStatus",
			Idle: "PENDING PROVISIONING STAGING STOPPED SUSPENDED TERMINATED", More: "/nextPageToken",
			Read: at + "/instances/{vm}/getGuestAttributes?queryPath=multihost/lease", Told: "/queryValue/items/*/value",
		}
		for n := range 2 {
			group := "https://compute" + testkit.LeaseGroup(n)
			t.Delete = append(t.Delete, agent.Deletion{Read: group, Method: "DELETE", URL: group, Probe: "https://compute" + testkit.LeaseVMs + "/instanceGroupManagers/multihost-probe-1",
				Proof: agent.Field{Path: "/description", Value: "of multihost-run=train"}})
		}
		if change != nil {
			change(t)
		}
	})
}

func newGroups(t *testing.T) *cloud {
	c := newCloud(t, 4)
	c.VMs, c.States = 2, make([]string, 4)
	return c
}

// The runner of a job with two slices of two VMs is gone. Its lease deletes both groups
// when the command has ended on every running VM.
func TestALeaseOfGroups(t *testing.T) {
	t.Parallel()
	armed := func(c *cloud, change func(*Terms)) (ends []func(int)) {
		for _, w := range c.workers {
			ends = append(ends, w.runs())
			if got, want := w.arm(ofGroups(change)), "N right yes\nN lease yes 3600 0 0 never 0\n"; got != want {
				w.t.Errorf("got %q, want %q", got, want)
			}
		}
		return ends
	}
	story(t, "the command ends on all", func(t *testing.T) {
		c := newGroups(t)
		ends := armed(c, nil)
		for n, end := range ends {
			c.at(time.Duration(n+1) * 70 * time.Minute)
			c.isDeleted(0, 0)
			end(0)
		}
		c.at(6 * hour)
		c.isDeleted(280*time.Minute, 283*time.Minute)
	})
	story(t, "another run has taken a name", func(t *testing.T) {
		c := newGroups(t)
		c.Foreign = "train-1"
		for _, end := range armed(c, nil) {
			end(0)
		}
		c.at(2 * hour)
		c.isDeleted(0, 0)
		c.Do(func() {
			if !c.Gone["train-0"] || c.Gone["train-1"] {
				t.Errorf("gone are %v", c.Gone)
			}
		})
	})
	for name, row := range map[string]struct {
		kill     bool // worker 3
		trouble  func(c *cloud)
		from, to time.Duration // earliest and latest time of the deletion; 0: no deletion
		says     string        // worker 0
	}{
		"a VM hangs":            {true, func(*cloud) {}, hour, hour + 4*time.Minute, ""},
		"a VM was taken away":   {true, func(c *cloud) { c.States[3], c.Told[3] = "TERMINATED", "" }, hour, hour + 4*time.Minute, ""},
		"a VM is gone":          {true, func(c *cloud) { c.States[3], c.Told[3] = "NONE", "" }, hour, hour + 4*time.Minute, ""},
		"a VM has never told":   {true, func(c *cloud) { c.Told[3] = "" }, 0, 0, "not deleted: whether the command runs is not known of slice train-1: 1 of 2 workers have told"},
		"a slice is gone":       {false, func(c *cloud) { c.Gone = map[string]bool{"train-1": true} }, hour, hour + 4*time.Minute, ""},
		"no right to read":      {false, refusing(403, "GET "+testkit.LeaseVMs+"/instances/vm-2/"), 0, 0, "not known of slice train-1: VM vm-2: HTTP status 403"},
		"no right to list":      {false, refusing(403, "POST "+testkit.LeaseGroup(1)), 0, 0, "not known of slice train-1: HTTP status 403"},
		"an API that is away":   {false, refusing(503, "GET "+testkit.LeaseVMs+"/instances/vm-2/"), 3 * hour, 3*hour + 14*time.Minute, "not known of slice train-1: VM vm-2: HTTP status 503"},
		"a refused deletion":    {false, refusing(503, "DELETE "+testkit.LeaseGroup(0)), 3 * hour, 3*hour + 14*time.Minute, "train-0: HTTP status 503: refused"},
		"deletions under way":   {false, refusing(400, "DELETE "+testkit.LeaseGroup(1)), 3 * hour, 3*hour + 14*time.Minute, "train-1: HTTP status 400: refused"},
		"answers that get lost": {false, refusing(-1, "DELETE "+testkit.LeaseGroup(1)), 3 * hour, 3*hour + 14*time.Minute, "train-1: no answer"},
	} {
		story(t, name, func(t *testing.T) {
			c := newGroups(t)
			ends := armed(c, nil)
			c.at(time.Minute)
			if row.kill {
				c.workers[3].kill()
			}
			c.Do(func() { row.trouble(c) })
			for _, end := range ends {
				end(0)
			}
			c.at(2 * hour)
			if row.from != hour {
				c.isDeleted(0, 0)
				c.workers[0].says(row.says)
			}
			if strings.Contains(row.says, ": refused") || strings.Contains(row.says, "no answer") { // the other group is already deleted, so it costs nothing
				c.Do(func() {
					if len(c.Gone) != 1 {
						t.Errorf("gone are %v", c.Gone)
					}
				})
			}
			if row.from != hour {
				c.at(3*hour + 20*time.Minute)
			}
			c.isDeleted(row.from, row.to)
		})
	}
}

// refusing refuses calls for three hours, or for ever if the status says that a permission
// is missing.
func refusing(status int, what string) func(*cloud) {
	return func(c *cloud) {
		c.Refuse = func(call string) int {
			if strings.HasPrefix(call, what) && (status == 403 || c.age() < 3*hour) {
				return status
			}
			return 0
		}
	}
}

// The runner reports missing permissions of the workers before the command starts.
func TestWhatAWorkerOfGroupsMayNotDo(t *testing.T) {
	t.Parallel()
	for refused, want := range map[string]string{
		"GET " + testkit.LeaseVMs + "/instances/": "N right yes\nN deaf 403 1-compute@developer.gserviceaccount.com HTTP status 403: refused\n",
		"DELETE " + testkit.LeaseVMs:              "N right no 403 1-compute@developer.gserviceaccount.com HTTP status 403: refused\n",
		"PUT guest-attributes/":                   "N right yes\nN apart 403\n",
	} {
		story(t, refused, func(t *testing.T) {
			c := newGroups(t)
			refusing(403, refused)(c)
			if got := c.workers[0].arm(ofGroups(nil)); !strings.HasPrefix(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// If no runner comes to a job's groups, the watch deletes them, even if the VMs of one
// group do not exist yet. If a runner has come to another worker, the groups stay.
func TestGroupsThatNobodyAdopts(t *testing.T) {
	t.Parallel()
	for _, come := range []bool{false, true} {
		story(t, fmt.Sprint(come), func(t *testing.T) {
			c := newGroups(t)
			guarded := ofGroups(func(t *Terms) { t.Adopt, t.Lease = 1800, 86400 })
			c.States[2], c.States[3] = "NONE", "PENDING"
			if c.workers[0].guest(guarded); come {
				c.workers[1].arm(guarded)
			}
			c.at(2 * hour)
			if come {
				c.isDeleted(0, 0)
			} else {
				c.isDeleted(30*time.Minute, 31*time.Minute)
			}
		})
	}
	story(t, "a runner dies while one slice waits", func(t *testing.T) {
		c := newGroups(t)
		c.States[2], c.States[3] = "NONE", "PENDING"
		for _, w := range c.workers[:2] {
			w.arm(ofGroups(nil))
		}
		c.at(2 * hour)
		c.isDeleted(hour, hour+4*time.Minute)
	})
}

// Another login of the worker can renew a lease. But it can choose neither the calls that
// use the VM's token, nor the workers to ask.
func TestALeaseOfAnotherLogin(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can write files of other logins")
	}
	const evil = "run=train\nlease=7200\nlook=7\ntotal=1\nnodes=x\npeers={\"read\":\"https://evil/{slice}\"}\ndeletion={\"read\":\"https://evil/q\",\"url\":\"https://evil/q\",\"method\":\"DELETE\",\"proof\":{\"path\":\"/a\",\"value\":\"b\"}}\n"
	story(t, "a lease", func(t *testing.T) {
		c := newGroups(t)
		c.Refuse = func(call string) int {
			if strings.Contains(call, "/x") || strings.HasSuffix(call, "/q") {
				t.Errorf("called %s", call)
			}
			return 0
		}
		for _, w := range c.workers {
			w.arm(ofGroups(nil))
		}
		w := c.workers[0]
		c.at(time.Minute)
		theirs := w.index("train.lease.1001")
		testkit.Must(t, os.WriteFile(theirs, []byte(evil), 0o644))
		testkit.Must(t, os.Chown(theirs, 1001, 1001))
		testkit.Must(t, w.host(io.Discard).Renew("N", "train", "60")) // it copies the newest lease
		own := readSome(w.index("train.lease.1000"))
		if !strings.Contains(own, "look=7\n") || strings.Contains(own, "evil") || strings.Contains(own, "total=") {
			t.Errorf("the own lease is\n%s", own)
		}
		c.at(2*time.Minute + time.Minute/2)
		kept := readSome(w.host(io.Discard).own("train.terms"))
		if !strings.Contains(kept, "\nlease=7200\n") || !strings.Contains(kept, "\ntotal=4\n") || strings.Contains(kept, "evil") {
			t.Errorf("the terms are\n%s", kept)
		}
		w.kill()
		w.boot()
		testkit.Must(t, os.MkdirAll(w.index(""), 0o777))
		testkit.Must(t, os.WriteFile(theirs, []byte(evil), 0o644))
		testkit.Must(t, os.Chown(theirs, 1001, 1001))
		w.guest(ofGroups(nil))
		c.at(4 * hour)
		c.isDeleted(hour, 3*hour)
	})
}
