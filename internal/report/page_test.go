package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"multihost/internal/metrics"
	"multihost/internal/report"
	"multihost/internal/testkit"
	"multihost/internal/testkit/browser"
	"multihost/internal/tpu"
)

// write writes the page of a run to a file and returns its address and size.
func write(t *testing.T, in report.Input) (address string, size int) {
	t.Helper()
	var b bytes.Buffer
	testkit.Must(t, report.Write(&b, in))
	path := filepath.Join(t.TempDir(), "report.html")
	testkit.Must(t, os.WriteFile(path, b.Bytes(), 0o600))
	return (&url.URL{Scheme: "file", Path: path}).String(), b.Len()
}

// pageFigure is a figure as the browser has it.
type pageFigure struct{ At, Value, Text string }

// allFigures reads every figure of the page with its whole JSON pointer.
const allFigures = `[...document.querySelectorAll("data")].map((d) => ({
	At: d.dataset.at.startsWith("/") ? d.dataset.at : d.closest("[data-base]").dataset.base + "/" + d.dataset.at,
	Value: d.value, Text: d.textContent}))`

// at returns the value at a JSON pointer.
func at(t *testing.T, doc any, pointer string) any {
	t.Helper()
	for _, word := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
		switch v := doc.(type) {
		case map[string]any:
			doc = v[word]
		case []any:
			i, err := strconv.Atoi(word)
			if err != nil || i >= len(v) {
				t.Fatalf("no %q in the document", pointer)
			}
			doc = v[i]
		default:
			t.Fatalf("no %q in the document", pointer)
		}
	}
	return doc
}

func decode(t *testing.T, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	testkit.Must(t, err)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var doc any
	testkit.Must(t, dec.Decode(&doc))
	return doc
}

// rounds reports whether text is the value, rounded to text's digits.
func rounds(text string, value float64) bool {
	clean := strings.NewReplacer(",", "", "×", "").Replace(text)
	fields := strings.Fields(clean)
	if len(fields) == 0 {
		return false
	}
	shown, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return false
	}
	switch {
	case strings.HasSuffix(text, "%"):
		value *= 100
	case strings.HasSuffix(text, " ms"):
		value *= 1000
	}
	half := 0.5
	if _, after, ok := strings.Cut(fields[0], "."); ok {
		for range after {
			half /= 10
		}
	}
	return shown-value <= half*1.0001 && value-shown <= half*1.0001
}

// TestInChromium uses one browser for all its checks.
func TestInChromium(t *testing.T) {
	testkit.OnlyInAll(t, "the tests that read the page as text")
	t.Parallel()
	p := browser.Open(t)
	t.Run("page", func(t *testing.T) { testPage(t, p) })
	t.Run("live", func(t *testing.T) { testLivePage(t, p) })
	t.Run("hostile", func(t *testing.T) { testHostilePage(t, p) })
	t.Run("layout", func(t *testing.T) { testLayout(t, p) })
	t.Run("long", func(t *testing.T) { testLongPage(t, p) })
}

func testPage(t *testing.T, p *browser.Page) {
	failing := training{slices: 2, workers: 4, steps: 1000, slow: tpu.WorkerID{Slice: 1, Worker: 2}, fails: true}
	in := failing.input(t)
	address, _ := write(t, in)

	t.Run("every figure is that of the document", func(t *testing.T) {
		p.See(browser.View{})
		p.Go(address)
		doc := decode(t, in.Document)
		figures := browser.Eval[[]pageFigure](p, allFigures)
		if len(figures) < 1000 {
			t.Errorf("%d figures on the page, want all of its tables", len(figures))
		}
		for _, f := range figures {
			switch v := at(t, doc, f.At).(type) {
			case json.Number:
				n, _ := v.Float64()
				if v.String() != f.Value || !rounds(f.Text, n) {
					t.Errorf("%s is %s in the document, and %s shown as %q", f.At, v, f.Value, f.Text)
				}
			case string:
				if v != f.Value || v != f.Text {
					t.Errorf("%s is %q in the document, %q on the page", f.At, v, f.Text)
				}
			default:
				t.Errorf("%s is %v in the document, %q on the page", f.At, v, f.Text)
			}
		}
		p.Keep("failed")
	})

	t.Run("what the charts are drawn from is the document", func(t *testing.T) {
		doc := decode(t, in.Document)
		type line struct {
			At             string
			Values         []json.Number
			Min, Max, Step []json.Number
		}
		var data struct {
			Charts []struct {
				ID    string
				Lines []line
			}
			Heat struct{ Values []*float64 }
		}
		testkit.Must(t, json.Unmarshal([]byte(browser.Eval[string](p, `document.querySelector("#data script").textContent`)), &data))
		columns := map[string]string{"step-time": "step_seconds", "mfu": "mfu", "loss": "loss"}
		if len(data.Charts) != 3 {
			t.Fatalf("%d charts, want 3", len(data.Charts))
		}
		same := func(pointer string, got []json.Number) {
			want := at(t, doc, pointer).([]any)
			if len(got) != len(want) {
				t.Errorf("%s has %d points, the page %d", pointer, len(want), len(got))
				return
			}
			for i := range want {
				if fmt.Sprint(want[i]) != got[i].String() {
					t.Errorf("%s/%d is %v, on the page %s", pointer, i, want[i], got[i])
				}
			}
		}
		for _, c := range data.Charts {
			if len(c.Lines) != 3 {
				t.Errorf("%s has %d lines, want the run and two slices", c.ID, len(c.Lines))
			}
			for i, l := range c.Lines {
				same(l.At+"/"+columns[c.ID], l.Values)
				if c.ID == "step-time" && i == 0 {
					same(l.At+"/step_seconds_min", l.Min)
					same(l.At+"/step_seconds_max", l.Max)
				}
			}
		}
		// Each cell must be a point of a worker. Some are points of the slow worker.
		known := map[float64]bool{}
		for _, s := range in.Document.Newest().Slices {
			for _, w := range s.Workers {
				for _, v := range w.Series.StepSeconds {
					var n float64
					text, _ := json.Marshal(v)
					testkit.Must(t, json.Unmarshal(text, &n))
					known[n] = true
				}
			}
		}
		if len(data.Heat.Values) == 0 {
			t.Error("the heat map is empty")
		}
		for i, v := range data.Heat.Values {
			if v != nil && !known[*v] {
				t.Errorf("cell %d of the heat map is %v, which is no point of a worker", i, *v)
			}
		}
	})

	t.Run("it asks for nothing", func(t *testing.T) {
		for _, r := range p.Requests() {
			if r != address && !strings.HasPrefix(r, "data:") {
				t.Errorf("the page asked for %s", r)
			}
		}
	})

	t.Run("keys read the charts and the heat map", func(t *testing.T) {
		p.Go(address)
		var stops []string
		for range 60 {
			p.Press(kb.Tab)
			stop := browser.Eval[string](p, `(() => { const e = document.activeElement;
				return e.dataset.chart || ("heat" in e.dataset ? "heat" : e.id || e.textContent.slice(0, 30)); })()`)
			if len(stops) > 0 && stop == stops[0] {
				break // all are round
			}
			stops = append(stops, stop)
			switch stop {
			case "step-time":
				p.Press(kb.End + kb.ArrowLeft)
				want := "steps 992–995: "
				if got := browser.Eval[string](p, `document.getElementById("step-time-read").textContent`); !strings.HasPrefix(got, want) || !strings.Contains(got, "slice 1 ") {
					t.Errorf("the chart reads %q, want %q… and the slices", got, want)
				}
			case "heat":
				p.Press(kb.End + kb.ArrowDown)
				if got := browser.Eval[string](p, `document.getElementById("heat-read").textContent`); !strings.HasPrefix(got, "s0w1 · steps 992–999: ") {
					t.Errorf("the heat map reads %q", got)
				}
			}
		}
		for _, want := range []string{"step-time", "mfu", "loss", "heat"} {
			if !slices.Contains(stops, want) {
				t.Errorf("Tab does not reach %s: %q", want, stops)
			}
		}
		if got := browser.Eval[int](p, `[...document.querySelectorAll("[tabindex], summary, button, a")].filter((e) => e.tabIndex > 0).length`); got != 0 {
			t.Errorf("%d elements change the order of Tab", got)
		}
	})

	t.Run("tables sort by a button", func(t *testing.T) {
		p.Go(address)
		order := browser.Eval[[]string](p, `(() => {
			document.getElementById("all-workers").open = true;
			const table = document.querySelector("#all-workers table");
			const head = [...table.tHead.rows[0].cells].find((c) => c.textContent === "step time");
			head.firstElementChild.click();
			return [head.getAttribute("aria-sort"), table.tBodies[0].rows[0].cells[0].textContent];
		})()`)
		if order[0] != "descending" || !strings.HasPrefix(order[1], "s1w2") {
			t.Errorf("sorted by step time: %q, want s1w2, the slow one, first", order)
		}
	})

	t.Run("everything drawn has words", func(t *testing.T) {
		p.Go(address)
		for _, bad := range browser.Eval[[]string](p, `[
			...[...document.querySelectorAll("[role=img], [role=region]")].filter((e) => !e.getAttribute("aria-label") && !document.getElementById(e.getAttribute("aria-labelledby"))),
			...[...document.querySelectorAll("svg, img")].filter((e) => e.closest("[aria-hidden=true], [role=img]") === null),
			...[...document.querySelectorAll("table")].filter((e) => !e.querySelector("thead th[scope=col]")),
			...[...document.querySelectorAll("section")].filter((e) => !document.getElementById(e.getAttribute("aria-labelledby"))),
		].map((e) => e.outerHTML.slice(0, 100))`) {
			t.Errorf("has no words for those who do not see it: %s", bad)
		}
		if n := browser.Eval[int](p, `document.querySelectorAll("h1").length`); n != 1 {
			t.Errorf("%d main headings", n)
		}
	})

	// The colours and the layout of a table do not depend on its length.
	short := failing
	short.steps = 24
	address, _ = write(t, short.input(t))
	p.Go(address)
	for name, v := range map[string]browser.View{
		"light": {}, "dark": {Dark: true}, "phone": browser.Phone, "phone in the dark": {Width: 360, Height: 740, Dark: true}, "print": {Print: true, Width: 800, Height: 1100},
	} {
		t.Run("it can be read: "+name, func(t *testing.T) {
			p.See(v)
			p.Keep(strings.ReplaceAll(name, " ", "-"))
			open := func(yes bool) {
				browser.Eval[int](p, fmt.Sprintf(`(() => { for (const d of document.querySelectorAll("details")) d.open = %v; return 0; })()`, yes))
			}
			open(true)
			for _, low := range browser.Eval[[]string](p, contrastBelowAA) {
				t.Errorf("too little contrast: %s", low)
			}
			if wide := browser.Eval[int](p, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
				t.Errorf("the page is %d pixels wider than the screen", wide)
			}
			open(false)
		})
	}

	t.Run("nothing moves for those who do not want it, and without a script it can be read", func(t *testing.T) {
		p.See(browser.View{Still: true})
		live, _ := write(t, training{slices: 1, workers: 2, steps: 50, slow: tpu.WorkerID{Slice: 9}, running: true}.input(t))
		p.Go(live)
		const moving = `document.getAnimations().length`
		if n := browser.Eval[int](p, moving); n != 0 {
			t.Errorf("%d animations", n)
		}
		p.See(browser.View{})
		if n := browser.Eval[int](p, moving); n == 0 {
			t.Error("a running page says so by no motion, so the test of none means nothing")
		}
		p.Keep("running")
		p.See(browser.View{NoScript: true})
		p.Go(address)
		p.Keep("no-script")
		if pdf := p.PDF(); len(pdf) < 10_000 {
			t.Errorf("the print has %d bytes", len(pdf))
		}
	})
}

// testHostilePage shows a run whose workers, settings and errors come from an attacker.
func testHostilePage(t *testing.T, p *browser.Page) {
	const hostile = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"`--><style>*{display:none}</style>{{.}}\u202e\x00\x1b]0;x\x07\xff"
	tr := training{slices: 2, workers: 4, steps: 30, slow: tpu.WorkerID{Slice: 9}, fails: true, hostile: hostile}
	in := tr.input(t)
	in.Document.AcceleratorType, in.Document.Compare.Preset, in.Document.Compare.Note = hostile, hostile, hostile
	in.Document.Attempts[0].Slices[0].Name = hostile
	in.Document.Attempts[0].Stragglers = []metrics.Straggler{{Name: hostile, Text: hostile}}
	in.Document.Attempts[0].Last.LossText = hostile
	address, _ := write(t, in)
	p.See(browser.View{})
	p.Go(address)
	if title := browser.Eval[string](p, `document.title`); title == "owned" {
		t.Error("what a worker printed has run")
	}
	if n := browser.Eval[int](p, `document.querySelectorAll("script").length`); n != 2 {
		t.Errorf("%d scripts, want that of the page and its data", n)
	}
	if n := browser.Eval[int](p, `document.querySelectorAll("style").length + 10 * [...document.images].filter((i) => !i.src.startsWith("data:image/png;base64,")).length`); n != 1 {
		t.Errorf("styles and foreign images: %d, want one style", n)
	}
	if text := browser.Eval[string](p, `document.querySelector("pre").textContent`); !strings.Contains(text, "<img src=x onerror=") || strings.Contains(text, "\u202e") {
		t.Errorf("the last lines are not shown as text: %q", text)
	}
	p.Keep("hostile")
	phone := views["phone, light"]
	p.See(phone)
	testTables(t, p, phone)
}

func testLongPage(t *testing.T, p *browser.Page) {
	story := training{slices: 32, workers: 64}.story(t)
	begin := time.Now()
	address, size := write(t, report.Input{Document: long(), Story: story, Now: story.Last})
	t.Logf("2048 workers and a million steps: %d bytes, written in %v", size, time.Since(begin))
	if size > report.MaxBytes {
		t.Errorf("the page has %d bytes, want at most %d", size, report.MaxBytes)
	}
	p.See(browser.View{})
	begin = time.Now()
	p.Go(address)
	p.Wait(`document.querySelector("[data-sort] th button")`)
	t.Logf("loaded in %v", time.Since(begin))
	if took := browser.Eval[float64](p, `performance.getEntriesByType("navigation")[0].loadEventEnd`); took > 60_000 {
		t.Errorf("it took %.0f ms to load", took)
	}
	p.Keep("long")
	// The slow worker is visible: its row is darker than the others.
	row := browser.Eval[[]float64](p, `(() => {
		const img = document.querySelector(".map img"), c = document.createElement("canvas");
		c.width = img.naturalWidth; c.height = img.naturalHeight;
		const g = c.getContext("2d", { willReadFrequently: true }); g.drawImage(img, 0, 0);
		const sum = (y) => g.getImageData(0, y, c.width, 1).data.reduce((s, v, i) => s + (i % 4 === 3 ? v : 0), 0);
		const rows = [...Array(c.height).keys()].map(sum), top = Math.max(...rows);
		return [c.height, rows.indexOf(top), top, [...rows].sort((a, b) => a - b)[c.height >> 1]];
	})()`)
	if want := float64((17*64 + 33) / 8); row[0] != 256 || row[1] != want || row[2] < 3*row[3] {
		t.Errorf("%v rows, the darkest is %v with %v, the middle has %v; want row %v to stand out", row[0], row[1], row[2], row[3], want)
	}
	if got := browser.Eval[string](p, `(() => { const m = document.querySelector("[data-heat]"), b = m.getBoundingClientRect();
		m.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: b.left + 1, clientY: b.top + b.height * 140.5 / 256 }));
		return document.getElementById("heat-read").textContent; })()`); !strings.HasPrefix(got, "s17w33, slowest of s17w[32-39] · steps 0–") {
		t.Errorf("the row reads %q", got)
	}
}

// contrastBelowAA lists the texts with too little contrast by WCAG 2: below 4.5 to 1, or
// below 3 to 1 for large text.
const contrastBelowAA = `(() => {
	const rgba = (s) => { const m = s.match(/[\d.]+/g).map(Number); return s.startsWith("color(srgb") ? [255*m[0], 255*m[1], 255*m[2], m[3] ?? 1] : [m[0], m[1], m[2], m[3] ?? 1]; };
	const over = (a, b) => a.slice(0, 3).map((v, i) => v * a[3] + b[i] * (1 - a[3])).concat(1);
	const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const behind = (e) => { let stack = []; for (; e; e = e.parentElement) stack.push(rgba(getComputedStyle(e).backgroundColor)); return stack.reverse().reduce((b, a) => over(a, b), [255, 255, 255, 1]); };
	const low = new Set();
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement;
		if (!walk.currentNode.data.trim() || e.closest("script, style, .skip, h2.quiet") || e.getClientRects().length === 0) continue;
		const style = getComputedStyle(e);
		const back = behind(e);
		const ink = over(rgba(e.closest("svg") ? style.fill : style.color), back);
		const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
		const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
		const ratio = (a + 0.05) / (b + 0.05);
		if (ratio < (large ? 3 : 4.5)) low.add(ratio.toFixed(2) + " " + (e.className.baseVal ?? e.className) + " " + walk.currentNode.data.trim().slice(0, 30));
	}
	return [...low];
})()`
