package gcp

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
)

// Hint returns one sentence on what the user can do about err, with the command to type if
// there is one. It is "" without useful advice. The first text from a Hint method in the
// chain is the hint.
func Hint(err error) string {
	if err == nil {
		return ""
	}
	var own interface{ Hint() string }
	if errors.As(err, &own) {
		if h := own.Hint(); h != "" {
			return h
		}
	}
	f := factsOf(err)
	switch ClassOf(err) {
	case Permission:
		return permissionHint(f)
	case Unauthenticated:
		return remedyUser + " (or write a fresh token to the file of --access-token-file)"
	case Quota:
		return quotaHint(f.message)
	case Capacity:
		return "the zone has no free machines of this type now: try again later, or in another zone with --zone=ZONE"
	case NotFound:
		return notFoundHint(f)
	case AlreadyExists:
		return "choose another name, or look at what is there with the matching show command"
	case Unavailable, Timeout:
		return unavailableHint(err, f)
	case Invalid:
		return invalidHint(f.message)
	}
	return ""
}

// facts has the parts of an error that hints use.
type facts struct {
	what, reason, message string
	http                  int
}

func factsOf(err error) facts {
	var e *Error
	if errors.As(err, &e) {
		return facts{e.What, e.Reason, e.Message, e.HTTP}
	}
	var oe *OperationError
	if errors.As(err, &oe) {
		return facts{reason: oe.Reason, message: oe.Message}
	}
	if a, ok := readAnswer(err); ok {
		return facts{reason: a.reason, message: a.message, http: a.http}
	}
	return facts{message: err.Error()}
}

var (
	permissionName = regexp.MustCompile(`'([a-z]+\.[A-Za-z]+\.[A-Za-z]+)'|\b([a-z]+\.[A-Za-z]+\.(?:create|get|list|update|delete|use|actAs|updatePolicy|getGuestAttributes|setCommonInstanceMetadata))\b`)
	apiName        = regexp.MustCompile(`\b([a-z]+\.googleapis\.com)\b`)
	locationName   = regexp.MustCompile(`locations/([a-z0-9-]+)`)
	notGenerally   = regexp.MustCompile(`(?i)not yet generally available|does not have permission to submit requests for accelerator type`)
	notEnabled     = regexp.MustCompile(`(?i)has not been used in project|it is disabled|API is not enabled`)
	billing        = regexp.MustCompile(`(?i)\bbilling (account|to be enabled|is (disabled|not enabled)|disabled|must be enabled|has not been enabled)|enable billing`)
	inBucket       = regexp.MustCompile(`gs://([a-z0-9][-_.a-z0-9]*)`)
	noNetwork      = regexp.MustCompile(`(?i)\bnetwork ["']?(?:projects/[^/ ]+/global/networks/)?([a-z][-a-z0-9]*)["']? (?:was )?not found`)
	ofCompute      = regexp.MustCompile(`^[a-z]+ (groups?|VMs?|instance templates?|workload policy|resource policies|metadata of VM|machine type|image) ?\b`)
	noProject      = regexp.MustCompile(`(?i)project .*(not found|does not exist)|resource 'projects/[^/']+' was not found`)
)

// permissionHint names the missing permission, and the role that has it, if known.
func permissionHint(f facts) string {
	switch {
	case f.reason == "LOCATION_POLICY_VIOLATED" || notGenerally.MatchString(f.message):
		return "this zone is open to allow-listed projects only: use another zone, or ask your Google contact to add the project"
	case f.reason == "CONSUMER_INVALID":
		return "there is no such project, or it is not yours: gcloud projects list shows those that are; then --project=ID"
	case f.reason == "SERVICE_DISABLED" || f.reason == "accessNotConfigured" || notEnabled.MatchString(f.message):
		api := "tpu.googleapis.com"
		if m := apiName.FindStringSubmatch(f.message); m != nil {
			api = m[1]
		} else if strings.Contains(strings.ToLower(f.message), "compute engine api") {
			api = "compute.googleapis.com"
		}
		return fmt.Sprintf("enable the API: gcloud services enable %s", api)
	case f.reason == "BILLING_DISABLED" || billing.MatchString(f.message):
		return "link a billing account to the project: gcloud billing projects link PROJECT --billing-account=ACCOUNT"
	}
	if m := permissionName.FindStringSubmatch(f.message); m != nil {
		p := m[1] + m[2]
		hint := fmt.Sprintf("the missing permission is %s", p)
		if role := roleFor(p); role != "" {
			hint += fmt.Sprintf("; %s has it: gcloud projects add-iam-policy-binding PROJECT --member=user:YOU --role=%s", role, role)
		}
		return hint
	}
	if m := locationName.FindStringSubmatch(f.message); m != nil {
		return fmt.Sprintf("check that the zone %q exists and that the project may use it: gcloud compute tpus locations list", m[1])
	}
	if ofCompute.MatchString(f.what) {
		return "ask a project owner for the roles that make slices on Compute Engine (roles/compute.instanceAdmin.v1, roles/iam.serviceAccountUser)"
	}
	return "ask a project owner for the roles that the README names (roles/tpu.admin, roles/compute.networkAdmin, roles/compute.securityAdmin, roles/compute.viewer)"
}

// roleFor returns the smallest usual role with a permission, or "".
func roleFor(permission string) string {
	switch {
	case strings.HasPrefix(permission, "tpu."):
		return "roles/tpu.admin"
	case strings.HasPrefix(permission, "compute.firewalls."), permission == "compute.networks.updatePolicy":
		return "roles/compute.securityAdmin"
	case strings.HasPrefix(permission, "compute.networks."), strings.HasPrefix(permission, "compute.subnetworks."), strings.HasPrefix(permission, "compute.globalOperations."):
		return "roles/compute.networkAdmin"
	case permission == "iam.serviceAccounts.actAs":
		return "roles/iam.serviceAccountUser"
	case strings.HasPrefix(permission, "iap.tunnelInstances."):
		return "roles/iap.tunnelResourceAccessor"
	case strings.HasPrefix(permission, "compute.instances.osAdminLogin"):
		return "roles/compute.osAdminLogin"
	case strings.HasPrefix(permission, "compute.") && (strings.HasSuffix(permission, ".get") || strings.HasSuffix(permission, ".list")):
		return "roles/compute.viewer"
	case strings.HasPrefix(permission, "compute.instance"), strings.HasPrefix(permission, "compute.resourcePolicies."), strings.HasPrefix(permission, "compute.disks."):
		return "roles/compute.instanceAdmin.v1"
	case strings.HasPrefix(permission, "container."):
		return "roles/container.admin"
	case strings.HasPrefix(permission, "serviceusage."):
		return "roles/serviceusage.serviceUsageConsumer"
	case strings.HasPrefix(permission, "cloudquotas."):
		return "roles/cloudquotas.viewer"
	}
	return ""
}

// Forms in which the APIs name a quota: two of the TPU API, and one of Compute Engine.
var quotaForms = []*regexp.Regexp{
	regexp.MustCompile(`Quota '(?P<metric>[^']+)' exhausted\. Limit:? (?P<limit>[0-9.]+) (?P<where>in (?:region|zone) \S+|globally)`),
	regexp.MustCompile(`Quota limit '(?P<metric>[^']+)' has been exceeded\. Limit: (?P<limit>[0-9.]+) (?P<where>in (?:region|zone) \S+|globally)`),
	regexp.MustCompile(`Quota '(?P<metric>[^']+)' exceeded\.\s+Limit: (?P<limit>[0-9.]+) (?P<where>in (?:region|zone) \S+|globally)`),
}

// QuotaOf returns the quota in an API's message, its limit and where the limit applies. ok
// is false if the message names no quota.
func QuotaOf(message string) (metric, limit, where string, ok bool) {
	for _, form := range quotaForms {
		m := form.FindStringSubmatch(oneLine(message))
		if m == nil {
			continue
		}
		metric = m[form.SubexpIndex("metric")]
		limit = strings.TrimSuffix(strings.TrimRight(m[form.SubexpIndex("limit")], "."), ".0")
		where = strings.TrimRight(m[form.SubexpIndex("where")], ".,;")
		return metric, limit, where, true
	}
	return "", "", "", false
}

func quotaHint(message string) string {
	const frees = "queued resources that are SUSPENDED or FAILED hold quota until deleted: multihost qr list"
	metric, limit, where, ok := QuotaOf(message)
	if !ok {
		return "a quota of the project is used up; " + frees
	}
	hint := fmt.Sprintf("the quota %s allows %s %s", metric, limit, where)
	if strings.Contains(metric, "TPU") {
		return hint + "; " + frees
	}
	return hint + "; delete what is not needed, or ask for more: https://console.cloud.google.com/iam-admin/quotas"
}

func notFoundHint(f facts) string {
	if noProject.MatchString(f.message) {
		return "check the project: --project=ID, or gcloud config set project ID"
	}
	if m := inBucket.FindStringSubmatch(f.what); m != nil && strings.Contains(f.message, "bucket does not exist") {
		return "make it with: gcloud storage buckets create gs://" + m[1] + " --location=REGION --soft-delete-duration=0, in the region of the slices; or name another with --bucket-name=NAME"
	}
	return ""
}

// noZone matches the API's text for an unknown zone.
var noZone = regexp.MustCompile(`(?i)requested zone "?[^" ]*"? is not supported|/zones/[^/' ]+' was not found`)

const zoneList = "gcloud compute tpus locations list"

// NoZone reports whether an API does not know the zone, or does not offer the requested
// resource there.
func NoZone(err error) bool { return err != nil && noZone.MatchString(err.Error()) }

func invalidHint(message string) string {
	switch {
	case strings.Contains(message, "zonal accelerator configurations"):
		return "this zone does not offer the accelerator type: gcloud compute tpus accelerator-types list --zone=ZONE"
	case noZone.MatchString(message):
		return "check the zone: " + zoneList
	}
	if m := noNetwork.FindStringSubmatch(message); m != nil {
		return "make it with: multihost network create " + m[1] + "; or name another with --network=NAME"
	}
	return ""
}

// asked reports whether err came from a request to the API. A deadline or a broken
// connection alone may have another cause.
func asked(err error) bool {
	var call *Error
	var operation *OperationError
	_, answered := readAnswer(err)
	return answered || errors.As(err, &call) || errors.As(err, &operation) || errors.Is(err, errNoAnswer) || errors.Is(err, ErrPartial)
}

func unavailableHint(err error, f facts) string {
	var op *net.OpError
	switch {
	case !asked(err):
		return "" // something else timed out or broke
	case errors.As(err, &op) && op.Op == "proxyconnect":
		return "the proxy that HTTPS_PROXY or HTTP_PROXY names does not answer"
	case loopback(err) && errors.Is(err, errRefused):
		return `nothing listens at the endpoint override; if it is the simulator's, leave the simulator with: eval "$(multihost sim env --unset)"; or start it again: multihost sim up --background; eval "$(multihost sim env)"`
	case isRateReason(f.reason) || rateText.MatchString(f.message):
		return "the project sends too many requests per minute; wait a minute and try again"
	case strangeServer(err):
		return "another server answers in place of the API: log in to the network that this machine is in, or check its proxy settings"
	case strings.Contains(f.message, "no such host") || strings.Contains(f.message, "network is unreachable"):
		return "check the network connection and any proxy settings of this machine"
	}
	var operation *OperationError
	if f.http > 0 || errors.As(err, &operation) || errors.Is(err, ErrPartial) {
		return "the API answers with an error of its own; try again, and see https://status.cloud.google.com"
	}
	return "the API was asked and gave no whole answer; try again, and check the network connection and any proxy settings of this machine"
}
