//go:build linux

package worker

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

func (m *machine) SetFault(f Fault) error {
	if err := f.Check(); err != nil {
		return fmt.Errorf("set fault %q on worker %q: %w", f, m.Spec.Name, err)
	}
	if err := m.setFault(f); err != nil {
		return fmt.Errorf("set fault %q on worker %q: %w", f, m.Spec.Name, err)
	}
	return nil
}

func (m *machine) setFault(f Fault) error {
	m.Mu.Lock()
	stopped := m.Stopped
	m.Mu.Unlock()
	if stopped {
		return ErrStopped
	}
	if err := f.checkProcess(); err != nil {
		return err
	}
	switch f.Kind {
	case Clear:
		return m.clearFaults(FaultKind(f.Name))
	case Reboot:
		return m.restart(f)
	case RotateHostKeys:
		return m.rotateHostKeys()
	case Kill:
		return signalAll(m, Signals[KillName(f)])
	case Missing, Denied, Fixed:
		return m.mark(f)
	case Clock:
		if err := os.RemoveAll(m.path("state/clock-set")); err != nil {
			return err
		}
	}
	if err := m.SetDoorFault(f, m.clearFaults); err != nil {
		return err
	}
	if f.Kind == NoSudo {
		return m.applyMarks()
	}
	return nil
}

// checkProcess returns an error for a fault that the process backend cannot simulate.
func (f Fault) checkProcess() error {
	switch f.Kind {
	case DiskSpace, ReadOnly:
		return errors.New("a worker of the process backend has no disk of its own: use --backend=netns")
	case NoSudo:
		if f.Mode != "" {
			return errors.New("without its own sudo a worker of the process backend would find the machine's: use --backend=netns")
		}
	case Startup:
		if file, _ := f.Startup(); file != bashrc {
			return fmt.Errorf("a worker of the process backend reads no %s of its own: use --backend=netns", file)
		}
	}
	return f.CheckHere()
}

// restart reboots the machine for a Reboot fault. It returns when the machine is down. If
// there is a shutdown script to run, the script has ended by then.
func (m *machine) restart(f Fault) error {
	var ended <-chan struct{}
	if f.Mode == "" {
		ended = m.shutdown(m.Ctx, RebootLimit)
	}
	err := m.reboot(m.Ctx, f.Duration)
	if ended != nil {
		<-ended
	}
	if err != nil {
		return err
	}
	return m.Reconcile()
}

// mark makes a setting missing, denied or fixed, or removes a program.
func (m *machine) mark(f Fault) error {
	if f.Kind == Missing && slices.Contains(mayLack, f.Name) {
		return m.takeAway(f.Name)
	}
	if f.Kind == Missing && !m.knows(f.Name) {
		return fmt.Errorf("worker has no setting %q", f.Name)
	}
	m.Mu.Lock()
	if !slices.Contains(m.marks[f.Kind], f.Name) {
		m.marks[f.Kind] = append(m.marks[f.Kind], f.Name)
	}
	m.Mu.Unlock()
	return m.applyMarks()
}

// clearFaults ends the faults of one kind, or all.
func (m *machine) clearFaults(kind FaultKind) error {
	m.Mu.Lock()
	var missing []string
	for k, names := range m.marks {
		if kind == "" || kind == k {
			if k == Missing {
				missing = names
			}
			delete(m.marks, k)
		}
	}
	m.Mu.Unlock()
	m.ClearDoorFaults(kind)
	if kind == "" || kind == Missing {
		if err := m.putBack(); err != nil {
			return err
		}
	}
	if err := m.restore(missing); err != nil {
		return err
	}
	if err := m.applyMarks(); err != nil {
		return err
	}
	return m.Reconcile()
}
