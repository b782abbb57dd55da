package report_test

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"multihost/internal/testkit"
	"multihost/internal/testkit/browser"
	"multihost/internal/tpu"
)

var update = flag.Bool("update", false, "make the pictures of docs/metrics.md anew")

// TestPicturesOfTheDocuments makes the pictures of the documents from an invented run. Only
// make docs runs it, because any two browsers draw differently.
func TestPicturesOfTheDocuments(t *testing.T) {
	if !*update {
		t.Skip("only make docs makes pictures")
	}
	failing := training{slices: 2, workers: 4, steps: 1000, slow: tpu.WorkerID{Slice: 1, Worker: 2}, fails: true}
	address, _ := write(t, failing.input(t))
	p := browser.Open(t)
	for _, shot := range []struct {
		name, of string
		view     browser.View
	}{
		{"report", "#main", browser.View{Width: 1180, Height: 800}},
		{"report-workers", "#heat", browser.View{Width: 900, Height: 600, Dark: true}},
	} {
		p.See(shot.view)
		p.Go(address)
		// The first picture shows what people read first.
		browser.Eval[int](p, `(() => { for (const id of ["heat", "timeline", "skew", "workers", "preflight", "notes", "about"])
			document.getElementById(id).hidden = `+fmt.Sprint(shot.of == "#main")+`; return 0; })()`)
		keep(t, filepath.Join("..", "..", "docs", "images", shot.name+".png"), p.PictureOf(shot.of))
	}
}

// keep writes a picture in its smallest form without loss.
func keep(t *testing.T, path string, data []byte) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(data))
	testkit.Must(t, err)
	opaque := image.NewRGBA(img.Bounds())
	draw.Draw(opaque, opaque.Bounds(), img, img.Bounds().Min, draw.Src)
	var b bytes.Buffer
	testkit.Must(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, opaque))
	if most := 200_000; b.Len() > most {
		t.Errorf("%s has %d bytes, want at most %d", path, b.Len(), most)
	}
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Must(t, os.WriteFile(path, b.Bytes(), 0o644))
}
