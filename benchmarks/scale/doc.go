//go:build unix

// Command scale measures oncebus, the program itself with its settings, as it
// grows: with live keys, workers, processes and partitions, on a real Apache
// Kafka. -what names what it measures:
//
//	live-keys  at each number of keys: rate, memory, disk, restart after kill -9,
//	           rebuild from the changelog, expiry under load, stalls of partitions
//	workers    rate of combinations of processes, workers and partitions
//	rebalance  how long moved tasks are silent when a process starts, stops, dies
//	idle       CPU and memory of four idle processes
//
// Every run reads the whole output back and fails unless each key is in it
// exactly once.
//
//	go run ./benchmarks/scale -what live-keys -keys 1000000,10000000,50000000
package main
