// Package app is what an app stands on: its topics, its manifest, its numbers and
// its limits. Every process of an app, the ingress and the commands included, start
// from the same App.
//
// # What it owns
//
//   - Settle creates the internal topics and writes the manifest at the first start;
//     later it checks that they agree. Find only reads, for get, forget and stats.
//   - The manifest pins what must never change: partition counts, key rules, the
//     hash and the encodings. A start that disagrees is refused.
//   - The numbers of namespaces and routes, and the partition of each key.
//   - The rights that a start needs on topics.
//
// It may import processor/kafka, processor/wire, processor/security, dedup and
// dedup/rules, and franz-go.
package app
