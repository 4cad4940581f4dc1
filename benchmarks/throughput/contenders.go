//go:build unix

package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/streams"
)

// contender is a program that reads the input and writes an output.
type contender struct {
	name   string
	dedups bool
	role   bench.Role
	store  streams.Store // of Kafka Streams; empty for Go code
	limit  string        // the passthrough with as many stages and a changelog; "" for none

	peer *streams.App // the application of store
}

// The names with which others are compared.
const (
	passthrough     = "passthrough"
	withChangelog   = "passthrough+changelog"
	routedWithLog   = "two-stage passthrough+changelog"
	streamsKeyValue = "Kafka Streams key-value"
)

// contenders returns those whose name contains one of the parts in only, comma
// separated, in the order of a round.
func contenders(ctx context.Context, only string) (chosen []contender, err error) {
	var peer *streams.App
	for _, c := range []contender{
		{name: passthrough},
		{name: withChangelog, role: bench.Role{Changelog: true}},
		{name: "oncebus keyed", dedups: true, role: bench.Role{Oncebus: true}, limit: withChangelog},
		{name: "two-stage passthrough", role: bench.Role{Routed: true}},
		{name: routedWithLog, role: bench.Role{Routed: true, Changelog: true}},
		{name: "oncebus routed", dedups: true, role: bench.Role{Oncebus: true, Routed: true}, limit: routedWithLog},
		{name: streamsKeyValue, dedups: true, store: streams.KeyValue, limit: withChangelog},
		{name: "Kafka Streams window", dedups: true, store: streams.Window, limit: withChangelog},
	} {
		if !slices.ContainsFunc(strings.Split(only, ","), func(part string) bool { return strings.Contains(c.name, part) }) {
			continue
		}
		if c.store != "" && peer == nil {
			if peer, err = streams.Build(ctx); err != nil {
				return nil, err
			}
		}
		c.peer = peer
		chosen = append(chosen, c)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no contender's name contains one of %q", only)
	}
	return chosen, nil
}

// command returns the contender's process for a task.
func (c contender) command(ctx context.Context, t bench.Task) (*exec.Cmd, error) {
	if c.store != "" {
		return c.peer.Command(ctx, t, c.store)
	}
	return t.Command(ctx)
}
