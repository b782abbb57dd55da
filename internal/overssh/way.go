package overssh

import (
	"sync"
	"time"
)

// Way says by which address to reach workers.
type Way string

// Auto takes the external address if it answers, otherwise a tunnel through
// Identity-Aware Proxy. Without a tunnel it takes the external address if there is one,
// otherwise the internal address. With a bastion or a list of hosts it takes the internal
// address.
const (
	Auto     Way = "auto"
	Internal Way = "internal"
	External Way = "external"
	IAP      Way = "iap"
)

// reachPatience is how long an external address may take to answer before the tunnel is
// used. A firewall that drops packets gives no answer, and users do not wait long.
const reachPatience = 5 * time.Second

// route holds the Way of a command. The command chooses it once.
type route struct {
	mu     sync.Mutex
	chosen Way
}
