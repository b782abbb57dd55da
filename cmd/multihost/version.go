package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	"multihost/internal/event"
)

// buildVersion is set by the Makefile with -ldflags. After a plain go build it is empty,
// and version shows the module's own stamp.
var buildVersion string

func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func versionText() string {
	return fmt.Sprintf("multihost %s (%s, %s/%s)", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func versionCommand() *cli.Command {
	return command(cli.Command{
		Name:  "version",
		Usage: "print the version",
		Action: act(func(c *call) error {
			c.NoWords()
			return show(c, event.Result{Name: "version", Text: versionText() + "\n", Data: map[string]string{
				"version": version(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
			}})
		}),
	}, exitOK, exitUsage)
}
