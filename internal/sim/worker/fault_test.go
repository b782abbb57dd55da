package worker

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestTextsOfFaults reads texts of faults. After ": " stands a part of the error for a text
// that must be refused.
func TestTextsOfFaults(t *testing.T) {
	for text, want := range map[string]Fault{
		"clear":                  {Kind: Clear},
		"clear cut":              {Kind: Clear, Name: "cut"},
		"unreachable hang":       {Kind: Unreachable, Mode: "hang"},
		"unreachable refuse 2s":  {Kind: Unreachable, Mode: "refuse", Duration: 2 * time.Second},
		"freeze":                 {Kind: Freeze},
		"freeze 1s":              {Kind: Freeze, Duration: time.Second},
		"slow exec 1s":           {Kind: Slow, Mode: "exec", Duration: time.Second},
		"cut in 0":               {Kind: Cut, Mode: "in"},
		"cut out 10 2":           {Kind: Cut, Mode: "out", Bytes: 10, Count: 2},
		"refuse-auth 3":          {Kind: RefuseAuth, Count: 3},
		"refuse-auth 3s":         {Kind: RefuseAuth, Duration: 3 * time.Second},
		"reboot":                 {Kind: Reboot},
		"reboot power 1s":        {Kind: Reboot, Mode: "power", Duration: time.Second},
		"reboot 1s":              {Kind: Reboot, Duration: time.Second},
		"no-sudo missing":        {Kind: NoSudo, Mode: "missing"},
		"disk-space tmp":         {Kind: DiskSpace, Mode: "tmp"},
		"disk-space home 7":      {Kind: DiskSpace, Mode: "home", Bytes: 7},
		"read-only":              {Kind: ReadOnly},
		"clock behind 1s":        {Kind: Clock, Mode: "behind", Duration: time.Second},
		"startup print":          {Kind: Startup, Mode: "print"},
		"startup hang ~/.ssh/rc": {Kind: Startup, Mode: "hang", Name: sshRC},
		"banner":                 {Kind: Banner},
		"shell /bin/dash":        {Kind: Shell, Name: "/bin/dash"},
		"missing tcp_cubic":      {Kind: Missing, Name: "tcp_cubic"},
		"denied net.core.wmem":   {Kind: Denied, Name: "net.core.wmem"},
		"fixed tx-nocache-copy":  {Kind: Fixed, Name: "tx-nocache-copy"},
		"rotate-host-keys":       {Kind: RotateHostKeys},
		"kill":                   {Kind: Kill},
		"kill SIGTERM":           {Kind: Kill, Name: "SIGTERM"},
		"":                       {},
		"x: unknown name":        {},
		"cut: invalid syntax":    {},
		"cut up 1: mode \"up\" is none of in, out (want \"cut in|out BYTES [TIMES]\")": {},
		"cut in -1: negative argument":                                                   {},
		"slow exec: no duration (want \"slow handshake|exec DURATION\")":                 {},
		"clock ahead: no duration":                                                       {},
		"reboot now: invalid duration":                                                   {},
		"no-sudo now: mode \"now\" is not missing":                                       {},
		"refuse-auth 0: want a duration or a number of tries":                            {},
		"startup exit /x: file \"/x\" is none of ~/.bashrc, /etc/bash.bashrc, ~/.ssh/rc": {},
		"startup: mode \"\" is none of print, exit, hang":                                {},
		"shell dash: bad path \"dash\"":                                                  {},
		"missing ../x: bad name \"../x\"":                                                {},
		"fixed: bad name \"\"":                                                           {},
		"clear x: unknown kind \"x\"":                                                    {},
		"kill FOO: unknown signal \"FOO\"":                                               {},
		"banner now: unexpected argument \"now\" (want \"banner\")":                      {},
		"unreachable: mode \"\" is none of refuse, hang":                                 {},
		"freeze 1s 2s: unexpected argument \"2s\"":                                       {},
		"disk-space tmp x: strconv.ParseInt":                                             {},
	} {
		words, refusal, _ := strings.Cut(text, ": ")
		got, err := ParseFault(strings.Fields(words)...)
		if got != want || (want.Kind == "") != (err != nil) || !strings.Contains(fmt.Sprint(err), refusal) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if err == nil && got.Check() != nil {
			t.Errorf("%q: %v", text, got.Check())
		}
	}
	if err := (Fault{Kind: "nap"}).Check(); err == nil || err.Error() != `unknown fault "nap"` {
		t.Errorf("a kind that does not exist: %v", err)
	}
}

func TestEveryKindHasAForm(t *testing.T) {
	seen := map[FaultKind]bool{}
	for _, f := range faultForms() {
		if seen[f.kind] {
			t.Errorf("%s has two forms", f.kind)
		}
		seen[f.kind] = true
	}
	for _, k := range []FaultKind{Clear, Unreachable, Freeze, Slow, Cut, RefuseAuth, Reboot, NoSudo, DiskSpace, ReadOnly, Clock, Startup, Banner, Shell, Missing, Denied, Fixed, RotateHostKeys, Kill} {
		if !seen[k] {
			t.Errorf("%s has no form", k)
		}
	}
}
