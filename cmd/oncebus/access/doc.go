// Package access decides who may read the figures of a process at ONCEBUS_ADMIN_ADDR.
//
// It owns the settings ONCEBUS_ADMIN_*, the bearer token, the TLS configuration of the
// admin server with its client certificates, and their metrics.
//
// It may import processor/security and the metrics library.
//
// # Invariants
//
//   - With a token, a request needs it. With an authority of clients, its connection needs
//     a client certificate of it. With both, it needs both.
//   - Without both, the request names an address, or a name that no site has.
//   - A request ends when its token is replaced, also a stream.
//   - The comparison of tokens takes the same time whatever the request sends.
//   - Token and certificates are read again when their files change. If that fails, the old
//     ones stay in use.
//
// # What looks wrong
//
//   - TLS asks for a client certificate and does not require it: probes of /healthz and
//     /readyz have none. Protect requires it for the rest.
//   - A wrong token is not logged: anybody who reaches the port could fill the log. The
//     metric counts it.
package access
