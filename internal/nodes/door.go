package nodes

import (
	"context"
	"strings"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// Door returns what Login would find and do. It changes nothing.
func (c *access) Door(ctx context.Context, s tpu.Slice, login, publicKey string, o OSLoginOptions) (provision.Door, error) {
	d, err := c.door(ctx, s, login, publicKey, o)
	if d.blocked && !d.osLogin {
		d.Place += " (keys of the project are blocked)"
	}
	return d.Door, err
}

// A door says whether the workers of a slice accept a key now.
type door struct {
	provision.Door
	osLogin bool // OS Login is on: workers ignore keys in metadata
	blocked bool // the slice ignores keys in the project's metadata
}

func (c *access) door(ctx context.Context, s tpu.Slice, login, publicKey string, o OSLoginOptions) (door, error) {
	project := c.cachedProject(ctx)
	blocked := strings.EqualFold(s.Metadata[blockProjectKeys], "true")
	if usesOSLogin(s.Metadata, project) {
		d, err := c.osLoginDoor(ctx, login, publicKey, o)
		d.blocked = blocked
		return d, err
	}
	entry, err := KeyEntry(login, publicKey)
	if err != nil {
		return door{}, err
	}
	d := door{Door: provision.Door{Login: login, Place: "metadata of the slice"}, blocked: blocked}
	d.Open = c.letsIn(s.Metadata, project, entry)
	if d.Open && !hasEntry(s.Metadata[SSHKeys], entry, c.now()) {
		d.Place = "metadata of the project"
	}
	return d, nil
}

func (c *access) osLoginDoor(ctx context.Context, login, publicKey string, o OSLoginOptions) (door, error) {
	d, account := door{osLogin: true}, o.Account
	if account == "" {
		var err error
		if account, err = c.gcp.Email(ctx); err != nil {
			return d, &OSLoginError{Err: err}
		}
	}
	d.Place = "OS Login profile of " + account
	svc, err := c.osLoginService(ctx)
	if err != nil {
		return d, err
	}
	profile, err := c.loginProfile(ctx, svc, account)
	if err != nil {
		return d, &OSLoginError{Account: account, Err: err}
	}
	if len(profile.PosixAccounts) > 0 {
		d.Login = chooseLogin(profile, login)
		d.Open = c.hasLoginKey(profile, publicKey, 0)
	}
	return d, nil
}
