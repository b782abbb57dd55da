package qr

import (
	"context"
	"strings"

	tpuapi "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

// A Door describes the present access of a key to the workers of a slice.
type Door struct {
	Login   string // user to log in as; OS Login has its own names
	OSLogin bool   // OS Login is on: workers ignore keys in metadata
	Account string // of OS Login
	Open    bool   // the workers accept the key
	Place   string // where the key is, or where Login would put it, in words
	Blocked bool   // the slice ignores keys in the project's metadata
}

// Door returns what Login would find and do. It only reads.
func (c *access) Door(ctx context.Context, s tpu.Slice, login, publicKey string, o OSLoginOptions) (Door, error) {
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

func (c *access) osLoginDoor(ctx context.Context, login, publicKey string, o OSLoginOptions) (Door, error) {
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
