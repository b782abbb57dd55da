package report_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"multihost/internal/testkit/browser"
	"multihost/internal/tpu"
)

// views are the sizes and colours in which a page must look right.
var views = map[string]browser.View{
	"phone, light":   {Width: 390, Height: 800},
	"phone, dark":    {Width: 390, Height: 800, Dark: true},
	"desktop, light": {Width: 1280, Height: 900},
	"desktop, dark":  {Width: 1280, Height: 900, Dark: true},
}

// A box is the area of an element on the page.
type box struct {
	Left, Top, Right, Bottom float64
	Text                     string
}

// inside reports whether b is within the other box. A difference of a pixel does not count.
func (b box) inside(other box) bool {
	return b.Left >= other.Left-1 && b.Right <= other.Right+1 && b.Top >= other.Top-1 && b.Bottom <= other.Bottom+1
}

func boxes(p *browser.Page, selector string) []box {
	return browser.Eval[[]box](p, fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => {
		const r = e.getBoundingClientRect();
		return { Left: r.left, Top: r.top, Right: r.right, Bottom: r.bottom, Text: e.textContent };
	})`, selector))
}

func theBox(t *testing.T, p *browser.Page, selector string) box {
	t.Helper()
	all := boxes(p, selector)
	if len(all) != 1 {
		t.Fatalf("%d elements are %s, want one", len(all), selector)
	}
	return all[0]
}

// longTraceback returns the last lines of a worker, and the exception at their end, which is
// wider than a phone.
func longTraceback() (lines []string, exception string) {
	lines = []string{"completed step: 29, seconds: 1.210, TFLOP/s/device: 124.2, Tokens/s/device: 4231.4, total_weights: 65536, loss: 2.204", "Traceback (most recent call last):"}
	for i := range 8 {
		lines = append(lines, fmt.Sprintf(`  File "/home/ann/.venv/lib/python3.10/site-packages/jax/_src/interpreters/module_%d.py", line %d, in bind_with_trace`, i, 100+i), "    return trace.process_primitive(self, tracers, params)")
	}
	exception = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 12.06G at the bottom of memory. That was not possible. There are 3.97G free."
	return append(lines, exception, ""), exception
}

// testLayout checks in the browser's picture where things are.
func testLayout(t *testing.T, p *browser.Page) {
	last, exception := longTraceback()
	failed, _ := write(t, training{slices: 4, workers: 16, steps: 60, slow: tpu.WorkerID{Slice: 3, Worker: 1}, fails: true, calm: true, last: last}.input(t))
	empty := training{slices: 1, workers: 4, steps: 20, slow: tpu.WorkerID{Slice: 9}, zero: true}.input(t)
	empty.Document.Compare = nil
	zero, _ := write(t, empty)
	none, _ := write(t, training{slices: 1, workers: 4, slow: tpu.WorkerID{Slice: 9}, fails: true, last: last}.input(t))
	for name, v := range views {
		t.Run(name, func(t *testing.T) {
			p.See(v)
			p.Go(failed)
			p.Keep("layout-" + name)
			testLastLines(t, p, v, exception)
			testMap(t, p)
			testBand(t, p)
			testTables(t, p, v)

			p.Go(zero)
			sentence := theBox(t, p, "section[aria-labelledby=loss-h] p")
			if want := "The command printed 0 at every step from 0 to 19."; sentence.Text != want || sentence.Bottom-sentence.Top < 10 {
				t.Errorf("for a loss of 0 the page says %+v, want %q", sentence, want)
			}
			if n := len(boxes(p, "section[aria-labelledby=loss-h] svg")); n != 0 {
				t.Errorf("%d pictures of a loss of 0", n)
			}
			testTables(t, p, v)

			p.Go(none)
			testLastLines(t, p, v, exception)
			testTables(t, p, v)
		})
	}
}

// testLastLines checks that the exception is visible without scrolling, in a row of its own
// and at the end of the last lines.
func testLastLines(t *testing.T, p *browser.Page, v browser.View, exception string) {
	t.Helper()
	screen := box{Right: float64(v.Width), Bottom: float64(v.Height)}
	row, tail := theBox(t, p, ".cause code"), theBox(t, p, ".tail")
	if row.Text != exception || !row.inside(screen) || row.Bottom > tail.Top {
		t.Errorf("the exception is at %+v, want it on the screen above the last lines at %+v", row, tail)
	}
	if at := theBox(t, p, ".tail strong"); at.Text != exception || at.Bottom > tail.Bottom || at.Top < tail.Top || at.Bottom < tail.Bottom-60 {
		t.Errorf("among the last lines the exception is at %v to %v, want it at the end of what is seen, %v to %v", at.Top, at.Bottom, tail.Top, tail.Bottom)
	}
}

// testMap checks that the row of the failed worker has a mark, and that rows can be told
// apart.
func testMap(t *testing.T, p *browser.Page) {
	t.Helper()
	img, mark := theBox(t, p, ".map img"), theBox(t, p, ".map .failed")
	height := (img.Bottom - img.Top) / 64
	top := img.Top + (1*16+2)*height // s1w2
	if math.Abs(mark.Top-top) > 1 || math.Abs(mark.Bottom-top-height) > 1 || mark.Right-mark.Left < 4 {
		t.Errorf("the mark is at %+v, want it at the row from %v to %v", mark, top, top+height)
	}
	label := theBox(t, p, ".names .failed")
	if middle := (label.Top + label.Bottom) / 2; !strings.Contains(label.Text, "s1w2") || math.Abs(middle-top-height/2) > 4 {
		t.Errorf("the label of the failed worker is %+v, want s1w2 beside the row at %v", label, top)
	}
	page := theBox(t, p, "#heat .box")
	labels, seen := boxes(p, ".names text"), map[string]bool{}
	for i, l := range labels {
		if seen[l.Text] {
			t.Errorf("two rows are labelled %q", l.Text)
		}
		seen[l.Text] = true
		if !l.inside(page) || l.Right > mark.Left {
			t.Errorf("the label %+v is not between the edge of its box at %v and the map at %v", l, page.Left, mark.Left)
		}
		if i > 0 && l.Top < labels[i-1].Bottom-4 { // boxes of text have some space above and below
			t.Errorf("the labels %q and %q lie on each other", labels[i-1].Text, l.Text)
		}
	}
	for _, want := range []string{"s0w0", "s2w0", "s3w1", "s3w15"} {
		if !seen[want] {
			t.Errorf("no row is labelled %s: %v", want, seen)
		}
	}
	if text := theBox(t, p, "#heat .legend").Text; !strings.Contains(text, "failed first: s1w2") {
		t.Errorf("the legend says %q", text)
	}
}

// testBand checks that the band of step times ends at the longest step on the axis, inside
// the plot.
func testBand(t *testing.T, p *browser.Page) {
	t.Helper()
	plot, band := theBox(t, p, "[data-chart=step-time] > svg"), theBox(t, p, "[data-chart=step-time] .band")
	type value struct{ Most, From, To float64 }
	got := browser.Eval[value](p, `(() => {
		const c = JSON.parse(document.querySelector("#data script").textContent).charts.find((c) => c.id === "step-time");
		return { Most: Math.max(...c.lines[0].max), From: c.range[2], To: c.range[3] };
	})()`)
	want := plot.Bottom - (got.Most-got.From)/(got.To-got.From)*(plot.Bottom-plot.Top)
	if got.Most < 2 || band.Top <= plot.Top+1 || math.Abs(band.Top-want) > 2 {
		t.Errorf("the band ends at %v, want it at %v, where %v s is on the axis from %v to %v, below the edge at %v", band.Top, want, got.Most, got.From, got.To, plot.Top)
	}
}

// testTables opens all tables and checks that they fit and that no cell overlaps another.
func testTables(t *testing.T, p *browser.Page, v browser.View) {
	t.Helper()
	browser.Eval[int](p, `(() => { for (const d of document.querySelectorAll("details")) d.open = true; return 0; })()`)
	for _, bad := range browser.Eval[[]string](p, `(() => {
		const bad = [];
		for (const table of document.querySelectorAll("table")) {
			const name = (table.closest("section")?.querySelector("h2") ?? table.closest("details").querySelector("summary")).textContent;
			if (table.scrollWidth > table.clientWidth + 1 || table.getBoundingClientRect().right > innerWidth) bad.push(name + ": the table is wider than its place");
			for (const row of [...table.rows].slice(0, 12)) {
				const cells = [...row.cells].filter((c) => c.textContent.trim()).map((c) => {
					const range = document.createRange();
					range.selectNodeContents(c);
					return [c.textContent, range.getBoundingClientRect(), c.getBoundingClientRect()];
				});
				for (const [i, [text, r]] of cells.entries()) {
					if (r.right > innerWidth || r.left < 0) bad.push(name + ": " + text + " is not on the screen");
					for (const [other, q] of cells.slice(0, i))
						if (r.left < q.right - 1 && q.left < r.right - 1 && r.top < q.bottom - 1 && q.top < r.bottom - 1) bad.push(name + ": " + text + " lies on " + other);
				}
			}
		}
		if (document.documentElement.scrollWidth > innerWidth) bad.push("the page is wider than the screen");
		return bad;
	})()`) {
		t.Errorf("%d pixels: %s", v.Width, bad)
	}
}
