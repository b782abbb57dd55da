package launch

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/remote"
)

// TestWhatFollowsAStream checks the steps of Follow after each stream of one worker. All
// streams begin at offset 100.
func TestWhatFollowsAStream(t *testing.T) {
	lost := errors.New("connection lost")
	unclear := &RemoteError{Worker: "s0w0", Op: "follow", Text: "the answer does not tell the state of the run"}
	short := func(size int64) *TruncatedError { return &TruncatedError{Worker: "s0w0", Offset: 100, Size: size} }
	ended := func(size int64) *Exit { return &Exit{Code: 3, LogSize: size} }
	sameText := cmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) })
	type step struct {
		p      piece
		err    error
		want   turn
		offset int64
	}
	for name, steps := range map[string][]step{
		"output, then the end": {
			{piece{count: 5, phase: Running}, nil, turn{}, 105},
			{piece{count: 2, phase: Exited, exit: ended(107)}, nil, turn{exit: ended(107)}, 107},
		},
		"the end while the last bytes are away": {
			{piece{count: 5, phase: Exited, exit: ended(107)}, nil, turn{}, 105},
			{piece{count: 2, phase: Exited, exit: ended(107)}, nil, turn{exit: ended(107)}, 107},
		},
		"the last bytes never come": {
			{piece{phase: Exited, exit: ended(107)}, nil, turn{}, 100},
			{piece{phase: Exited, exit: ended(107)}, nil, turn{exit: ended(107), shorter: &TruncatedError{Worker: "s0w0", Offset: 107, Size: 100}}, 100},
		},
		"nothing new, asked at once and then ever later": {
			{piece{phase: Running}, nil, turn{}, 100},
			{piece{phase: Running}, nil, turn{pause: 100 * time.Millisecond}, 100},
			{piece{phase: Running}, nil, turn{pause: 200 * time.Millisecond}, 100},
			{piece{count: 1, phase: Running}, nil, turn{}, 101},
			{piece{phase: Running}, nil, turn{}, 101},
			{piece{phase: Running}, nil, turn{pause: 100 * time.Millisecond}, 101},
		},
		"trouble": {
			{piece{count: 5}, lost, turn{lost: lost, pause: 100 * time.Millisecond}, 105},
			{piece{}, lost, turn{lost: lost, pause: 200 * time.Millisecond}, 105},
			{piece{}, lost, turn{lost: lost, pause: 400 * time.Millisecond}, 105},
			{piece{}, lost, turn{lost: lost, pause: 800 * time.Millisecond}, 105},
			{piece{}, lost, turn{lost: lost, pause: 1600 * time.Millisecond}, 105},
			{piece{}, lost, turn{lost: lost, pause: 3200 * time.Millisecond}, 105},
			{piece{}, lost, turn{lost: lost, pause: 5 * time.Second}, 105},
			{piece{}, lost, turn{lost: lost, pause: 5 * time.Second}, 105},
			{piece{phase: Exited, exit: ended(105)}, nil, turn{exit: ended(105)}, 105},
		},
		"an answer without a state is trouble the third time": {
			{piece{phase: Unknown}, nil, turn{}, 100},
			{piece{phase: Unknown}, nil, turn{pause: 100 * time.Millisecond}, 100},
			{piece{phase: Unknown}, nil, turn{lost: unclear, pause: 200 * time.Millisecond}, 100},
		},
		"the log became shorter, by how much is told later": {
			{piece{}, short(-1), turn{shorter: short(-1), pause: 100 * time.Millisecond}, 100},
			{piece{}, short(-1), turn{pause: 200 * time.Millisecond}, 100},
			{piece{}, short(40), turn{pause: 400 * time.Millisecond}, 40},
			{piece{count: 3, phase: Running}, nil, turn{}, 43},
			{piece{}, short(20), turn{shorter: short(20), pause: 100 * time.Millisecond}, 20},
		},
		"a log that became shorter ends before what we have": {
			{piece{}, short(-1), turn{shorter: short(-1), pause: 100 * time.Millisecond}, 100},
			{piece{phase: Exited, exit: ended(120)}, nil, turn{exit: ended(120)}, 100},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChase("s0w0", 100)
			for i, s := range steps {
				got := c.after(s.p, s.err)
				if diff := cmp.Diff(s.want, got, cmp.AllowUnexported(turn{}), sameText); diff != "" || c.offset != s.offset {
					t.Fatalf("step %d: offset %d, want %d: %s", i, c.offset, s.offset, diff)
				}
			}
		})
	}
}

func TestWhatAStreamSays(t *testing.T) {
	ref := Ref{"r", 1}
	about := remote.Record{Word: "run", Rest: "r 1"}
	phase := func(p Phase) remote.Record { return remote.Record{Word: "phase", Rest: string(p)} }
	stream := remote.Record{Word: "stream", Rest: "100"}
	for _, tt := range []struct {
		name          string
		first, beside []remote.Record
		want          piece
		err           error
	}{
		{"unknown", []remote.Record{{Word: "unknown"}}, nil, piece{count: 5}, ErrUnknownRun},
		{"runs", []remote.Record{stream, about, phase(Running)}, nil, piece{count: 5, phase: Running}, nil},
		{"state beside the output", []remote.Record{stream}, []remote.Record{about, phase(Running)}, piece{count: 5, phase: Running}, nil},
		{"no state", []remote.Record{stream}, nil, piece{count: 5, phase: Unknown}, nil},
		{"state of another attempt", []remote.Record{stream, {Word: "run", Rest: "r 2"}, phase(Running)}, nil, piece{count: 5, phase: Unknown}, nil},
		{"nobody saw the end", []remote.Record{stream, about, phase(Lost)}, nil,
			piece{count: 5, phase: Lost, exit: &Exit{Code: 255, Lost: true, Reason: "nobody saw it end"}}, nil},
		{"lost as recorded", []remote.Record{stream, about, phase(Lost), {Word: "exit", Rest: "lost 1"}}, nil,
			piece{count: 5, phase: Lost, exit: &Exit{Code: 255, Lost: true}}, nil},
		{"ended", []remote.Record{stream, about, phase(Exited), {Word: "exit", Rest: "code 3"}, {Word: "exit", Rest: "size 7"}}, nil,
			piece{count: 5, phase: Exited, exit: &Exit{Code: 3, LogSize: 7}}, nil},
		{"ended without a code", []remote.Record{stream, about, phase(Exited), {Word: "exit", Rest: "size 7"}}, nil,
			piece{count: 5, phase: Exited, exit: &Exit{Code: 255, LogSize: 7, Lost: true}}, nil},
		{"never started", []remote.Record{stream, about, phase(Aborted)}, nil, piece{count: 5, phase: Aborted}, ErrNotStarted},
		{"shorter", []remote.Record{{Word: "truncated", Rest: "40"}, about, phase(Running)}, nil, piece{count: 5, phase: Running},
			&TruncatedError{Worker: "s0w0", Offset: 105, Size: 40}},
	} {
		p := piece{count: 5}
		err := p.judge("s0w0", ref, 100, tt.first, tt.beside)
		if diff := cmp.Diff(tt.want, p, cmp.AllowUnexported(piece{})); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
		if !errors.Is(err, tt.err) && fmt.Sprint(err) != fmt.Sprint(tt.err) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.err)
		}
	}
}
