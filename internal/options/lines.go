package options

import (
	"strings"

	"multihost/internal/cmdline"
	"multihost/internal/event"
)

// TakesLong reports whether the command may run for hours. The view of such a command shows
// times.
func TakesLong(l *cmdline.Line) bool {
	switch strings.Join(l.Path, " ") {
	case "run", "job", "attach", "qr create", "qr wait", "slices create", "slices wait", "cluster create", "cluster delete", "workload create", "xpk cluster create", "xpk cluster delete", "xpk workload create":
		return true
	}
	return false
}

// Zoneless reports whether the command works on a project without a zone.
func Zoneless(l *cmdline.Line) bool {
	return len(l.Path) > 0 && (l.Path[0] == "network" || strings.TrimPrefix(strings.Join(l.Path, " "), "xpk ") == "cluster list")
}

// ReadsFiles reports whether files on this machine may be enough for the command.
func ReadsFiles(l *cmdline.Line) bool {
	return len(l.Path) > 0 && l.Path[0] == "logs"
}

// Diagnoses reports whether the command itself reports missing settings.
func Diagnoses(l *cmdline.Line) bool {
	return len(l.Path) > 0 && l.Path[0] == "doctor"
}

// TellFile says which flags the project's file sets.
func TellFile(l *cmdline.Line, sink event.Sink) {
	if file, flags := l.ProjectFlags(); file != "" {
		event.Notef(sink, event.Info, "", "%s sets %s", file, strings.Join(flags, ", "))
	}
}
