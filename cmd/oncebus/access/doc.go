// Package access decides who may read the figures that a process serves at ONCEBUS_ADMIN_ADDR.
//
// It owns the settings ONCEBUS_ADMIN_*, the bearer token, the TLS configuration of the admin server with its
// client certificates, and the metrics about refused requests and reloaded files.
//
// It may import processor/security and the metrics library.
//
// # Invariants
//
//   - If a token is set, every request needs it. If an authority of client certificates is set, every connection
//     needs a certificate of that authority. If both are set, a request needs both.
//   - If neither is set, a request must name an IP address as its host, or a name that no web site can have (DNS
//     rebinding, see isLocalName).
//   - When the token is replaced, requests that used the old token end, including streams.
//   - Comparing tokens takes the same time whatever the request sends.
//   - Token and certificates are read again when their files change. If a new file cannot be read, the old token or
//     certificate stays in use.
//
// # What looks wrong
//
//   - TLS asks for a client certificate but does not require it, because the probes of /healthz and /readyz
//     have no certificate. Protect requires the certificate for everything else.
//   - A wrong token is not logged: anybody who reaches the port could otherwise fill the log. A metric counts it.
package access
