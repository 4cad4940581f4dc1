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
	// command makes the command of its process.
	command func(context.Context, bench.Task) (*exec.Cmd, error)
}

const (
	limit         = "limit"
	limitTwoStage = "limit, two stages"
	// kafkaStreams needs no repartition topic: the input is partitioned by the dedup key.
	kafkaStreams = "Kafka Streams"
)

// contenders are in the order of a round. A limit does as many transactions
// one after the other as what is compared with it, and writes a small
// changelog record for each event, and nothing else.
var contenders = []contender{
	{limit, limit, false, bench.Role{Changelog: true}, goCommand},
	{"oncebus keyed", limit, true, bench.Role{Oncebus: true}, goCommand},
	{limitTwoStage, limitTwoStage, false, bench.Role{Routed: true, Changelog: true}, goCommand},
	{"oncebus routed", limitTwoStage, true, bench.Role{Oncebus: true, Routed: true}, goCommand},
	{kafkaStreams, limit, true, bench.Role{}, streamsCommand},
}

// goCommand is that of a contender which is Go code.
func goCommand(ctx context.Context, t bench.Task) (*exec.Cmd, error) { return t.Command(ctx) }

// streamsCommand is that of the deduplicator on Kafka Streams with a key-value
// store. prepare has built it.
func streamsCommand(ctx context.Context, t bench.Task) (*exec.Cmd, error) {
	app, err := streams.Build(ctx)
	if err != nil {
		return nil, err
	}
	return app.Command(ctx, t, streams.KeyValue)
}

// prepare builds what is not Go code, so that a missing tool is reported before
// anything is measured.
func prepare(ctx context.Context, cs []contender) error {
	if !slices.ContainsFunc(cs, func(c contender) bool { return c.name == kafkaStreams }) {
		return nil
	}
	_, err := streams.Build(ctx)
	return err
}
