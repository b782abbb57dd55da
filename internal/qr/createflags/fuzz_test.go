package createflags

import (
	"testing"
	"time"

	"multihost/internal/qr"
)

// FuzzGcloudFlags reads --cqr-extra-args. Every text gives a request or an error. A refused
// text does not change the request.
func FuzzGcloudFlags(f *testing.F) {
	f.Add("--network=mtu9k --spot")
	f.Add("--node-count 2 --node-prefix=t --labels=a=b,c=d --metadata=^:^k=v:w=x")
	f.Add("--type=v4 --topology=2x2x1 --network-config=network=a --network-config subnetwork=b --boot-disk=kms-key=k --valid-after-time=+1h --valid-until-time=2026-02-03")
	f.Add("--valid-until-duration=1h30m --reserved --best-effort")
	f.Add(`--metadata="a=b c" --data-disk=source=x,mode=read-only`)
	f.Add("--=x -- --no-spot 'open")
	f.Fuzz(func(t *testing.T, args string) {
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		flags := NewReader(qr.Request{}, now)
		err := flags.Extra(args)
		r := qr.Request{}
		if err == nil {
			var wrong []*qr.FlagError
			if r, wrong = flags.Request(); len(wrong) > 0 {
				err = wrong[0]
			}
		}
		if err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
		_ = r.Validate()
		_ = r.Body("p", "us-central2-b", now)
	})
}
