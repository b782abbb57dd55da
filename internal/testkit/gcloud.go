package testkit

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// NeedGcloud returns the path of gcloud for the tests of `make test-all`. Without gcloud it
// skips the test instead of failing it, because no Debian package has gcloud.
func NeedGcloud(t testing.TB) string {
	t.Helper()
	OnlyInAll(t, "the tests beside it that need no gcloud, of which one call takes 2 s of CPU")
	file, err := exec.LookPath("gcloud")
	if err != nil {
		t.Skip("gcloud is not installed: it is not compared with what we do")
	}
	return file
}

// RunGcloud runs a shell command that begins with gcloud and must succeed. The command has
// a home of its own. Its environment is env and PATH.
func RunGcloud(t testing.TB, env map[string]string, command string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(command, "gcloud", NeedGcloud(t), 1))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// A Difference is a difference between our request and gcloud's.
type Difference struct{ field, ours, gcloud string }

// Differ returns a Difference. An empty value means that the field is absent. The last
// argument is the reason, for readers of the code.
func Differ(field, ours, gcloud, _ string) Difference { return Difference{field, ours, gcloud} }

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// RequestFields returns all fields of a request to a simulator at endpoint: its path, each
// query parameter as "query NAME", and each value of its JSON body by the value's path.
// Empty objects and lists count as values. It replaces values that differ each time: UUIDs
// in queries, and the endpoint.
func RequestFields(t testing.TB, endpoint, target, body string) map[string]string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("body of a request to %s: %v", u.Path, err)
	}
	fields := map[string]string{}
	flatten("", v, fields)
	for k, v := range fields {
		fields[k] = strings.ReplaceAll(v, endpoint, "SIMULATOR")
	}
	fields["path"] = u.Path
	for k, v := range u.Query() {
		fields["query "+k] = uuids.ReplaceAllString(strings.Join(v, ","), "UUID")
	}
	return fields
}

func flatten(name string, v any, fields map[string]string) {
	below := func(key string, v any) { flatten(strings.TrimPrefix(name+"."+key, "."), v, fields) }
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			below(k, item)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		for i, item := range v {
			below(fmt.Sprint(i), item)
		}
		if len(v) > 0 {
			return
		}
	}
	fields[name] = fmt.Sprint(v)
}

// CheckDifferences fails the test unless ours and gcloud, both from RequestFields, differ
// exactly as listed.
func CheckDifferences(t testing.TB, listed []Difference, ours, gcloud map[string]string) {
	t.Helper()
	fields := maps.Clone(ours)
	maps.Copy(fields, gcloud)
	for _, d := range listed {
		delete(fields, d.field)
		switch {
		case ours[d.field] == gcloud[d.field]:
			t.Errorf("%s: listed as a difference, and is none", d.field)
		case ours[d.field] != d.ours || gcloud[d.field] != d.gcloud:
			t.Errorf("%s: we send %q, gcloud %q; listed as %q and %q", d.field, ours[d.field], gcloud[d.field], d.ours, d.gcloud)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if ours[field] != gcloud[field] {
			t.Errorf("%s: we send %q, gcloud %q, and the difference is not listed", field, ours[field], gcloud[field])
		}
	}
}
