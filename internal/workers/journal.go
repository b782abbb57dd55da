package workers

import (
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/hosts"
	"multihost/internal/journal"
	"multihost/internal/mask"
	"multihost/internal/record"
	"multihost/internal/stage"
)

// OpenJournal starts the run's journal. Failing to open it does not affect the run; the
// user is warned.
func (d *Deps) OpenJournal(run, command string, env []config.EnvVar) {
	d.ComeTo(run)
	var secrets []string
	for _, w := range mask.MaskedWords(env) {
		secrets = append(secrets, string(w))
	}
	failed := func(err error) {
		event.Notef(d.Sink, event.Warn, "", "the run goes on, but multihost report will not show all of it: %v", err)
	}
	err := d.Journal.Open(journal.Options{Dir: record.RunDir(d.StateDir, run), Command: command, Secrets: secrets, Failed: failed})
	if err != nil {
		failed(err)
	}
}

// CloseJournal ends the journal of a run with the outcome of this command.
func (d *Deps) CloseJournal(out stage.Outcome, err error) {
	d.leaveRun()
	end := journal.End{ExitCode: out.Status(), Detached: out.Detached}
	if err != nil {
		end.Error = err.Error()
		if d.ExitStatus != nil {
			end.ExitCode = d.ExitStatus(err)
		}
	}
	d.Journal.Close(end)
}

// RecordedHosts returns the hosts that a run was started on, from this
// machine's record of it; nil for a run on slices and for one not recorded.
func RecordedHosts(stateDir, run string) (hosts.HostList, error) {
	rec, err := record.LoadRecord(stateDir, run)
	if err != nil || rec == nil || rec.Hosts == "" {
		return nil, err
	}
	return hosts.ParseHosts(rec.Hosts)
}
