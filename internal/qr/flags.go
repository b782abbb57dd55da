package qr

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/tpu"

	"github.com/google/shlex"
)

// ParseGcloudFlags reads flags of `gcloud alpha compute tpus queued-resources
// create` from one string, split into words as a shell would, and adds them to
// into. Flags may be written --flag=value or --flag value, with dashes or
// underscores. An unknown flag, a flag that contradicts what into already says,
// and a malformed value are errors that name the flag; into is then unchanged.
// --metadata-from-file reads the files it names.
func ParseGcloudFlags(args string, into *Request) error {
	words, err := shlex.Split(args)
	if err != nil {
		return fmt.Errorf("parse extra arguments %q: %w", args, err)
	}
	p := &flagParser{request: into.clone(), seen: map[string]string{}}
	for len(words) > 0 {
		words, err = p.next(words)
		if err != nil {
			return fmt.Errorf("parse extra arguments: %w", err)
		}
	}
	if err := p.finish(); err != nil {
		return fmt.Errorf("parse extra arguments: %w", err)
	}
	*into = p.request
	return nil
}

func (r Request) clone() Request {
	r.Scopes = slices.Clone(r.Scopes)
	r.Labels = maps.Clone(r.Labels)
	r.Metadata = maps.Clone(r.Metadata)
	r.Tags = slices.Clone(r.Tags)
	r.DataDisks = slices.Clone(r.DataDisks)
	return r
}

type flagParser struct {
	request Request
	seen    map[string]string // flag name → value of this string
	tiers   []Tier
	kind    string // --type
	shape   string // --topology
}

// A gcloudFlag says what one flag does to a request.
type gcloudFlag struct {
	isBool bool
	repeat bool // each occurrence adds one
	set    func(p *flagParser, value string) error
}

// next handles the first flag of words and returns the rest.
func (p *flagParser) next(words []string) ([]string, error) {
	word, rest := words[0], words[1:]
	if !strings.HasPrefix(word, "-") || word == "-" || word == "--" {
		return nil, fmt.Errorf("%q is not a flag: only flags of queued-resources create are accepted here", word)
	}
	name, value, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
	name = strings.ReplaceAll(name, "_", "-")
	flag, negated, err := lookupFlag(name)
	if err != nil {
		return nil, err
	}
	switch {
	case negated != "":
		if hasValue {
			return nil, fmt.Errorf("--%s takes no value", name)
		}
		name, value = negated, "false"
	case flag.isBool && !hasValue:
		value = "true"
	case flag.isBool:
		if value, err = strictBool(name, value); err != nil {
			return nil, err
		}
	case !hasValue:
		if len(rest) == 0 || strings.HasPrefix(rest[0], "--") {
			return nil, fmt.Errorf("--%s needs a value", name)
		}
		value, rest = rest[0], rest[1:]
	}
	if old, twice := p.seen[name]; twice && !flag.repeat {
		if old != value {
			return nil, fmt.Errorf("--%s is given twice, as %q and %q", name, old, value)
		}
		return rest, nil
	}
	p.seen[name] = value
	return rest, flag.set(p, value)
}

// lookupFlag finds a flag; negated is the name without "no-" of --no-FLAG.
func lookupFlag(name string) (flag gcloudFlag, negated string, err error) {
	flags := gcloudFlagTable()
	if flag, ok := flags[name]; ok {
		return flag, "", nil
	}
	if positive, ok := strings.CutPrefix(name, "no-"); ok && flags[positive].isBool {
		return flags[positive], positive, nil
	}
	if near := tpu.Suggest(name, sortedKeys(flags)); near != "" {
		return gcloudFlag{}, "", fmt.Errorf("unknown flag --%s: did you mean --%s?", name, near)
	}
	return gcloudFlag{}, "", fmt.Errorf("unknown flag --%s", name)
}

func strictBool(name, value string) (string, error) {
	switch lower := strings.ToLower(value); lower {
	case "true", "false":
		return lower, nil
	}
	return "", fmt.Errorf("--%s=%s: write true or false", name, value)
}

// finish applies what only all flags together decide.
func (p *flagParser) finish() error {
	if err := p.finishType(); err != nil {
		return err
	}
	if len(p.tiers) == 0 {
		return nil
	}
	tier, err := ChooseTier(p.tiers...)
	if err != nil {
		return err
	}
	if was := p.request.Tier; was != "" && was != tier {
		return fmt.Errorf("--%s here and --%s exclude each other: a request has one capacity tier", tier, was)
	}
	p.request.Tier = tier
	return nil
}

// finishType turns gcloud's --type and --topology into an accelerator type.
func (p *flagParser) finishType() error {
	if p.kind == "" && p.shape == "" {
		return nil
	}
	if p.kind == "" || p.shape == "" {
		return fmt.Errorf("--type and --topology belong together")
	}
	if _, both := p.seen["accelerator-type"]; both {
		return fmt.Errorf("--type and --accelerator-type exclude each other")
	}
	for _, t := range tpu.Types() {
		if (t.Generation.Family == p.kind || t.Generation.Name == p.kind) && t.Topology == p.shape {
			return p.setType("type", t)
		}
	}
	return fmt.Errorf("--type=%s --topology=%s: no accelerator type has this topology; use --accelerator-type", p.kind, p.shape)
}

func (p *flagParser) setType(flag string, t tpu.Type) error {
	if was := p.request.Type.Name; was != "" && was != t.Name {
		return contradiction(flag, t.Name, "--tpu-type", was)
	}
	p.request.Type = t
	return nil
}

func contradiction(flag, value, ours, was string) error {
	return fmt.Errorf("--%s=%s contradicts %s, which is %s", flag, value, ours, was)
}

// text makes a flag that sets one string of the request. ours names the flag of
// this program that sets the same.
func text(name, ours string, field func(*Request) *string) gcloudFlag {
	return gcloudFlag{set: func(p *flagParser, value string) error {
		dst := field(&p.request)
		if *dst != "" && *dst != value {
			return contradiction(name, value, ours, *dst)
		}
		*dst = value
		return nil
	}}
}

func boolean(field func(*Request) *bool) gcloudFlag {
	return gcloudFlag{isBool: true, set: func(p *flagParser, value string) error {
		*field(&p.request) = value == "true" || *field(&p.request)
		return nil
	}}
}

func tierFlag(tier Tier) gcloudFlag {
	return gcloudFlag{isBool: true, set: func(p *flagParser, value string) error {
		if value == "true" {
			p.tiers = append(p.tiers, tier)
		}
		return nil
	}}
}

func duration(name string, field func(*Request) *time.Duration) gcloudFlag {
	return gcloudFlag{set: func(p *flagParser, value string) error {
		d, err := ParseDuration(value)
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

func instant(name string, field func(*Request) *time.Time) gcloudFlag {
	return gcloudFlag{set: func(p *flagParser, value string) error {
		t, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return fmt.Errorf("--%s=%s: write a time such as 2026-01-31T12:00:00Z", name, value)
		}
		*field(&p.request) = t
		return nil
	}}
}

func list(field func(*Request) *[]string) gcloudFlag {
	return gcloudFlag{set: func(p *flagParser, value string) error {
		dst := field(&p.request)
		for _, item := range splitList(value) {
			if !slices.Contains(*dst, item) {
				*dst = append(*dst, item)
			}
		}
		return nil
	}}
}

// reservationHost makes one of gcloud's flags that name who hosts a
// reservation; the API's "-" then stands for any reservation there.
func reservationHost(name, collection string) gcloudFlag {
	return gcloudFlag{set: func(p *flagParser, value string) error {
		if was := p.request.Reservation; was != "" {
			return contradiction(name, value, "the reservation", was)
		}
		p.request.Reservation = collection + "/" + value + "/reservations/-"
		return nil
	}}
}

// refused makes a flag that multihost knows and does not take here.
func refused(reason string) gcloudFlag {
	return gcloudFlag{set: func(p *flagParser, value string) error { return fmt.Errorf("%s", reason) }}
}

// ignored makes a flag that only changes how gcloud itself talks.
func ignored() gcloudFlag {
	return gcloudFlag{isBool: true, set: func(*flagParser, string) error { return nil }}
}

func gcloudFlagTable() map[string]gcloudFlag {
	return map[string]gcloudFlag{
		"accelerator-type": {set: (*flagParser).acceleratorType},
		"type": {set: func(p *flagParser, v string) error {
			p.kind = strings.ToLower(v)
			return nil
		}},
		"topology": {set: func(p *flagParser, v string) error {
			p.shape = strings.ToLower(v)
			return nil
		}},
		"runtime-version": text("runtime-version", "--runtime-version", func(r *Request) *string { return &r.RuntimeVersion }),
		"node-id":         text("node-id", "the name of the slice", func(r *Request) *string { return &r.NodeID }),
		"node-prefix":     text("node-prefix", "the prefix of the slices", func(r *Request) *string { return &r.NodePrefix }),
		"node-count":      {set: (*flagParser).nodeCount},
		"workload-type": {set: func(p *flagParser, v string) error {
			p.request.WorkloadType = strings.ToUpper(strings.ReplaceAll(v, "-", "_"))
			return nil
		}},

		"spot":                          tierFlag(Spot),
		"best-effort":                   tierFlag(BestEffort),
		"guaranteed":                    tierFlag(Guaranteed),
		"reserved":                      tierFlag(Reserved),
		"provisioning-model":            {set: (*flagParser).provisioningModel},
		"reservation":                   text("reservation", "--reservation", func(r *Request) *string { return &r.Reservation }),
		"reservation-host-project":      reservationHost("reservation-host-project", "projects"),
		"reservation-host-folder":       reservationHost("reservation-host-folder", "folders"),
		"reservation-host-organization": reservationHost("reservation-host-organization", "organizations"),
		"min-duration":                  duration("min-duration", func(r *Request) *time.Duration { return &r.MinDuration }),
		"max-run-duration":              duration("max-run-duration", func(r *Request) *time.Duration { return &r.MaxRunDuration }),
		"valid-after-duration":          duration("valid-after-duration", func(r *Request) *time.Duration { return &r.ValidAfterDuration }),
		"valid-until-duration":          duration("valid-until-duration", func(r *Request) *time.Duration { return &r.ValidUntilDuration }),
		"valid-after-time":              instant("valid-after-time", func(r *Request) *time.Time { return &r.ValidAfterTime }),
		"valid-until-time":              instant("valid-until-time", func(r *Request) *time.Time { return &r.ValidUntilTime }),

		"network":      text("network", "--network", func(r *Request) *string { return &r.Network }),
		"subnetwork":   text("subnetwork", "--subnetwork", func(r *Request) *string { return &r.Subnetwork }),
		"internal-ips": boolean(func(r *Request) *bool { return &r.InternalIPs }),
		"range":        text("range", "the range", func(r *Request) *string { return &r.CIDRBlock }),
		"network-config": refused("--network-config (several network interfaces) is not supported: " +
			"use --network, --subnetwork and --internal-ips"),

		"service-account":        text("service-account", "--service-account", func(r *Request) *string { return &r.ServiceAccount }),
		"scopes":                 list(func(r *Request) *[]string { return &r.Scopes }),
		"labels":                 {set: (*flagParser).labels},
		"metadata":               {set: (*flagParser).metadata},
		"metadata-from-file":     {set: (*flagParser).metadataFromFile},
		"tags":                   list(func(r *Request) *[]string { return &r.Tags }),
		"description":            text("description", "the description", func(r *Request) *string { return &r.Description }),
		"data-disk":              {repeat: true, set: (*flagParser).dataDisk},
		"shielded-secure-boot":   boolean(func(r *Request) *bool { return &r.SecureBoot }),
		"autocheckpoint-enabled": boolean(func(r *Request) *bool { return &r.Autocheckpoint }),
		"boot-disk":              refused("--boot-disk is not supported"),

		"project": refused("--project cannot be given here: give it to multihost itself, as --project"),
		"zone":    refused("--zone cannot be given here: give it to multihost itself, as --zone"),
		"async":   ignored(),
		"quiet":   ignored(),
		"q":       ignored(),
	}
}

func (p *flagParser) acceleratorType(value string) error {
	t, err := tpu.ParseType(value)
	if err != nil {
		return fmt.Errorf("--accelerator-type: %w", err)
	}
	return p.setType("accelerator-type", t)
}

func (p *flagParser) nodeCount(value string) error {
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

func (p *flagParser) provisioningModel(value string) error {
	switch model := strings.ToLower(strings.ReplaceAll(value, "_", "-")); model {
	case "standard":
		p.tiers = append(p.tiers, OnDemand)
	case "spot", "reservation-bound", "flex-start":
		p.tiers = append(p.tiers, Tier(model))
	default:
		return fmt.Errorf("--provisioning-model=%s: use standard, spot, reservation-bound or flex-start", value)
	}
	return nil
}

func (p *flagParser) dataDisk(value string) error {
	d, err := ParseDataDisk(value)
	if err != nil {
		return fmt.Errorf("--data-disk: %w", err)
	}
	p.request.DataDisks = append(p.request.DataDisks, d)
	return nil
}

func (p *flagParser) labels(value string) error {
	pairs, err := splitDict("labels", value)
	if err != nil {
		return err
	}
	for _, key := range sortedKeys(pairs) {
		if strings.HasPrefix(key, labelSpace) {
			return fmt.Errorf("--labels: %s is set by multihost itself", key)
		}
	}
	return merge("labels", &p.request.Labels, pairs)
}

func (p *flagParser) metadata(value string) error {
	pairs, err := splitDict("metadata", value)
	if err != nil {
		return err
	}
	return merge("metadata", &p.request.Metadata, pairs)
}

func (p *flagParser) metadataFromFile(value string) error {
	files, err := splitDict("metadata-from-file", value)
	if err != nil {
		return err
	}
	pairs, err := ReadMetadataFiles(files)
	if err != nil {
		return fmt.Errorf("--metadata-from-file: %w", err)
	}
	return merge("metadata-from-file", &p.request.Metadata, pairs)
}

// ReadMetadataFiles returns the contents of the files, by metadata key.
func ReadMetadataFiles(files map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(files))
	for _, key := range sortedKeys(files) {
		content, err := os.ReadFile(files[key])
		if err != nil {
			return nil, fmt.Errorf("read metadata %q: %w", key, err)
		}
		out[key] = string(content)
	}
	return out, nil
}

// ParseDict reads gcloud's KEY=VALUE[,KEY=VALUE…]; "^X^" in front makes X the
// separator instead of the comma.
func ParseDict(value string) (map[string]string, error) {
	out := map[string]string{}
	for _, pair := range splitList(value) {
		key, v, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is not KEY=VALUE", pair)
		}
		if old, twice := out[key]; twice && old != v {
			return nil, fmt.Errorf("%q is given twice, as %q and %q", key, old, v)
		}
		out[key] = v
	}
	return out, nil
}

func splitDict(name, value string) (map[string]string, error) {
	pairs, err := ParseDict(value)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", name, err)
	}
	return pairs, nil
}

func splitList(value string) []string {
	separator := ","
	if rest, ok := strings.CutPrefix(value, "^"); ok {
		if sep, list, ok := strings.Cut(rest, "^"); ok && sep != "" {
			separator, value = sep, list
		}
	}
	if value == "" {
		return nil
	}
	return strings.Split(value, separator)
}

func merge(flag string, dst *map[string]string, pairs map[string]string) error {
	for _, key := range sortedKeys(pairs) {
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
