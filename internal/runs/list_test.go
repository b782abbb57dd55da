package runs

import (
	"testing"

	"multihost/internal/event"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/workers"
)

func TestRunsInClustersAreNamed(t *testing.T) {
	t.Parallel()
	said := &testkit.Recorder{}
	d := Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Sink: said}}, Keeper: &record.Keeper{StateDir: t.TempDir()}}
	sayElsewhere(d)
	if len(said.Notes()) != 0 {
		t.Errorf("%v", said.Notes())
	}
	team, desk := &record.Cluster{Name: "team", Namespace: "n"}, &record.Cluster{Kubeconfig: []string{"/a", "/b"}, Context: "c", Namespace: "n"}
	for _, rec := range []record.Record{
		{Run: "a", Cluster: team, Workload: "1"}, {Run: "b", Cluster: team, Workload: "2"}, {Run: "c", Cluster: desk, Workload: "3"},
		{Run: "over", Cluster: team, Workload: "4", Ended: true}, {Run: "held", Cluster: team}, {Run: "vm"},
	} {
		testkit.Must(t, rec.Save(d.StateDir))
	}
	sayElsewhere(d)
	want := event.Note{Level: event.Info, Text: "jobs in clusters are not in this list: a, b, c",
		Hint: "multihost ps --cluster=team --namespace=n\nmultihost ps --kubeconfig=/a:/b --context=c --namespace=n"}
	if notes := said.Notes(); len(notes) != 1 || notes[0] != want {
		t.Errorf("%+v", notes)
	}
}
