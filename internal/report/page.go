package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"multihost/internal/event"
	"multihost/internal/preflight"
)

// A skeleton is the page without its sections.
type skeleton struct {
	title string
	live  string // address of the page's updates; "" for a file
	body  []section
}

// write writes the page. It escapes everything but the style, the script and the sections,
// which are HTML already.
func (s skeleton) write(w io.Writer) error {
	live := s.live != ""
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(g.Attr("http-equiv", "Content-Security-Policy"), h.Content(policy(live))),
			meta("viewport", "width=device-width, initial-scale=1"),
			meta("color-scheme", "light dark"),
			meta("referrer", "no-referrer"),
			h.TitleEl(g.Text(s.title)),
			h.StyleEl(g.Raw(style)),
		),
		h.Body(
			only(live, func() g.Node { return h.Data("live", s.live) }),
			h.A(h.Class("skip"), h.Href("#main"), g.Text("Skip to the report")),
			h.Main(h.ID("main"),
				only(live, func() g.Node { return h.P(h.ID("link"), h.Class("link"), h.Role("status"), g.Text("live")) }),
				g.Map(s.body, func(p section) g.Node {
					return g.Group{g.Text("\n"), h.Div(h.ID(p.id), h.Class("part part-"+p.id), g.Raw(p.html))}
				}),
			),
			h.Script(g.Raw(script)),
		),
	)).Render(w)
}

func meta(name, content string) g.Node { return h.Meta(h.Name(name), h.Content(content)) }

// A part makes one section of the page, or nil if there is nothing to show.
type part struct {
	id   string
	make func(*view) g.Node
}

// parts are the sections, in their order.
var parts = []part{
	{"verdict", (*view).verdictPart}, {"failure", (*view).failurePart}, {"figures", (*view).figuresPart},
	{"charts", (*view).chartsPart}, {"heat", (*view).heatPart}, {"timeline", (*view).timelinePart},
	{"skew", (*view).skewPart}, {"workers", (*view).workersPart}, {"preflight", (*view).preflightPart},
	{"notes", (*view).notesPart}, {"about", (*view).aboutPart}, {"data", (*view).dataPart},
}

// attrs returns attributes. words are names and values in turn.
func attrs(words ...string) g.Node {
	var all g.Group
	for i := 0; i < len(words); i += 2 {
		all = append(all, g.Attr(words[i], words[i+1]))
	}
	return all
}

// only returns the result of f if wanted is true, otherwise nothing.
func only(wanted bool, f func() g.Node) g.Node {
	if !wanted {
		return nil
	}
	return f()
}

// some returns what f makes of a text, or nothing for an empty text.
func some(text string, f func(text string) g.Node) g.Node {
	return only(text != "", func() g.Node { return f(text) })
}

// texts returns sentences with a space after each.
func texts(all []string) g.Node {
	return g.Map(all, func(text string) g.Node { return g.Text(text + " ") })
}

// box returns a section with a heading.
func box(class, id, title string, inside ...g.Node) g.Node {
	return h.Section(h.Class(class), h.Aria("labelledby", id+"-h"), h.H2(h.ID(id+"-h"), g.Text(title)), g.Group(inside))
}

func note(inside ...g.Node) g.Node { return h.P(h.Class("note"), g.Group(inside)) }

// table returns a table in a frame, in which a wide table moves sideways. label names the
// table for people who cannot see it. mark is an attribute of the table, or nil.
func table(label string, mark g.Node, head []g.Node, rows ...g.Node) g.Node {
	return h.Div(h.Class("scroll"), h.TabIndex("0"), h.Role("region"), h.Aria("label", label),
		h.Table(mark, h.THead(h.Tr(head...)), g.Group(rows)))
}

// column returns the head of a column of figures. textColumn returns the head of a column
// of texts.
func column(name string) g.Node     { return h.Th(h.Scope("col"), g.Text(name)) }
func textColumn(name string) g.Node { return h.Th(h.Scope("col"), h.Class("text"), g.Text(name)) }

// perDevice returns the head of a column of figures for one device.
func perDevice(unit string) g.Node {
	return h.Th(h.Scope("col"), g.Text(unit+"/"), h.Wbr(), g.Text("device"))
}

func rowHead(inside ...g.Node) g.Node { return h.Th(h.Scope("row"), g.Group(inside)) }

// more returns a table that is hidden behind its name. With print, it is visible on paper.
func more(id string, print bool, summary string, inside ...g.Node) g.Node {
	return h.Details(h.ID(id), only(print, func() g.Node { return h.Data("print", "") }), h.Summary(g.Text(summary)), g.Group(inside))
}

func (f figure) node() g.Node {
	if !f.Known() {
		return h.Span(h.Class("unknown"), h.Title("not known"), g.Text("–"))
	}
	return h.DataEl(h.Value(f.Value), h.Data("at", f.At), g.Text(f.Text))
}

func figureCells(all []figure) g.Node {
	return g.Map(all, func(f figure) g.Node { return h.Td(f.node()) })
}

func (v *view) verdictPart() g.Node {
	return h.Header(h.Class("verdict "+v.Verdict.Class),
		h.P(h.Class("run"), g.Text(v.Run)),
		h.H1(h.Span(h.Class("word"), g.Text(v.Verdict.Word)),
			some(v.Verdict.Text, func(text string) g.Node { return h.Span(h.Class("say"), g.Text(text)) })),
		some(v.Verdict.Also, func(text string) g.Node { return h.P(h.Class("also"), g.Text(text)) }),
		some(v.Command, func(text string) g.Node { return h.P(h.Class("command"), h.Code(g.Text(text))) }),
		h.Dl(h.Class("facts"), g.Map(v.Facts, func(f fact) g.Node {
			return h.Div(h.Dt(g.Text(f.Name)), h.Dd(g.Text(f.Value)))
		})),
	)
}

func (v *view) failurePart() g.Node {
	f := v.Failure
	if f == nil {
		return nil
	}
	return box("box bad", "failure", "First failure",
		h.P(h.Strong(g.Text(f.Text))),
		some(f.Cause, func(text string) g.Node { return h.P(h.Class("cause"), h.Code(g.Text(text))) }),
		only(len(f.Lines) > 0, func() g.Node {
			return g.Group{
				h.P(h.Class("note"), h.ID("lines-h"), g.Text("Its last lines:")),
				h.Div(h.Class("tail"), h.TabIndex("0"), h.Role("region"), h.Aria("labelledby", "lines-h"),
					h.Pre(g.Map(f.Lines, func(l lastLine) g.Node {
						if l.Cause {
							return g.Group{h.Strong(g.Text(l.Text)), g.Text("\n")}
						}
						return g.Text(l.Text + "\n")
					}))),
			}
		}),
		some(f.Log, func(text string) g.Node { return note(g.Text("The whole log: "), h.Code(g.Text(text))) }),
	)
}

func (v *view) figuresPart() g.Node {
	return g.Group{
		only(len(v.Cards) > 0, func() g.Node {
			return h.Section(h.Aria("labelledby", "figures-h"), h.H2(h.ID("figures-h"), h.Class("quiet"), g.Text("Training")),
				h.Dl(h.Class("cards"), g.Map(v.Cards, card.node)))
		}),
		only(len(v.Attention) > 0, func() g.Node {
			return h.Ul(h.Class("attention"), g.Map(v.Attention, func(text string) g.Node { return h.Li(g.Text(text)) }))
		}),
	}
}

func (c card) node() g.Node {
	return h.Div(h.Class("card"), h.Dt(g.Text(c.Name)),
		h.Dd(h.Span(h.Class("big"), c.figure.node()),
			some(c.Note, func(text string) g.Node { return g.Group{g.Text(" "), h.Small(g.Text(text))} }),
			only(c.Beside != nil, func() g.Node { return h.Small(h.Class("beside"), g.Text("published "), c.Beside.node()) })))
}

func (v *view) chartsPart() g.Node {
	if v.NoSteps != "" {
		return box("box", "charts", "Training", h.P(g.Text(v.NoSteps)))
	}
	return g.Group{
		h.Div(h.Class("charts"), g.Map(v.Charts, (*chart).node)),
		v.Points.node(),
		only(v.BySlice != nil, func() g.Node { return v.BySlice.node() }),
	}
}

func (c *chart) node() g.Node {
	if c.Zero != "" {
		return box("box", c.ID, c.Title, h.P(g.Text(c.Zero), only(c.Published != nil, func() g.Node {
			return g.Group{g.Text(" " + c.Published.Name + ": "), c.Published.Figure.node(), g.Text(".")}
		})))
	}
	return box("box", c.ID, c.Title,
		h.Div(h.Class("plot"), h.TabIndex("0"), h.Role("img"), h.Aria("label", c.Label), h.Aria("describedby", c.ID+"-read"), h.Data("chart", c.ID), c.drawing()),
		h.P(h.Class("read"), h.ID(c.ID+"-read"), h.Role("status")),
		note(only(c.Published != nil, func() g.Node {
			return g.Group{g.Text("The dashed line is " + c.Published.Name + ": "), c.Published.Figure.node(), g.Text(". ")}
		}), texts(c.Notes)),
	)
}

func (c *chart) drawing() g.Node {
	path := func(class string) func(string) g.Node {
		return func(d string) g.Node { return g.El("path", attrs("class", class, "d", d)) }
	}
	return h.SVG(attrs("width", "100%", "height", "200", "aria-hidden", "true", "focusable", "false"),
		g.Map(c.Y, func(t tick) g.Node {
			return g.Group{g.El("line", attrs("class", "grid", "x1", "0", "x2", "100%", "y1", t.At, "y2", t.At)),
				g.El("text", attrs("class", "y", "x", "-6", "y", t.At, "dy", "4"), g.Text(t.Text))}
		}),
		g.Map(c.X, func(t tick) g.Node {
			return g.Group{g.El("line", attrs("class", "grid tick", "x1", t.At, "x2", t.At, "y1", "100%", "y2", "100%")),
				g.El("text", attrs("class", "x", "x", t.At, "y", "100%", "dy", "16"), g.Text(t.Text))}
		}),
		h.SVG(attrs("width", "100%", "height", "100%", "viewBox", "0 0 1000 1000", "preserveAspectRatio", "none"),
			some(c.Band, path("band")), g.Map(c.Earlier, path("earlier")), g.Map(c.Thin, path("thin")), path("main")(c.Main)),
		only(c.Beyond != nil, func() g.Node {
			return g.El("text", attrs("class", "beyond", "x", c.Beyond.X, "y", c.Beyond.Y, "dx", "6", "dy", c.Beyond.Down), g.Text(c.Beyond.Text))
		}),
		g.Map(c.Dots, func(d dot) g.Node { return g.El("circle", attrs("class", "dot", "cx", d.X, "cy", d.Y, "r", "3")) }),
		only(c.Published != nil, func() g.Node {
			return g.Group{g.El("line", attrs("class", "published", "x1", "0", "x2", "100%", "y1", c.Published.At, "y2", c.Published.At)),
				g.El("text", attrs("class", "published", "x", "100%", "y", c.Published.At, "dy", "-5"), g.Text(c.Published.Name))}
		}),
		g.El("g", attrs("class", "cursor"), g.El("line", attrs("y1", "0", "y2", "100%")), g.El("circle", attrs("r", "4"))),
	)
}

func stepRows(all []pointRow) g.Node {
	return g.Map(all, func(r pointRow) g.Node { return h.Tr(rowHead(g.Text(r.Steps)), figureCells(r.Cells)) })
}

func (t *pointTable) node() g.Node {
	return more("points", true, "Table: the run over steps", table("the run over steps", nil,
		[]g.Node{column("steps"), column("step time"), column("shortest"), column("longest"), column("MFU"), perDevice("TFLOP/s"), perDevice("tokens/s"), column("loss")},
		h.TBody(h.Data("base", t.Base), stepRows(t.Rows))))
}

func (t *sliceTable) node() g.Node {
	const name = "step time of each slice over steps"
	return more("by-slice", false, "Table: "+name,
		only(t.More > 0, func() g.Node {
			return note(g.Textf("The slowest %d slices; %d more are in ", len(t.Names), t.More), h.Code(g.Text("multihost metrics --output=csv")), g.Text("."))
		}),
		table(name, nil, append([]g.Node{column("steps")}, g.Map(t.Names, column)...), h.TBody(stepRows(t.Rows))))
}

func (v *view) heatPart() g.Node {
	m := v.Heat
	if m == nil {
		return nil
	}
	height, columns := strconv.Itoa(m.Height), strconv.Itoa(m.Columns)
	return box("box", "heat", "Step time of every worker",
		h.Div(h.Class("heat"),
			h.SVG(attrs("class", "names", "width", strconv.Itoa(m.Gutter), "height", height, "aria-hidden", "true", "focusable", "false"),
				g.Map(m.Labels, func(l rowLabel) g.Node {
					return g.El("text", some(l.Class, h.Class), attrs("x", "100%", "y", l.Y, "dx", "-8", "dy", "4"), g.Text(l.Text))
				})),
			h.Div(h.Class("map"), h.TabIndex("0"), h.Role("img"), h.Aria("label", m.Label), h.Aria("describedby", "heat-read"), g.Attr("data-heat"),
				h.Img(h.Src(m.Image), h.Width(columns), h.Height(height), h.Alt("")),
				h.SVG(attrs("width", "100%", "height", "100%", "aria-hidden", "true", "focusable", "false"),
					g.Map(m.Marks, func(r rowMark) g.Node {
						return g.El("rect", attrs("class", "failed", "x", "-6", "width", "6", "y", r.Y, "height", r.Height))
					}),
					g.El("rect", attrs("class", "cell", "width", "0", "height", "0")))),
			h.P(h.Class("foot"), h.Span(g.Text("step "+m.From)), h.Span(g.Text(m.To)))),
		h.P(h.Class("read"), h.ID("heat-read"), h.Role("status")),
		h.P(h.Class("legend"), g.Map(m.Legend, func(l legend) g.Node {
			return g.Group{h.Span(h.SVG(attrs("width", "14", "height", "14", "aria-hidden", "true"),
				g.El("rect", attrs("class", l.Class, "width", "14", "height", "14"))), g.Text(" "+l.Text)), g.Text(" ")}
		})),
		only(len(m.Notes) > 0, func() g.Node { return note(texts(m.Notes)) }),
	)
}

func (v *view) timelinePart() g.Node {
	t := v.Timeline
	if t == nil {
		return nil
	}
	return box("box", "timeline", "Timeline",
		only(t.More > 0, func() g.Node { return note(g.Textf("%d earlier attempts are not shown.", t.More)) }),
		h.Div(h.Class("scroll"), h.TabIndex("0"), h.Role("region"), h.Aria("labelledby", "timeline-h"),
			h.Table(h.Class("timeline"),
				h.THead(h.Tr(column("phase"), h.Th(h.Scope("col"), h.Class("bars"), g.Text("0 "), h.Span(g.Text(t.Span))),
					column("began"), column("took"), h.Th(h.Scope("col"), h.Class("wide"), g.Text("detail")))),
				g.Map(t.Attempts, func(a attemptRows) g.Node {
					return h.TBody(h.Tr(h.Th(h.ColSpan("5"), h.Scope("rowgroup"), g.Text(a.Title))), g.Map(a.Rows, phaseRow.node))
				}))),
	)
}

func (r phaseRow) node() g.Node {
	state := string(r.State)
	if r.State == event.Started {
		state = "going on"
	}
	return h.Tr(h.Class(string(r.State)), rowHead(g.Text(r.Name)),
		h.Td(h.Class("bars"), h.SVG(attrs("width", "100%", "height", "12", "aria-hidden", "true", "focusable", "false"),
			g.Map(r.Bars, func(b bar) g.Node {
				return g.El("rect", attrs("class", b.Class, "x", b.X, "width", b.W, "height", "12", "rx", "2"))
			}))),
		h.Td(g.Text(r.Began)), h.Td(g.Text(r.Took)),
		h.Td(h.Class("wide"), only(r.State != event.Done, func() g.Node { return g.Group{h.Strong(g.Text(state)), g.Text(" ")} }), g.Text(r.Detail)))
}

func (v *view) skewPart() g.Node {
	s := v.Skew
	if s == nil {
		return nil
	}
	return box("box", "skew", "Start skew",
		h.P(g.Text(s.Text+", by the workers' clocks, corrected.")),
		only(len(s.Dots) > 0, func() g.Node {
			return g.Group{
				h.Div(h.Class("strip"), h.Role("img"), h.Aria("label", s.Text+"; the last ones are in the table"),
					h.SVG(attrs("width", "100%", "height", "20", "aria-hidden", "true", "focusable", "false"),
						g.El("line", attrs("x1", "0", "x2", "100%", "y1", "10", "y2", "10")),
						g.Map(s.Dots, func(at string) g.Node { return g.El("circle", attrs("cx", at, "cy", "10", "r", "3.5")) }))),
				h.P(h.Class("foot"), h.Span(g.Text("0")), h.Span(g.Text(s.Limit))),
			}
		}),
		more("late", true, fmt.Sprintf("Table: the last %d of %d to start", len(s.Last), s.Of),
			h.Table(h.THead(h.Tr(column("worker"), column("after the first"))),
				h.TBody(g.Map(s.Last, func(w lateWorker) g.Node { return h.Tr(rowHead(g.Text(w.Name)), h.Td(g.Text(w.After))) })))),
	)
}

func (v *view) workersPart() g.Node {
	t := v.Workers
	if t == nil {
		return nil
	}
	var figures []g.Node
	if t.Figures {
		figures = []g.Node{column("last step"), column("step time"), column("MFU"), perDevice("TFLOP/s"), perDevice("tokens/s"), column("loss")}
	}
	sorts := g.Attr("data-sort")
	failed := ""
	if t.Bad > 0 {
		failed = fmt.Sprintf("%d failed of ", t.Bad)
	}
	return box("box", "workers", "Slices and workers",
		only(t.Figures, func() g.Node { return note(g.Text("Step time, MFU, TFLOP/s and tokens/s are medians.")) }),
		only(len(t.Slices) > 0, func() g.Node {
			return table("slices", sorts, append([]g.Node{column("slice"), textColumn("workers")}, figures...), h.TBody(g.Map(t.Slices, sliceRow.node)))
		}),
		more("all-workers", false, fmt.Sprintf("Table: %s%d workers", failed, len(t.Rows)),
			only(t.More > 0, func() g.Node {
				return note(g.Textf("%d more are in ", t.More), h.Code(g.Text("multihost metrics --output=json")), g.Text("."))
			}),
			table("workers", sorts, append(append([]g.Node{column("worker"), textColumn("state")}, figures...), column("started after")),
				h.TBody(g.Map(t.Rows, workerRow.node)))),
	)
}

func (r sliceRow) node() g.Node {
	return h.Tr(h.Data("base", r.Base), rowHead(g.Text(r.Name)), h.Td(h.Class("text"), g.Text(r.Workers+", "+r.Ends)), figureCells(r.Cells))
}

func (r workerRow) node() g.Node {
	return h.Tr(some(r.Base, func(base string) g.Node { return h.Data("base", base) }), only(r.Slow, func() g.Node { return h.Class("slow") }),
		rowHead(g.Text(r.Name), only(r.Slow, func() g.Node { return g.Group{g.Text(" "), h.Em(g.Text("straggler"))} })),
		h.Td(h.Class("text "+r.Class), g.Text(r.State)), figureCells(r.Cells), h.Td(g.Text(r.After)))
}

func (v *view) preflightPart() g.Node {
	s := v.Settings
	if s == nil {
		return nil
	}
	class := "box"
	if s.Bad {
		class += " warn"
	}
	return box(class, "preflight", "Preflight",
		h.Details(h.ID("settings"), h.Data("print", ""), only(s.Bad, func() g.Node { return g.Attr("open") }), h.Summary(g.Text(s.Text)),
			only(s.More > 0, func() g.Node { return note(g.Textf("%d more rows are not shown.", s.More)) }),
			table("preflight settings", h.Class("settings"), []g.Node{column("setting"), textColumn("wanted"), textColumn("before"), textColumn("after"),
				textColumn("outcome"), textColumn("workers"), textColumn("reason")}, h.TBody(g.Map(s.Rows, settingRow)))))
}

func settingRow(r preflight.Row) g.Node {
	text := func(text string) g.Node { return h.Td(h.Class("text"), g.Text(text)) }
	return h.Tr(h.Class(string(r.Outcome)), rowHead(g.Text(r.Setting)),
		text(r.Want), text(r.Before), text(r.After), text(string(r.Outcome)), text(r.Workers), text(r.Reason))
}

func (v *view) notesPart() g.Node {
	if len(v.Notes) == 0 {
		return nil
	}
	summary := v.NoteCount
	if v.MoreNotes > 0 {
		summary += fmt.Sprintf(", the last ones; %d more are in the run's journal", v.MoreNotes)
	}
	return box("box", "notes", "What was said",
		more("said", false, summary, h.Ol(h.Class("said"), g.Map(v.Notes, noteRow.node))))
}

func (n noteRow) node() g.Node {
	return h.Li(h.Class(string(n.Level)), h.Time(g.Text(when(n.Time))), g.Text(" "),
		only(n.Level != event.Info, func() g.Node { return g.Group{h.Strong(g.Text(string(n.Level) + ":")), g.Text(" ")} }),
		g.Text(n.Text),
		some(n.Hint, func(text string) g.Node { return g.Group{h.Br(), h.Span(h.Class("note"), g.Text(text))} }))
}

func (v *view) aboutPart() g.Node {
	return h.Footer(h.P(g.Text("Made by multihost at "+when(v.Generated)+". Every figure of the training is that of "),
		h.Code(g.Text("multihost metrics "+v.Run+" --output=json")), g.Text(", rounded.")))
}

// dataPart returns JSON for the script. json.Marshal writes <, > and & as escapes, so that
// the text cannot end the element.
func (v *view) dataPart() g.Node {
	return g.NodeFunc(func(w io.Writer) error {
		data, err := json.Marshal(v.Data)
		if err != nil {
			return err
		}
		return h.Script(h.Type("application/json"), g.Raw(string(data))).Render(w)
	})
}
