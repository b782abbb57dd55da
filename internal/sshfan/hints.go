package sshfan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/crypto/ssh"

	"multihost/internal/iap"
	"multihost/internal/remote"
)

// A hint names a cause only if the error proves the cause. Otherwise it says where to look:
// sshd logs reasons that it does not send to clients.
const seeLog = "why is in sshd's log on the worker: sudo journalctl -u ssh -n 20"

// known has what a hint may use besides the error.
type known struct {
	cloud bool // the worker is a VM of the cloud
	// reached says that this machine has reached another worker of the slice, behind the
	// same firewall rules.
	reached bool
}

// hintOf returns what follows from the error of a worker, and what to type, or "".
func hintOf(e *remote.ConnectError, k known) string {
	var timeout interface{ Timeout() bool }
	var hinted interface{ Hint() string }
	var said *greetingError
	var name *remote.NameError
	timedOut := errors.As(e.Err, &timeout) && timeout.Timeout()
	switch {
	case errors.As(e.Err, &name): // the error says nothing about the machine
		return name.Hint()
	case k.reached && unanswered(e.Err, e.Stage, timedOut):
		return "other workers of its slice were reached from here, so no firewall rule is missing: it is off, reboots or hangs; multihost slices list shows the state of its slice"
	case errors.As(e.Err, &said):
		return handshakeHint(e.Err)
	case errors.As(e.Err, &hinted):
		return hinted.Hint()
	case errors.Is(e.Err, errTooManyFiles):
		return "too many open files: raise the hard limit of the shell that starts multihost: sudo prlimit --pid $$ --nofile=65536"
	case errors.Is(e.Err, errRefused):
		return "nothing listens there: the VM is still booting, or this is not its SSH port"
	case errors.Is(e.Err, errNoHost), errors.Is(e.Err, errNoNetwork):
		return "this machine has no route to it: an internal address is reached from inside the network, or with --ssh-proxy-jump=USER@BASTION, or with --ip=iap"
	case e.Stage == remote.StageDial && timedOut:
		return unansweredHint(e.Addr, k.cloud)
	case e.Stage == remote.StageHandshake && timedOut:
		return "it accepts connections and then says nothing: the VM hangs, is short of memory, or it is no SSH server"
	case e.Stage == remote.StageHandshake:
		return handshakeHint(e.Err)
	case errors.Is(e.Err, remote.ErrBooting):
		return "the VM is up and not ready yet: wait for it with a longer --connect-timeout"
	case errors.Is(e.Err, errMoreThanKey):
		return fmt.Sprintf("use a login for which a key is enough: --user=NAME; what sshd asks of this one: sudo sshd -T -C user=%s | grep -i authenticationmethods", remote.Quote(e.User))
	case errors.Is(e.Err, ErrLoginRefused):
		return fmt.Sprintf("the account %q is locked or may not log in over SSH: use another --user; %s", e.User, seeLog)
	case errors.Is(e.Err, remote.ErrKeyRefused):
		return "the VM boots, or the key is the wrong one: try again in a minute"
	case errors.Is(e.Err, ErrTooManySessions):
		return "let sshd on the worker take more: MaxSessions 10 in /etc/ssh/sshd_config, then: sudo systemctl reload ssh"
	}
	return ""
}

// unanswered reports whether nothing answered at a worker's address, directly, through a
// bastion or through IAP. A missing firewall rule and a machine that is off both look like
// this.
func unanswered(err error, stage remote.Stage, timedOut bool) bool {
	var forward *ForwardError
	var relay *iap.Error
	switch {
	case stage != remote.StageDial:
		return false
	case errors.As(err, &forward):
		return forward.unanswered()
	case errors.As(err, &relay):
		return relay.Code == iap.NoBackend
	}
	return timedOut || errors.Is(err, errNoHost)
}

// handshakeHint returns the hint for a failed handshake.
func handshakeHint(err error) string {
	var negotiation *ssh.AlgorithmNegotiationError
	var said *greetingError
	switch {
	case errors.As(err, &negotiation):
		return negotiationHint(negotiation)
	case !errors.As(err, &said):
		return seeLog
	case strings.Contains(said.text, "MaxStartups"):
		return "sshd there takes no more logins at once (MaxStartups); fewer at once: --max-dials=8"
	case strings.Contains(said.text, "Not allowed at this time"):
		return "sshd there refuses this machine's address for a while (PerSourcePenalties), as after failed logins: wait some minutes; " + seeLog
	default:
		return "is this the port of its sshd? name it with --ssh-port=N"
	}
}

// negotiationHint returns the hint if the two sides share no algorithm. It names the
// setting of sshd.
func negotiationHint(e *ssh.AlgorithmNegotiationError) string {
	setting := ""
	switch {
	case e.What == "key exchange":
		setting = "KexAlgorithms"
	case e.What == "host key":
		return fmt.Sprintf("sshd there has no host key of a kind that is known of it or supported (%s): see HostKey in /etc/ssh/sshd_config; all kinds are made by: sudo ssh-keygen -A", strings.Join(e.SupportedAlgorithms, ", "))
	case strings.HasSuffix(e.What, "cipher"):
		setting = "Ciphers"
	case strings.HasSuffix(e.What, "MAC"):
		setting = "MACs"
	}
	if setting == "" || len(e.SupportedAlgorithms) == 0 {
		return ""
	}
	return fmt.Sprintf("let sshd there offer one of ours too, such as %s: %[2]s in /etc/ssh/sshd_config; what it offers now: sudo sshd -T | grep -i %[2]s", e.SupportedAlgorithms[0], setting)
}

// refusedKeyHint returns the hint for a login that was refused until the time limit. An
// unknown key, DenyUsers, AllowUsers and PubkeyAcceptedAlgorithms look the same from here.
// Without proof of one of them, the hint names them all and the log that has the reason.
func refusedKeyHint(err error, user, key string, metadata, othersIn bool) string {
	var reason *keyRefusal
	switch {
	case errors.As(err, &reason) && reason.text == tooManyKeys:
		return "sshd counts each key that it refuses (MaxAuthTries): name the one that it knows with --identity-file=PATH"
	case errors.As(err, &reason) && reason.text == noKeys:
		return "let it take keys: PubkeyAuthentication yes in /etc/ssh/sshd_config; what is set for this login: sudo sshd -T -C user=" + remote.Quote(user) + " | grep -iE 'pubkeyauthentication|authenticationmethods'"
	case metadata && othersIn:
		return fmt.Sprintf("other workers accept this key (%s): its guest agent has not set it up (sudo journalctl -u google-guest-agent -n 20), or its sshd refuses the login; %s", key, seeLog)
	case othersIn:
		return fmt.Sprintf("other workers accept this key (%s): it is not in the login's authorized_keys there, or sshd refuses the login (DenyUsers, AllowUsers, PubkeyAcceptedAlgorithms); %s", key, seeLog)
	case metadata:
		return fmt.Sprintf("is %q with the key %s in the ssh-keys metadata of the node or the project, and OS Login off? see --user and --identity-file; if it is, %s", user, key, seeLog)
	}
	return fmt.Sprintf("is the key %s in the authorized_keys of %q there? if it is, sshd refuses the login (DenyUsers, AllowUsers) or the kind of key (PubkeyAcceptedAlgorithms); %s", key, user, seeLog)
}

// Known reasons for a refused key.
const (
	tooManyKeys = "too many keys were refused on one connection"
	noKeys      = "sshd takes no keys for this login"
)

// A keyRefusal is an ErrKeyRefused whose cause is known.
type keyRefusal struct{ text string }

func (e *keyRefusal) Error() string { return remote.ErrKeyRefused.Error() + ": " + e.text }
func (e *keyRefusal) Unwrap() error { return remote.ErrKeyRefused }

// errMoreThanKey reports an sshd that has accepted the key but wants something else, too,
// such as a password.
var errMoreThanKey = errors.New("sshd wants more than a key: AuthenticationMethods")

// A greetingError reports a server that sent a text in place of its SSH version and hung
// up.
type greetingError struct {
	text string
	err  error
}

func (e *greetingError) Error() string {
	return fmt.Sprintf("closed by the other side, which said %q", e.text)
}
func (e *greetingError) Unwrap() error { return e.err }

// unansweredHint returns the hint for packets that nobody answers. Google's firewall drops
// packets without a rule.
func unansweredHint(addr string, cloud bool) string {
	host, port, err := net.SplitHostPort(addr)
	ip, ipErr := netip.ParseAddr(host)
	if err != nil || ipErr != nil {
		port = "22"
	}
	switch {
	case !cloud:
		return "packets to it get no answer: the machine is off, the address is another one's, or a firewall drops them"
	case ipErr == nil && (ip.IsPrivate() || ip.IsLinkLocalUnicast()):
		return "an internal address is reached from inside the network only: use --ip=external, --ip=iap or --ssh-proxy-jump=USER@BASTION"
	}
	return fmt.Sprintf("no firewall rule lets tcp:%[1]s in from this machine? this makes one: multihost network firewall create allow-ssh --network=NETWORK --allow=tcp:%[1]s --source-ranges=YOUR-ADDRESS/32", port)
}
