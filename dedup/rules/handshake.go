package rules

import (
	"net/netip"

	"go.yaml.in/yaml/v4"
)

// Handshake is a request by which a provider checks that the endpoint is the right one. The ingress answers
// it; a handshake is no event.
type Handshake struct {
	Kind HandshakeKind
	// VerifyToken names the secret that Meta sends in its handshake: the name follows
	// ONCEBUS_INGRESS_SECRET_.
	VerifyToken string
}

// HandshakeKind says which provider's handshake a request is.
type HandshakeKind uint8

// Kinds of handshakes.
const (
	NoHandshake      HandshakeKind = iota
	SlackHandshake                 // POST with type url_verification
	MetaHandshake                  // GET with hub.challenge
	ZoomHandshake                  // POST with event endpoint.url_validation
	DiscordHandshake               // POST with type 1 (interactions) or 0 (webhook events)
)

var handshakeNames = [...]string{"none", "slack", "meta", "zoom", "discord"}

// String returns the kind's name in the routes file.
func (k HandshakeKind) String() string { return handshakeNames[k] }

var handshakeFields = []fieldOf[Handshake]{
	{"kind", func(d *decoder, h *Handshake, n *yaml.Node, at string) {
		h.Kind = HandshakeKind(max(0, d.choice(n, at, handshakeNames[:]...)))
	}},
	{"verify_token", func(d *decoder, h *Handshake, n *yaml.Node, at string) { h.VerifyToken = d.secretName(n, at) }},
}

func (d *decoder) handshake(n *yaml.Node, at string) Handshake {
	h := Handshake{}
	nodes := decodeObject(d, n, at, &h, handshakeFields)
	if nodes == nil {
		return h
	}
	d.require(n, at, nodes, "kind")
	switch token := nodes["verify_token"]; {
	case h.Kind == MetaHandshake:
		d.require(n, at, nodes, "verify_token")
	case token != nil:
		d.fail(token, join(at, "verify_token"), "belongs to kind: meta")
	}
	return h
}

// Decompress says how the ingress reads compressed bodies.
type Decompress struct {
	MaxBytes int // longest decompressed body; 0: the ingress refuses compressed bodies
	// Decompressed reports whether the signature is over the decompressed body; otherwise it is over the
	// compressed bytes as the ingress received them.
	Decompressed bool
}

var signedNames = [...]string{"as_sent", "decompressed"}

var decompressFields = []fieldOf[Decompress]{
	{"max_bytes", func(d *decoder, x *Decompress, n *yaml.Node, at string) { x.MaxBytes = d.integer(n, at, 1, maxBodyMax) }},
	{"signed", func(d *decoder, x *Decompress, n *yaml.Node, at string) {
		x.Decompressed = d.choice(n, at, signedNames[:]...) == 1
	}},
}

func (d *decoder) decompress(n *yaml.Node, at string) Decompress {
	x := Decompress{}
	if nodes := decodeObject(d, n, at, &x, decompressFields); nodes != nil {
		d.require(n, at, nodes, "max_bytes")
	}
	return x
}

// networks reads a list of addresses and networks.
func (d *decoder) networks(n *yaml.Node, at string) []netip.Prefix {
	var list []netip.Prefix
	d.list(n, at, func(n *yaml.Node, at string) {
		text, ok := d.text(n, at)
		if !ok {
			return
		}
		network, err := netip.ParsePrefix(text)
		if err != nil {
			var address netip.Addr
			if address, err = netip.ParseAddr(text); err == nil {
				network = netip.PrefixFrom(address, address.BitLen())
			}
		}
		if err != nil {
			d.fail(n, at, "%.80q is malformed: want an address, or a network such as 192.0.2.0/24", text)
			return
		}
		list = append(list, network.Masked())
	})
	return list
}
