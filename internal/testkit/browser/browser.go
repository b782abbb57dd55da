// Package browser opens pages in a real Chromium, for tests of what people see. It is
// separate from testkit, because most tests do not need it.
package browser

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"multihost/internal/testkit"
)

var pictures = flag.String("pictures", "", "keep pictures of the pages that tests look at in this `directory`")

// patience limits each step, even on a slow machine.
const patience = 90 * time.Second

// A Page is a tab. It is not safe for concurrent use.
type Page struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex // guards the fields below
	faults   []string
	requests []string
}

// A View says how a page is shown. The zero View is a light desktop.
type View struct {
	Width, Height int64
	Dark          bool
	Print         bool
	Still         bool // prefers-reduced-motion
	NoScript      bool
}

// Phone is the small screen of a phone.
var Phone = View{Width: 360, Height: 740}

// Open starts a Chromium with one tab. Without Chromium, the test ends as with
// testkit.Need. The browser ends with the test. An error, a warning or an exception of the
// page fails the test.
func Open(t testing.TB) *Page {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(testkit.Need(t, "chromium")),
		chromedp.NoSandbox, // for root, as in containers; the pages are our own
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(patience),
		chromedp.UserDataDir(testkit.SharedDir(t)),
	)
	alloc, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	p := &Page{t: t, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	testkit.Must(t, chromedp.Listen(ctx, p.hear))
	t.Cleanup(func() {
		for _, f := range p.Faults() {
			t.Errorf("the page is at fault: %s", f)
		}
	})
	return p
}

// hear records the page's errors and requests.
func (p *Page) hear(e any) {
	fault := ""
	switch e := e.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type != runtime.ConsoleAPICalledTypeError && e.Type != runtime.ConsoleAPICalledTypeWarning {
			return
		}
		fault = "console:"
		for _, a := range e.Args {
			fault += " " + string(a.Value) + a.Description
		}
	case *runtime.EventExceptionThrown:
		fault = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			fault += " " + e.ExceptionDetails.Exception.Description
		}
	case *log.EventEntryAdded:
		if e.Entry.Level != log.EntryLevelError && e.Entry.Level != log.EntryLevelWarning {
			return
		}
		fault = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
	case *network.EventRequestWillBeSent:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.requests = append(p.requests, e.Request.URL)
		return
	default:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, fault)
}

// Faults returns the errors of the page so far and clears them.
func (p *Page) Faults() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	faults := p.faults
	p.faults = nil
	return faults
}

// Requests returns the addresses requested so far.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

func (p *Page) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// Go opens an address and waits until it is loaded.
func (p *Page) Go(url string) {
	p.t.Helper()
	p.do("open "+url, chromedp.Navigate(url))
}

// See changes how the page is shown.
func (p *Page) See(v View) {
	p.t.Helper()
	if v.Width == 0 {
		v.Width, v.Height = 1280, 900
	}
	scheme, motion, media := "light", "no-preference", ""
	if v.Dark {
		scheme = "dark"
	}
	if v.Still {
		motion = "reduce"
	}
	if v.Print {
		media = "print"
	}
	p.do("change the view", chromedp.EmulateViewport(v.Width, v.Height), func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		_, err = cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: media, Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: motion},
		}})
		if err == nil {
			_, err = cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: v.NoScript})
		}
		return none, err
	})
}

// Eval returns the value of a JavaScript expression.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	return value(p, "evaluate "+expression, chromedp.Evaluate[T](expression))
}

// Wait waits until a JavaScript expression is true.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	p.do("wait for "+expression, func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		return chromedp.Poll[chromedp.Void]("!!("+expression+")", chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(patience))(ctx, t)
	})
}

// Press types keys, including those of chromedp's package kb.
func (p *Page) Press(keys string) {
	p.t.Helper()
	p.do("press keys", chromedp.KeyEvent(keys))
}

// Picture returns the whole page as PNG.
func (p *Page) Picture() []byte {
	p.t.Helper()
	return value(p, "take a picture", chromedp.FullScreenshot(100))
}

// PictureOf returns the element that a CSS selector finds, as PNG.
func (p *Page) PictureOf(selector string) []byte {
	p.t.Helper()
	return value(p, "take a picture of "+selector, chromedp.Screenshot(chromedp.CSS(selector)))
}

// PDF returns the printed page.
func (p *Page) PDF() []byte {
	p.t.Helper()
	return value(p, "print", chromedp.PrintToPDF(chromedp.PDFPaper(chromedp.PaperA4)))
}

// Keep writes a picture of the page to the directory of -pictures, if any, for people.
func (p *Page) Keep(name string) {
	p.t.Helper()
	if *pictures != "" {
		testkit.Must(p.t, os.WriteFile(filepath.Join(*pictures, name+".png"), p.Picture(), 0o644))
	}
}

func value[T any](p *Page, what string, a chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
	return v
}
