// Package server runs the servers in which hand-written deduplicators store their keys: Redis and PostgreSQL from
// Debian's packages.
//
// It owns their configuration files, redis.conf and postgresql.conf. Each file says which settings differ from the
// defaults, and why. It may import no package of the product.
//
// Invariants:
//   - A server has its own directory, which Close removes, and listens only on a free port of 127.0.0.1. It ends no
//     later than the benchmark.
//   - The usage covers all processes of a server, including those that have ended.
//
// What looks wrong:
//   - The server's directory is outside of the benchmark's directory, which only root may read. PostgreSQL refuses to
//     run as root, so it runs as the user of the Debian package.
package server
