package attempt

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/tpu"
)

func TestTheInterpreterOfACommandIsFound(t *testing.T) {
	for _, test := range []struct {
		argv         []string
		script, want string
	}{
		{[]string{"python3", "train.py"}, "", "python3"},
		{[]string{"/opt/venv/bin/python", "-m", "x"}, "", "/opt/venv/bin/python"},
		{[]string{"env", "A=1", ".venv/bin/python3.11", "train.py"}, "", ".venv/bin/python3.11"},
		{[]string{"bash", "setup.sh", "pythonic"}, "", "python3"},
		{[]string{"bash", "-c", "source v/bin/activate; python3 x.py"}, "", "v/bin/python"},
		{nil, "bash setup.sh && python3 train.py", "python3"},
		{nil, "source ~/v/bin/activate && python train.py", "~/v/bin/python"},
		{nil, ". $HOME/v/bin/activate\npython train.py", "~/v/bin/python"},
		{nil, "JAX_X=1 /usr/bin/python3.12 train.py", "/usr/bin/python3.12"},
		{nil, "source $VENV/bin/activate; python train.py", "python"},
		{nil, "echo hello", "python3"},
	} {
		if got := pythonOf(test.argv, test.script); got != test.want {
			t.Errorf("%q %q: %q, want %q", test.argv, test.script, got, test.want)
		}
	}
}

func TestOnlyWhatIsKnownIsCompared(t *testing.T) {
	ids := []tpu.WorkerID{{Slice: 0, Worker: 0}, {Slice: 0, Worker: 1}, {Slice: 0, Worker: 2}, {Slice: 0, Worker: 3}}
	same := map[string]string{"python": "3.10.12", "jax": "0.4.30"}
	if got := findSkews(ids, []map[string]string{same, same, {}, same}); got != nil {
		t.Errorf("a worker that told nothing is taken for different: %+v", got)
	}
	got := findSkews(ids, []map[string]string{{"jax": "0.4.31"}, same, {"python": "none"}, same})
	want := []Skew{
		{What: "python", Values: []SkewValue{{"3.10.12", "s0w[1,3]", 2}, {"none", "s0w2", 1}}},
		{What: "jax", Values: []SkewValue{{"0.4.30", "s0w[1,3]", 2}, {"0.4.31", "s0w0", 1}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestJAXThatDoesNotUnderstandBareNames(t *testing.T) {
	t.Parallel()
	bare := []tpu.Slice{{}, {BareNames: true}}
	for _, row := range []struct {
		slices  []tpu.Slice
		workers int
		version string
		warns   bool
	}{
		{bare, 4, "0.9.2", true},
		{bare, 2, "0.4.30.dev20240601+cpu", true},
		{bare, 4, "0.10.0", false},
		{bare, 4, "0.11.1.dev20260808", false},
		{bare, 4, "1.0", false},
		{bare, 1, "0.9.2", false}, // a single process connects to no other
		{[]tpu.Slice{{}}, 4, "0.9.2", false},
		{bare, 4, "none", false},
		{bare, 4, "", false},
	} {
		if got := oldJAX(row.slices, row.workers, row.version); (got != "") != row.warns {
			t.Errorf("%q on %d workers: %q", row.version, row.workers, got)
		}
	}
}
