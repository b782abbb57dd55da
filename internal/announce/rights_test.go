package announce

import (
	"testing"

	"multihost/internal/gcp"
)

func TestWhatAPolicyTellsOfTheRightToDelete(t *testing.T) {
	t.Parallel()
	const me = "12-compute@developer.gserviceaccount.com"
	bind := func(role string, conditional bool, members ...string) gcp.Binding {
		return gcp.Binding{Role: role, Members: members, Conditional: conditional}
	}
	for name, c := range map[string]struct {
		policy []gcp.Binding
		want   string
	}{
		"no binding":               {nil, MayNotDelete},
		"an editor":                {[]gcp.Binding{bind("roles/editor", false, "user:a@b.c", "serviceAccount:"+me)}, MayDelete},
		"an admin of TPUs":         {[]gcp.Binding{bind("roles/tpu.admin", false, "serviceAccount:"+me)}, MayDelete},
		"a viewer":                 {[]gcp.Binding{bind("roles/tpu.viewer", false, "serviceAccount:"+me)}, MayNotDelete},
		"another account":          {[]gcp.Binding{bind("roles/tpu.admin", false, "serviceAccount:3"+me)}, MayNotDelete},
		"a deleted account":        {[]gcp.Binding{bind("roles/tpu.admin", false, "deleted:serviceAccount:"+me+"?uid=1")}, MayNotDelete},
		"a person of that name":    {[]gcp.Binding{bind("roles/tpu.admin", false, "user:"+me)}, MayNotDelete},
		"only under a condition":   {[]gcp.Binding{bind("roles/tpu.admin", true, "serviceAccount:"+me)}, MayUnknown},
		"a condition and without":  {[]gcp.Binding{bind("roles/tpu.admin", true, "serviceAccount:"+me), bind("roles/owner", false, "serviceAccount:"+me)}, MayDelete},
		"a custom role":            {[]gcp.Binding{bind("projects/p/roles/trainer", false, "serviceAccount:"+me)}, MayUnknown},
		"a custom role of others":  {[]gcp.Binding{bind("projects/p/roles/trainer", false, "user:a@b.c")}, MayNotDelete},
		"a custom role and editor": {[]gcp.Binding{bind("roles/editor", false, "serviceAccount:"+me), bind("organizations/1/roles/x", false, "serviceAccount:"+me)}, MayDelete},
		"everybody":                {[]gcp.Binding{bind("roles/owner", false, "allUsers")}, MayDelete},
		"everybody with a login":   {[]gcp.Binding{bind("roles/owner", false, "allAuthenticatedUsers")}, MayDelete},
		"a group":                  {[]gcp.Binding{bind("roles/owner", false, "group:all@b.c")}, MayNotDelete},
	} {
		if may, why := judgePolicy(me, []string{"roles/tpu.admin", "roles/editor", "roles/owner"}, c.policy); may != c.want {
			t.Errorf("%s: %s (%s), want %s", name, may, why, c.want)
		}
	}
}
