// Command throughput compares oncebus with its limit and its peers. The limit is the least that a transactional
// stream processor can do: a passthrough, with and without a small changelog record for each event, in one stage or
// in two. The peers are the programs of package peers.
//
//	go run ./benchmarks/throughput -events 2000000 -rounds 5 -workers 1,2
//
// It owns the list of contenders, the measurement and the report. It may import packages bench, peers, server and
// program, but no package of the product: oncebus and its limits are roles of package bench.
//
// Invariants:
//   - All contenders read the same input from the same broker in the same run, one after the other, in rounds. The
//     ratios between them are therefore valid even if the speed of the machine changes from run to run.
//   - The command reads every output back. A wrong output fails the run.
//
// What looks wrong:
//   - The rate excludes a warm-up: a contender that is still joining its group has no rate yet.
package main
