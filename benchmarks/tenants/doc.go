//go:build unix

// Command tenants measures how long the events of one tenant take, from when they are due until a read_committed
// consumer has them. It measures this tenant alone, and while another tenant of the same topics sends many times its
// quota. Both parts alternate in one run of one process, so that their ratio depends little on the machine.
//
// It may import packages bench, openloop and program, and franz-go. A run fails if an event of the quiet tenant is
// missing, emitted twice or a dead letter.
package main
