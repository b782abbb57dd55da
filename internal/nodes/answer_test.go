package nodes

import (
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// FuzzHostKeys reads arbitrary guest attributes, because every process of a worker can write
// them. Only a key of the right type on one line is accepted.
func FuzzHostKeys(f *testing.F) {
	key := "AAAAC3NzaC1lZDI1NTE5AAAAIJ1o5NLBzK3yZzTfhcU+JSjJc7XmZm5rGfKzJ9CGFoxk"
	f.Add("ssh-ed25519", key+" root@t1v-n-0-w-3", "t1v-n-0-w-3", uint8(3))
	f.Add("ssh-ed25519", key, "t1v-n-0-w-0", uint8(3))
	f.Add("ssh-rsa", key, "", uint8(0))
	f.Add("ssh-ed25519", "AAAA/////w==", "-oProxyCommand=x", uint8(0))
	f.Add("ssh-\n", key+"\n"+key, "w-99999999999999999999", uint8(0))
	f.Fuzz(func(t *testing.T, algorithm, value, name string, worker uint8) {
		keys, _, err := readHostKeys(&tpuapi.GetGuestAttributesResponse{GuestAttributes: []*tpuapi.GuestAttributes{nil, {
			QueryValue: &tpuapi.GuestAttributesValue{Items: []*tpuapi.GuestAttributesEntry{
				{Namespace: "hostkeys", Key: "hostname", Value: name}, {Namespace: "hostkeys", Key: algorithm, Value: value},
			}}}}}, int(worker))
		if err != nil {
			return
		}
		for _, k := range keys {
			kind, _, _ := strings.Cut(k, " ")
			if kind != algorithm || strings.ContainsAny(k, "\n\r") {
				t.Errorf("key %q", k)
			}
			if parsed, _, _, _, err := ssh.ParseAuthorizedKey([]byte(k)); err == nil && parsed.Type() != kind {
				t.Errorf("key %q is of type %s", k, parsed.Type())
			}
			if number, ok := workerOf(name); ok && number != int(worker) {
				t.Errorf("key of worker %d taken for that of %d", number, worker)
			}
		}
	})
}
