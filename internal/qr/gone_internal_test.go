package qr

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"multihost/internal/gcp"

	"google.golang.org/api/googleapi"
)

func TestWhenAResourceIsGone(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	api := func(code int) error { return &googleapi.Error{Code: code, Message: "as the API says"} }
	interrupted := errors.New("interrupted")
	for _, tt := range []struct {
		name  string
		read  time.Time // creation time of the resource in the read
		err   error
		ended error
		over  bool
		class gcp.Class
		is    error
		text  string
	}{
		{name: "it exists", read: made},
		{name: "another one of its name exists", read: made.Add(time.Hour), over: true, is: errNamesake},
		{name: "it is gone", err: api(http.StatusNotFound), over: true},
		{name: "it is gone, and nobody waits any longer", err: api(http.StatusNotFound), ended: interrupted, over: true},
		{name: "nobody waits any longer", read: made, ended: interrupted, over: true, is: interrupted, text: `wait until queued resource "q7" is gone: interrupted`},
		{name: "nobody waits any longer for an answer", err: api(http.StatusServiceUnavailable), ended: interrupted, over: true, is: interrupted},
		{name: "the API is away", err: api(http.StatusServiceUnavailable)},
		{name: "the API answers late", err: context.DeadlineExceeded},
		{name: "not permitted", err: api(http.StatusForbidden), over: true, class: gcp.Permission},
		{name: "not understood", err: api(http.StatusBadRequest), over: true, class: gcp.Invalid},
	} {
		w := goneWait{id: "q7", made: made}
		over, why := w.judge(Resource{ID: "q7", CreateTime: tt.read}, tt.err, tt.ended)
		if over != tt.over {
			t.Errorf("%s: over %v, want %v", tt.name, over, tt.over)
		}
		if !over {
			continue
		}
		switch {
		case tt.is != nil && !errors.Is(why, tt.is), tt.class != 0 && gcp.ClassOf(why) != tt.class, tt.is == nil && tt.class == 0 && why != nil,
			tt.text != "" && why.Error() != tt.text:
			t.Errorf("%s: %v", tt.name, why)
		}
	}
	// A zero made stands for the first resource that is read.
	w := goneWait{id: "q7"}
	if over, why := w.judge(Resource{CreateTime: made}, nil, nil); over {
		t.Errorf("the first one: over, %v", why)
	}
	if over, why := w.judge(Resource{CreateTime: made.Add(time.Second)}, nil, nil); !over || why != errNamesake {
		t.Errorf("the second one: over %v, %v", over, why)
	}
}
