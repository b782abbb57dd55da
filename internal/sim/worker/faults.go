//go:build linux

package worker

import (
	"fmt"
	"slices"
)

func (m *machine) SetFault(f Fault) error {
	if err := f.check(); err != nil {
		return fmt.Errorf("set fault %q on worker %q: %w", f, m.spec.Name, err)
	}
	if err := m.setFault(f); err != nil {
		return fmt.Errorf("set fault %q on worker %q: %w", f, m.spec.Name, err)
	}
	return nil
}

func (m *machine) setFault(f Fault) error {
	m.mu.Lock()
	stopped := m.stopped
	m.mu.Unlock()
	if stopped {
		return errStopped
	}
	switch f.Kind {
	case Clear:
		return m.clearFaults(FaultKind(f.Name))
	case Reboot:
		if err := m.reboot(m.ctx, f.Duration); err != nil {
			return err
		}
		return m.reconcile()
	case RotateHostKeys:
		keys, err := makeHostKeys()
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.hostKeys = keys
		m.mu.Unlock()
		return nil
	case Kill:
		return m.signalAll(signals[killName(f)])
	case Slow:
		m.mu.Lock()
		m.slow[f.Mode] = f
		m.mu.Unlock()
		return nil
	case Missing, Denied, Fixed:
		if f.Kind == Missing && !m.knows(f.Name) {
			return fmt.Errorf("worker has no setting %q", f.Name)
		}
		m.mu.Lock()
		if !slices.Contains(m.marks[f.Kind], f.Name) {
			m.marks[f.Kind] = append(m.marks[f.Kind], f.Name)
		}
		m.mu.Unlock()
		return m.applyMarks()
	}

	m.mu.Lock()
	m.faults[f.Kind] = f
	m.settleFreeze()
	m.mu.Unlock()
	if f.Kind != Slow {
		m.after(f.Duration, string(f.Kind), func() { _ = m.clearFaults(f.Kind) })
	}
	switch f.Kind {
	case Unreachable:
		err := m.reconcile()
		if f.Mode == "refuse" {
			m.resetConnections()
		}
		return err
	case Cut:
		for _, c := range m.connections() {
			c.unlimit()
			c.limit(f.Mode, f.Bytes)
		}
	case NoSudo:
		return m.applyMarks()
	}
	return nil
}

// clearFaults ends the faults of one kind, or all.
func (m *machine) clearFaults(kind FaultKind) error {
	m.mu.Lock()
	if kind == "" || kind == Slow {
		clear(m.slow)
	}
	for k := range m.faults {
		if kind == "" || kind == k {
			delete(m.faults, k)
		}
	}
	var missing []string
	for k, names := range m.marks {
		if kind == "" || kind == k {
			if k == Missing {
				missing = names
			}
			delete(m.marks, k)
		}
	}
	m.settleFreeze()
	cut := kind == "" || kind == Cut
	m.mu.Unlock()

	if cut {
		for _, c := range m.connections() {
			c.unlimit()
		}
	}
	if err := m.restore(missing); err != nil {
		return err
	}
	if err := m.applyMarks(); err != nil {
		return err
	}
	return m.reconcile()
}

// settleFreeze opens or closes the gate of all connections. m.mu is held.
func (m *machine) settleFreeze() {
	_, freeze := m.faults[Freeze]
	u, unreachable := m.faults[Unreachable]
	want := freeze || unreachable && u.Mode == "hang"
	switch {
	case want && m.thaw == nil:
		m.thaw = make(chan struct{})
	case !want && m.thaw != nil:
		close(m.thaw)
		m.thaw = nil
	}
}

// takeCut reports whether a connection that has used up its bytes is to be
// cut, and counts it.
func (m *machine) takeCut() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.faults[Cut]
	if !ok {
		return false
	}
	if f.Count > 0 {
		if f.Count--; f.Count == 0 {
			delete(m.faults, Cut)
		} else {
			m.faults[Cut] = f
		}
	}
	return true
}

// takeRefusal reports whether a connection's keys are to be refused, and
// counts it.
func (m *machine) takeRefusal() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.faults[RefuseAuth]
	if !ok {
		return false
	}
	if f.Count > 0 {
		if f.Count--; f.Count == 0 {
			delete(m.faults, RefuseAuth)
		} else {
			m.faults[RefuseAuth] = f
		}
	}
	return true
}

func (m *machine) slowness(mode string) Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slow[mode]
}
