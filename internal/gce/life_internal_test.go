package gce

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func read[T proto.Message](t *testing.T, text string, m T) T {
	t.Helper()
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return m
}

// seen makes a sight of a group of two VMs. vms has the state of each, separated by spaces.
// A state may have the time of the last stop: "RUNNING TERMINATED@11:50".
func seen(t *testing.T, status, vms string) sight {
	t.Helper()
	s := sight{now: now, group: read(t, `{"name": "m", "creationTimestamp": "2026-11-30T01:00:00Z", "targetSize": 2, "status": `+status+`}`, &computepb.InstanceGroupManager{})}
	for _, text := range strings.Fields(vms) {
		state, stopped, _ := strings.Cut(text, "@")
		vm := &computepb.Instance{Status: proto.String(state)}
		if stopped != "" {
			vm.LastStopTimestamp = proto.String("2026-11-30T" + stopped + ":00Z")
		}
		s.vms = append(s.vms, vm)
		s.managed = append(s.managed, &computepb.ManagedInstance{InstanceStatus: vm.Status})
	}
	return s
}

func applied(state string) string {
	return `{"appliedAcceleratorTopologies": [{"acceleratorTopology": "2x2x2", "state": "` + state + `"}]}`
}

func bulk(code, text string) string {
	check := ""
	if code != "" {
		check = `, "lastProgressCheck": {"error": {"errors": [{"code": "` + code + `", "message": "` + text + `"}]}}`
	}
	return `{"bulkInstanceOperation": {"inProgress": true` + check + `}}`
}

func TestLife(t *testing.T) {
	attempt := func(code string) func(*sight) {
		return func(s *sight) {
			s.managed = []*computepb.ManagedInstance{read(t, `{"currentAction": "NONE", "lastAttempt": {"errors": {"errors": [{"code": "`+code+`", "message": "no\n luck"}]}}}`, &computepb.ManagedInstance{})}
		}
	}
	spot := func(s *sight) { s.spot = true }
	young := func(s *sight) { s.group.CreationTimestamp = proto.String("2026-11-30T11:59:00Z") }
	managed := func(action string) func(*sight) {
		return func(s *sight) {
			young(s)
			s.managed = append(s.managed, &computepb.ManagedInstance{CurrentAction: proto.String(action)})
		}
	}
	ends := func(at string) func(*sight) {
		return func(s *sight) {
			s.spot, s.maxRun = true, 10*time.Hour
			for _, vm := range s.vms {
				vm.ResourceStatus = read(t, `{"scheduling": {"terminationTimestamp": "2026-11-30T`+at+`:00Z"}}`, &computepb.ResourceStatus{})
			}
		}
	}
	for name, c := range map[string]struct {
		status, vms string
		change      func(*sight)
		life        provision.Life
		word        string
		condition   tpu.Condition
		why         string
		starved     bool
	}{
		"just asked for":                        {`{}`, "", young, provision.Requested, wordRequested, tpu.Making, "", false},
		"its VMs begin":                         {`{}`, "", managed("CREATING"), provision.Requested, wordRequested, tpu.Making, "", false},
		"its only VM was deleted":               {`{}`, "", managed("NONE"), provision.Suspended, wordGone, tpu.Halted, goneWhy, false},
		"its VMs never came":                    {`{}`, "", nil, provision.Suspended, wordGone, tpu.Halted, goneWhy, false},
		"one VM was deleted":                    {applied("INCOMPLETE"), "RUNNING", managed("NONE"), provision.Suspended, wordLacking, tpu.Halted, "some of its VMs were deleted", false},
		"one VM is not there yet":               {applied("ACTIVATING"), "RUNNING", managed("CREATING"), provision.Provisioning, wordMaking, tpu.Making, "", false},
		"waiting":                               {bulk("", ""), "", nil, provision.Waiting, wordWaiting, tpu.Making, "Compute Engine has not yet found machines for it", false},
		"no capacity":                           {bulk("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "the zone has none"), "", nil, provision.Waiting, wordWaiting, tpu.Making, "the zone has none", false},
		"no quota":                              {bulk("QUOTA_EXCEEDED", "TPUS-PER-TPU-FAMILY"), "", nil, provision.Waiting, wordQuota, tpu.Making, "TPUS-PER-TPU-FAMILY", false},
		"waiting VMs":                           {bulk("", ""), "PENDING PENDING", nil, provision.Waiting, wordWaiting, tpu.Making, "Compute Engine has not yet found machines for it", false},
		"waiting VMs without end":               {`{}`, "PENDING PENDING", nil, provision.Waiting, wordWaiting, tpu.Making, "Compute Engine has not yet found machines for it", false},
		"staging":                               {bulk("", ""), "STAGING PROVISIONING", nil, provision.Provisioning, wordMaking, tpu.Making, "", false},
		"half of it runs":                       {bulk("", ""), "RUNNING PENDING", nil, provision.Provisioning, wordMaking, tpu.Making, "", false},
		"no topology yet":                       {applied("ACTIVATING"), "RUNNING RUNNING", nil, provision.Provisioning, wordMaking, tpu.Making, "", false},
		"incomplete from the start":             {applied("INCOMPLETE"), "RUNNING STAGING", nil, provision.Provisioning, wordMaking, tpu.Making, "", false},
		"active":                                {applied("ACTIVE"), "RUNNING RUNNING", nil, provision.Active, wordActive, tpu.Usable, "", false},
		"active before the bulk operation ends": {`{"bulkInstanceOperation": {"inProgress": true}, "appliedAcceleratorTopologies": [{"state": "ACTIVE"}]}`, "RUNNING RUNNING", nil, provision.Active, wordActive, tpu.Usable, "", false},
		"one VM needs no topology":              {`{}`, "RUNNING", func(s *sight) { s.group.TargetSize = proto.Int32(1) }, provision.Active, wordActive, tpu.Usable, "", false},
		"degraded":                              {applied("ACTIVE_DEGRADED"), "RUNNING RUNNING", nil, provision.Active, wordDegraded, tpu.Usable, "some of its links or chips are broken", false},
		"reactivating":                          {applied("REACTIVATING"), "RUNNING RUNNING", nil, provision.Recovering, "REACTIVATING", tpu.Unclear, "Compute Engine restarts all its VMs on other machines", false},
		"reactivating, all down":                {applied("REACTIVATING"), "TERMINATED@01:00 TERMINATED@01:00", nil, provision.Recovering, "REACTIVATING", tpu.Unclear, "Compute Engine restarts all its VMs on other machines", false},
		"repairing":                             {applied("INCOMPLETE"), "RUNNING REPAIRING", nil, provision.Recovering, wordRepairing, tpu.Unclear, "Compute Engine starts its VMs again", false},
		"stopping":                              {applied("ACTIVE"), "RUNNING STOPPING", nil, provision.Recovering, wordRepairing, tpu.Unclear, "Compute Engine starts its VMs again", false},
		"stopped a moment ago":                  {applied("INCOMPLETE"), "RUNNING TERMINATED@11:50", nil, provision.Recovering, wordRepairing, tpu.Unclear, "Compute Engine starts its VMs again", false},
		"started again":                         {applied("INCOMPLETE"), "RUNNING STAGING@11:50", nil, provision.Recovering, wordRepairing, tpu.Unclear, "Compute Engine starts its VMs again", false},
		"stopped for long":                      {applied("INCOMPLETE"), "RUNNING TERMINATED@11:20", nil, provision.Suspended, wordStopped, tpu.Halted, "its VMs were stopped, and nobody starts them again", false},
		"stopped at an unknown time":            {applied("INCOMPLETE"), "RUNNING STOPPED", nil, provision.Suspended, wordStopped, tpu.Halted, "its VMs were stopped, and nobody starts them again", false},
		"preempted":                             {applied("INCOMPLETE"), "RUNNING TERMINATED@11:59", spot, provision.Suspended, wordPreempted, tpu.Taken, "", false},
		"being preempted":                       {applied("ACTIVE"), "RUNNING STOPPING", spot, provision.Suspending, wordPreempted, tpu.Taken, "", false},
		"the topology failed": {`{"appliedAcceleratorTopologies": [{"acceleratorTopology": "2x2x2", "state": "FAILED", "stateDetails": {"error": {"errors": [{"code": "X", "message": "broken\nlink"}]}}}]}`,
			"RUNNING RUNNING", nil, provision.Failed, wordFailed, tpu.Unclear, "broken link", false},
		"the topology failed without a word": {applied("FAILED"), "RUNNING RUNNING", nil, provision.Failed, wordFailed, tpu.Unclear, "the topology 2x2x2 cannot be set up", false},
		"an attempt failed":                  {`{}`, "", attempt("INVALID_USAGE"), provision.Failed, wordFailed, tpu.Unclear, "no luck", false},
		"an attempt found no machine":        {`{}`, "", attempt("ZONE_RESOURCE_POOL_EXHAUSTED"), provision.Failed, wordFailed, tpu.Unclear, "no luck", true},
		"an attempt ended late":              {`{}`, "", attempt("INTERNAL_ERROR"), provision.Failed, wordFailed, tpu.Unclear, "no luck", true},
		"an attempt failed and goes on":      {bulk("", ""), "", attempt("INTERNAL_ERROR"), provision.Waiting, wordWaiting, tpu.Making, "Compute Engine has not yet found machines for it", false},
		"an attempt failed long ago":         {applied("ACTIVE"), "RUNNING RUNNING", attempt("INTERNAL_ERROR"), provision.Active, wordActive, tpu.Usable, "", false},
		"being deleted": {applied("DEACTIVATING"), "STOPPING STOPPING", func(s *sight) {
			for _, m := range s.managed {
				m.CurrentAction = proto.String("DELETING")
			}
		}, provision.Deleting, wordDeleting, tpu.Leaving, "", false},
		"its run is over":                         {`{}`, "", func(s *sight) { s.maxRun = 11 * time.Hour }, provision.Suspended, wordOver, tpu.Halted, "", false},
		"its run is not over":                     {`{}`, "", func(s *sight) { s.maxRun = 12 * time.Hour }, provision.Suspended, wordGone, tpu.Halted, goneWhy, false},
		"its VMs were deleted":                    {applied("INCOMPLETE"), "", nil, provision.Suspended, wordGone, tpu.Halted, goneWhy, false},
		"spot, stopped at its end":                {applied("INCOMPLETE"), "TERMINATED@11:50 TERMINATED@11:51", ends("11:50"), provision.Suspended, wordOver, tpu.Halted, "", false},
		"spot, being stopped at its end":          {applied("ACTIVE"), "STOPPING TERMINATED@11:50", ends("11:50"), provision.Suspending, wordOver, tpu.Halted, "", false},
		"spot, preempted before its end":          {applied("INCOMPLETE"), "TERMINATED@11:49 TERMINATED@11:51", ends("11:50"), provision.Suspended, wordPreempted, tpu.Taken, "", false},
		"spot, its end is still to come":          {applied("INCOMPLETE"), "TERMINATED@11:50 TERMINATED@11:51", ends("12:50"), provision.Suspended, wordPreempted, tpu.Taken, "", false},
		"spot, one VM goes at its end":            {applied("ACTIVE"), "RUNNING STOPPING", ends("11:50"), provision.Suspending, wordPreempted, tpu.Taken, "", false},
		"resized to 0":                            {`{}`, "", func(s *sight) { s.group.TargetSize = proto.Int32(0) }, provision.Suspended, wordEmpty, tpu.Halted, "", false},
		"its run is over, and the group is empty": {`{}`, "", func(s *sight) { s.maxRun, s.group.TargetSize = time.Hour, proto.Int32(0) }, provision.Suspended, wordOver, tpu.Halted, "", false},
	} {
		s := seen(t, c.status, c.vms)
		if c.change != nil {
			c.change(&s)
		}
		st := s.judge()
		if st.life != c.life || st.word != c.word || conditionOf(st) != c.condition || st.why != c.why || st.starved != c.starved {
			t.Errorf("%s: got %+v, condition %q", name, st, conditionOf(st))
		}
	}
}

func TestUntilIsTheFirstEndOfAVM(t *testing.T) {
	s := seen(t, applied("ACTIVE"), "RUNNING RUNNING")
	for i, at := range []string{"2026-12-02T00:00:00Z", "2026-12-01T00:00:00Z"} {
		s.vms[i].ResourceStatus = read(t, `{"scheduling": {"terminationTimestamp": "`+at+`"}}`, &computepb.ResourceStatus{})
	}
	if st := s.judge(); !st.until.Equal(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("got %v", st.until)
	}
}

// One slice decides the state of its resource.
func TestTogether(t *testing.T) {
	by := map[string]state{
		"requested": {life: provision.Requested}, "waiting": {life: provision.Waiting, word: wordWaiting, why: "no machines"},
		"quota":  {life: provision.Waiting, word: wordQuota, code: "QUOTA_EXCEEDED", why: "too little"},
		"making": {life: provision.Provisioning}, "active": {life: provision.Active, word: wordActive}, "degraded": {life: provision.Active, word: wordDegraded},
		"recovering": {life: provision.Recovering}, "suspended": {life: provision.Suspended}, "failed": {life: provision.Failed}, "deleting": {life: provision.Deleting},
	}
	for _, c := range []struct {
		all     string
		missing int
		life    provision.Life
		word    string
		why     string
	}{
		{"", 0, provision.Absent, provision.NotFound, ""},
		{"active active", 0, provision.Active, wordActive, ""},
		{"active degraded", 0, provision.Active, wordDegraded, ""},
		{"active active", 1, provision.Provisioning, wordPartly, "1 of 3 slices have no group"},
		{"old active active", 1, provision.Suspended, wordHalfGone, "1 of 3 slices are deleted"},
		{"old active active", 0, provision.Active, wordActive, ""},
		{"old failed", 1, provision.Failed, "", ""},
		{"deleting deleting", 1, provision.Deleting, "", ""},
		{"deleting active", 1, provision.Suspending, wordHalfGone, "2 of 3 slices are deleted"},
		{"recovering deleting", 0, provision.Suspending, wordHalfGone, "1 of 2 slices are deleted"},
		{"requested waiting", 0, provision.Waiting, wordWaiting, "no machines"},
		{"requested requested", 0, provision.Requested, "", ""},
		{"active waiting", 0, provision.Provisioning, wordPartly, "1 of 2 slices wait: no machines"},
		{"making waiting waiting", 1, provision.Provisioning, wordPartly, "3 of 4 slices wait: no machines"},
		{"waiting quota waiting", 0, provision.Waiting, wordQuota, "too little"},
		{"active making", 0, provision.Provisioning, "", ""},
		{"recovering active", 0, provision.Recovering, "", ""},
		{"recovering suspended", 0, provision.Suspended, "", ""},
		{"suspended failed", 0, provision.Failed, "", ""},
		{"suspended deleting", 0, provision.Suspended, "", ""},
	} {
		var all []state
		names, old := strings.CutPrefix(c.all, "old ")
		for _, word := range strings.Fields(names) {
			all = append(all, by[word])
		}
		if got := together(all, c.missing, !old); got.life != c.life || got.word != c.word || got.why != c.why {
			t.Errorf("%s and %d missing: got %+v", c.all, c.missing, got)
		}
	}
}

func TestReason(t *testing.T) {
	for name, c := range map[string]struct {
		st           state
		tier         provision.Tier
		reason, hint string
	}{
		"quota":            {state{code: "QUOTA_EXCEEDED", why: "CT6E"}, provision.Spot, "the quota of the project is too small: CT6E; waiting does not help", "multihost slices list"},
		"capacity":         {state{code: "ZONE_RESOURCE_POOL_EXHAUSTED", why: "none"}, provision.Spot, "zone z has no free machines of this type now: none", "try another zone with --zone=ZONE, or another tier: --flex-start"},
		"reserved":         {state{code: "ZONE_RESOURCE_POOL_EXHAUSTED", why: "none"}, provision.Reserved, "zone z has no free machines of this type now: none", "try another zone with --zone=ZONE"},
		"failed":           {state{life: provision.Failed, code: "INTERNAL_ERROR", why: "none"}, provision.Spot, "zone z has no free machines of this type now", "or another tier: --flex-start"},
		"failed somehow":   {state{life: provision.Failed, code: "X", why: "none"}, provision.Spot, "", ""},
		"recovering":       {state{life: provision.Recovering, why: "it restarts"}, "", "it restarts", "wait: the slice keeps its capacity"},
		"nothing is known": {state{}, "", "", ""},
	} {
		e := reason(c.st, provision.Resource{Tier: c.tier}, "z")
		if e.Reason != c.reason || !strings.HasSuffix(e.Hint, c.hint) {
			t.Errorf("%s: got %+v", name, e)
		}
	}
}
