//go:build unix

// Command restart measures what a process reads back after kill -9: the changelog
// rows since its last flush, however many keys it stores. For each number of keys
// it fills a real Kafka and a process, continues with light traffic, kills the
// process, and starts another on the same state directory.
//
//	go run ./benchmarks/restart -keys 1000000,10000000
package main
