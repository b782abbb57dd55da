package nodes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/tpu"

	"google.golang.org/api/googleapi"
	oslogin "google.golang.org/api/oslogin/v1"
)

// OSLoginOptions are options for OS Login.
type OSLoginOptions struct {
	// Account is the e-mail address of the account that gets the key. "" means the account of
	// the credentials.
	Account string

	// KeyLife is how long an imported key stays valid; 0 means 30 days. A key with less
	// than half of KeyLife left is imported again, so that it outlives a long run.
	KeyLife time.Duration
}

const defaultKeyLife = 30 * 24 * time.Hour

// An OSLoginError reports that OS Login does not accept our key.
type OSLoginError struct {
	Account string // "": unknown
	Err     error
}

func (e *OSLoginError) Error() string {
	if e.Account == "" {
		return fmt.Sprintf("log in with OS Login: %v", e.Err)
	}
	return fmt.Sprintf("log in with OS Login as %q: %v", e.Account, e.Err)
}

func (e *OSLoginError) Unwrap() error { return e.Err }

// Fault returns the kind of the API's refusal, or fault.Unavailable without one.
func (e *OSLoginError) Fault() fault.Kind {
	if kind := gcp.FaultOf(e.Err); kind != fault.Unknown {
		return kind
	}
	return fault.Unavailable
}

// Hint returns the command to type.
func (e *OSLoginError) Hint() string {
	switch {
	case profileFull(e.Err):
		return "too many keys were imported; remove them: gcloud compute os-login ssh-keys list --format='value(value.fingerprint)' | xargs -n1 gcloud compute os-login ssh-keys remove --key"
	case e.Account == "":
		return "name your account: gcloud config set account YOU@EXAMPLE.COM"
	case gcp.ClassOf(e.Err) == gcp.Permission:
		return "the account needs roles/compute.osAdminLogin in the project; or switch OS Login off for a slice with the metadata enable-oslogin=FALSE"
	}
	return gcp.Hint(e.Err)
}

// profileFull reports whether the API refused a key because the profile is full. It looks
// for the API's text, because there is no error code.
func profileFull(err error) bool {
	var api *googleapi.Error
	return errors.As(err, &api) && strings.Contains(api.Message, "profile size exceeds")
}

// Login makes sure that the workers of a slice accept publicKey, and returns the user to log in
// as. Without OS Login, user is login, and EnsureKey adds the key. With OS Login, Login imports
// the key into the account's profile. user is then a login of that profile, and is login if the
// profile has it. changed reports whether Login wrote anything.
func (c *access) Login(ctx context.Context, s tpu.Slice, login, publicKey string, o OSLoginOptions) (user string, changed bool, err error) {
	return c.LoginTo(ctx, c.node(s), login, publicKey, o)
}

// LoginTo does what Login does, for VMs that look for keys in the metadata of h.
func (c *access) LoginTo(ctx context.Context, h Holder, login, publicKey string, o OSLoginOptions) (user string, changed bool, err error) {
	if !usesOSLogin(h.Metadata, c.cachedProject(ctx)) {
		changed, err = c.ensureKey(ctx, h, login, publicKey)
		return login, changed, err
	}
	// The profile is the same for all slices. Concurrent callers share one call, and only one
	// of them reports a change.
	answer, err, _ := c.flight.Do("oslogin "+o.Account+" "+login+" "+publicKey, func() (any, error) {
		return c.osLogin(ctx, login, publicKey, o)
	})
	if err != nil {
		return "", false, err
	}
	result := answer.(*osLoginResult)
	return result.user, result.imported.Swap(false), nil
}

// usesOSLogin reports whether the workers of a node ask OS Login for keys. The
// node's metadata overrides the project's.
func usesOSLogin(node map[string]string, project projectMetadata) bool {
	value, ok := node[enableOSLogin]
	if !ok {
		value = project.osLogin
	}
	return strings.EqualFold(strings.TrimSpace(value), "true")
}

type osLoginResult struct {
	user     string
	imported atomic.Bool
}

func (c *access) osLogin(ctx context.Context, login, publicKey string, o OSLoginOptions) (*osLoginResult, error) {
	if o.KeyLife <= 0 {
		o.KeyLife = defaultKeyLife
	}
	if _, err := KeyEntry("any", publicKey); err != nil {
		return nil, &OSLoginError{Account: o.Account, Err: err}
	}
	account := o.Account
	if account == "" {
		var err error
		if account, err = c.gcp.Email(ctx); err != nil {
			return nil, &OSLoginError{Err: err}
		}
	}
	result := &osLoginResult{}
	user, imported, err := c.importedLogin(ctx, account, login, publicKey, o.KeyLife)
	if err != nil {
		return nil, &OSLoginError{Account: account, Err: err}
	}
	result.user = user
	result.imported.Store(imported)
	c.sayOSLogin(user, login)
	return result, nil
}

// importedLogin imports the key into the profile of an account, unless the key is already there
// and stays valid for long enough. It returns the login to use.
func (c *access) importedLogin(ctx context.Context, account, login, publicKey string, life time.Duration) (user string, imported bool, err error) {
	svc, err := c.osLoginService(ctx)
	if err != nil {
		return "", false, err
	}
	profile, err := c.loginProfile(ctx, svc, account)
	if err != nil {
		return "", false, err
	}
	if c.hasLoginKey(profile, publicKey, life/2) && len(profile.PosixAccounts) > 0 {
		return chooseLogin(profile, login), false, nil
	}
	fields := strings.Fields(publicKey)
	key := &oslogin.SshPublicKey{Key: fields[0] + " " + fields[1], ExpirationTimeUsec: c.now().Add(life).UnixMicro()}
	var answer *oslogin.ImportSshPublicKeyResponse
	err = c.gcp.Do(ctx, fmt.Sprintf("import SSH key into OS Login profile of %q", account), func(ctx context.Context) (err error) {
		answer, err = svc.Users.ImportSshPublicKey("users/"+account, key).ProjectId(c.gcp.Project()).Context(ctx).Do()
		return err
	})
	switch {
	case err != nil:
		return "", false, err
	case answer.LoginProfile == nil || len(answer.LoginProfile.PosixAccounts) == 0:
		return "", false, fmt.Errorf("its profile has no login for project %q", c.gcp.Project())
	}
	return chooseLogin(answer.LoginProfile, login), true, nil
}

func (c *access) osLoginService(ctx context.Context) (*oslogin.Service, error) {
	opts, err := c.gcp.OSLoginOptions()
	if err != nil {
		return nil, err
	}
	svc, err := oslogin.NewService(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("open OS Login client: %w", err)
	}
	return svc, nil
}

func (c *access) loginProfile(ctx context.Context, svc *oslogin.Service, account string) (profile *oslogin.LoginProfile, err error) {
	err = c.gcp.Do(ctx, fmt.Sprintf("read OS Login profile of %q", account), func(ctx context.Context) (err error) {
		profile, err = svc.Users.GetLoginProfile("users/" + account).ProjectId(c.gcp.Project()).Context(ctx).Do()
		return err
	})
	return profile, err
}

// hasLoginKey reports whether a profile has the key for at least the time atLeast.
func (c *access) hasLoginKey(p *oslogin.LoginProfile, publicKey string, atLeast time.Duration) bool {
	want := strings.Fields(publicKey)
	end := c.now().Add(atLeast).UnixMicro()
	for _, k := range p.SshPublicKeys {
		has := strings.Fields(k.Key)
		if len(has) >= 2 && has[0] == want[0] && has[1] == want[1] && (k.ExpirationTimeUsec == 0 || k.ExpirationTimeUsec >= end) {
			return true
		}
	}
	return false
}

// chooseLogin returns login if the profile has it, else the primary login, else the first
// one.
func chooseLogin(p *oslogin.LoginProfile, login string) string {
	chosen := p.PosixAccounts[0].Username
	for _, a := range p.PosixAccounts {
		if a.Username == login {
			return login
		}
	}
	for _, a := range p.PosixAccounts {
		if a.Primary {
			return a.Username
		}
	}
	return chosen
}

// sayOSLogin tells the user once that OS Login uses another login than the requested one.
func (c *access) sayOSLogin(user, login string) {
	c.mu.Lock()
	said := c.saidOSLogin
	c.saidOSLogin = true
	c.mu.Unlock()
	if !said && user != login {
		event.Notef(c.sink(), event.Info, "", "OS Login is on: logging in as %q instead of %q", user, login)
	}
}
