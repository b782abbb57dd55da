package follow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// followTroubles are the possible errors of following a worker, each with its kind.
var followTroubles = []struct {
	story string
	err   error
	kind  trouble
}{
	{"the connection broke", fmt.Errorf("follow: %w", remote.ErrConnectionLost), connection},
	{"the worker refuses connections", &remote.ConnectError{Stage: remote.StageDial, Err: errors.New("connection refused")}, connection},
	{"its sshd refuses the session", &remote.ConnectError{Stage: remote.StageExec, Err: errors.New("open failed")}, noAnswer},
	{"its login shell ends at once", &remote.ConnectError{Stage: remote.StageShell, Err: errors.New("exit status 3")}, noAnswer},
	{"its login shell was never started", remote.ErrNoStatus, noAnswer},
	{"no process can be started", &launch.RemoteError{Op: "follow", Text: "no answer (exit code 254)", Silent: true}, noAnswer},
	{"the script refuses", &launch.RemoteError{Op: "follow", Text: "no such directory"}, noAnswer},
	{"an answer without end", remote.ErrFlood, noAnswer},
	{"it shows another host key", &remote.ConnectError{Stage: remote.StageHostKey, Err: &remote.HostKeyError{}}, connection},
	{"the files of the run are gone", launch.ErrUnknownRun, noAnswer},
	{"our login has ended", &gcp.CredentialsError{Err: errors.New("invalid_rapt"), Expired: true}, OurLogin},
	{"anything else", errors.New("broken pipe"), connection},
}

// Following is retried after every error until --lost-timeout. Then the worker is lost, and
// its command continues.
func TestTroubleOfOursEndsNoCommand(t *testing.T) {
	const limit = 10 * time.Minute
	for _, row := range followTroubles {
		kind := TroubleOf(row.err)
		if kind != row.kind {
			t.Errorf("%s: trouble %q, want %q", row.story, kind, row.kind)
		}
		for _, at := range []struct {
			away, limit time.Duration
			want        fate
		}{
			{0, limit, fateRetry},
			{limit, limit, fateRetry},
			{limit + 1, limit, fateLost},
			{1000 * time.Hour, 0, fateRetry},
		} {
			want := at.want
			if kind == OurLogin {
				want = fateRetry
			}
			e := evidence{trouble: kind, away: at.away}
			if got := fateOf(e, at.limit); got != want {
				t.Errorf("%s for %s of %s: %s, want %s", row.story, at.away, at.limit, got, want)
			}
			e.recorded = true
			if got := fateOf(e, at.limit); got != fateEnded {
				t.Errorf("%s, but the end is recorded: %s", row.story, got)
			}
			e.recorded, e.gone = false, true
			if got := fateOf(e, at.limit); got != fateEnded {
				t.Errorf("%s, but the slice is gone: %s", row.story, got)
			}
		}
		lost := Ending{Known: true, Err: &lostError{kind, limit, row.err}}
		if got := stepAfter(lost); got != stepLeave {
			t.Errorf("%s: %s after it is lost, want %s", row.story, got, stepLeave)
		}
	}
	if got := fateOf(evidence{}, limit); got != fateRetry {
		t.Errorf("a worker that is followed: %s", got)
	}
	if got := fateOf(evidence{trouble: strange}, limit); got != fateLost {
		t.Errorf("a worker on which it was never started: %s", got)
	}
}

func TestOnlyAnEndOfTheCommandStopsTheOthers(t *testing.T) {
	for _, row := range []struct {
		story string
		end   Ending
		want  step
	}{
		{"success", Ending{Known: true}, stepNone},
		{"a failure", Ending{Known: true, Exit: launch.Exit{Code: 1}}, stepStop},
		{"nobody saw the end, since the worker was rebooted", Ending{Known: true, Exit: launch.Exit{Code: 255, Lost: true}}, stepStop},
		{"its slice is gone", Ending{Known: true, Err: fmt.Errorf("slice %q: %w", "t", ErrSliceGone)}, stepStop},
		{"never started there", Ending{Known: true, Err: &lostError{trouble: strange, err: launch.ErrUnknownRun}}, stepLeave},
		{"nobody follows it any more", Ending{Err: context.Canceled}, stepNone},
	} {
		if got := stepAfter(row.end); got != row.want {
			t.Errorf("%s: %s, want %s", row.story, got, row.want)
		}
	}
}

func TestTroubleIsToldWithWhatHappensNext(t *testing.T) {
	for _, row := range []struct {
		kind        trouble
		away, limit time.Duration
		want        string
	}{
		{connection, 0, 10 * time.Minute, "lost the connection to s0w1 (50% gone); the command goes on there, connecting again for up to 10m (--lost-timeout)"},
		{connection, 2 * time.Minute, 10 * time.Minute, "still no connection to s0w1 (50% gone) for 2m00s; the command goes on there, connecting again for 8m00s more (--lost-timeout)"},
		{noAnswer, 0, 10 * time.Minute, "cannot follow s0w1 (50% gone); the command goes on there, trying again for up to 10m (--lost-timeout)"},
		{noAnswer, 2 * time.Minute, 0, "still cannot follow s0w1 (50% gone) for 2m00s; the command goes on there, trying again"},
		{OurLogin, 0, 10 * time.Minute, "cannot follow s0w1 (50% gone); the command goes on there, trying again"},
	} {
		if got := fmt.Sprintf(row.kind.Text("50% gone", row.away, row.limit), "s0w1"); got != row.want {
			t.Errorf("got  %q\nwant %q", got, row.want)
		}
	}
}

// If a log file cannot be opened, the run continues without a copy here. At the end the
// whole log is fetched, if the file can then be opened.
func TestALogThatCannotBeOpenedCostsNoRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	var shown, notes strings.Builder
	sink := event.SinkFunc(func(e event.Event) {
		switch e := e.(type) {
		case event.Output:
			shown.Write(e.Data)
		case event.Note:
			notes.WriteString(e.Text)
		}
	})
	log := openLog(&record.Record{Run: "r", LogDir: dir}, tpu.WorkerID{}, sink, nil)
	if n, err := log.Write([]byte("line\n")); n != 5 || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
	if !log.broken || shown.String() != "line\n" || !strings.Contains(notes.String(), "the run goes on") {
		t.Errorf("broken %v, shown %q, said %q", log.broken, shown.String(), notes.String())
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := log.open(); err != nil || log.file == nil || log.size != 0 {
		t.Errorf("open again: %v, size %d", err, log.size)
	}
	log.close()
}

// After a user has ordered a stop, here or elsewhere, the first worker to end is not
// reported as failed.
func TestAStopThatWasOrderedIsNoFailure(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]Ending{
		"multihost stop by bob@desk": {Known: true, Exit: launch.Exit{Code: 143, Signal: "TERM", Reason: "multihost stop by bob@desk"}},
		failFastReason:               {Known: true, Exit: launch.Exit{Code: 1}},
	} {
		if got := e.stopReason(); got != want {
			t.Errorf("%+v: %q, want %q", e.Exit, got, want)
		}
	}
	lost := Ending{Known: true, Exit: launch.Exit{Code: 255, Lost: true, Reason: "the worker was rebooted"}}
	if got := lost.stopReason(); got != failFastReason {
		t.Errorf("of a reboot: %q", got)
	}
}
