package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/coder/websocket"
)

// Parts of the relay protocol of Identity-Aware Proxy's TCP forwarding, version 4, as
// gcloud speaks it. A binary WebSocket message consists of big-endian frames. Each frame
// begins with a 16-bit tag.
const (
	relayPath        = "/iap/v4/"
	relaySubprotocol = "relay.tunnel.cloudproxy.app"

	relayConnected = 0x0001 // length as u32, then the session id
	relayData      = 0x0004 // length as u32, at most relayPiece bytes
	relayAck       = 0x0007 // number of all bytes received, as u64
	relayPiece     = 16 << 10

	// The real relay closes with this code if nothing listens, or if no firewall rule lets
	// it in.
	relayRefused = websocket.StatusCode(4003)
)

// serveRelay relays. Its sessions cannot be resumed: a tunnel ends with its WebSocket.
func (s *Server) serveRelay(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if strings.TrimPrefix(r.URL.Path, relayPath) != "connect" || q.Get("project") != s.Config.Project {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	address := s.workerAddress(q.Get("zone"), q.Get("instance"))
	if address == "" {
		http.Error(w, "instance not found", http.StatusNotFound)
		return
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{relaySubprotocol}, InsecureSkipVerify: true})
	if err != nil {
		return // Accept has already sent the error
	}
	defer ws.CloseNow()
	ws.SetReadLimit(1 << 20)
	ctx, cancel := context.WithCancel(s.Ctx)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		ws.Close(relayRefused, "failed to connect to backend")
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	session := []byte("sim")
	if ws.Write(ctx, websocket.MessageBinary, frame(relayConnected, session)) != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		if relayToClient(ctx, ws, conn) == nil {
			ws.Close(websocket.StatusNormalClosure, "")
		}
	})
	relayToWorker(ctx, ws, conn)
	cancel()
	wg.Wait()
}

func relayToClient(ctx context.Context, ws *websocket.Conn, conn net.Conn) error {
	buf := make([]byte, relayPiece)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := ws.Write(ctx, websocket.MessageBinary, frame(relayData, buf[:n])); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func relayToWorker(ctx context.Context, ws *websocket.Conn, conn net.Conn) {
	var received uint64
	for {
		_, message, err := ws.Read(ctx)
		if err != nil {
			return
		}
		for len(message) >= 2 {
			tag := binary.BigEndian.Uint16(message)
			message = message[2:]
			switch {
			case tag == relayData && len(message) >= 4:
				n := binary.BigEndian.Uint32(message)
				if n > relayPiece || int(n) > len(message)-4 {
					ws.Close(websocket.StatusProtocolError, "bad data frame")
					return
				}
				if _, err := conn.Write(message[4 : 4+n]); err != nil {
					return
				}
				received += uint64(n)
				message = message[4+n:]
				ack := binary.BigEndian.AppendUint64([]byte{0, relayAck}, received)
				if ws.Write(ctx, websocket.MessageBinary, ack) != nil {
					return
				}
			case tag == relayAck && len(message) >= 8:
				message = message[8:]
			default:
				ws.Close(websocket.StatusProtocolError, "unknown frame")
				return
			}
		}
	}
}

func frame(tag uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, tag)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// workerAddress returns the address of the VM with that name, or "".
func (s *Server) workerAddress(zone, hostname string) string {
	st := s.Status()
	for _, g := range st.Groups {
		for _, vm := range g.VMs {
			if g.Zone == zone && vm.Name == hostname {
				return vm.Address
			}
		}
	}
	for _, n := range st.Nodes {
		for _, w := range n.Workers {
			if n.Zone == zone && w.Hostname == hostname && hostname != "" {
				return w.Address
			}
		}
	}
	return ""
}
