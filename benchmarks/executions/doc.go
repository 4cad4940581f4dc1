//go:build unix

// Command executions counts how often operations are executed while everything around them fails. Operations and
// their duplicates arrive by topic and by HTTP. Two processes of deployments/executor execute them and append each
// execution to a file. The benchmark kills, pauses and redeploys the executors for longer than the lease, and kills
// and restarts the processes of oncebus, its ingress and the broker.
//
// In the end each operation must have been executed once, and each request answered once. With -fenced=false
// the route names no executor group, and the executors execute without asking for the start. A run with this
// flag must find operations that were executed in several attempts, which shows that the benchmark can detect
// them.
//
// It may import package kafkatest and its package program, package bench, and franz-go. It uses oncebus and the
// executor only as built programs.
package main
