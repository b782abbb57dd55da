//go:build linux

package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/agent"
)

// Every login of a worker can write a lease. The watch ignores lines that it does not
// understand.
func TestALeaseIsNoProgram(t *testing.T) {
	t.Parallel()
	got := Defaults()
	got.Read("run=train\nlease=3600\nkeep=on-failure\nadopted=yes\n")
	got.Read("lease=x[$(touch mark)]\nttl=$(touch mark)\nlook=1;touch mark\nkeep=`touch mark`\nfirst=08\nlease=1800\nrun=../../mark\n" +
		"adopted=no\nhold=-1\nfresh=123456789012\nlook=0\ndeletion={\nnodes=a b\nno line\n=\n")
	want := Defaults()
	want.Run, want.Lease, want.Keep, want.Adopted, want.Look, want.Nodes = "train", 1800, "on-failure", true, 1, []string{"a", "b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("terms (-want +got):\n%s", diff)
	}
}

func FuzzTerms(f *testing.F) {
	f.Add("run=train\npeers={\"read\":\"https://tpu/v2/nodes/{slice}:getGuestAttributes\",\"told\":\"/x/*\"}\nnodes=x y\ntotal=08\nttl=99999999999\nkeep=on-failure\nadopted=yes\n")
	f.Add("deletion={\"read\":\"u\",\"method\":\"DELETE\",\"proof\":{\"path\":\"/a\",\"value\":\"=\\n\"}}\ndeletion={}\n")
	f.Fuzz(func(t *testing.T, text string) {
		one := Defaults()
		one.Read(text)
		two := Defaults()
		two.Read(one.Text())
		if diff := cmp.Diff(one.Text(), two.Text()); diff != "" {
			t.Errorf("(-written +read):\n%s", diff)
		}
		if strings.ContainsAny(one.Run, "/*?[\n ") {
			t.Errorf("the run %q names other files", one.Run)
		}
	})
}

// Each row has one look and the actions that follow. The watch began at the boot, at noon.
func TestLook(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	const ends = "deleting " + resource + ": "
	for name, row := range map[string]struct {
		terms func(*Terms)
		up    time.Duration
		clock time.Duration // time since noon by the clock; 0: equal to up
		sight Sight
		want  []string
	}{
		"nothing to do":                        {nil, hour, 0, Sight{Busy: true}, nil},
		"the lease is over":                    {nil, hour, 0, Sight{Begun: true, Code: "1"}, []string{"Pause"}},
		"the lease is not over":                {nil, hour - time.Second, 0, Sight{Begun: true}, nil},
		"the clock is ahead by a year":         {nil, time.Minute, 365 * 24 * hour, Sight{Begun: true}, nil},
		"the clock is a year behind":           {nil, hour, -365 * 24 * hour, Sight{Begun: true}, []string{"Pause"}},
		"a clock ahead ends the time to live":  {func(t *Terms) { t.TTL = 86400 }, time.Minute, 48 * hour, Sight{}, []string{"Pause"}},
		"a clock behind does not end it":       {func(t *Terms) { t.TTL = 86400 }, 48 * hour, -hour, Sight{Busy: true}, nil},
		"a runner renews":                      {nil, 2 * hour, 0, Sight{Leased: true, Renewed: true, Lease: "lease=60\n"}, []string{"Save"}},
		"what is renewed is not what is known": {nil, 2 * hour, 0, Sight{Leased: true}, []string{"Pause"}},
		"nobody has come":                      {func(t *Terms) { t.Adopt, t.Adopted = 60, false }, time.Minute, 0, Sight{}, []string{"Pause"}},
		"a command has come":                   {func(t *Terms) { t.Adopt, t.Adopted = 60, false }, time.Minute, 0, Sight{Busy: true}, nil},
		"others are asked":                     {func(t *Terms) { t.Total = 2 }, hour, 0, Sight{Begun: true}, []string{"Share failed", "Pause"}},
		"nothing has a limit":                  {func(t *Terms) { t.Lease = 0 }, time.Minute, 0, Sight{Busy: true}, []string{"dismissed", "End"}},
	} {
		tt := terms(row.terms)
		if row.terms == nil || tt.Adopt == 0 && tt.TTL == 0 || strings.HasPrefix(name, "a clock") {
			tt.Adopted = true
		}
		m := NewMachine(tt, noon, 0)
		s := row.sight
		s.Up, s.Now = row.up, noon.Add(row.up)
		if row.clock != 0 {
			s.Now = noon.Add(row.clock)
		}
		if got := do(m, m.Look(s)); !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
	}
	m := NewMachine(terms(func(t *Terms) { t.Adopted = true }), noon, 0)
	s := Sight{Up: hour, Now: noon.Add(hour), Begun: true}
	m.Look(s)
	if got, want := do(m, m.Again(s)), []string{ends + "nobody has renewed the lease for 3600 s, and the command has ended", "Delete"}; !slices.Equal(got, want) {
		t.Errorf("after the pause: got %q, want %q", got, want)
	}
	s.Renewed, s.Leased = true, true
	if got, want := do(m, m.Again(s)), []string{"Save"}; !slices.Equal(got, want) {
		t.Errorf("a runner came during the pause: got %q, want %q", got, want)
	}
}

// do returns the actions as words. Each Share succeeds.
func do(m *Machine, actions []Action) (words []string) {
	for len(actions) > 0 {
		a := actions[0]
		actions = actions[1:]
		switch a := a.(type) {
		case Note:
			words = append(words, a.Text)
		case Share:
			words = append(words, "Share "+a.State)
			actions = append(actions, m.Shared(nil)...)
		case Ask:
			words = append(words, "Ask "+a.Node)
		default:
			name := fmt.Sprintf("%T", a)
			words = append(words, name[strings.LastIndex(name, ".")+1:])
		}
	}
	return words
}

func TestHeard(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	refused := &agent.StatusError{Status: 403, Text: "no"}
	gone := &agent.StatusError{Status: 404, Text: "gone"}
	const not = "not deleted: whether the command runs is not known of slice "
	for name, row := range map[string]struct {
		terms   func(*Terms)
		reports []Report
		err     error
		want    []string
	}{
		"both have ended":               {nil, []Report{{succeeded, noon}, {failed, noon}}, nil, []string{"Pause"}},
		"one runs":                      {nil, []Report{{succeeded, noon}, {running, noon}}, nil, nil},
		"one ran half an hour ago":      {nil, []Report{{succeeded, noon}, {running, noon.Add(-31 * time.Minute)}}, nil, []string{"Pause"}},
		"one runs, by a clock ahead":    {nil, []Report{{succeeded, noon}, {running, noon.Add(hour)}}, nil, nil},
		"one is kept":                   {nil, []Report{{succeeded, noon}, {kept, noon.Add(-99 * hour)}}, nil, nil},
		"one is awaited":                {nil, []Report{{succeeded, noon}, {awaited, noon}}, nil, nil},
		"one has not told":              {nil, []Report{{succeeded, noon}}, nil, []string{not + "train: 1 of 2 workers have told"}},
		"the slice is gone":             {nil, nil, gone, []string{"Pause"}},
		"it cannot be asked":            {nil, nil, refused, []string{not + "train: HTTP status 403: no"}},
		"a failure is kept":             {func(t *Terms) { t.Keep, t.KeepFor = "on-failure", 7200 }, []Report{{succeeded, noon}, {failed, noon}}, nil, nil},
		"a failure was kept":            {func(t *Terms) { t.Keep, t.KeepFor = "on-failure", 1800 }, []Report{{succeeded, noon}, {failed, noon}}, nil, []string{"Pause"}},
		"time to live: one runs":        {func(t *Terms) { t.TTL, t.Grace = 3600, 7200 }, []Report{{failed, noon}, {running, noon}}, nil, nil},
		"time to live: one is awaited":  {func(t *Terms) { t.TTL, t.Grace = 3600, 7200 }, []Report{{failed, noon}, {awaited, noon}}, nil, []string{"Pause"}},
		"time to live: one is kept":     {func(t *Terms) { t.TTL, t.Grace = 3600, 7200 }, []Report{{failed, noon}, {kept, noon}}, nil, []string{"Pause"}},
		"nobody came: one has not told": {func(t *Terms) { t.Adopted, t.Adopt = false, 60 }, []Report{{none, noon}}, nil, []string{"Pause"}},
	} {
		m := NewMachine(terms(func(t *Terms) {
			t.Total, t.Adopted = 2, true
			if row.terms != nil {
				row.terms(t)
			}
		}), noon.Add(-hour), 0)
		s := Sight{Up: hour, Now: noon, Begun: m.Terms.Adopted, Code: "0"}
		do(m, m.Look(s))
		if got := do(m, m.Again(s)); len(got) == 0 || got[len(got)-1] != "Ask train" {
			t.Errorf("%s: got %q, want a question", name, got)
			continue
		}
		if got := do(m, m.Heard(row.reports, -1, row.err, noon)); !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
	}
}

// Many workers read each other's reports rarely. Still, no try is later than the last
// moment of the time to live.
func TestNoPauseOutlastsTheTimeToLive(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for name, row := range map[string]struct {
		up    time.Duration // time since the boot at noon; at that time the worker reads the other reports
		tries int
		heard []Report
		err   error
	}{
		"a command runs in the grace time":     {2*hour + time.Second, 0, []Report{{running, noon.Add(2 * hour)}}, nil},
		"a command runs shortly before":        {2*hour - time.Minute, 0, []Report{{running, noon.Add(2 * hour)}}, nil},
		"others cannot be read shortly before": {2*hour - time.Minute, manyTries, nil, &agent.StatusError{Status: 403, Text: "no"}},
	} {
		m := NewMachine(terms(func(t *Terms) { t.Total, t.Adopted, t.TTL, t.Grace = 9999, true, 7200, 60 }), noon, 0)
		m.tries = row.tries
		at := func(up time.Duration) Sight { return Sight{Up: up, Now: noon.Add(up), Begun: true, Code: "0"} }
		do(m, m.Look(at(row.up)))
		do(m, m.Again(at(row.up)))
		do(m, m.Heard(row.heard, -1, row.err, noon.Add(row.up)))
		if m.again <= row.up {
			t.Errorf("%s: the next try is not put off", name)
		}
		last := at(2*hour + 90*time.Second)
		do(m, m.Look(last))
		if got := do(m, m.Again(last)); m.again > last.Up || len(got) == 0 || got[len(got)-1] != "Delete" {
			t.Errorf("%s: the next try is %v after the boot, and at the last moment the watch does %q", name, m.again, got)
		}
	}
}

// All workers of a job together make only a few calls a second. So the more workers there
// are, the longer each of them waits, up to a limit.
func TestTheOthersAreAskedNowAndThen(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		slices, workers int
		vms             bool
		want            time.Duration
	}{
		{1, 2, false, 400 * time.Millisecond},
		{2, 4, true, 3200 * time.Millisecond},
		{4, 64, false, 51200 * time.Millisecond},
		{4, 64, true, 819200 * time.Millisecond},
		{64, 2048, false, mostSpread},
		{1, 99999999999, true, mostSpread},
	} {
		m := NewMachine(terms(func(t *Terms) {
			t.Nodes, t.Total = make([]string, row.slices), int64(row.workers)
			if row.vms {
				t.Peers.List = "list"
			}
		}), time.Time{}, 0)
		if got := m.spread(); got != row.want {
			t.Errorf("%+v: got %v", row, got)
		}
	}
}
