package notify

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// runApart runs cmd in a process group of its own, which Ctrl-C does not reach. When cmd's
// context ends, cmd and all that it has started end.
func runApart(cmd *exec.Cmd) error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(job)
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
	cmd.Cancel = func() error {
		// The program itself may not be in the job yet.
		return errors.Join(windows.TerminateJobObject(job, 1), cmd.Process.Kill())
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = addToJob(job, cmd.Process.Pid)
	return errors.Join(cmd.Wait(), err)
}

// addToJob puts a process into the job, with all processes that it starts from now on.
func addToJob(job windows.Handle, pid int) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
		return nil // the process has ended
	}
	if err != nil {
		return err
	}
	defer windows.CloseHandle(process)
	return windows.AssignProcessToJobObject(job, process)
}
