package sim

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/computeapi"
	"multihost/internal/sim/storageapi"
)

func TestWhichAPIARequestIsFor(t *testing.T) {
	for path, want := range map[string]string{
		"/storage/v1/b/x/o":                               "storage",
		"/upload/storage/v1/b/x/o":                        "storage",
		"/resumable/upload/storage/v1/b/x/o":              "storage",
		"/compute/v1/projects/p/global/networks":          "compute",
		"/v1/users/me/loginProfile":                       "oslogin",
		"/oauth2/v2/userinfo":                             "oslogin",
		"/v1/projects/p/secrets":                          "secrets",
		"/v1/projects/p/secrets/s/versions/latest:access": "secrets",
		"/v1/projects/p:testIamPermissions":               "project",
		"/v1/projects/p/locations/r/clusters":             "container",
		"/v1beta1/projects/p/locations/r/operations/o":    "container",
		"/v1/projects/p/services":                         "project",
		"/v1beta/projects/p/locations/global/x":           "project",
		"/v2alpha1/projects/p/locations/z/nodes":          "tpu",
		"/v2/projects/p/locations/z/queuedResources/q":    "tpu",
		"/anything": "tpu",
	} {
		if got := endpointOf(httptest.NewRequest(http.MethodGet, path, nil)); got.name != want {
			t.Errorf("%s is for %s, want %s", path, got.name, want)
		}
	}
}

func TestWhichObjectMethodARequestIsFor(t *testing.T) {
	for _, tt := range []struct {
		method, path string
		want         string // path of the method; "none": there is none
		names        []string
	}{
		{http.MethodGet, "", "", nil},
		{http.MethodPost, "", "", nil},
		{http.MethodDelete, "", "none", nil},
		{http.MethodGet, "a", "*", []string{"a"}},
		{http.MethodDelete, "a", "*", []string{"a"}},
		{http.MethodPost, "a", "none", nil},
		{http.MethodPost, "a/compose", "*/compose", []string{"a"}},
		{http.MethodGet, "a/compose", "none", nil},
		{http.MethodPost, "a/other", "none", nil},
		{http.MethodPost, "a/rewriteTo/b/c/o/d", "*/rewriteTo/b/*/o/*", []string{"a", "c", "d"}},
		{http.MethodPost, "a/rewriteTo/b/c/x/d", "none", nil},
		{http.MethodPost, "a/rewriteTo/b/c/o", "none", nil},
	} {
		got, names := "none", []string(nil)
		for _, m := range storageapi.ObjectMethods {
			if n, ok := m.Match(tt.method, strings.FieldsFunc(tt.path, func(r rune) bool { return r == '/' })); ok {
				got, names = m.Path, n
				break
			}
		}
		if got != tt.want || !slices.Equal(names, tt.names) {
			t.Errorf("%s %q: %q with %q, want %q with %q", tt.method, tt.path, got, names, tt.want, tt.names)
		}
	}
}

func TestWhatAListSelects(t *testing.T) {
	b := cloud.NewBucket("b", "")
	for _, name := range []string{"a", "d/", "d/1", "d/2", "d/e/3", "e", "x/1"} {
		b.Objects[name] = &cloud.StoredObject{Data: []byte(name)}
	}
	for _, tt := range []struct {
		sel  storageapi.Selection
		want string // prefixes have a >
	}{
		{storageapi.Selection{}, "a d/ d/1 d/2 d/e/3 e x/1"},
		{storageapi.Selection{Prefix: "d/"}, "d/ d/1 d/2 d/e/3"},
		{storageapi.Selection{Delimiter: "/"}, "a >d/ e >x/"},
		{storageapi.Selection{Delimiter: "/", Markers: true}, "a >d/ d/ e >x/"},
		{storageapi.Selection{Prefix: "d/", Delimiter: "/"}, "d/ d/1 d/2 >d/e/"},
		{storageapi.Selection{Start: "d/2", End: "x/1"}, "d/2 d/e/3 e"},
		{storageapi.Selection{Start: "d/1", End: "e", Delimiter: "/"}, ">d/"},
		{storageapi.Selection{Prefix: "none"}, ""},
	} {
		var got []string
		for _, e := range storageapi.Entries(b, tt.sel) {
			if e.Object == nil {
				got = append(got, ">"+e.Prefix)
			} else {
				got = append(got, string(e.Object.Data))
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: %q, want %q", tt.sel, got, tt.want)
		}
	}
}

func TestOnlyPlainSubnetworksAreModelled(t *testing.T) {
	for _, tt := range []struct {
		change func(*computepb.Subnetwork)
		want   string
	}{
		{func(*computepb.Subnetwork) {}, ""},
		{func(s *computepb.Subnetwork) { s.Description = proto.String("mine") }, ""},
		{func(s *computepb.Subnetwork) {
			s.Purpose, s.StackType = proto.String("PRIVATE"), proto.String("IPV4_ONLY")
		}, ""},
		{func(s *computepb.Subnetwork) { s.PrivateIpGoogleAccess = proto.Bool(false) }, ""},
		{func(s *computepb.Subnetwork) { s.PrivateIpGoogleAccess = proto.Bool(true) }, "not a plain IPv4 one"},
		{func(s *computepb.Subnetwork) { s.Purpose = proto.String("REGIONAL_MANAGED_PROXY") }, "not a plain IPv4 one"},
		{func(s *computepb.Subnetwork) { s.StackType = proto.String("IPV4_IPV6") }, "not a plain IPv4 one"},
		{func(s *computepb.Subnetwork) { s.EnableFlowLogs = proto.Bool(true) }, "more than a name, a network and a range"},
	} {
		msg := &computepb.Subnetwork{Name: proto.String("s"), Network: proto.String("n"), IpCidrRange: proto.String("10.0.0.0/20"), Region: proto.String("r")}
		tt.change(msg)
		err := computeapi.PlainSubnetwork(msg)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", msg, err, tt.want)
		}
	}
}

func TestValuesThatNoFaultCanHave(t *testing.T) {
	for _, tt := range []struct {
		f    cloud.Fault
		want string
	}{
		{cloud.Fault{}, ""},
		{cloud.Fault{Code: 400, State: "ACTIVE", Initiator: "USER", Service: "tpu.googleapis.com", Worker: "0"}, ""},
		{cloud.Fault{Code: 599, State: "ACCEPTED", Initiator: "SERVICE"}, ""},
		{cloud.Fault{Code: 399}, "code 399 is not between 400 and 599"},
		{cloud.Fault{Code: 600}, "code 600 is not between 400 and 599"},
		{cloud.Fault{State: "READY"}, `state "READY" is not ACCEPTED`},
		{cloud.Fault{Initiator: "NOBODY"}, `initiator "NOBODY" is neither SERVICE nor USER`},
		{cloud.Fault{Service: "x.googleapis.com"}, `there is no API "x.googleapis.com"`},
		{cloud.Fault{Worker: "-1"}, `worker "-1" is not a number from 0`},
		{cloud.Fault{Worker: "w"}, `worker "w" is not a number from 0`},
	} {
		err := tt.f.CheckValues()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.f, err, tt.want)
		}
	}
}
