package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/logs"
	"multihost/internal/options"
	"multihost/internal/record"
	"multihost/internal/report"
	"multihost/internal/stage"
)

func reportCommand() *cli.Command {
	return command(cli.Command{
		Name:      "report",
		Usage:     "show a run as a page: how it went, how fast it trained, who was slow",
		ArgsUsage: "[RUN]",
		Description: `Writes one HTML file that loads nothing from elsewhere, so you can keep it, send
it and print it. It shows the verdict and the first failure, the phases
of all attempts, step time, MFU and loss over steps beside the published
figure, the step time of every worker, the start skew and the preflight.

  multihost report train
  multihost report train -o ~/train.html
  multihost report train --compare=v5e/32b
  multihost report train --follow

With --follow it serves the same page at an address that only this machine can
reach, and prints the address. The page follows the run. When the run has ended,
the page stays until Ctrl-C.

The page shows what this machine has of the run: its logs and its journal. The
command asks neither the workers nor the cloud. The file may be in the directory
of your program: no later run copies it to the workers.`,
		Flags: slices.Concat(options.TrainingFlags(), []cli.Flag{
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Value: "report.html", Usage: "`FILE` to write; - is stdout"},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "serve the page on 127.0.0.1 and let it follow the run"},
			&cli.IntFlag{Name: "port", Usage: "`PORT` of --follow; default: one that is free"},
		}),
		Action: act(func(c *call) error {
			name, dir, o := options.Training(&c.Call, config.StateDir(c.lookup, c.home))
			switch port := c.Int("port"); {
			case !c.Bool("follow") && c.String("out") == "-" && c.json:
				c.Refuse(usagef("--out=- and --output=json: standard output can be the page or the answer, not both"), "out", "output")
			case c.Bool("follow") && (port < 0 || port > 65535):
				c.Refuse(usagef("--port=%d: it is a port from 1 to 65535", port), "port")
			}
			if err := ready(c); err != nil {
				return err
			}
			r := logs.OpenReview(dir, name, o)
			if c.Bool("follow") {
				again := "multihost report " + name
				if name == o.LogDir {
					again = "multihost report --log-dir=" + name
				}
				return serveReport(c, r, again)
			}
			return writeReport(c, r, dir)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitIO, exitConfig)
}

// look reads the state of the run for a page. The bool reports whether the run has ended.
func look(r *logs.Review) (report.Input, bool, error) {
	now := gcp.SystemClock.Now()
	l, err := r.Look(trainingView, now)
	return report.Input{Document: l.Document, Story: l.Story, Now: now}, l.Ended, err
}

func writeReport(c *call, r *logs.Review, stateDir string) error {
	in, _, err := look(r)
	if err != nil {
		return err
	}
	var page bytes.Buffer
	if err := report.Write(&page, in); err != nil {
		return err
	}
	path := c.String("out")
	if path == "-" {
		view := newView(c)
		out := view.Stdout()
		_, err := out.Write(page.Bytes())
		return withoutPipe(errors.Join(err, out.Close(), view.Close()))
	}
	if err := config.WriteWhole(path, page.Bytes()); err != nil {
		return &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err, Advice: "choose another place with -o FILE"}
	}
	_ = record.Remember(stateDir, "report", path) // the page is written; an error here only affects whether the next run finds it
	whole, err := filepath.Abs(path)
	if err != nil {
		whole = path
	}
	return show(c, event.Result{Name: "report", Text: fmt.Sprintf("%s (%s)", whole, event.Bytes(int64(page.Len()))), Data: reportFile{Path: whole, Bytes: page.Len()}})
}

// reportFile is the result in JSON: the written file, or the URL at which the page is
// served.
type reportFile struct {
	Path  string `json:"path,omitempty"`
	Bytes int    `json:"bytes,omitempty"`
	URL   string `json:"url,omitempty"` // with --follow
}

func serveReport(c *call, r *logs.Review, again string) error {
	live, err := report.NewLive(func() (report.Input, bool, error) { return look(r) }, gcp.SystemClock)
	if err != nil {
		return err
	}
	at, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Int("port"))))
	if err != nil {
		return &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err, Advice: "leave --port out to take a free one"}
	}
	view := newView(c)
	defer view.Close()
	address := live.URL(at.Addr())
	view.Emit(event.Result{Name: "report", Text: address, Data: reportFile{URL: address}})
	event.Notef(view, event.Info, "", "the page follows the run until Ctrl-C; everybody on this machine who has the whole address can read it")
	return live.Serve(c.Context, at, func() {
		event.Notef(view, event.Info, "to keep it, press Ctrl-C and type: "+again, "the run has ended; the page stays until Ctrl-C")
	})
}
