package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/sshkey"
	"multihost/internal/tpu"
)

// projectChecks are the checks of the project, the key and the existing slices.
type projectChecks struct{ *examination }

func (e projectChecks) checkKey() {
	id, err := e.Key()
	if err == nil {
		e.key = id
		e.ok(CheckKey, "%s (%s)", e.KeyPath, id.Fingerprint())
		return
	}
	f := Finding{Check: CheckKey, Level: Error, Text: err.Error()}
	var broken *sshkey.Error
	if errors.As(err, &broken) {
		f.Cure = broken.Hint()
	}
	if errors.Is(err, fs.ErrNotExist) && e.MakeKey != nil {
		f.Level = Warning
		f.Text = fmt.Sprintf("there is no key at %s yet", e.KeyPath)
		f.Advice = "the first command that logs in makes it"
		f.Cure = e.doctorAgain()
		f.fix = func(context.Context) error { return e.MakeKey() }
	}
	e.add(f)
}

// zoneRefusal returns the error for a zone that the wanted slices' API does not know. It
// returns nil if the API knows the zone or does not say.
func (e projectChecks) zoneRefusal(ctx context.Context) error {
	if e.Cloud == nil || e.Provider == nil || e.Cluster != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if _, err := provision.Leading(e.Provider).Get(ctx, "multihost-doctor"); gcp.NoZone(err) {
		return err
	}
	return nil
}

// checkSettings reports project and zone with their sources, and checks the credentials.
func (e projectChecks) checkSettings(ctx context.Context) {
	if e.Hosts != nil || e.Cluster != nil && e.Cluster.Name == "" {
		return
	}
	for _, s := range []struct {
		check, hint string
		Setting
	}{
		{CheckProject, "gcloud config set project PROJECT", e.Project},
		{CheckZone, "gcloud config set compute/zone ZONE", e.Zone},
	} {
		if s.Value == "" {
			e.add(Finding{Check: s.check, Level: Error, Text: "none is set", Cure: s.hint, Advice: fmt.Sprintf("or add --%s=NAME", s.check)})
			continue
		}
		if s.check == CheckZone {
			if err := e.zoneRefusal(ctx); err != nil {
				e.add(Finding{Check: s.check, Level: Error, Text: fmt.Sprintf("%s (from %s): %v", s.Value, s.Source, err), Cure: cmp.Or(typed(gcp.Hint(err)), "gcloud compute zones list")})
				continue
			}
		}
		e.ok(s.check, "%s (from %s)", s.Value, s.Source)
	}
	if e.Cloud == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	id, err := e.Cloud.Identify(ctx)
	if err != nil {
		e.denied = true
		e.add(Finding{Check: CheckCredentials, Level: Error, Text: err.Error(), Cure: typed(gcp.Hint(err))})
		return
	}
	e.account = id.Account
	text := id.Source
	if id.Account != "" {
		text += ", account " + id.Account
	} else {
		text += "; they do not tell whose they are"
	}
	if id.QuotaProject != "" && id.QuotaProject != e.Project.Value {
		text += ", counted for project " + id.QuotaProject
	}
	if e.Account != "" && id.Account != "" && e.Account != id.Account {
		e.add(Finding{Check: CheckCredentials, Level: Warning, Text: fmt.Sprintf("%s; gcloud's configuration names another account, %s", text, e.Account),
			Cure: remote.CommandLine("gcloud", "config", "set", "account", id.Account)})
		return
	}
	e.ok(CheckCredentials, "%s", text)
}

// typed returns the gcloud command at the end of a hint, or "".
func typed(hint string) string {
	if at := strings.Index(hint, "gcloud "); at >= 0 {
		command, _, _ := strings.Cut(hint[at:], " (")
		return command
	}
	return ""
}

// An api is an API that commands need.
type api struct {
	name, use string
	level     Level // level of the finding if the API is not enabled
}

// apis returns the APIs that this user's commands need, without Cloud Quotas, which only
// doctor uses.
func (e projectChecks) apis() []api {
	list := []api{
		{"tpu.googleapis.com", "every command", Error},
		{"compute.googleapis.com", "networks, and keys in the project's metadata", Error},
	}
	if _, onCloudAPI := e.providerPermissions(); !onCloudAPI {
		list[0].use, list[0].level = "finding slices of the Cloud TPU API", Warning
		list[1].use = "every command"
	}
	if e.viaIAP() {
		list = append(list, api{"iap.googleapis.com", "the way to the workers", Error})
	}
	return list
}

func (e projectChecks) checkAPIs(ctx context.Context) {
	list := e.apis()
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = a.name
	}
	enabled, err := e.Cloud.Enabled(ctx, names...)
	if err != nil {
		e.askAPIs(ctx, err)
		return
	}
	fine := true
	for _, a := range list {
		if !enabled[a.name] {
			fine = false
			e.apiMissing(a)
		}
	}
	if fine {
		e.ok(CheckAPIs, "%s are enabled", strings.Join(names, ", "))
	}
}

func (e projectChecks) apiMissing(a api) {
	e.add(Finding{Check: CheckAPIs, Level: a.level, Text: fmt.Sprintf("%s is not enabled; %s needs it", a.name, a.use),
		Cure: remote.CommandLine("gcloud", "services", "enable", a.name, "--project="+e.Project.Value)})
}

// askAPIs calls each API to find out whether it is enabled, if Service Usage does not
// answer. The parameter why has the error of Service Usage.
func (e projectChecks) askAPIs(ctx context.Context, why error) {
	calls := map[string]error{}
	_, calls["tpu.googleapis.com"] = e.Provider.Slices(ctx)
	_, calls["compute.googleapis.com"] = e.Networks.ShowFirewalls(ctx, "")
	fine := true
	for _, a := range e.apis() {
		var told *gcp.Error
		if errors.As(calls[a.name], &told) && (told.Reason == "SERVICE_DISABLED" || told.Reason == "accessNotConfigured") {
			fine = false
			e.apiMissing(a)
		}
	}
	if fine {
		e.unknown(CheckAPIs, "%v; those of TPU and Compute Engine do not say that they are disabled", why)
	}
}

// A permission is the name of a permission, with the commands that need it.
type permission struct {
	name  string
	uses  []string
	level Level
}

// permissions returns the permissions that this user's commands need, without duplicates:
// for networks, and for the providers of the wanted or examined slices.
func (e projectChecks) permissions() []permission {
	const networkUsers = "network update, network delete and gc"
	var list []permission
	add := func(name, use string, level Level) {
		i := slices.IndexFunc(list, func(p permission) bool { return p.name == name })
		if i < 0 {
			i, list = len(list), append(list, permission{name: name, level: level})
		}
		if !slices.Contains(list[i].uses, use) {
			list[i].uses = append(list[i].uses, use)
		}
		if level == Error {
			list[i].level = Error
		}
	}
	theirs, _ := e.providerPermissions()
	for _, p := range theirs {
		level := Warning
		if p.Required {
			level = Error
		}
		add(p.Name, p.Use, level)
	}
	add("compute.projects.get", "seeing OS Login and the project's SSH keys", Warning)
	add("compute.networks.get", "the MTU that workers must have", Warning)
	add("compute.networks.create", "network create", Warning)
	for _, name := range []string{"compute.networks.updatePolicy", "compute.firewalls.list", "compute.firewalls.create"} {
		add(name, "firewall rules", Warning)
	}
	for _, name := range []string{"compute.instances.list", "compute.instanceGroupManagers.list", "compute.instanceTemplates.list"} {
		add(name, networkUsers, Warning)
	}
	if e.Reservation != "" {
		add("compute.reservations.get", "the check of the reservation", Warning)
	}
	if e.viaIAP() {
		add("iap.tunnelInstances.accessViaIAP", "the way to the workers", Error)
	}
	return list
}

// providerPermissions returns the permissions for the slices' providers, and whether the
// Cloud TPU API is one of them. Commands always look for slices in the Cloud TPU API.
func (e projectChecks) providerPermissions() (list []provision.Permission, onCloudAPI bool) {
	onCloudAPI = true
	if p, ok := provision.As[provision.Permitted](e.Provider); ok {
		list, onCloudAPI = p.Permissions(), false
	}
	for _, s := range e.sel.Slices {
		if p, ok := provision.As[provision.Permitted](provider.Of(e.Provider, s.Provider)); ok {
			list = p.Permissions()
		} else {
			onCloudAPI = true
		}
	}
	if !onCloudAPI {
		return append(list, provision.Permission{Name: "tpu.nodes.list", Use: "finding slices of the Cloud TPU API"}), false
	}
	return append([]provision.Permission{
		{Name: "tpu.nodes.list", Use: "every command", Required: true},
		{Name: "tpu.nodes.get", Use: "every command", Required: true},
		{Name: "tpu.nodes.update", Use: "putting the SSH key into slices", Required: true},
		{Name: "tpu.nodes.create", Use: "qr create and job"},
		{Name: "tpu.nodes.delete", Use: "qr delete and job"},
		{Name: "iam.serviceAccounts.actAs", Use: "qr create and job"},
	}, list...), true
}

func (e projectChecks) checkPermissions(ctx context.Context) {
	list := e.permissions()
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.name
	}
	lacking, err := e.Cloud.Lacking(ctx, names)
	if err != nil {
		e.fail(CheckPermissions, err)
		return
	}
	if len(lacking) == 0 {
		e.ok(CheckPermissions, "all %d that commands need", len(names))
		return
	}
	type gap struct {
		role        string
		level       Level
		names, uses []string
	}
	var gaps []*gap // by role
	for _, p := range list {
		if !slices.Contains(lacking, p.name) {
			continue
		}
		role := gcp.RoleFor(p.name)
		at := slices.IndexFunc(gaps, func(g *gap) bool { return g.role == role })
		if at < 0 {
			at = len(gaps)
			gaps = append(gaps, &gap{role: role, level: p.level})
		}
		g := gaps[at]
		if p.level == Error {
			g.level = Error
		}
		g.names = append(g.names, p.name)
		for _, use := range p.uses {
			if !slices.Contains(g.uses, use) {
				g.uses = append(g.uses, use)
			}
		}
	}
	for _, g := range gaps {
		e.add(Finding{Check: CheckPermissions, Level: g.level,
			Text: fmt.Sprintf("%s lacking, for %s; %s has it", strings.Join(g.names, ", "), strings.Join(g.uses, ", "), g.role),
			Cure: e.grant(g.role), Advice: "who owns the project types:"})
	}
}

// grant returns the command that gives the caller a role.
func (e projectChecks) grant(role string) string {
	kind := "user:"
	if strings.HasSuffix(e.account, "gserviceaccount.com") {
		kind = "serviceAccount:"
	}
	member := remote.CommandLine("--member=" + kind + e.account)
	if e.account == "" {
		member = `--member="user:$(gcloud config get account)"`
	}
	return fmt.Sprintf("gcloud projects add-iam-policy-binding %s %s --role=%s", e.Project.Value, member, role)
}

// findSlices finds the slices of the prefix, or the hosts. It returns false if there is
// nothing to examine.
func (e projectChecks) findSlices(ctx context.Context) bool {
	if e.Hosts != nil {
		all, _ := e.Hosts.Slices(ctx) // never fails
		e.sel = tpu.Selection{Slices: all}
		return true
	}
	if e.Prefix == "" {
		return false
	}
	if e.Cluster == nil && (e.Cloud == nil || e.denied || e.Zone.Value == "") {
		e.unknown(CheckSlices, "without project, zone and credentials there are none to be found")
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	nodes, err := e.Provider.Slices(ctx)
	if err != nil {
		e.fail(CheckSlices, err)
		return false
	}
	sel, err := tpu.SelectNumbered(nodes, e.Prefix, e.Slices, true)
	if err != nil {
		var known interface{ Hint() string }
		advice := ""
		if errors.As(err, &known) {
			advice = known.Hint()
		}
		e.add(Finding{Check: CheckSlices, Level: Error, Text: err.Error(), Advice: advice, Cure: e.command("slices", "list")})
		return false
	}
	for _, p := range tpu.FoldProblems(sel.Problems) {
		e.add(Finding{Check: CheckSlices, Level: Error, Text: p, Cure: e.command("slices", "list")})
	}
	e.sel = sel
	if len(sel.Slices) == 0 {
		return false
	}
	e.checkHealth(ctx)
	return true
}

func (e projectChecks) checkHealth(ctx context.Context) {
	var names []string
	for _, s := range e.sel.Slices {
		names = append(names, s.Name)
	}
	shown := names[0]
	if len(names) > 1 {
		shown += " to " + names[len(names)-1]
	}
	first := e.sel.Slices[0]
	if first.MultiSlice && first.Name != e.Prefix && e.Slices == nil && first.QueuedResource != "" {
		if res, err := e.Provider.Get(ctx, first.QueuedResource); err == nil && res.NodeCount > len(names)+len(e.sel.Problems) {
			e.add(Finding{Check: CheckSlices, Level: Error, Cure: e.command("slices", "list"),
				Text: fmt.Sprintf("%s has %d slices, only %d are here", provision.QuotedNameOf(e.Provider, res.ID), res.NodeCount, len(names))})
		}
	}
	e.ok(CheckSlices, "%s: %s × %s, %s, all READY", shown, event.Count(len(names), "slice"), first.Type, event.Count(len(e.sel.Workers()), "worker"))
}

// quotaTiers maps words in the ids of the TPU API's quotas to tiers.
var quotaTiers = []struct{ word, name string }{{"Preemptible", "spot"}, {"Reserved", "reserved"}, {"", "on demand"}}

// checkQuota compares the quotas of a type with the wanted and the used amount.
func (e projectChecks) checkQuota(ctx context.Context) {
	if e.Type.Name == "" {
		return
	}
	unit, each := e.quotaUnit()
	need := int64(e.Type.Chips * e.Count * each)
	wanted := fmt.Sprintf("%s need %d %s", event.Count(e.Count, "slice")+" of "+e.Type.Name, need, unit)
	if e.Count == 1 {
		wanted = fmt.Sprintf("a %s needs %d %s", e.Type.Name, need, unit)
	}
	if e.Reservation != "" {
		e.ok(CheckQuota, "%s: they come from the reservation", wanted)
		return
	}
	quotas, err := e.Cloud.Quotas(ctx, e.quotaAPI())
	if err != nil {
		e.add(Finding{Check: CheckQuota, Level: Unknown, Text: fmt.Sprintf("not checked: %s; %v", wanted, err), Cure: typed(gcp.Hint(err))})
		return
	}
	held, dead, err := e.held(ctx)
	if err != nil {
		e.fail(CheckQuota, err)
		return
	}
	rows := e.quotaRows(quotas)
	if len(rows) == 0 && e.onCompute() {
		e.unknown(CheckQuota, "%s, and no quota of Compute Engine names %s in %s", wanted, e.Type.Generation.ComputeQuota, e.Zone.Value)
		return
	}
	if len(rows) == 0 {
		e.add(Finding{Check: CheckQuota, Level: Error, Text: fmt.Sprintf("%s, and no quota of %s names %s", wanted, e.Type.Generation.Name, e.Zone.Value),
			Advice: "the zone may not offer the type", Cure: remote.CommandLine("gcloud", "compute", "tpus", "accelerator-types", "list", "--zone="+e.Zone.Value, "--project="+e.Project.Value)})
		return
	}
	e.judgeQuota(wanted, unit, need, rows, held, dead)
}

// A quotaRow is a quota that limits the wanted slices.
type quotaRow struct {
	id, tier, where string
	uses            string // tier of the slices that use it
	limit           int64
	unset           bool // it has no limit of its own; limit is then a value from users' reports
}

// quotaRows returns the quotas that limit the wanted slices.
func (e projectChecks) quotaRows(quotas []gcp.QuotaInfo) (rows []quotaRow) {
	if e.onCompute() {
		return computeRows(quotas, e.Type.Generation, e.Zone.Value)
	}
	for _, q := range quotas {
		if tier, ok := quotaFor(q.ID, e.Type); ok {
			if limit, where, ok := q.In(e.Zone.Value); ok {
				rows = append(rows, quotaRow{id: q.ID, tier: tier, where: where, uses: strings.TrimSuffix(tier, " serving"), limit: limit})
			}
		}
	}
	return rows
}

// According to a user, a project may use this many chips of v6e if nobody has set the quota
// for spot and flex-start. For on demand, the number is 0.
const unsetSpot = 1536

// computeRows returns the quotas of Compute Engine that limit slices of a generation in a
// zone. Flex-start uses the quota of spot. If there is none, it uses the quota of on
// demand.
func computeRows(quotas []gcp.QuotaInfo, g tpu.Generation, zone string) (rows []quotaRow) {
	for _, q := range quotas {
		own, tier, family, ok := computeQuota(q, g)
		if !ok {
			continue
		}
		row := quotaRow{id: q.ID, tier: tier, uses: tier}
		var set bool
		row.limit, row.where, set = own.In(zone)
		switch {
		case set:
		case tier == "on demand" && family != "":
			row.where, row.unset = "region="+gcp.Region(zone), true
		case tier == "spot" && g.Name == "v6e":
			row.where, row.limit, row.unset = "region="+gcp.Region(zone), unsetSpot, true
		default:
			continue
		}
		row.where += family
		rows = append(rows, row)
	}
	shared := false
	for i := range rows {
		if rows[i].tier == "spot" {
			rows[i].tier, shared = "spot or flex-start", true
		}
	}
	if shared {
		return rows
	}
	for _, r := range rows {
		r.tier = "flex-start"
		rows = append(rows, r)
	}
	return rows
}

// catalog returns what Compute Engine offers for the wanted slices. ok is false if the
// Cloud TPU API makes them.
func (e projectChecks) catalog() (c provision.Catalog, ok bool) {
	return provision.As[provision.Catalog](e.Provider)
}

// onCompute reports whether Compute Engine makes the wanted slices.
func (e projectChecks) onCompute() bool {
	_, ok := e.catalog()
	return ok
}

// quotaAPI returns the API whose quota limits the wanted slices. The Cloud TPU API and
// Compute Engine have separate quotas.
func (e projectChecks) quotaAPI() string {
	if e.onCompute() {
		return "compute.googleapis.com"
	}
	return "tpu.googleapis.com"
}

// quotaUnit returns the unit of the quota, and the number of units for one chip.
func (e projectChecks) quotaUnit() (unit string, each int) {
	if e.Type.Generation.CountsCores && !e.onCompute() {
		return "cores", 2
	}
	return "chips", 1
}

// computeQuota returns the part of a quota of Compute Engine that limits slices of a
// generation, and its tier. The result family is the dimension of the generation. ok is
// false if the quota is for something else.
//
// Users of v5p and v6e have reported these ids, in two forms: one quota for all families,
// with a dimension for each, or one quota for each generation.
func computeQuota(q gcp.QuotaInfo, g tpu.Generation) (own gcp.QuotaInfo, tier, family string, ok bool) {
	id, spot := strings.CutPrefix(strings.ToUpper(q.ID), "PREEMPTIBLE-")
	tier = "on demand"
	if spot {
		tier = "spot"
	}
	switch {
	case strings.HasPrefix(id, "TPU-"+strings.ToUpper(g.Name)+"-"):
		return q, tier, "", true
	case g.ComputeQuota == "" || !strings.HasPrefix(id, "TPUS-PER-TPU-FAMILY-"):
		return q, "", "", false
	}
	own.ID = q.ID
	for _, l := range q.Limits {
		if l.Dimensions["tpu_family"] == g.ComputeQuota {
			own.Limits = append(own.Limits, l)
		}
	}
	return own, tier, ",tpu_family=" + g.ComputeQuota, true
}

// quotaFor reports whether the TPU API's quota with this id limits slices of a type, and
// for which tier.
func quotaFor(id string, t tpu.Type) (tier string, ok bool) {
	family := t.Generation.Quota
	if family == "" || !strings.HasPrefix(id, family) || !strings.Contains(id, "PerProject") {
		return "", false
	}
	kind, _, _ := strings.Cut(strings.TrimPrefix(id, family), "PerProject")
	switch t.Generation.Name {
	case "v2", "v3": // slices of one machine have a quota of their own
		if strings.Contains(kind, "Pod") != (t.Workers > 1) {
			return "", false
		}
	case "v5e": // small slices, perhaps for serving, also have a quota of their own
		if !strings.Contains(kind, "Litepod") || strings.Contains(kind, "Serving") && t.Chips > 8 {
			return "", false
		}
	}
	for _, q := range quotaTiers {
		if q.word == "" || strings.Contains(kind, q.word) {
			tier = q.name
			break
		}
	}
	if strings.Contains(kind, "Serving") {
		tier += " serving"
	}
	return tier, true
}

// held returns how much of the zone's quotas the project uses for slices and requests of
// the generation, by tier. The result dead has the requests that are FAILED or SUSPENDED.
// held counts only slices and requests of the wanted slices' API.
func (e projectChecks) held(ctx context.Context) (byTier map[string]int64, dead []provision.Resource, err error) {
	all, err := e.Provider.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := e.Provider.Slices(ctx)
	if err != nil {
		return nil, nil, err
	}
	byTier = map[string]int64{}
	count := func(tier, name string, n int) bool {
		t, err := tpu.ParseType(name)
		if err != nil || t.Generation.Name != e.Type.Generation.Name {
			return false
		}
		_, each := e.quotaUnit()
		byTier[tier] += int64(t.Chips * each * n)
		return true
	}
	kind := e.Provider.Undoing("").Commands.Kind
	for _, r := range all {
		if r.Commands.Kind == kind && !r.Free && count(tierName(r.Tier), r.Type, max(r.NodeCount, len(r.Nodes))) && r.Dead() {
			dead = append(dead, r)
		}
	}
	for _, s := range nodes {
		if s.QueuedResource == "" && (s.Provider == "" || s.Provider == kind) {
			count("on demand", s.Type, 1)
		}
	}
	return byTier, dead, nil
}

func tierName(t provision.Tier) string {
	switch t {
	case provision.Spot, provision.BestEffort, provision.FlexStart:
		return "spot"
	case provision.Reserved, provision.ReservationBound:
		return "reserved"
	}
	return "on demand"
}

func (e projectChecks) judgeQuota(wanted, unit string, need int64, rows []quotaRow, held map[string]int64, dead []provision.Resource) {
	var parts []string
	enough := map[string]bool{} // by tier
	best := quotaRow{limit: -2}
	guessed := false
	for _, r := range rows {
		used := held[r.uses]
		text := fmt.Sprintf("%s %d", r.tier, r.limit)
		switch {
		case r.limit == gcp.Unlimited:
			text = r.tier + " unlimited"
		case r.unset:
			text = fmt.Sprintf("%s not set, which counts as %d by reports of users", r.tier, r.limit)
			guessed = true
		}
		if used > 0 {
			text += fmt.Sprintf(" (%d held)", used)
		}
		if !slices.Contains(parts, text) {
			parts = append(parts, text)
		}
		if r.limit == gcp.Unlimited || r.limit-used >= need {
			enough[r.tier] = true
		}
		if r.tier == "on demand" && r.limit > best.limit {
			best = r
		}
	}
	slices.Sort(parts)
	text := fmt.Sprintf("%s; %s allows, in %s: %s", wanted, e.Project.Value, unit, strings.Join(parts, ", "))
	f := Finding{Check: CheckQuota, Level: Error, Text: text}
	switch {
	case enough["on demand"]:
		e.ok(CheckQuota, "%s", text)
		return
	case len(enough) > 0:
		f.Level = Warning
		f.Text += "; enough for " + strings.Join(slices.Sorted(maps.Keys(enough)), " or ")
	case guessed:
		f.Level = Warning
	}
	if len(dead) > 0 {
		f.Text += fmt.Sprintf("; %s is %s and holds quota all the same", provision.NameOf(e.Provider, dead[0].ID), dead[0].State)
		f.Cure = e.command("qr", "delete", dead[0].ID, "--force")
		if e.onCompute() {
			f.Cure = e.command("slices", "delete", dead[0].ID)
		}
	} else {
		if best.limit < 0 {
			best = rows[0]
		}
		f.Advice = "Google decides about more quota, which may take days"
		f.Cure = remote.CommandLine("gcloud", "beta", "quotas", "preferences", "create", "--service="+e.quotaAPI(), "--quota-id="+best.id,
			fmt.Sprintf("--preferred-value=%d", held[best.uses]+need), "--dimensions="+best.where, "--email="+e.account, "--project="+e.Project.Value)
	}
	e.add(f)
}

// checkMachine checks that the zone has the machine type of the wanted slices.
func (e projectChecks) checkMachine(ctx context.Context) {
	c, ok := e.catalog()
	if !ok || e.Type.Name == "" {
		return
	}
	name, err := c.Machine(ctx, e.Type)
	var choice *tpu.MachineError
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		e.add(Finding{Check: CheckMachine, Level: Error, Text: fmt.Sprintf("zone %s does not offer %s", e.Zone.Value, name), Advice: "choose a zone that is listed by:",
			Cure: remote.CommandLine("gcloud", "compute", "machine-types", "list", "--filter=name="+name, "--project="+e.Project.Value)})
	case errors.As(err, &choice):
		e.add(Finding{Check: CheckMachine, Level: Error, Text: err.Error(), Advice: choice.Hint()})
	case err != nil:
		e.fail(CheckMachine, err)
	default:
		e.ok(CheckMachine, "zone %s offers %s; whether it has free machines is not known before they are asked for", e.Zone.Value, name)
	}
}

// checkImage checks that the wanted slices have a boot image.
func (e projectChecks) checkImage(ctx context.Context) {
	c, ok := e.catalog()
	if !ok || e.Type.Name == "" {
		return
	}
	name, err := c.Image(ctx, e.Type)
	if err != nil {
		e.fail(CheckImage, err)
		return
	}
	e.ok(CheckImage, "the newest one is %s", name)
}

// checkReservation checks that the wanted slices can use the reservation.
func (e projectChecks) checkReservation(ctx context.Context) {
	p, ok := provision.As[provision.Reserver](e.Provider)
	if !ok || e.Reservation == "" || e.Type.Name == "" {
		return
	}
	r, err := p.Reserved(ctx, e.Reservation, e.Type, e.Count)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		e.add(Finding{Check: CheckReservation, Level: Error, Text: fmt.Sprintf("zone %s has no reservation %s", e.Zone.Value, e.Reservation),
			Advice: "see which reservations there are, and in which zones:", Cure: remote.CommandLine("gcloud", "compute", "reservations", "list", "--project="+e.Project.Value)})
		return
	case err != nil:
		e.fail(CheckReservation, err)
		return
	}
	for _, text := range r.Errors {
		e.add(Finding{Check: CheckReservation, Level: Error, Text: e.Reservation + ": " + strings.TrimPrefix(r.Text+"; "+text, "; "), Advice: "see it with: " + r.Show})
	}
	for _, text := range r.Warnings {
		e.add(Finding{Check: CheckReservation, Level: Warning, Text: e.Reservation + ": " + text, Advice: "see it with: " + r.Show})
	}
	if len(r.Errors) == 0 {
		e.ok(CheckReservation, "%s: %s", e.Reservation, r.Text)
	}
}
