//go:build unix

package flink

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

// heapMiB is the Java heap. The state is in RocksDB, outside of the heap.
const heapMiB = 1024

// opened has the Java packages that Flink's default configuration opens on Java 17.
var opened = []string{
	"java.lang", "java.net", "java.io", "java.nio", "java.text", "java.time",
	"java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks",
}

//go:embed pom.xml
var pom []byte

//go:embed FlinkDeduplicator.java
var source []byte

// Expiry says how a key expires.
type Expiry string

// The ways in which a key can expire: by Flink's own clock, or in event time by watermarks, which may be aligned or
// not.
const (
	TimeToLive Expiry = "time-to-live"
	Watermarks Expiry = "watermarks"
	Aligned    Expiry = "aligned"
)

// App is the built deduplicator.
type App struct{ built *jvm.App }

// Build builds the deduplicator, unless it is built.
func Build(ctx context.Context) (*App, error) {
	built, err := jvm.Program{Name: "flink", Class: "FlinkDeduplicator", Pom: pom, Source: source}.Build(ctx)
	if err != nil {
		return nil, err
	}
	return &App{built}, nil
}

// Command returns the deduplicator as the contender of a task, with the given checkpoint interval and expiry. Flink
// commits the output with each checkpoint. Command ignores the role of the task.
func (a *App) Command(ctx context.Context, t bench.Task, checkpoint time.Duration, expiry Expiry) (*exec.Cmd, error) {
	options := []string{"-Dorg.slf4j.simpleLogger.defaultLogLevel=error"}
	for _, name := range opened {
		options = append(options, "--add-opens=java.base/"+name+"=ALL-UNNAMED")
	}
	cmd, err := a.built.Command(ctx, heapMiB, filepath.Join(t.StateDir, "tmp"), options...)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"BROKERS": strings.Join(t.Brokers, ","), "GROUP": t.Group(), "INPUT": t.Input, "OUTPUT": t.Output(),
		"KEY": t.KeySource(), "EXPIRY": string(expiry), "LATE": t.Side(), "STATE_DIR": t.StateDir, "PARALLELISM": strconv.Itoa(t.Workers),
		"CHECKPOINT_MS": strconv.FormatInt(checkpoint.Milliseconds(), 10), "WINDOW_MS": strconv.FormatInt(t.Stored().Milliseconds(), 10),
	} {
		cmd.Env = append(cmd.Env, "ONCEBUS_FLINK_"+name+"="+value)
	}
	return cmd, nil
}
