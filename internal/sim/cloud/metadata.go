package cloud

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/tpu"
)

// metadataRoot is the path of the instance metadata server's tree.
const metadataRoot = "/computeMetadata/v1/"

// metadataServer returns the instance metadata server of one machine. read returns its
// values by path. keep stores a guest attribute, or returns false if the machine may have
// none. wait_for_change and identity tokens are not modelled.
func metadataServer(read func() map[string]string, keep func(name, value string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		w.Header().Set("Server", "Metadata Server for VM")
		switch {
		case r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, metadataRoot+guestTree):
			putGuestAttribute(w, r, keep)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		case r.URL.Path == "/":
			writeText(w, "computeMetadata/\n")
		case r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Metadata-Flavor") != "Google":
			http.Error(w, "Missing Metadata-Flavor:Google header.", http.StatusForbidden)
		case !strings.HasPrefix(r.URL.Path, metadataRoot):
			http.NotFound(w, r)
		default:
			serveTree(w, r, read())
		}
	})
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/text")
	_, _ = w.Write([]byte(text)) // an error means that the client has gone
}

// serveTree answers a request from tree, which maps paths to values. A path with a final
// slash is a directory.
func serveTree(w http.ResponseWriter, r *http.Request, tree map[string]string) {
	name := strings.TrimPrefix(r.URL.Path, metadataRoot)
	if value, ok := tree[name]; ok {
		if strings.HasPrefix(value, "{") || strings.HasPrefix(value, "[") {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(value))
			return
		}
		writeText(w, value)
		return
	}
	dir := strings.TrimSuffix(name, "/")
	if dir != "" {
		dir += "/"
	}
	entries := map[string]bool{}
	recursive := make(map[string]any)
	for key, value := range tree {
		rest, ok := strings.CutPrefix(key, dir)
		if !ok {
			continue
		}
		if first, _, deeper := strings.Cut(rest, "/"); deeper {
			entries[first+"/"] = true
		} else {
			entries[first] = true
		}
		put(recursive, key, rest, value)
	}
	switch {
	case len(entries) == 0:
		http.NotFound(w, r)
	case r.URL.Query().Get("recursive") == "true":
		b, err := json.Marshal(recursive)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(b)
	case !strings.HasSuffix(r.URL.Path, "/"):
		http.Redirect(w, r, r.URL.Path+"/", http.StatusMovedPermanently)
	default:
		writeText(w, strings.Join(slices.Sorted(maps.Keys(entries)), "\n")+"\n")
	}
}

// put puts a value into nested objects. It converts names to camel case, except those of
// attributes.
func put(into map[string]any, key, rest, value string) {
	prefix := strings.TrimSuffix(key, rest)
	first, deeper, more := strings.Cut(rest, "/")
	name := first
	if parent := path.Base(prefix); parent != "attributes" {
		name = camel(first)
	}
	if !more {
		into[name] = value
		return
	}
	child, ok := into[name].(map[string]any)
	if !ok {
		child = make(map[string]any)
		into[name] = child
	}
	put(child, key, deeper, value)
}

func camel(name string) string {
	words := strings.Split(name, "-")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}

// A guest is what a metadata server knows about its machine.
type guest struct {
	name, id, zone string
	tags           []string
	preempted      bool
	maintained     bool // maintenance is under way

	ip, external     string // external: "" for none
	network, gateway string // id of the network
	mtu              int

	account    string // "": the machine has none
	scopes     []string
	token      *token
	written    map[string]string // guest attributes, by namespace/key
	attributes map[string]string
}

// tree returns all values of the metadata server of g, by path. The caller holds s.Mu.
func (s Machines) tree(g guest) map[string]string {
	const nic = "instance/network-interfaces/0/"
	tree := map[string]string{
		"instance/name":              g.name,
		"instance/hostname":          g.name + "." + g.zone + ".c." + s.Config.Project + ".internal",
		"instance/id":                g.id,
		"instance/zone":              "projects/" + ProjectNumber + "/zones/" + g.zone,
		"instance/maintenance-event": "NONE",
		"instance/preempted":         strings.ToUpper(strconv.FormatBool(g.preempted)),
		"instance/tags":              tagList(g.tags),

		nic + "ip":      g.ip,
		nic + "mtu":     strconv.Itoa(g.mtu),
		nic + "network": "projects/" + ProjectNumber + "/networks/" + g.network,
		nic + "gateway": g.gateway,

		"project/project-id":         s.Config.Project,
		"project/numeric-project-id": ProjectNumber,
	}
	if g.maintained {
		tree["instance/maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
	}
	if g.external != "" {
		tree[nic+"access-configs/0/external-ip"] = g.external
		tree[nic+"access-configs/0/type"] = "ONE_TO_ONE_NAT"
	}
	if g.account != "" {
		for _, id := range []string{"default", g.account} {
			at := "instance/service-accounts/" + id + "/"
			tree[at+"email"] = g.account
			tree[at+"aliases"] = "default\n"
			tree[at+"scopes"] = strings.Join(g.scopes, "\n") + "\n"
			tree[at+"token"] = fmt.Sprintf(`{"access_token":%q,"expires_in":%d,"token_type":"Bearer"}`, g.token.text, int(g.token.expires.Sub(s.Clock.Now()).Seconds()))
		}
	}
	for key, value := range g.written {
		tree[guestTree+key] = value
	}
	for key, value := range s.State.Metadata {
		tree["project/attributes/"+key] = value
	}
	for key, value := range g.attributes {
		tree["instance/attributes/"+key] = value
	}
	return tree
}

// metadataOf returns all values of the metadata server of worker i of n, by path.
func (s Machines) metadataOf(n *Node, i int) map[string]string {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	network := Interfaces(n.Msg)[0]
	account := n.Msg.ServiceAccount
	g := guest{
		name: instanceName(n, i), id: strconv.FormatInt(n.Msg.Id>>8<<8|int64(i), 10), zone: n.Zone, tags: n.Msg.Tags,
		preempted: n.Msg.State == "PREEMPTED", maintained: n.Msg.Health == "UNHEALTHY_MAINTENANCE",
		ip: n.ips[i], network: path.Base(network.Network), gateway: s.State.Subnetworks[network.Subnetwork].GetGatewayAddress(), mtu: n.mtu,
		account: account.Email, scopes: account.Scope, token: s.Identity().tokenOf(n, i),
		written: n.GuestOf(i), attributes: maps.Clone(n.Msg.Metadata),
	}
	if network.EnableExternalIps && i < len(n.Msg.NetworkEndpoints) {
		g.external = n.Msg.NetworkEndpoints[i].AccessConfig.ExternalIp
	}
	endpoints := make([]string, len(n.ips))
	for j, ip := range n.ips {
		endpoints[j] = "unknown:unknown:" + ip
	}
	if g.attributes == nil {
		g.attributes = map[string]string{}
	}
	maps.Copy(g.attributes, map[string]string{
		"accelerator-type":         n.Typ.Name,
		"agent-worker-number":      strconv.Itoa(i),
		"worker-id":                strconv.Itoa(i),
		"worker-network-endpoints": strings.Join(endpoints, ","),
		"instance-id":              n.Id,
		"tpu-env":                  s.tpuEnv(n, i),
	})
	return s.tree(g)
}

// guestTree is the directory into which a worker writes guest attributes, which the API
// returns.
const guestTree = "instance/guest-attributes/"

// GuestOf returns the guest attributes that worker i has written, by namespace/key.
func (n *Node) GuestOf(i int) map[string]string {
	if i >= len(n.guest) {
		return nil
	}
	return n.guest[i]
}

// keepGuest stores a guest attribute of worker i of n.
func (s Machines) keepGuest(n *Node, i int, name, value string) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Injection().GuestAttributesOff(n.Id) {
		return false
	}
	for len(n.guest) < n.Typ.Workers {
		n.guest = append(n.guest, map[string]string{})
	}
	n.guest[i][name] = value
	return true
}

func putGuestAttribute(w http.ResponseWriter, r *http.Request, keep func(name, value string) bool) {
	name := strings.TrimPrefix(r.URL.Path, metadataRoot+guestTree)
	namespace, key, ok := strings.Cut(name, "/")
	switch {
	case r.Header.Get("Metadata-Flavor") != "Google":
		http.Error(w, "Missing Metadata-Flavor:Google header.", http.StatusForbidden)
		return
	case !ok || namespace == "" || key == "" || strings.Contains(key, "/"):
		http.Error(w, "want guest-attributes/NAMESPACE/KEY", http.StatusBadRequest)
		return
	}
	value, err := io.ReadAll(io.LimitReader(r.Body, MaxMetadata+1))
	if err != nil || len(value) > MaxMetadata {
		http.Error(w, "value too large", http.StatusRequestEntityTooLarge)
		return
	}
	if !keep(name, string(value)) {
		http.Error(w, "Guest attributes endpoint access is disabled.", http.StatusForbidden)
	}
}

func tagList(tags []string) string {
	b, err := json.Marshal(append([]string{}, tags...))
	if err != nil {
		return "[]"
	}
	return string(b)
}

// tpuEnv returns the text that JAX and libtpu read. The caller holds s.Mu.
func (s Machines) tpuEnv(n *Node, i int) string {
	hosts, chips := bounds(n.Typ)
	env := [][2]string{
		{"ACCELERATOR_TYPE", n.Typ.Name}, {"TYPE", n.Typ.Generation.ChipType}, {"TOPOLOGY", n.Typ.Topology},
		{"WORKER_ID", strconv.Itoa(i)}, {"NODE_ID", n.Id}, {"UID", strconv.FormatInt(n.Msg.Id, 10)}, {"ZONE", n.Zone},
		{"CONSUMER_PROJECT_ID", s.Config.Project}, {"CONSUMER_PROJECT_NUMBER", ProjectNumber},
		{"HOST_BOUNDS", hosts}, {"CHIPS_PER_HOST_BOUNDS", chips}, {"TPU_PROCESS_BOUNDS", hosts}, {"TPU_CHIPS_PER_PROCESS_BOUNDS", chips},
		{"ALT", "false"}, {"WRAP", "false,false,false"}, {"TPU_TOPOLOGY_WRAP", "false,false,false"},
		{"RUNTIME_VERSION", n.Msg.RuntimeVersion}, {"PREEMPTIBLE", strconv.FormatBool(preemptible(n))},
		{"TPU_RUNTIME_METRICS_PORTS", "8431,8432,8433,8434"}, {"SOURCE", "QUEUED_RESOURCE"},
	}
	if q := s.State.Queued[n.Queued]; q != nil && q.Prefix != "" {
		ids := q.NodeIDs()
		if first := s.State.Nodes[s.LocationName(n.Zone)+"/nodes/"+ids[0]]; first != nil {
			env = append(env, [2]string{"MEGASCALE_COORDINATOR_ADDRESS", first.ips[0] + ":8080"},
				[2]string{"MEGASCALE_NUM_SLICES", strconv.Itoa(q.Count)}, [2]string{"MEGASCALE_SLICE_ID", strconv.Itoa(slices.Index(ids, n.Id))})
		}
	}
	var b strings.Builder
	for _, e := range env {
		fmt.Fprintf(&b, "%s: '%s'\n", e[0], e[1])
	}
	return b.String()
}

func preemptible(n *Node) bool {
	c := n.Msg.SchedulingConfig
	return c != nil && (c.Spot || c.Preemptible)
}

// bounds returns the dimensions of a slice in workers, and of a worker in chips.
func bounds(t tpu.Type) (hosts, chips string) {
	dims := [3]int{1, 1, 1}
	for i, text := range strings.SplitN(t.Topology, "x", 3) {
		if d, err := strconv.Atoi(text); err == nil {
			dims[i] = d
		}
	}
	own := dims // for a slice of one worker
	if t.Workers > 1 {
		own = [3]int{2, 2, 1}
	}
	join := func(v [3]int) string { return fmt.Sprintf("%d,%d,%d", v[0], v[1], v[2]) }
	return join([3]int{max(1, dims[0]/own[0]), max(1, dims[1]/own[1]), max(1, dims[2]/own[2])}), join(own)
}
