package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/sim/kubeapi/store"
)

// those returns the clusters whose names match a pattern.
func (k *kubernetes) those(pattern string) map[string]*kubeapi.Server {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	all := maps.Clone(k.servers)
	maps.DeleteFunc(all, func(name string, _ *kubeapi.Server) bool { return !cloud.Glob(pattern, path.Base(name)) })
	return all
}

// inject applies a fault of clusters that happens once. mine is false for other faults.
func (k *kubernetes) inject(f cloud.Fault) (mine bool, err error) {
	var hit func(s *kubeapi.Server) (int, error)
	switch f.Name {
	case "pod-kill":
		hit = func(s *kubeapi.Server) (int, error) {
			return each(s, store.Pods, f.Pod, func(o *store.Object) error { return s.Kill(o.GetNamespace(), o.GetName(), f.Mode == "oom") })
		}
	case "cluster-node-gone":
		hit = func(s *kubeapi.Server) (int, error) {
			return each(s, store.Nodes, f.Node, func(o *store.Object) error { return s.RemoveNode(o.GetName()) })
		}
	case "cluster-exec-cut":
		hit = func(s *kubeapi.Server) (int, error) { s.CutExecs(); return 1, nil }
	case "cluster-api-error":
		hit = func(s *kubeapi.Server) (int, error) { s.FailRequests(f.Code, cmp.Or(f.Count, 1)); return 1, nil }
	default:
		return false, nil
	}
	if err := f.Check(); err != nil {
		return true, err
	}
	n := 0
	var errs []error
	for _, s := range k.those(f.Cluster) {
		more, err := hit(s)
		n += more
		errs = append(errs, err)
	}
	if n == 0 {
		errs = append(errs, fmt.Errorf("inject fault %q: nothing matches", f))
	}
	return true, errors.Join(errs...)
}

// each calls do for the objects whose names match a pattern, and returns their number.
func each(s *kubeapi.Server, kind *store.Kind, pattern string, do func(*store.Object) error) (n int, err error) {
	all, _ := s.Objects().List(kind, "")
	var errs []error
	for _, o := range all {
		if cloud.Glob(pattern, o.GetName()) {
			n++
			errs = append(errs, do(o))
		}
	}
	return n, errors.Join(errs...)
}

// follow makes the clusters do what the active faults say.
func (k *kubernetes) follow(faults []cloud.Fault) error {
	var errs []error
	for name, s := range k.those("") {
		away, stuck := false, ""
		for _, f := range faults {
			if !cloud.Glob(f.Cluster, path.Base(name)) {
				continue
			}
			switch f.Name {
			case "cluster-away":
				away = true
			case "pod-stuck":
				stuck = cmp.Or(f.Pod, "*")
			}
		}
		s.Hold(stuck)
		errs = append(errs, s.SetAway(away))
	}
	return errors.Join(errs...)
}
