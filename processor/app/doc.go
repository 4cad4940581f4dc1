// Package app holds what all processes of an app share: topics, manifest, numbers
// and limits. The service, the ingress and the commands start from the same App.
//
// # What it owns
//
//   - The first start creates the internal topics and writes the manifest; a later
//     one checks that they agree. Find only reads, for get, forget and stats.
//   - The manifest pins what must never change: partition counts, key rules, the
//     hash and the encodings. A start that disagrees is refused.
//   - The numbers of namespaces and routes, and the partition of each key.
//   - The rights that a start needs on topics.
//
// It may import processor/kafka, processor/wire, processor/security, dedup and
// dedup/rules, and franz-go.
package app
