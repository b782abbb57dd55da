package qr

import (
	"context"
	"strings"

	tpuapi "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

// A Door is how the workers of a slice let a key in, as it stands.
type Door struct {
	Login   string // as whom; of OS Login a name of its own
	OSLogin bool   // keys of OS Login count, those in metadata do not
	Account string // of OS Login
	Open    bool   // the key is known
	Place   string // where it is, or where Login would put it, in words
	Blocked bool   // keys in the project's metadata do not count for the slice
}

// Door says what Login would do. It only reads.
func (c *Client) Door(ctx context.Context, s tpu.Slice, login, publicKey string, o OSLoginOptions) (Door, error) {
	project := c.cachedProject(ctx)
	blocked := strings.EqualFold(s.Metadata[blockProjectKeys], "true")
	if usesOSLogin(s.Metadata, project) {
		d, err := c.osLoginDoor(ctx, login, publicKey, o)
		d.Blocked = blocked
		return d, err
	}
	entry, err := KeyEntry(login, publicKey)
	if err != nil {
		return Door{}, err
	}
	d := Door{Login: login, Blocked: blocked, Place: "metadata of the slice"}
	node := &tpuapi.Node{Name: s.Name, Metadata: s.Metadata}
	d.Open = c.letsIn(node, project, entry)
	if d.Open && !hasEntry(s.Metadata[sshKeys], entry, c.now()) {
		d.Place = "metadata of the project"
	}
	return d, nil
}

func (c *Client) osLoginDoor(ctx context.Context, login, publicKey string, o OSLoginOptions) (Door, error) {
	d := Door{OSLogin: true, Account: o.Account}
	if d.Account == "" {
		var err error
		if d.Account, err = c.gcp.Email(ctx); err != nil {
			return d, &OSLoginError{Err: err}
		}
	}
	d.Place = "OS Login profile of " + d.Account
	svc, err := c.osLoginService(ctx)
	if err != nil {
		return d, err
	}
	profile, err := c.loginProfile(ctx, svc, d.Account)
	if err != nil {
		return d, &OSLoginError{Account: d.Account, Err: err}
	}
	if len(profile.PosixAccounts) > 0 {
		d.Login = chooseLogin(profile, login)
		d.Open = c.hasLoginKey(profile, publicKey, 0)
	}
	return d, nil
}
