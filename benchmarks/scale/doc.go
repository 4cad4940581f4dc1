// Command scale measures how oncebus, the program itself with its settings, behaves as it grows: with more live keys,
// workers, processes and partitions, on a real Apache Kafka. The parts, by their names in -what:
//
//	live-keys  at each number of keys: rate, memory, disk, restart after kill -9,
//	           rebuild from the changelog, expiry under load, stalls of partitions
//	workers    rate of combinations of processes, workers and partitions
//	rebalance  how long moved tasks are silent when a process starts, stops, dies
//	idle       CPU and memory of four processes without work
//	standby    what a takeover after kill -9 reads and lasts, with and without standbys
//	restart    what a process reads again after kill -9 in light traffic
//	seed       how long seed, export and verify take without traffic
//	changes    seed, export, kills with and without standbys, and move, in traffic
//
//	go run ./benchmarks/scale -what live-keys -keys 1000000,10000000,50000000
//
// It owns the parts, their goals and their report. It may import packages bench, kafkatest and program, but no
// package of the product.
//
// Invariants:
//   - Every run reads the whole output back and fails unless it has each key exactly once.
//   - The generator writes a backlog in one open transaction. Its commit makes the whole backlog visible at once, so
//     the generator uses no CPU time while the app is measured.
//   - Rates count from the first commit that was seen to the last.
//
// What looks wrong:
//   - Event time advances with the number of keys, not with a clock, and begins long ago. Keys therefore expire at
//     the rate at which new keys come, however fast the run is.
//   - Records of the input and the output are deleted soon after they are read, because the disk of a build machine
//     is small.
package main
