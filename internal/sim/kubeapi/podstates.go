package kubeapi

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"multihost/internal/sim/kubeapi/kubelet"
	"multihost/internal/sim/kubeapi/store"
)

// watchPods shows a kubelet the states of all pods until ctx is done.
func watchPods(ctx context.Context, st *store.Store, k *kubelet.Kubelet) {
	see := func(o *store.Object, gone bool) {
		k.See(o, func(pod *corev1.Pod) error { return store.Decode(o, pod) }, gone)
	}
	list := func() uint64 {
		all, version := st.List(store.Pods, "")
		for _, o := range all {
			see(o, false)
		}
		return version
	}
	version := list()
	for {
		events, changed, ok := st.Since(version)
		if !ok { // the store has forgotten events
			version = list()
			continue
		}
		for _, e := range events {
			version = e.Version
			if e.Kind == store.Pods {
				see(e.Object, e.Type == "DELETED")
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// podStates writes the states of pods to the store, for the kubelet.
type podStates struct{ store *store.Store }

// Update implements [kubelet.API]. Its only possible error: the pod is gone.
func (s podStates) Update(p *corev1.Pod, change func(*corev1.Pod)) {
	_ = changeStatus(s.store, p.Namespace, p.Name, func(now *corev1.Pod) error {
		if now.UID != p.UID {
			return apierrors.NewNotFound(store.Pods.Resource(), p.Name)
		}
		change(now)
		return nil
	})
}

// Remove implements [kubelet.API]. Its only possible error: the pod is gone.
func (s podStates) Remove(p *corev1.Pod) {
	zero := int64(0)
	_, _, err := s.store.Remove(store.Pods, p.Namespace, p.Name, store.Removal{Grace: &zero, UID: string(p.UID)})
	_ = err
}

// changeStatus changes the status of a pod in the store.
func changeStatus(st *store.Store, namespace, name string, change func(now *corev1.Pod) error) error {
	_, err := st.Change(store.Pods, namespace, name, store.Write{Status: true}, func(o *store.Object) error {
		var now corev1.Pod
		if err := store.Decode(o, &now); err != nil {
			return err
		}
		if err := change(&now); err != nil {
			return err
		}
		next, err := store.Encode(&now)
		if err != nil {
			return err
		}
		o.Object["status"] = next.Object["status"]
		return nil
	})
	return err
}
