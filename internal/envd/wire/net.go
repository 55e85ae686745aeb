package wire

// The sandbox's way out. The host opens it once (NetOpenPath), then keeps a few
// requests waiting (NetAcceptPath). When a program inside connects, the agent
// answers one of them: the headers say what was connected to, and both bodies
// carry the frames of a NetStream.
const (
	// NetOpenPath takes a NetOpen as JSON: POST, answered 204.
	NetOpenPath = "/glovebox/net/open"
	// NetAcceptPath waits for a connection: POST, answered 200.
	NetAcceptPath = "/glovebox/net/accept"

	// HeaderNetSession is NetOpen.Session, on requests to NetAcceptPath.
	HeaderNetSession = "Glovebox-Net-Session"
	// HeaderNetKind says what an accepted stream is, HeaderNetName and
	// HeaderNetAddr what it is about.
	HeaderNetKind = "Glovebox-Net-Kind"
	HeaderNetName = "Glovebox-Net-Name"
	HeaderNetAddr = "Glovebox-Net-Addr"

	// NetProxy is a connection to the proxy's port: SOCKS5 or HTTP.
	NetProxy = "proxy"
	// NetNamed is a connection to the address that stands for a name:
	// HeaderNetName is the name, HeaderNetAddr the address and port.
	NetNamed = "named"
	// NetResolve is a question for the address of HeaderNetName. The host
	// sends a NetAnswer as JSON and ends the stream.
	NetResolve = "resolve"

	// NetProxyAddr is where programs find the proxy, NetDNSAddr the name server.
	NetProxyAddr = "127.0.0.1:3128"
	NetDNSAddr   = "127.0.0.1:53"
	// NetNames is the range whose addresses stand for names.
	NetNames = "127.64.0.0/10"
	// NetMaxPorts bounds NetAnswer.Ports.
	NetMaxPorts = 16
)

// NetOpen is what the agent is told at the start, and again at a change.
type NetOpen struct {
	// Session is whose decisions count from now on: what another session has
	// open is cut.
	Session string `json:"session"`
	// Authority is the certificate (PEM) of the sandbox's own authority, which
	// commands started from now on trust; "" for none.
	Authority string `json:"authority,omitempty"`
}

// NetAnswer is the answer to NetResolve.
type NetAnswer struct {
	// Addr is the address that stands for the name; "" when it is not allowed.
	Addr string `json:"addr,omitempty"`
	// Ports are those to listen on.
	Ports []uint16 `json:"ports,omitempty"`
	// Why says why a name has no address.
	Why string `json:"why,omitempty"`
}

// Network mode full: the sandbox has a device of its own whose packets are
// carried whole. The host asks for them once at a time; both bodies are frames
// of two bytes, big-endian, and that many bytes of one IP packet.
const (
	// NetPacketsPath carries packets until either side ends: POST, answered 200.
	NetPacketsPath = "/glovebox/net/packets"

	// NetAddress is the sandbox's one address, NetGateway the other end's, where
	// the name server is. They are of the range for translators (RFC 7335), which
	// nobody's own network has.
	NetAddress = "192.0.0.2"
	NetGateway = "192.0.0.1"
	// NetMTU is the largest packet: large ones cost as much as small ones.
	NetMTU = 65520
	// NetPacketHead is a frame's head.
	NetPacketHead = 2
)
