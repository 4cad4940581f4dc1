package ingress

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// sourceOf returns the address of the sender: the address of the peer, or the address that a trusted proxy
// reports. Each proxy appends an address to X-Forwarded-For, so sourceOf reads the list from its end, for as
// long as it trusts the address that appended the element. It skips empty elements (RFC 9110, section 5.6.1).
func sourceOf(r *http.Request, trusted []netip.Prefix) netip.Addr {
	source := peerOf(r.RemoteAddr)
	if !source.IsValid() {
		return source
	}
	if len(trusted) == 0 {
		return source
	}
	forwarded := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(forwarded) - 1; i >= 0 && contain(trusted, source); i-- {
		text := strings.TrimSpace(forwarded[i])
		if text == "" {
			continue
		}
		addr, ok := parseForwarded(text)
		if !ok {
			break
		}
		source = addr.Unmap().WithZone("")
	}
	return source
}

// peerOf returns the address of a connection's peer; the zero Addr if the connection is not TCP.
func peerOf(remote string) netip.Addr {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return peer.Addr().Unmap().WithZone("")
}

// parseForwarded parses an address with or without a port; an IPv6 address may be in brackets.
func parseForwarded(text string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr(), true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		text = strings.TrimSuffix(inner, "]")
	}
	addr, err := netip.ParseAddr(text)
	return addr, err == nil
}

// contain reports whether one of the networks contains the address.
func contain(networks []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(network netip.Prefix) bool { return network.Contains(addr) })
}

// sourceNetwork returns the network that counts as one source. For IPv4 it is the address itself; for IPv6 it
// is the /64 network, because that is what a provider gives to one customer.
func sourceNetwork(source netip.Addr) netip.Addr {
	if source.Is6() && !source.Is4In6() {
		if prefix, err := source.Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return source
}
