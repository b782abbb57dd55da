// Package createflags reads gcloud's flags of `queued-resources create` into a request of
// package qr. It makes no call.
package createflags

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/fault"
	"multihost/internal/gcloud"
	"multihost/internal/qr"
	"multihost/internal/tpu"

	"github.com/google/shlex"
)

// A Reader builds a request from flags: those of `gcloud alpha compute tpus
// queued-resources create`, with gcloud's meaning, and also --on-demand and --flex-start.
// The error for a malformed value, or for a flag that contradicts the request so far, names
// the flag.
type Reader struct {
	request qr.Request
	now     time.Time
	given   map[string]bool   // flags set by Set or Extra
	seen    map[string]string // flag → value, within the present call of Extra
	tiers   []askedTier
	kind    string // --type
	shape   string // --topology
	host    string // projects/P, folders/F or organizations/O of a flag --reservation-host-…
}

// An askedTier is a tier and the flag that asks for it.
type askedTier struct {
	flag string
	tier qr.Tier
}

// NewReader returns a Reader that starts with a copy of r. Times are relative to now. A
// time without a zone is in the zone of now.
func NewReader(r qr.Request, now time.Time) *Reader {
	p := &Reader{request: clone(r), now: now, given: map[string]bool{}, seen: map[string]string{}}
	if r.Tier != "" {
		p.tiers = []askedTier{{"--" + string(r.Tier), r.Tier}}
	}
	return p
}

// Set adds one flag. For a Bool flag, value is "true" or "false".
func (p *Reader) Set(name, value string) error {
	flag, ok := flagNamed(name)
	if !ok {
		return fmt.Errorf("unknown flag --%s", name)
	}
	if old, twice := p.seen[name]; twice && !flag.Repeat {
		if old != value {
			return fmt.Errorf("--%s is given twice, as %q and %q", name, old, value)
		}
		return nil
	}
	p.seen[name] = value
	if flag.Bool && value == "false" { // the same as not set
		return nil
	}
	err := flag.set(p, name, value)
	p.given[name] = err == nil
	return err
}

// Extra adds gcloud flags from one string, which it splits into words as a shell does. A
// flag is --flag=value or --flag value, with dashes or underscores.
func (p *Reader) Extra(args string) error {
	words, err := shlex.Split(args)
	if err != nil {
		return fmt.Errorf("parse %q: %w", args, err)
	}
	p.seen = map[string]string{}
	for len(words) > 0 {
		if words, err = p.next(words); err != nil {
			return err
		}
	}
	return nil
}

// Request returns the request that all flags together make. wrong has every error in their
// combination.
func (p *Reader) Request() (r qr.Request, wrong []*qr.FlagError) {
	for _, pair := range exclusive {
		if p.given[pair[0]] && p.given[pair[1]] {
			wrong = append(wrong, &qr.FlagError{Flags: pair[:], Err: fmt.Errorf("--%s and --%s exclude each other: give one of them", pair[0], pair[1])})
		}
	}
	if err := p.finishType(); err != nil {
		wrong = append(wrong, &qr.FlagError{Flags: []string{"type", "topology"}, Err: err})
	}
	if err := p.finishTier(); err != nil {
		wrong = append(wrong, err)
	}
	if p.host != "" {
		p.request.Reservation = p.host + "/reservations/-"
	}
	return p.request, wrong
}

// exclusive lists pairs of flags of which gcloud accepts only one.
var exclusive = [][2]string{
	{"node-id", "node-prefix"}, {"node-id", "workload-type"},
	{"accelerator-type", "type"}, {"accelerator-type", "topology"},
	{"network-config", "network"}, {"network-config", "subnetwork"}, {"network-config", "internal-ips"},
	{"valid-after-duration", "valid-after-time"}, {"valid-until-duration", "valid-until-time"},
	{"reservation", "reservation-host-project"}, {"reservation", "reservation-host-folder"}, {"reservation", "reservation-host-organization"},
	{"reservation-host-project", "reservation-host-folder"}, {"reservation-host-project", "reservation-host-organization"},
	{"reservation-host-folder", "reservation-host-organization"},
}

func clone(r qr.Request) qr.Request {
	r.Scopes = slices.Clone(r.Scopes)
	r.Labels = maps.Clone(r.Labels)
	r.Metadata = maps.Clone(r.Metadata)
	r.Tags = slices.Clone(r.Tags)
	r.DataDisks = slices.Clone(r.DataDisks)
	r.Interfaces = slices.Clone(r.Interfaces)
	return r
}

// A Flag says what one flag does to a request.
type Flag struct {
	Name   string
	Usage  string // has the name of the value in backquotes
	Bool   bool   // the value may be left out
	Repeat bool   // each occurrence adds a value

	set func(p *Reader, name, value string) error
}

// next handles the first flag in words, and returns the rest of words.
func (p *Reader) next(words []string) ([]string, error) {
	word, rest := words[0], words[1:]
	if !strings.HasPrefix(word, "-") || word == "-" || word == "--" {
		return nil, fmt.Errorf("%q is not a flag: only flags of queued-resources create are accepted here", word)
	}
	name, value, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
	name = strings.ReplaceAll(name, "_", "-")
	if slices.Contains([]string{"async", "quiet", "q"}, name) {
		return rest, nil // these flags only change how gcloud waits and prompts
	}
	flag, negated, err := lookupFlag(name)
	if err != nil {
		return nil, err
	}
	switch {
	case negated:
		if hasValue {
			return nil, fmt.Errorf("--%s takes no value", name)
		}
		value = "false"
	case flag.Bool && !hasValue:
		value = "true"
	case flag.Bool:
		if value, err = strictBool(name, value); err != nil {
			return nil, err
		}
	case !hasValue:
		if len(rest) == 0 || strings.HasPrefix(rest[0], "--") {
			return nil, fmt.Errorf("--%s needs a value", name)
		}
		value, rest = rest[0], rest[1:]
	}
	return rest, p.Set(flag.Name, value)
}

func flagNamed(name string) (Flag, bool) {
	i := slices.IndexFunc(createFlags, func(f Flag) bool { return f.Name == name })
	if i < 0 {
		return Flag{}, false
	}
	return createFlags[i], true
}

// lookupFlag finds a flag typed as --NAME or, negated, as --no-NAME.
func lookupFlag(name string) (flag Flag, negated bool, err error) {
	if flag, ok := flagNamed(name); ok {
		return flag, false, nil
	}
	positive, negated := strings.CutPrefix(name, "no-")
	if flag, ok := flagNamed(positive); ok && negated && flag.Bool {
		return flag, true, nil
	}
	if slices.Contains([]string{"project", "zone", "configuration", "access-token-file"}, name) {
		return Flag{}, false, fmt.Errorf("--%s cannot be given here: give it to multihost itself, as --%s", name, name)
	}
	if refusal := Refused(name); refusal != nil {
		return Flag{}, false, refusal
	}
	var names []string
	for _, f := range createFlags {
		names = append(names, f.Name)
	}
	if near := tpu.Suggest(name, names); near != "" {
		return Flag{}, false, fmt.Errorf("unknown flag --%s: did you mean --%s?", name, near)
	}
	return Flag{}, false, fmt.Errorf("unknown flag --%s", name)
}

// A RefusedFlag is the error for a gcloud flag that multihost does not support.
type RefusedFlag struct{ name, reason, instead string }

func (e *RefusedFlag) Error() string {
	return fmt.Sprintf("--%s of gcloud is not supported: %s", e.name, e.reason)
}

// Fault returns fault.Usage.
func (e *RefusedFlag) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type instead.
func (e *RefusedFlag) Hint() string { return e.instead }

// Refused returns the error for a gcloud flag that multihost does not support, or
// nil for any other flag.
func Refused(name string) *RefusedFlag {
	for _, r := range refusedFlags {
		if r.name == name || "no-"+r.name == name {
			r.name = name
			return &r
		}
	}
	return nil
}

var refusedFlags = []RefusedFlag{
	{"account", "the account is that of application default credentials, or of gcloud's configuration", "type: gcloud config set account ACCOUNT; or name a configuration with --configuration=NAME"},
	{"authority-selector", "credentials are application default credentials, or those of gcloud's configuration", "type: gcloud config set auth/authority_selector SELECTOR, and let gcloud give the token: multihost asks it where there are no application default credentials"},
	{"authorization-token-file", "it is a token of gcloud's own", "add --access-token-file=FILE with an access token"},
	{"billing-project", "the project that calls are billed to is read from a variable", "type: export GOOGLE_CLOUD_QUOTA_PROJECT=PROJECT"},
	{"credential-file-override", "the file of credentials is read from a variable", "type: export GOOGLE_APPLICATION_CREDENTIALS=FILE"},
	{"document", "the document of the commands has one form", "type: multihost manual"},
	{"flags-file", "flags are read from multihost.yaml, which has another form", "type: multihost init, and write the flags into multihost.yaml"},
	{"flatten", "there is one form of JSON for programs", "add --output=json, and read that with jq"},
	{"format", "there is one form of JSON for programs", "add --output=json, and read that with jq"},
	{"http-timeout", "each kind of call has a limit of its own, and is tried again", "limit the waits with --queue-timeout, --provision-timeout and --boot-timeout"},
	{"impersonate-service-account", "the account to act as is read from gcloud's configuration", "type: gcloud config set auth/impersonate_service_account ACCOUNT"},
	{"log-http", "HTTP requests are not logged", "add --debug to see what is tried again, or --dry-run to see the request"},
	{"trace-token", "requests carry no trace token", "add --dry-run to qr create, and give the token to the gcloud command that it prints"},
	{"universe-domain", "multihost knows googleapis.com alone", "for another endpoint, type: gcloud config set api_endpoint_overrides/tpu URL"},
	{"user-output-enabled", "results are always written", "add --quiet to write results, warnings and errors only"},
	{"verbosity", "there are three levels", "add --debug for more, or --quiet for less"},
}

func strictBool(name, value string) (string, error) {
	switch lower := strings.ToLower(value); lower {
	case "true", "false":
		return lower, nil
	}
	return "", fmt.Errorf("--%s=%s: write true or false", name, value)
}

// finishTier sets the one tier that the flags ask for.
func (p *Reader) finishTier() *qr.FlagError {
	if p.given["min-duration"] && len(p.tiers) == 0 { // as gcloud does
		p.tiers = []askedTier{{"--min-duration", qr.Guaranteed}}
	}
	for i, asked := range p.tiers {
		if i == 0 {
			p.request.Tier = asked.tier
			continue
		}
		tier, ok := bothTiers(p.request.Tier, asked.tier)
		if !ok {
			other := slices.IndexFunc(p.tiers, func(a askedTier) bool { return a.tier == p.request.Tier })
			name := func(flag string) string { name, _, _ := strings.Cut(flag[len("--"):], "="); return name }
			return &qr.FlagError{Flags: []string{name(p.tiers[other].flag), name(asked.flag)},
				Err: fmt.Errorf("%s and %s exclude each other: a request has one capacity tier", p.tiers[other].flag, asked.flag)}
		}
		p.request.Tier = tier
	}
	return nil
}

// bothTiers returns the tier that two flags mean together, or false if they contradict each
// other. Reserved capacity is also guaranteed. The flag for the standard provisioning model
// agrees with both, and alone means on-demand.
func bothTiers(a, b qr.Tier) (qr.Tier, bool) {
	order := []qr.Tier{qr.OnDemand, qr.Guaranteed, qr.Reserved}
	i, j := slices.Index(order, a), slices.Index(order, b)
	if i < 0 || j < 0 {
		return a, a == b
	}
	return order[max(i, j)], true
}

// finishType turns --type and --topology into an accelerator type.
func (p *Reader) finishType() error {
	if p.kind == "" && p.shape == "" {
		return nil
	}
	if p.kind == "" || p.shape == "" {
		return errors.New("--type and --topology belong together")
	}
	var shapes []string
	for _, t := range tpu.Types() {
		if t.Generation.Family != p.kind && t.Generation.Name != p.kind {
			continue
		}
		if t.Topology == p.shape {
			p.request.ByTopology = true
			return p.setType("type", t)
		}
		shapes = append(shapes, t.Topology)
	}
	if shapes == nil {
		return fmt.Errorf("--type=%s: no such type of chip: use %s", p.kind, chipTypes())
	}
	return fmt.Errorf("--type=%s --topology=%s: no accelerator type has this topology: use one of %s", p.kind, p.shape, strings.Join(shapes, ", "))
}

// chipTypes lists what --type accepts.
func chipTypes() string {
	var all []string
	for _, g := range tpu.Generations() {
		if g.CloudAPI {
			all = append(all, g.Family)
		}
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

func (p *Reader) setType(flag string, t tpu.Type) error {
	if was := p.request.Type.Name; was != "" && was != t.Name {
		return contradiction(flag, t.Name, "--tpu-type", was)
	}
	p.request.Type = t
	return nil
}

func contradiction(flag, value, ours, was string) error {
	return fmt.Errorf("--%s=%s contradicts %s, which is %s", flag, value, ours, was)
}

// text returns a flag that sets one string of the request. ours is the name of this
// program's flag for the same string, or "".
func text(name, usage, ours string, field func(*qr.Request) *string) Flag {
	return Flag{Name: name, Usage: usage, set: func(p *Reader, name, value string) error {
		dst := field(&p.request)
		if *dst != "" && *dst != value {
			return contradiction(name, value, cmp.Or(ours, "--"+name), *dst)
		}
		*dst = value
		return nil
	}}
}

func boolean(name, usage string, field func(*qr.Request) *bool) Flag {
	return Flag{Name: name, Usage: usage, Bool: true, set: func(p *Reader, name, value string) error {
		*field(&p.request) = true
		return nil
	}}
}

func tierFlag(tier qr.Tier, usage string) Flag {
	return Flag{Name: string(tier), Usage: usage, Bool: true, set: func(p *Reader, name, value string) error {
		p.tiers = append(p.tiers, askedTier{"--" + name, tier})
		return nil
	}}
}

func duration(name, usage string, field func(*qr.Request) *time.Duration) Flag {
	return Flag{Name: name, Usage: usage, set: func(p *Reader, name, value string) error {
		d, err := gcloud.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
		dst := field(&p.request)
		if *dst != 0 && *dst != d {
			return contradiction(name, value, "--"+name, dst.String())
		}
		*dst = d
		return nil
	}}
}

func instant(name, usage string, field func(*qr.Request) *time.Time) Flag {
	return Flag{Name: name, Usage: usage, set: func(p *Reader, name, value string) error {
		t, err := gcloud.ParseTime(value, p.now)
		if err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
		dst := field(&p.request)
		if !dst.IsZero() && !dst.Equal(t) {
			return contradiction(name, value, "--"+name, dst.Format(time.RFC3339))
		}
		*dst = t
		return nil
	}}
}

func list(name, usage string, field func(*qr.Request) *[]string) Flag {
	return Flag{Name: name, Usage: usage, set: func(p *Reader, name, value string) error {
		dst := field(&p.request)
		for _, item := range gcloud.SplitList(value) {
			if !slices.Contains(*dst, item) {
				*dst = append(*dst, item)
			}
		}
		return nil
	}}
}

// reservationHost returns a flag of gcloud that names the host of a reservation. The
// request then names "-", which means any reservation there.
func reservationHost(name, usage, collection string) Flag {
	return Flag{Name: name, Usage: usage, set: func(p *Reader, name, value string) error {
		if was := p.host; was != "" && was != collection+"/"+value && strings.HasPrefix(was, collection) {
			return contradiction(name, value, "--"+name, strings.TrimPrefix(was, collection+"/"))
		}
		p.host = collection + "/" + value
		return nil
	}}
}

// All returns the flags that a Reader knows, in the order of help.
func All() []Flag { return slices.Clone(createFlags) }

var createFlags = []Flag{
	{Name: "node-count", Usage: "make `N` slices", set: (*Reader).nodeCount},
	text("node-prefix", "slices are named `P`-0, P-1, …; default: ID", "the prefix of the slices", func(r *qr.Request) *string { return &r.NodePrefix }),
	text("node-id", "`NAME` of a single slice; default: ID", "the name of the slice", func(r *qr.Request) *string { return &r.NodeID }),
	{Name: "workload-type", Usage: "throughput-optimized or availability-optimized: which property of several slices matters most (`TYPE`)", set: (*Reader).workloadType},
	{Name: "accelerator-type", Usage: "accelerator `TYPE` of a slice, such as v5litepod-16", set: (*Reader).acceleratorType},
	{Name: "type", Usage: "`TYPE` of chip, such as v5litepod, in place of an accelerator type; needs --topology", set: func(p *Reader, _, v string) error {
		p.kind = strings.ToLower(v)
		return nil
	}},
	{Name: "topology", Usage: "`TOPOLOGY` of the chips of a slice, such as 4x4; needs --type", set: func(p *Reader, _, v string) error {
		p.shape = strings.ToLower(v)
		return nil
	}},
	text("runtime-version", "`VERSION` of the image that the workers boot; default: that of the type", "", func(r *qr.Request) *string { return &r.RuntimeVersion }),

	tierFlag(qr.OnDemand, "ask for on-demand capacity (the default)"),
	tierFlag(qr.Spot, "ask for capacity that may be taken away"),
	tierFlag(qr.BestEffort, "ask for best-effort capacity"),
	tierFlag(qr.Guaranteed, "ask for guaranteed capacity"),
	tierFlag(qr.Reserved, "use the project's reservation"),
	tierFlag(qr.FlexStart, "ask for capacity for a bounded time; needs --max-run-duration"),
	{Name: "provisioning-model", Usage: "standard, spot, reservation-bound or flex-start: which `CAPACITY` to ask for", set: (*Reader).provisioningModel},
	text("reservation", "use this reservation, by `NAME`", "", func(r *qr.Request) *string { return &r.Reservation }),
	reservationHost("reservation-host-project", "use any reservation of the project `PROJECT`", "projects"),
	reservationHost("reservation-host-folder", "use any reservation of the folder `NUMBER`", "folders"),
	reservationHost("reservation-host-organization", "use any reservation of the organization `NUMBER`", "organizations"),
	duration("min-duration", "shortest `TIME` for which guaranteed capacity is needed", func(r *qr.Request) *time.Duration { return &r.MinDuration }),
	duration("max-run-duration", "`TIME` after which the service deletes the slices, for flex-start: 12h, 7d", func(r *qr.Request) *time.Duration { return &r.MaxRunDuration }),
	duration("valid-after-duration", "make no slices before this `TIME` has passed: 6h, 1d", func(r *qr.Request) *time.Duration { return &r.ValidAfterDuration }),
	instant("valid-after-time", "make no slices before this `TIME`: 2026-01-31T12:00:00Z, +6h", func(r *qr.Request) *time.Time { return &r.ValidAfterTime }),
	duration("valid-until-duration", "give up the request after this `TIME`: 6h, 1d", func(r *qr.Request) *time.Duration { return &r.ValidUntilDuration }),
	instant("valid-until-time", "give up the request at this `TIME`: 2026-01-31T12:00:00Z, +6h", func(r *qr.Request) *time.Time { return &r.ValidUntilTime }),

	text("network", "`NAME` of the network", "", func(r *qr.Request) *string { return &r.Network }),
	text("subnetwork", "`NAME` of the subnetwork", "", func(r *qr.Request) *string { return &r.Subnetwork }),
	boolean("internal-ips", "give the workers no external addresses", func(r *qr.Request) *bool { return &r.InternalIPs }),
	{Name: "network-config", Usage: "one of several network interfaces of a worker, as `network=N,subnetwork=S,external-ips=BOOL`", Repeat: true, set: (*Reader).networkConfig},
	text("range", "give the workers addresses from the block `CIDR` of 8 addresses: 192.168.0.0/29", "the range", func(r *qr.Request) *string { return &r.CIDRBlock }),

	text("service-account", "`EMAIL` of the service account of the workers", "", func(r *qr.Request) *string { return &r.ServiceAccount }),
	list("scopes", "scopes of the service account, as `S1,S2`", func(r *qr.Request) *[]string { return &r.Scopes }),
	{Name: "labels", Usage: "labels `KEY=VALUE,…`", Repeat: true, set: (*Reader).labels},
	list("tags", "network tags `T1,T2`", func(r *qr.Request) *[]string { return &r.Tags }),
	{Name: "metadata", Usage: "metadata `KEY=VALUE,…` of the workers", Repeat: true, set: (*Reader).metadata},
	{Name: "metadata-from-file", Usage: "metadata from files, as `KEY=FILE,…`", Repeat: true, set: (*Reader).metadataFromFile},
	{Name: "data-disk", Usage: "disk to attach, as `source=DISK,mode=read-only`", Repeat: true, set: (*Reader).dataDisk},
	{Name: "boot-disk", Usage: "encrypt the boot disk, as `kms-key=KEY,confidential-compute=BOOL`", set: (*Reader).bootDisk},
	boolean("shielded-secure-boot", "make the workers with secure boot", func(r *qr.Request) *bool { return &r.SecureBoot }),
	boolean("autocheckpoint-enabled", "let the service trigger a checkpoint before maintenance", func(r *qr.Request) *bool { return &r.Autocheckpoint }),
	text("description", "`TEXT` kept with the slices", "", func(r *qr.Request) *string { return &r.Description }),
}

func (p *Reader) acceleratorType(name, value string) error {
	t, err := tpu.ParseType(value)
	if err != nil {
		return fmt.Errorf("--accelerator-type: %w", err)
	}
	return p.setType("accelerator-type", t)
}

func (p *Reader) nodeCount(name, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return fmt.Errorf("--node-count=%s: write a number of slices, 1 or more", value)
	}
	if was := p.request.NodeCount; was != 0 && was != n {
		return contradiction("node-count", value, "the number of slices", strconv.Itoa(was))
	}
	p.request.NodeCount = n
	return nil
}

func (p *Reader) provisioningModel(name, value string) error {
	switch model := strings.ToLower(strings.ReplaceAll(value, "_", "-")); model {
	case "standard":
		p.tiers = append(p.tiers, askedTier{"--provisioning-model=standard", qr.OnDemand})
	case "spot", "reservation-bound", "flex-start":
		p.tiers = append(p.tiers, askedTier{"--provisioning-model=" + model, qr.Tier(model)})
	default:
		return fmt.Errorf("--provisioning-model=%s: use standard, spot, reservation-bound or flex-start", value)
	}
	return nil
}

func (p *Reader) dataDisk(name, value string) error {
	d, err := qr.ParseDataDisk(value)
	if err != nil {
		return fmt.Errorf("--data-disk: %w", err)
	}
	p.request.DataDisks = append(p.request.DataDisks, d)
	return nil
}

func (p *Reader) bootDisk(name, value string) error {
	d, err := qr.ParseBootDisk(value)
	if err != nil {
		return fmt.Errorf("--boot-disk: %w", err)
	}
	if was := p.request.BootDisk; was != (qr.BootDisk{}) && was != d {
		return fmt.Errorf("--boot-disk=%s contradicts the boot disk given before", value)
	}
	p.request.BootDisk = d
	return nil
}

func (p *Reader) networkConfig(name, value string) error {
	i, err := qr.ParseInterface(value)
	if err != nil {
		return fmt.Errorf("--network-config: %w", err)
	}
	p.request.Interfaces = append(p.request.Interfaces, i)
	return nil
}

func (p *Reader) workloadType(name, value string) error {
	p.request.WorkloadType = strings.ToUpper(strings.ReplaceAll(value, "-", "_"))
	return nil
}

func (p *Reader) labels(name, value string) error {
	pairs, err := splitDict("labels", value)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		if strings.HasPrefix(key, qr.LabelSpace) {
			return fmt.Errorf("--labels: %s is set by multihost itself", key)
		}
	}
	return merge("labels", &p.request.Labels, pairs)
}

func (p *Reader) metadata(name, value string) error {
	pairs, err := splitDict("metadata", value)
	if err != nil {
		return err
	}
	return p.addMetadata("metadata", pairs)
}

func (p *Reader) metadataFromFile(name, value string) error {
	files, err := splitDict("metadata-from-file", value)
	if err != nil {
		return err
	}
	pairs, err := ReadMetadataFiles(files)
	if err != nil {
		return fmt.Errorf("--metadata-from-file: %w", err)
	}
	return p.addMetadata("metadata-from-file", pairs)
}

func (p *Reader) addMetadata(flag string, pairs map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		if err := qr.CheckMetadata(key, pairs[key]); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return merge(flag, &p.request.Metadata, pairs)
}

// ReadMetadataFiles returns the contents of the files, by metadata key.
func ReadMetadataFiles(files map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(files))
	for _, key := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[key])
		if err != nil {
			return nil, fmt.Errorf("read metadata %q: %w", key, err)
		}
		out[key] = string(content)
	}
	return out, nil
}

func splitDict(name, value string) (map[string]string, error) {
	pairs, err := gcloud.ParseDict(value)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", name, err)
	}
	return pairs, nil
}

func merge(flag string, dst *map[string]string, pairs map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		if was, ok := (*dst)[key]; ok && was != pairs[key] {
			return fmt.Errorf("--%s sets %s, which is set already", flag, key)
		}
	}
	if *dst == nil {
		*dst = map[string]string{}
	}
	maps.Copy(*dst, pairs)
	return nil
}
