package gce

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

func TestWorkersAreInTheOrderThatTheyTell(t *testing.T) {
	tell := func(vm string, number int, all string) told { return told{vm, number, strings.Split(all, ",")} }
	for name, c := range map[string]struct {
		all  []told
		want string
	}{
		"against the names":   {[]told{tell("a", 1, "b,a"), tell("b", 0, "b,a")}, "[b a] <nil>"},
		"one has not told":    {[]told{tell("a", 1, "b,a"), {}}, "[] VM b has not told which worker it is"},
		"a number twice":      {[]told{tell("a", 0, "a,b"), tell("b", 0, "a,b")}, "[] VMs a and b both say that they are worker 0"},
		"a number too high":   {[]told{tell("a", 2, "a,b"), tell("b", 0, "a,b")}, "[] VM a says that it is worker 2 of 2"},
		"different workers":   {[]told{tell("a", 0, "a,b"), tell("b", 1, "b,a")}, "[] VMs a and b name different workers: a,b and b,a"},
		"more than there are": {[]told{tell("a", 0, "a,b,c"), tell("b", 1, "a,b,c")}, "[] VM a names 3 workers of a slice with 2 VMs"},
	} {
		order, err := inOrder([]string{"a", "b"}, c.all)
		if got := fmt.Sprint(order, " ", err); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if order, err := inOrder([]string{"a"}, []told{tell("a", 0, "a")}); err != nil || order[0] != "a" {
		t.Errorf("got %v, %v", order, err)
	}
}

func TestReadTold(t *testing.T) {
	for text, want := range map[string]string{
		"1 x-1wjb,x-1z9d\n": "{vm 1 [x-1wjb x-1z9d]} true", "0 only": "{vm 0 [only]} true",
		"": "{ 0 []} false", " ": "{ 0 []} false", "x a": "{ 0 []} false", "-1 a": "{ 0 []} false", "1": "{ 0 []} false", "1 ": "{ 0 []} false",
	} {
		got, ok := readTold("vm", text)
		if has := fmt.Sprint(got, " ", ok); has != want {
			t.Errorf("%q: got %v, %v", text, got, ok)
		}
	}
}

func TestAUsersStartupScriptStays(t *testing.T) {
	for text, want := range map[string]string{
		"":                             identityScript,
		"#!/bin/bash\necho a\n":        identityScript + "echo a\n",
		"#!/usr/bin/env bash\necho a":  identityScript + "echo a",
		"#! /bin/sh\necho a":           identityScript + "echo a",
		"#!/usr/bin/python3\nprint(1)": "", "echo": "", "#!": "", "#!/bin/mybash\n": "",
	} {
		got, err := withIdentity(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}

// A VM reports its number as soon as its metadata have it. The rest of the script neither
// waits for the report nor ends it.
func TestTheScriptTellsTheNumber(t *testing.T) {
	t.Parallel()
	told := make(chan string, 1)
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/instance/")
		switch {
		case r.Header.Get("Metadata-Flavor") != "Google":
			t.Errorf("%s %s has no header", r.Method, path)
		case r.Method == http.MethodPut && path == "guest-attributes/multihost/worker":
			var body [100]byte
			n, _ := r.Body.Read(body[:])
			told <- string(body[:n])
			return
		case path == "attributes/agent-worker-number":
			if asked.Add(1) > 1 {
				fmt.Fprint(w, "3")
				return
			}
		case path == "attributes/worker-network-endpoints":
			fmt.Fprint(w, "b,a,d,c")
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	script, err := withIdentity("#!/bin/bash\necho user\n")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "GCE_METADATA_HOST=" + strings.TrimPrefix(server.URL, "http://")}
	out, err := cmd.Output()
	if err != nil || string(out) != "user\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if got := <-told; got != "3 b,a,d,c" {
		t.Errorf("got %q", got)
	}
}
