package settings

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/hosts"
	"multihost/internal/network"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/onworkers"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

// networks is a stand-in for Networks. All networks have the same MTU, or cannot be read.
type networks struct{ mtu int }

func (n networks) Show(context.Context, string) (network.Info, error) {
	if n.mtu == 0 {
		return network.Info{}, errors.New("no permission")
	}
	return network.Info{MTU: n.mtu}, nil
}

func TestASmallMTUIsWarnedOfBeforeSlicesAreMade(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story string
		r     provision.Request
		nets  Networks
		mtu   int
		said  string // the warning's hint; "": none
	}{
		{"one slice", provision.Request{NodeCount: 1}, networks{1460}, 0, ""},
		{"two slices", provision.Request{NodeCount: 2}, networks{1460}, 1460, "multihost network create mtu9k"},
		{"two slices on our own network", provision.Request{NodeCount: 2, Network: network.DefaultName}, networks{1460}, 1460, "multihost network update mtu9k --mtu=8896"},
		{"a network with its project", provision.Request{NodeCount: 2, Network: "projects/p/global/networks/n"}, networks{8896}, 8896, ""},
		{"a network of another project", provision.Request{NodeCount: 2, Network: "projects/q/global/networks/n"}, networks{1460}, 0, ""},
		{"a subnetwork", provision.Request{NodeCount: 2, Subnetwork: "s"}, networks{1460}, 0, ""},
		{"a network that cannot be read", provision.Request{NodeCount: 2}, networks{}, 0, ""},
		{"no networks", provision.Request{NodeCount: 2}, nil, 0, ""},
	} {
		said := &testkit.Recorder{}
		d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: gcp.SystemClock}, Place: provision.Place{Project: "p"}}, Networks: tt.nets}
		mtu, err := WarnOfMTU(t.Context(), d, tt.r)
		testkit.Must(t, err)
		warned := said.Said(event.Warn, "for a sixth of the packets")
		if mtu != tt.mtu || warned != (tt.said != "") {
			t.Errorf("%s: MTU %d, want %d; warned %v", tt.story, mtu, tt.mtu, warned)
		}
		if warned && !strings.Contains(said.Notes()[0].Hint, tt.said) {
			t.Errorf("%s: hint %q, want %q", tt.story, said.Notes()[0].Hint, tt.said)
		}
	}
}

// The interfaces of workers should have their network's MTU, if it is known.
func TestTheMTUOfWorkers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		network string
		nets    Networks
		mtu     int
		said    bool
	}{
		{"n", networks{8896}, 8896, false},
		{"n", networks{}, 0, true},
		{"n", nil, 0, false},
		{"", networks{8896}, 0, false},
	} {
		said := &testkit.Recorder{}
		d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: said, Clock: gcp.SystemClock}}, Networks: tt.nets}
		mtu := networkMTU(t.Context(), d, &workers.Connected{Slices: []tpu.Slice{{Network: tt.network}}})
		if mtu != tt.mtu || said.Said(event.Debug, "MTU of network n is not known") != tt.said {
			t.Errorf("%+v: MTU %d, said %+v", tt, mtu, said.Notes())
		}
	}
}

func TestWhatIsExpectedOfAWorker(t *testing.T) {
	t.Parallel()
	slice := func(accelerator string) tpu.Slice { return tpu.Slice{Type: accelerator} }
	cloud := Deps{Reach: &workers.Reach{Cloud: &testkit.FixedSlices{}}}
	for _, tt := range []struct {
		story string
		d     Deps
		all   []tpu.Slice
		o     Options
		want  preflight.Options
	}{
		{"one slice", cloud, []tpu.Slice{slice("v4-8")}, Options{Install: true}, preflight.Options{Mode: preflight.Apply, Install: true, ExpectMTU: 1460, ExpectChips: 4}},
		{"a check of two", cloud, []tpu.Slice{slice("v4-8"), slice("v4-8")}, Options{Check: true}, preflight.Options{Mode: preflight.Check, ExpectMTU: 1460, BetweenSlices: 8896, ExpectChips: 4}},
		{"a type that is not known", cloud, []tpu.Slice{slice("v99-8")}, Options{}, preflight.Options{Mode: preflight.Apply, ExpectMTU: 1460}},
		{"hosts", Deps{Reach: &workers.Reach{Cloud: hosts.HostList{{Name: "h"}}}}, []tpu.Slice{slice("")}, Options{}, preflight.Options{Mode: preflight.Apply, ExpectMTU: 1460, ExpectChips: preflight.NoDevices}},
	} {
		team := &workers.Connected{Slices: tt.all, IDs: testkit.WorkerIDs(len(tt.all), 1)}
		if got := optionsFor(tt.d, team, 0, tt.o, 1460); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.story, got, tt.want)
		}
	}
}

func TestWhichSettingsEndARun(t *testing.T) {
	t.Parallel()
	wanted := preflight.Result{Setting: "rto_min", Outcome: preflight.Failed, Reason: preflight.NotAsWanted}
	denied := preflight.Result{Setting: "tcp_rmem", Outcome: preflight.Failed, Reason: "denied"}
	other := preflight.Result{Setting: "tcp_wmem", Outcome: preflight.Failed, Reason: "denied"}
	fine := preflight.Result{Setting: "somaxconn"}
	rep := preflight.Report{Results: []preflight.Result{wanted, denied, fine, other}}
	if err := Fatal(rep, false); err != nil {
		t.Errorf("a setting that is only slower: %v", err)
	}
	if err := Fatal(rep, true); err == nil || err.Error() != "rto_min: not as wanted; tcp_rmem, tcp_wmem: denied" {
		t.Errorf("with require: %v", err)
	}
	if err := Fatal(Options{}.Applied(rep), true); err == nil || err.Error() != "tcp_rmem, tcp_wmem: denied" {
		t.Errorf("after it is applied: %v", err)
	}
	if err := Fatal(Options{Check: true}.Applied(rep), true); err == nil || !strings.Contains(err.Error(), "rto_min") {
		t.Errorf("after a check: %v", err)
	}
}

// All workers are asked. One table shows the differences.
func TestAPreflightOfAllWorkers(t *testing.T) {
	t.Parallel()
	fleet := localworker.Fleet{}
	slice := fleet.Slice(t, "t", 2)
	slice.Network = "n"
	on, said := onworkers.Deps(t, fleet, &testkit.FixedSlices{All: []tpu.Slice{slice}})
	d := Deps{Reach: on.Reach, Networks: networks{1460}}
	err := Preflight(t.Context(), d, "t", false, Options{Check: true, Require: true, Platform: preflight.GCE})
	if !stage.Is(err, stage.Settings) {
		t.Errorf("machines without settings: %v", err)
	}
	tables := 0
	for _, e := range said.Events() {
		if r, ok := e.(event.Result); ok && r.Name == "preflight" {
			tables++
			if all, ok := r.Data.([]WorkerReport); !ok || len(all) != 2 || all[1].Worker != "s0w1" || len(all[1].Results) == 0 || r.Text == "" {
				t.Errorf("table %+v", r)
			}
		}
	}
	if tables != 1 {
		t.Errorf("%d tables", tables)
	}
	if err := Preflight(t.Context(), d, "other", false, Options{}); err == nil {
		t.Error("slices that do not exist are well")
	}
}
