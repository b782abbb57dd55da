// Package report shows a run as one HTML page: as a file to keep and to send, and live
// while the run goes on.
//
// A page is self-contained. It loads nothing, and its own policy forbids that. It can be
// read without JavaScript, which only adds the reading of single points, sorting and the
// updates of the live page. Everything that workers printed is only text on it.
//
// No figure is computed here: each one on the page carries its place in the metrics
// document and is that value, rounded for people. A page is smaller than MaxBytes for any
// number of workers and steps; where something is joined or left out for that, the page
// says so.
//
// # Decisions
//
//   - HTML and SVG come from Go templates. So the page is whole without JavaScript,
//     which viewers of build artefacts forbid, and the same code makes the file and
//     the live page. The live page gets changed sections by server-sent events.
//   - The heat map is a PNG with one pixel a cell, transparent where nothing is
//     remarkable. So it fits light and dark pages.
//   - A report is not kept beside the record, because browsers in a sandbox cannot
//     open files below a hidden directory.
package report

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"time"

	"multihost/internal/journal"
	"multihost/internal/metrics"
)

// MaxBytes limits the size of a page. With 2048 workers a page is about half of that.
const MaxBytes = 4 << 20

// An Input is what a page shows.
type Input struct {
	Document *metrics.Document
	Story    *journal.Story // never nil, but may be empty
	Now      time.Time
}

//go:embed page.html page.css page.js
var assets embed.FS

var (
	style  = asset("page.css")
	script = asset("page.js")
	pages  = template.Must(template.New("page.html").Funcs(template.FuncMap{"when": when}).ParseFS(assets, "page.html"))
)

func asset(name string) string {
	data, err := assets.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(data)
}

// Write writes the page as a file.
func Write(w io.Writer, in Input) error {
	v := newView(in)
	body, err := sections(v)
	if err != nil {
		return err
	}
	return pages.Execute(w, skeleton{Title: v.Title, Policy: policy(false), Style: template.CSS(style), Script: template.JS(script), Body: body})
}

// skeleton is the frame around the sections.
type skeleton struct {
	Title  string
	Policy string
	Style  template.CSS
	Script template.JS
	Live   string // address of its updates; "" for a file
	Body   []section
}

// A section is a part of the page that the live page replaces as a whole.
type section struct {
	ID   string
	HTML template.HTML
}

// sectionIDs is the order of the sections; each is a template of its own.
var sectionIDs = []string{"verdict", "failure", "figures", "charts", "heat", "timeline", "skew", "workers", "preflight", "notes", "about", "data"}

func sections(v *view) ([]section, error) {
	all := make([]section, len(sectionIDs))
	for i, id := range sectionIDs {
		var b bytes.Buffer
		if err := pages.ExecuteTemplate(&b, id, v); err != nil {
			return nil, fmt.Errorf("write the report: %w", err)
		}
		all[i] = section{id, template.HTML(b.String())}
	}
	return all, nil
}

// policy forbids the page everything but its own style and script, which it names by
// their hashes. So text of a worker cannot run, even if the escaping has a hole.
func policy(live bool) string {
	p := "default-src 'none'; img-src data:; style-src " + hash(style) + "; script-src " + hash(script) + "; base-uri 'none'; form-action 'none'"
	if live {
		p += "; connect-src 'self'"
	}
	return p
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
