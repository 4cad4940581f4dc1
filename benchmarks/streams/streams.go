//go:build unix

package streams

import (
	"context"
	_ "embed"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/jvm"
)

// Store is a kind of state store for the keys.
type Store string

// The kinds of store in Kafka Streams that deduplicators use.
const (
	KeyValue Store = "key-value"
	Window   Store = "window"
)

// heapMiB is the Java heap. The state is in RocksDB, outside of the heap.
const heapMiB = 1024

//go:embed pom.xml
var pom []byte

//go:embed Deduplicator.java
var source []byte

// App is the built deduplicator.
type App struct{ built *jvm.App }

// Build builds the deduplicator, unless it is built.
func Build(ctx context.Context) (*App, error) {
	built, err := jvm.Program{Name: "streams", Class: "Deduplicator", Pom: pom, Source: source}.Build(ctx)
	if err != nil {
		return nil, err
	}
	return &App{built}, nil
}

// Command returns the deduplicator as the contender of a task, with the group of a contender with one stage. It
// ignores the role of the task. A window store keeps rows for an hour longer than the window; for a history, for
// another window and ten minutes.
func (a *App) Command(ctx context.Context, t bench.Task, store Store) (*exec.Cmd, error) {
	cmd, err := a.built.Command(ctx, heapMiB, filepath.Join(t.StateDir, "tmp"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
	if err != nil {
		return nil, err
	}
	grace := time.Hour
	if t.Payload {
		grace = t.Stored() + 10*time.Minute
	}
	for name, value := range map[string]string{
		"BROKERS": strings.Join(t.Brokers, ","), "APPLICATION_ID": t.Group(), "INSTANCE": t.Member(), "INPUT": t.Input, "OUTPUT": t.Output(),
		"STORE": string(store), "KEY": t.KeySource(), "GRACE_MS": strconv.FormatInt(grace.Milliseconds(), 10), "STATE_DIR": t.StateDir, "THREADS": strconv.Itoa(t.Workers),
		"SESSION_MS": strconv.FormatInt(bench.SessionTimeout.Milliseconds(), 10),
		"COMMIT_MS":  strconv.FormatInt(t.Commit.Milliseconds(), 10), "WINDOW_MS": strconv.FormatInt(t.Stored().Milliseconds(), 10),
	} {
		cmd.Env = append(cmd.Env, "ONCEBUS_STREAMS_"+name+"="+value)
	}
	return cmd, nil
}
