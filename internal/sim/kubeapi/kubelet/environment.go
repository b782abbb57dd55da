package kubelet

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"multihost/internal/sim/kubeapi/gkenode"
)

// hostname returns the host name of a pod.
func hostname(pod *corev1.Pod) string {
	if pod.Spec.Hostname != "" {
		return pod.Spec.Hostname
	}
	return pod.Name[:min(len(pod.Name), 63)]
}

// devices returns the device files of the chips that a container requests.
func devices(c *corev1.Container) []string {
	chips := c.Resources.Limits[gkenode.TPU]
	var files []string
	for i := range chips.Value() {
		files = append(files, fmt.Sprintf("/dev/vfio/%d", i))
	}
	if len(files) > 0 {
		files = append(files, "/dev/vfio/vfio")
	}
	return files
}

// environment returns the variables that the specification gives to a container, with
// fields and references filled in.
func environment(pod *corev1.Pod, c *corev1.Container, address string) []string {
	env := []string{"HOSTNAME=" + hostname(pod), "KUBERNETES_PORT=tcp://10.0.0.1:443", "KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443"}
	for _, e := range c.Env {
		value := expand(e.Value, env)
		if from := e.ValueFrom; from != nil {
			switch {
			case from.FieldRef != nil:
				value = fieldOf(pod, from.FieldRef.FieldPath, address)
			case from.ResourceFieldRef != nil:
				value = resourceOf(c, from.ResourceFieldRef.Resource)
			}
		}
		env = append(env, e.Name+"="+value)
	}
	return env
}

// expand replaces $(NAME) by the value of the variable NAME, and $$ by $. It leaves $(NAME)
// if there is no such variable.
func expand(text string, env []string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 || i+1 == len(text) {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:i])
		rest := text[i+1:]
		end := strings.IndexByte(rest, ')')
		switch {
		case rest[0] == '$':
			b.WriteByte('$')
			text = rest[1:]
		case rest[0] == '(' && end > 0:
			if value, ok := lookup(env, rest[1:end]); ok {
				b.WriteString(value)
			} else {
				b.WriteString("$" + rest[:end+1])
			}
			text = rest[end+1:]
		default:
			b.WriteByte('$')
			text = rest
		}
	}
}

// lookup returns the last value of a variable.
func lookup(env []string, name string) (value string, ok bool) {
	for _, e := range env {
		if v, is := strings.CutPrefix(e, name+"="); is {
			value, ok = v, true
		}
	}
	return value, ok
}

// fieldOf returns a field of a pod for the environment.
func fieldOf(pod *corev1.Pod, path, address string) string {
	for name, m := range map[string]map[string]string{"labels": pod.Labels, "annotations": pod.Annotations} {
		if key, ok := strings.CutPrefix(path, "metadata."+name+"['"); ok {
			return m[strings.TrimSuffix(key, "']")]
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name
	case "metadata.namespace":
		return pod.Namespace
	case "metadata.uid":
		return string(pod.UID)
	case "spec.nodeName":
		return pod.Spec.NodeName
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName
	case "status.podIP", "status.hostIP", "status.podIPs", "status.hostIPs":
		return address
	}
	return ""
}

func resourceOf(c *corev1.Container, name string) string {
	kind, resource, _ := strings.Cut(name, ".")
	list := c.Resources.Limits
	if kind == "requests" {
		list = c.Resources.Requests
	}
	q := list[corev1.ResourceName(resource)]
	return fmt.Sprint(q.Value())
}
