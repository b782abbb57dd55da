package metrics_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"multihost/internal/metrics"
)

// document returns the document of a run of this type, number of slices and speed.
func document(t *testing.T, name string, slices int, tflops float64) metrics.Document {
	t.Helper()
	d := metrics.NewDocument("ann-1", kind(t, name), time.Unix(0, 0))
	c := metrics.NewCollector(metrics.Options{Workers: workers(slices, 2), Type: kind(t, name)})
	for i := range slices * 2 {
		for step := range 10 {
			c.Stream(i).Write([]byte(line(step, 1, tflops, 4000, 5)))
		}
		c.Stream(i).Finish()
	}
	d.Attempts = append(d.Attempts, c.Attempt(metrics.View{Points: 100, WorkerPoints: 10}))
	d.Attempts[0].Number, d.Attempts[0].Ended = 1, true
	return d
}

// TestPublishedTable recomputes MFU from TFLOP/s and the peak, to find wrong digits in the
// table and wrong peaks.
func TestPublishedTable(t *testing.T) {
	t.Parallel()
	if got := strings.Join(metrics.Published(), " "); got != "v5e/16b v5e/32b v5e/64b v5e/128b v4/22b v4/52b v5p/32b v5p/64b v5p/128b v5p/256b v5p/512b v5p/1024b" {
		t.Errorf("published: %s", got)
	}
	for _, name := range metrics.Published() {
		for _, d := range []metrics.Document{document(t, "v5litepod-256", 1, 100), document(t, "v5p-512", 1, 100), document(t, "v5p-4096", 1, 100)} {
			if err := d.SetComparison(name); err != nil {
				t.Fatal(err)
			}
			peak, ok := metrics.PeakOf(kind(t, d.Compare.Type).Generation)
			if !ok || d.Compare.Source == "" || len(d.Compare.Rows) == 0 || d.Compare.Rows[0].Slices != 1 {
				t.Fatalf("%s: %+v", name, d.Compare)
			}
			for _, r := range d.Compare.Rows {
				// TFLOP/s are published in whole numbers.
				if off := math.Abs(float64(r.TFLOPs) - float64(r.MFU)*peak.PerDevice()); off > 0.7 {
					t.Errorf("%s, %d slices: %v TFLOP/s are not MFU %v of %v", name, r.Slices, r.TFLOPs, r.MFU, peak.PerDevice())
				}
			}
		}
	}
}

func TestComparison(t *testing.T) {
	t.Parallel()
	d := document(t, "v5litepod-256", 2, 121.6)
	if err := d.SetComparison("V5E/32B"); err != nil {
		t.Fatal(err)
	}
	c := d.Compare
	if !near(c.Ratio, 121.6/128) || c.TFLOPs != 128 || c.MFU != 0.6481 || !near(c.RunEfficiency, 121.6/132) || c.Slices != 2 || c.Note != "" {
		t.Errorf("2 slices at 121.6: %+v", c)
	}
	if r := c.Rows[5]; r.Slices != 32 || !near(r.Efficiency, 119.0/132) || !near(r.Ratio, 121.6/119) || r.Here || !c.Rows[1].Here {
		t.Errorf("row of 32 slices: %+v", r)
	}
	for _, tc := range []struct {
		story, kind, preset, note string
		slices                    int
		compares                  bool
	}{
		{"another size of slice", "v5litepod-16", "v5e/32b", "the run's slices are v5litepod-16, the figures are for v5litepod-256", 1, true},
		{"another generation", "v6e-256", "v5e/32b", "the run is on v6e, the figures are for v5e: TFLOP/s do not compare", 1, false},
		{"a number of slices without figures", "v5litepod-256", "v5e/32b", "nothing was published for 3 slices, only for 1, 2, 4, 8, 16, 32", 3, false},
		{"the size that fits is taken", "v5p-512", "v5p/128b", "", 2, true},
	} {
		d := document(t, tc.kind, tc.slices, 100)
		if err := d.SetComparison(tc.preset); err != nil {
			t.Fatal(err)
		}
		if d.Compare.Note != tc.note || d.Compare.Ratio.Known() != tc.compares {
			t.Errorf("%s: note %q, ratio %v; want %q", tc.story, d.Compare.Note, d.Compare.Ratio, tc.note)
		}
	}
	var unknown *metrics.UnpublishedError
	if err := d.SetComparison("v5e/33b"); !errors.As(err, &unknown) || !strings.Contains(unknown.Hint(), "v5e/32b") {
		t.Errorf("a name that nothing was published under: %v", err)
	}
}

func TestTextIsWhatATiredEngineerReads(t *testing.T) {
	t.Parallel()
	d := document(t, "v5litepod-256", 2, 121.6)
	d.Attempts[0].Slices[0].Name = "t-0"
	if err := d.SetComparison("v5e/32b"); err != nil {
		t.Fatal(err)
	}
	want := `run ann-1, attempt 1: 2 slices, 4 workers of v5litepod-256, ended
             LAST STEP  STEP TIME  TFLOP/s/DEVICE  MFU      TOKENS/s/DEVICE  LOSS
run          9          1.000 s    121.6           61.73 %  4000             5
slice 0 t-0  9          1.000 s    121.6           61.73 %  4000             5
  s0w0       9          1.000 s    121.6           61.73 %  4000             5
  s0w1       9          1.000 s    121.6           61.73 %  4000             5
slice 1      9          1.000 s    121.6           61.73 %  4000             5
  s1w0       9          1.000 s    121.6           61.73 %  4000             5
  s1w1       9          1.000 s    121.6           61.73 %  4000             5
medians, without the first 3 steps of each worker; a device is what JAX calls one; MFU of 197 TFLOP/s

published for v5e/32b, 32B on slices of v5litepod-256 (MaxText, "High performance 16B, 32B, 64B, and 128B models on TPU v5e" (2023), MaxText/configs/v5e/README.md):
SLICES  TFLOP/s/DEVICE  MFU      EFFICIENCY  THIS RUN
1       132             66.86 %  100.0 %     -
2       128             64.81 %  97.0 %      0.950 of it, efficiency 92.1 %
4       126             64.10 %  95.5 %      -
8       125             63.67 %  94.7 %      -
16      123             62.26 %  93.2 %      -
32      119             60.40 %  90.2 %      -
`
	if got := d.Text(false); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	var b strings.Builder
	if err := d.CSV(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if lines[0] != "attempt,of,name,step,steps_per_point,lines,step_seconds,step_seconds_min,step_seconds_max,tflops_per_device,mfu,tokens_per_second_per_device,loss,bad_loss" ||
		lines[1] != "1,run,ann-1,0,1,4,1,1,1,121.6,0.6172589,4000,5,0" || len(lines) != 1+10*7+1 {
		t.Errorf("%d lines of CSV:\n%s", len(lines), strings.Join(lines[:2], "\n"))
	}
	empty := metrics.NewDocument("ann-2", kind(t, "v4-8"), time.Unix(0, 0))
	if got := empty.Text(false); got != "run ann-2: no training steps in its logs\n" {
		t.Errorf("nothing: %q", got)
	}
}
