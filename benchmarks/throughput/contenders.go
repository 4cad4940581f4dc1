//go:build unix

package main

import (
	"context"
	"os/exec"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/peers"
	"oncebus/benchmarks/internal/server"
)

// contender is a program that reads the input and writes an output.
type contender struct {
	name   string
	dedups bool
	role   bench.Role
	limit  string      // name of the passthrough with as many stages and a changelog; "" for none
	peer   *peers.Peer // the peer, if the contender is another program; nil for a role
}

// The names of the contenders with which others are compared.
const (
	passthrough   = "passthrough"
	keyed         = "oncebus keyed"
	routed        = "oncebus routed"
	withChangelog = "passthrough+changelog"
	routedWithLog = "two-stage passthrough+changelog"
)

// contenders returns the contenders whose name contains one of the comma separated parts of only, in the order of a
// round. A peer whose server is not installed is left out.
func contenders(ctx context.Context, only string) ([]contender, error) {
	all := []contender{
		{name: passthrough},
		{name: withChangelog, role: bench.Role{Changelog: true}},
		{name: keyed, dedups: true, role: bench.Role{Oncebus: true}, limit: withChangelog},
		{name: "two-stage passthrough", role: bench.Role{Routed: true}},
		{name: routedWithLog, role: bench.Role{Routed: true, Changelog: true}},
		{name: routed, dedups: true, role: bench.Role{Oncebus: true, Routed: true}, limit: routedWithLog},
	}
	for _, peer := range peers.All() {
		all = append(all, contender{name: peer.Name, dedups: true, limit: withChangelog, peer: &peer})
	}
	return peers.Choose(ctx, all, only, func(c contender) (string, *peers.Peer) { return c.name, c.peer })
}

// command returns the command of the contender's process for a task. keys is the peer's server, or nil.
func (c contender) command(ctx context.Context, t bench.Task, keys *server.Server) (*exec.Cmd, error) {
	if c.peer != nil {
		return c.peer.Command(ctx, t, keys)
	}
	return t.Command(ctx)
}

// startServer starts the server in which a peer stores its keys. It returns nil if there is none.
func (c contender) startServer(ctx context.Context) (*server.Server, error) {
	if c.peer == nil {
		return nil, nil
	}
	return c.peer.StartServer(ctx)
}
