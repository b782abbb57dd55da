package workers

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/record"
	"multihost/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

func TestRecordIsFoundByName(t *testing.T) {
	dir := t.TempDir()
	if rec, err := record.LoadRecord(dir, "r"); rec != nil || err != nil {
		t.Errorf("a run without record: %v, %v", rec, err)
	}
	want := &record.Record{Run: "r", Attempt: 2, Prefix: "t", LogDir: "/logs", Hosts: "ann@h1:2222,h2"}
	if err := want.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := record.LoadRecord(dir, "r")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("err %v (-want +got):\n%s", err, diff)
	}
	hosts, err := RecordedHosts(dir, "r")
	if err != nil || hosts.String() != want.Hosts {
		t.Errorf("hosts = %v, %v", hosts, err)
	}
	if err := os.WriteFile(record.RecordPath(dir, "r"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := record.LoadRecord(dir, "r"); err == nil || !strings.Contains(err.Error(), "run.json") {
		t.Errorf("a broken record: %v", err)
	}
}
