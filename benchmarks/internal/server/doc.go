// Package server runs the servers in which hand-written deduplicators store their keys:
// Redis and PostgreSQL, as Debian packages them.
//
// It owns their configuration, redis.conf and postgresql.conf, which says what differs
// from the defaults and why. It may import no package of the product.
//
// Invariants:
//   - A server has a directory of its own, which Close removes, and listens only on a
//     free port of 127.0.0.1. It ends no later than the benchmark.
//   - Usage covers all processes of a server, also those that have ended.
//
// What looks wrong:
//   - The directory is not in the benchmark's own one, which only root may read:
//     PostgreSQL refuses to run as root, so it runs as the package's user.
package server
