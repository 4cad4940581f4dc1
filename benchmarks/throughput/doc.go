//go:build unix

// Command throughput compares oncebus with its limit and its peer. The limit is
// the least that a transactional stream processor can do: a passthrough, with
// and without a small changelog record for each event, in one stage or in two.
// The peer is Kafka Streams. All of them read the same input from the same
// broker in the same run, in turn, in rounds, so that the ratios hold where the
// machine's speed does not. Every output is read back; a wrong one fails the run.
//
//	go run ./benchmarks/throughput -events 2000000 -rounds 3 -workers 1,2
package main
