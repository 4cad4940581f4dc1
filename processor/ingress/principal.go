package ingress

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// needsPrincipal reports whether a route of the endpoint takes its tenant from the authenticated sender
// (principal).
func (e *endpoint) needsPrincipal() bool {
	return slices.ContainsFunc(e.routes, func(r *rules.Route) bool { return r.Tenant != nil && r.Tenant.Kind == rules.TenantPrincipal })
}

// appendPrincipal appends a record header with the authenticated name of the sender if a route of the endpoint
// needs it. The caller has verified the signature. The server carries no request header with this name into the
// record, so a sender cannot claim another name.
func (e *endpoint) appendPrincipal(headers []dedup.Header, r *http.Request) []dedup.Header {
	if !e.needsPrincipal() {
		return headers
	}
	name := e.Signature.Secret
	if secure, ok := certificateOf(r); ok {
		name = nameOf(secure)
	}
	if name == "" {
		return headers
	}
	return append(headers, dedup.Header{Key: rules.PrincipalHeader, Value: []byte(name)})
}

// certificateOf returns the verified client certificate of the connection; false if the client sent none.
func certificateOf(r *http.Request) (*x509.Certificate, bool) {
	c, ok := r.Context().Value(connectionKey{}).(*connection)
	if !ok {
		return nil, false
	}
	secure, ok := c.Conn.(*tls.Conn)
	if !ok {
		return nil, false
	}
	state := secure.ConnectionState()
	if len(state.VerifiedChains) == 0 {
		return nil, false
	}
	return state.VerifiedChains[0][0], true
}

// nameOf returns the name that a client certificate proves: its common name, or else its first URI, or else its
// first DNS name; "" if it has none of them.
func nameOf(c *x509.Certificate) string {
	name := c.Subject.CommonName
	if len(c.URIs) > 0 {
		name = cmp.Or(name, c.URIs[0].String())
	}
	if len(c.DNSNames) > 0 {
		name = cmp.Or(name, c.DNSNames[0])
	}
	return name
}
