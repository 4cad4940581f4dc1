//go:build unix

// Command executions counts how often operations are executed while everything around them
// fails. Operations and duplicates of them come by topic and by HTTP. Two processes of
// deployments/executor execute them, and append each execution to a file. Executors are
// killed, paused and redeployed for longer than the lease. Processes of oncebus, its ingress
// and the broker are killed and restarted.
//
// In the end each operation must have been executed once, and each request answered once.
// With -fenced=false the route names no executor group and the executors do not ask before
// they execute: then the run must find operations that were executed as several attempts.
//
// It may import package kafkatest and its program, package bench, and franz-go. It uses
// oncebus and the executor as built programs only.
package main
