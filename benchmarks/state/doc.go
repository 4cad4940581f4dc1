// Command state measures the state store at size, compared with a plain Badger
// row for every key, both in the same run and through the same loop.
//
//	go run ./benchmarks/state -keys 10000000
//
// Every phase is a process of its own, so that CPU time and memory belong to
// one engine. It prints a table and writes JSON and Markdown to -out.
package main
