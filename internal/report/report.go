// Package report shows a run as one HTML page: a file to keep and send, or a live page
// while the run is active.
//
// A page is self-contained. It loads nothing, and its content policy forbids loading. It
// needs no JavaScript: the script only lets people read single points and sort, and updates
// the live page. Everything that workers have printed is only text on the page.
//
// The package computes no figure. Each figure on the page is a rounded value of the metrics
// document, and names its place there. A page is smaller than MaxBytes for any number of
// workers and steps. A page that joins or leaves out data to be small says so.
//
// # Decisions
//
//   - Go code makes the HTML and SVG, so that the page is complete without JavaScript,
//     which viewers of build artefacts forbid. The same code makes the file and the live
//     page, which gets changed sections as server-sent events.
//   - The standard library's templates are not used: in a program that executes a template,
//     the linker keeps every exported method, which is 8 MB for multihost. All texts are in
//     elements and quoted attributes, where gomponents escapes them.
//   - The heat map is a PNG with one pixel per cell. It is transparent where nothing is
//     remarkable, so that it fits light and dark pages.
//   - A report is not kept beside the record, because browsers in a sandbox cannot
//     open files below a hidden directory.
package report

import (
	"crypto/sha256"
	_ "embed" // style and script
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"

	"multihost/internal/journal"
	"multihost/internal/metrics"
)

// MaxBytes limits the size of a page. With 2048 workers a page is about half as large.
const MaxBytes = 4 << 20

// An Input is what a page shows.
type Input struct {
	Document *metrics.Document
	Story    *journal.Story // never nil, but may be empty
	Now      time.Time
}

var (
	//go:embed page.css
	style string
	//go:embed page.js
	script string
)

// Write writes the page to w as one file.
func Write(w io.Writer, in Input) error {
	v := newView(in)
	body, err := sections(v)
	if err != nil {
		return err
	}
	return skeleton{title: v.Title, body: body}.write(w)
}

// A section is a part of the page. The live page replaces it as a whole.
type section struct{ id, html string }

func sections(v *view) ([]section, error) {
	all := make([]section, len(parts))
	for i, p := range parts {
		var b strings.Builder
		if node := p.make(v); node != nil {
			if err := node.Render(&b); err != nil {
				return nil, fmt.Errorf("write the report: %w", err)
			}
		}
		all[i] = section{p.id, b.String()}
	}
	return all, nil
}

// policy forbids the page to use anything but its own style and script, named by their
// hashes. So text of a worker cannot run, even if the escaping has a fault.
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
