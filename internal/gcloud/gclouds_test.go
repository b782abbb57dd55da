package gcloud

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/testkit"
)

const gcloudFlagsFile = "testdata/gcloud-flags.json"

// gcloudFlags returns the flags of gcloud's commands for queued resources. It reads them from a
// file, because gcloud is not installed everywhere.
func gcloudFlags(t *testing.T) (flags map[string][]string) {
	t.Helper()
	text, err := os.ReadFile(gcloudFlagsFile)
	if err == nil {
		err = json.Unmarshal(text, &flags)
	}
	if err != nil {
		t.Fatal(err)
	}
	return flags
}

// Our filters, times and durations agree with gcloud's own Python code, except for the listed
// differences. With MULTIHOST_UPDATE_GCLOUD=1 the test writes the file of gcloud's flags again.
func TestGcloudReadsFiltersAndTimesTheSame(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	durations := []string{"1h30m", "P1DT2H", "1.5d", "1,5h", "P1Y", "P2M", "P1M", "P1MT1M", "P1.5M", "1d1m", "1W", "1500ms", "P0", "30m1h", "90", "x", "1h 1m", "P", "-"}
	ours := map[string]bool{"P": true, "-": true} // gcloud accepts these as durations, we do not
	moments := []string{
		"2026-02-03T04:05:06Z", "2026-02-03T04:05:06.5+02:00", "2026-02-03T04:05:06-0800", "2026-02-03 04:05:06 UTC", "2026-02-03 04:05", "2026-02-03T04",
		"2026-02-03", "20260203T040506", "2026/02/03", "2 Feb 2026 3pm", "Feb 2 2026", "23:30", "+1h30m", "P1D", "pt36h", "P1M", "1d", "1.5d", "1w", "tomorrow", "2026-13-01",
	}
	var filters []string
	for text := range filterCases {
		filters = append(filters, text)
	}
	answer := askGcloud(t, map[string]any{"resource": filtered(), "filters": filters, "times": moments, "durations": durations})

	for _, text := range filters {
		if want, ok := answer.Filters[text].(bool); !ok || want != filterCases[text] {
			t.Errorf("filter %q: gcloud says %v, we say %t", text, answer.Filters[text], filterCases[text])
		}
	}
	for _, text := range durations {
		d, err := ParseDuration(text)
		want, ok := answer.Durations[text].(float64)
		if ok != (err == nil) && !ours[text] || ok && err == nil && math.Abs(d.Seconds()-want) > 1e-6 {
			t.Errorf("duration %q: gcloud says %v, we say %v, %v", text, answer.Durations[text], d, err)
		}
	}
	for _, text := range moments {
		at, err := ParseTime(text, now)
		want, ok := answer.Times[text].(float64)
		off := math.Abs(float64(at.UnixMilli())/1e3 - want)
		if ok != (err == nil) || ok && off > 0.1 && !(relative(text) && off < 600) { // gcloud and multihost read the clock at different moments
			t.Errorf("time %q: gcloud says %v, we say %s, %v", text, answer.Times[text], at, err)
		}
	}
	if os.Getenv("MULTIHOST_UPDATE_GCLOUD") != "" {
		b, err := json.MarshalIndent(answer.Flags, "", "  ")
		if err == nil {
			err = os.WriteFile(gcloudFlagsFile, append(b, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	known := gcloudFlags(t)
	for command, flags := range answer.Flags {
		for _, name := range flags {
			if !slices.Contains(known[command], name) {
				t.Errorf("gcloud has --%s of %s, which %s lacks: take it or refuse it, and write the file with MULTIHOST_UPDATE_GCLOUD=1", name, command, gcloudFlagsFile)
			}
		}
	}
}

func relative(text string) bool {
	return strings.ContainsAny(text[:1], "+-pP") || strings.HasSuffix(text, "d") || strings.HasSuffix(text, "w")
}

type gcloudAnswer struct {
	Flags                     map[string][]string
	Filters, Times, Durations map[string]any
}

// askGcloud runs testdata/gcloud.py, which asks gcloud's own Python code all questions.
func askGcloud(t *testing.T, question any) (answer gcloudAnswer) {
	t.Helper()
	file, err := filepath.EvalSymlinks(testkit.NeedGcloud(t))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Need(t, "python3")
	root := filepath.Dir(filepath.Dir(file))
	if _, err := os.Stat(filepath.Join(root, "lib", "googlecloudsdk")); err != nil { // a wrapper
		out, err := exec.CommandContext(t.Context(), file, "info", "--format=value(installation.sdk_root)").Output()
		if err != nil {
			t.Fatal(err)
		}
		root = strings.TrimSpace(string(out))
	}
	text, err := json.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "testdata/gcloud.py", root)
	cmd.Stdin = bytes.NewReader(text)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TZ=UTC", "PYTHONDONTWRITEBYTECODE=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return answer
}
