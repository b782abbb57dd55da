package launch

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"multihost/internal/testkit"
)

// withSecrets returns a worker, and a command that prints a secret. The metadata server and
// Secret Manager give these answers in turn, and repeat the last one for ever.
func withSecrets(t *testing.T, token, secret []string) (*local, Spec) {
	l := newLocal(t)
	curl := testkit.Need(t, "curl")
	// Like every program under a broken /etc/ld.so.preload, curl prints a warning when it
	// starts. sleep returns at once.
	l.write("bin/curl", "#!/bin/sh\necho 'ERROR: ld.so: object nonsense cannot be preloaded: ignored.' >&2\nexec "+curl+" \"$@\"\n", 0o755)
	l.write("bin/sleep", "#!/bin/sh\n", 0o755)
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		answers := &secret
		switch {
		case strings.HasSuffix(r.URL.Path, "/email"):
			fmt.Fprint(w, "vm@p")
			return
		case strings.HasSuffix(r.URL.Path, "/token"):
			answers = &token
		case r.Header.Get("Authorization") != "Bearer hush-hush":
			t.Errorf("%s: got %v", r.URL, r.Header)
		}
		answer := (*answers)[0]
		if len(*answers) > 1 {
			*answers = (*answers)[1:]
		}
		var status int
		body := ""
		if _, err := fmt.Sscan(answer, &status); err != nil {
			t.Error(err)
		}
		_, body, _ = strings.Cut(answer, " ")
		if strings.HasSuffix(body, "…") { // the connection breaks in the middle of the answer
			w.Header().Set("Content-Length", "1000")
			body = strings.TrimSuffix(body, "…")
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	l.env = append(l.env, "PATH="+filepath.Join(l.root, "bin")+":"+os.Getenv("PATH"), "GCE_METADATA_HOST="+strings.TrimPrefix(server.URL, "http://"))
	s := shell("r", `echo "$KEY"`)
	s.Stored = []StoredSecret{{Name: "KEY", Root: server.URL, Project: "p", ID: "key", Version: "7"}}
	return l, s
}

const (
	goodToken  = `200 {"access_token": "hush-hush", "expires_in": 9}`
	goodSecret = `200 {"name": "n", "payload": {"data": "dmFsdWU="}}`
	halfToken  = `200 {"expires_in": 9, "access_token": "hush-hush…`
)

// The answer to a retry is as good as the answer to the first try.
func TestASecretIsReadAfterTrouble(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ token, secret []string }{
		"none":             {[]string{goodToken}, []string{goodSecret}},
		"of the metadata":  {[]string{"503 {\"a\": 1}", halfToken, goodToken}, []string{goodSecret}},
		"of the manager":   {[]string{goodToken}, []string{`503 {"error": {"message": "later"}}`, "429 <html>", goodSecret}},
		"of half a secret": {[]string{goodToken}, []string{`200 {"payload": {"data": "dm…`, goodSecret}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, s := withSecrets(t, c.token, c.secret)
			if out, exit := complete(t, l, s); out != "value\n" || exit.Code != 0 {
				t.Errorf("got %q, %+v", out, exit)
			}
		})
	}
}

func TestNoMessageHasATokenOrASecret(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		token, secret string
		status        int
		want          string
	}{
		"a token that is no JSON":   {"200 hush-hush", goodSecret, 0, "no access token: the answer of the metadata server has none"},
		"another name of the token": {`200 {"token": "hush-hush"}`, goodSecret, 0, "no access token: the answer of the metadata server has none"},
		"half a token":              {halfToken, goodSecret, 0, "no access token: curl: (18) "},
		"a token that is refused":   {"404 hush-hush", goodSecret, 0, "no access token: HTTP status 404"},
		"no right":                  {goodToken, `403 {"error": {"message": "no right"}}`, 403, "no right"},
		"trouble":                   {goodToken, "503 out of\norder", 503, "out of order"},
		"the token comes back":      {goodToken, "400 Bearer hush-hush: bad", 400, "Bearer ***: bad"},
		"half a secret":             {goodToken, `200 {"payload": {"data": "dmFsdWU…`, 0, "curl: (18) "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, s := withSecrets(t, []string{c.token}, []string{c.secret})
			_, err := Arm(t.Context(), l, s)
			var unread *SecretError
			if !errors.As(err, &unread) || unread.Status != c.status || !strings.HasPrefix(unread.Text, c.want) || unread.Account != "vm@p" {
				t.Errorf("got %v, %+v", err, unread)
			}
			for _, word := range []string{"hush", "dmFs", "value"} {
				if strings.Contains(fmt.Sprint(err), word) {
					t.Errorf("%q is in %v", word, err)
				}
			}
		})
	}
}
