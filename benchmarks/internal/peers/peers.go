//go:build unix

package peers

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"oncebus/benchmarks/flink"
	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/server"
	"oncebus/benchmarks/streams"
)

// Peer is another way to deduplicate a topic.
type Peer struct {
	Name string
	// Processes is how many processes of the peer share the work in a run with faults.
	Processes int

	debian  string // Debian package of its server; "" if it needs none
	server  func(context.Context) (*server.Server, error)
	prepare func(context.Context) error
	command func(context.Context, bench.Task, *server.Server) (*exec.Cmd, error)
}

// StreamsKeyValue is the name of the peer with which benchmarks compare the others.
const StreamsKeyValue = "Kafka Streams key-value"

// All returns every peer.
func All() []Peer {
	return []Peer{
		kafkaStreams(StreamsKeyValue, streams.KeyValue),
		kafkaStreams("Kafka Streams window", streams.Window),
		redis("Redis SET NX", "redis", "everysec"),
		redis("Redis SET NX (fsync always)", "redis", "always"),
		redis("Redis SET NX with positions", "redis-position", "everysec"),
		postgres("PostgreSQL unique key"),
		apacheFlink("Flink", 0, flink.TimeToLive),
		apacheFlink("Flink (checkpoints of 1 s)", time.Second, flink.TimeToLive),
	}
}

// InEventTime returns the peers whose windows are in event time.
func InEventTime() []Peer {
	return []Peer{
		kafkaStreams(StreamsKeyValue, streams.KeyValue),
		kafkaStreams("Kafka Streams window", streams.Window),
		apacheFlink("Flink with watermarks", time.Second, flink.Watermarks),
		apacheFlink("Flink with aligned watermarks", time.Second, flink.Aligned),
	}
}

func kafkaStreams(name string, store streams.Store) Peer {
	var app *streams.App
	return Peer{
		Name: name, Processes: 2,
		prepare: func(ctx context.Context) (err error) {
			app, err = streams.Build(ctx)
			return err
		},
		command: func(ctx context.Context, t bench.Task, _ *server.Server) (*exec.Cmd, error) {
			return app.Command(ctx, t, store)
		},
	}
}

func redis(name, store, appendfsync string) Peer {
	return handwritten(name, store, server.RedisPackage, func(ctx context.Context) (*server.Server, error) { return server.Redis(ctx, appendfsync) })
}

func postgres(name string) Peer {
	return handwritten(name, "postgres", server.PostgresPackage, server.Postgres)
}

// apacheFlink returns a peer on Flink. Flink commits at each checkpoint, so the checkpoint interval is the task's
// commit interval unless checkpoint is given.
func apacheFlink(name string, checkpoint time.Duration, expiry flink.Expiry) Peer {
	var app *flink.App
	return Peer{
		Name: name, Processes: 1,
		prepare: func(ctx context.Context) (err error) {
			app, err = flink.Build(ctx)
			return err
		},
		command: func(ctx context.Context, t bench.Task, _ *server.Server) (*exec.Cmd, error) {
			return app.Command(ctx, t, cmp.Or(checkpoint, t.Commit), expiry)
		},
	}
}

// Missing returns a line that says what to install for the peer; "" if nothing is missing.
func (p Peer) Missing() string {
	if p.debian == "" {
		return ""
	}
	return server.Missing(p.debian)
}

// Prepare builds the peer, unless it is built.
func (p Peer) Prepare(ctx context.Context) error { return p.prepare(ctx) }

// StartServer starts the server in which the peer stores its keys. It returns nil if the peer needs no server.
// The caller closes the server.
func (p Peer) StartServer(ctx context.Context) (*server.Server, error) {
	if p.server == nil {
		return nil, nil
	}
	return p.server(ctx)
}

// Command returns the command of a process of the peer for a task. keys is the peer's server, or nil.
func (p Peer) Command(ctx context.Context, t bench.Task, keys *server.Server) (*exec.Cmd, error) {
	return p.command(ctx, t, keys)
}

// Choose returns the contenders whose name contains one of the comma separated parts of only, and builds their peers.
// of returns the name of a contender, and its peer or nil. A contender whose peer's server is not installed is left
// out.
func Choose[C any](ctx context.Context, all []C, only string, of func(C) (string, *Peer)) (chosen []C, err error) {
	for _, c := range all {
		name, peer := of(c)
		if !bench.Selected(name, only) {
			continue
		}
		if peer != nil {
			if missing := peer.Missing(); missing != "" {
				fmt.Fprintf(os.Stderr, "%s is left out: %s\n", name, missing)
				continue
			}
			if err := peer.Prepare(ctx); err != nil {
				return nil, err
			}
		}
		chosen = append(chosen, c)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no name contains one of %q, or its server is not installed", only)
	}
	return chosen, nil
}
