//go:build unix

package main

import (
	"context"
	"os/exec"
	"slices"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/streams"
)

// contender is a program that forwards events.
type contender struct {
	name   string
	limit  string // the contender it is compared with
	dedups bool
	role   bench.Role
	// command returns the command of its process.
	command func(context.Context, bench.Task) (*exec.Cmd, error)
}

const (
	limit         = "limit"
	limitTwoStage = "limit, two stages"
	// kafkaStreams needs no repartition topic: the input is partitioned by the dedup key.
	kafkaStreams = "Kafka Streams"
)

// contenders are in the order of a round. A limit runs as many transactions in sequence as the contender that
// is compared with it. Apart from forwarding events, it only writes a small changelog record for each event.
var contenders = []contender{
	{limit, limit, false, bench.Role{Changelog: true}, goCommand},
	{"oncebus keyed", limit, true, bench.Role{Oncebus: true}, goCommand},
	{limitTwoStage, limitTwoStage, false, bench.Role{Routed: true, Changelog: true}, goCommand},
	{"oncebus routed", limitTwoStage, true, bench.Role{Oncebus: true, Routed: true}, goCommand},
	{kafkaStreams, limit, true, bench.Role{}, streamsCommand},
}

// goCommand returns the command of a contender in Go.
func goCommand(ctx context.Context, t bench.Task) (*exec.Cmd, error) { return t.Command(ctx) }

// streamsCommand returns the command of the deduplicator on Kafka Streams with a
// key-value store. prepare has built it.
func streamsCommand(ctx context.Context, t bench.Task) (*exec.Cmd, error) {
	app, err := streams.Build(ctx)
	if err != nil {
		return nil, err
	}
	return app.Command(ctx, t, streams.KeyValue)
}

// prepare builds contenders that are not in Go, so that a missing tool is reported
// before the first measurement.
func prepare(ctx context.Context, cs []contender) error {
	if !slices.ContainsFunc(cs, func(c contender) bool { return c.name == kafkaStreams }) {
		return nil
	}
	_, err := streams.Build(ctx)
	return err
}
