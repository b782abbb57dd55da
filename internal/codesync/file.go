package codesync

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"multihost/internal/config"
)

// AgentFolder is the folder for PushFile's files on a worker, in the home of the login.
const AgentFolder = ".multihost/agent"

// PushFile brings one executable file to AgentFolder of all workers, as PushAll brings a
// tree to ~/run. Workers pass the file on to each other where that is faster. PushFile
// removes the files of earlier PushFiles from that folder, and no others. It ignores Dir
// and the settings of Scan in o. It returns the same results as PushAll.
func PushFile(ctx context.Context, o Options, targets []Target, name string, file func() ([]byte, error)) ([]Report, []error) {
	fail := func(err error) ([]Report, []error) {
		errs := make([]error, len(targets))
		for i := range errs {
			errs[i] = fmt.Errorf("send %s: %w", name, err)
		}
		return make([]Report, len(targets)), errs
	}
	data, err := file()
	if err != nil {
		return fail(err)
	}
	forgetFiles(o.TempDir, time.Now())
	dir, err := os.MkdirTemp(o.TempDir, fileDirs)
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
		return fail(err)
	}
	o.Dir, o.NoIgnore, o.Home, o.Cache, o.Written, o.Adopt = dir, true, "", "", "", true
	tree, err := Scan(ctx, o)
	if err != nil {
		return fail(err)
	}
	defer tree.Close()
	return tree.PushAll(ctx, targets, AgentFolder)
}

// fileDirs is the prefix of PushFile's directories on this machine.
const fileDirs = "multihost-file-"

// forgetFiles removes the directories that a killed PushFile left in temp. It leaves
// directories of the last 24 hours, because a PushFile may still use them. If temp is "", it
// means the system's temporary directory.
func forgetFiles(temp string, now time.Time) {
	if temp == "" {
		temp = os.TempDir()
	}
	all, _ := os.ReadDir(temp) // an unreadable directory stays as it is
	for _, e := range all {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), fileDirs) {
			continue
		}
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(filepath.Join(temp, e.Name())) // another user's directory stays
		}
	}
}

// checkRun returns an error if the directory of a sync cannot have the name run.
func checkRun(run string) error {
	if run == AgentFolder {
		return nil
	}
	return config.CheckRunName(run)
}
