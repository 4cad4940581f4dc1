//go:build unix

package streams

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"oncebus/benchmarks/internal/bench"
)

// Store is a kind of store for the keys.
type Store string

// The stores of Kafka Streams that deduplicators use.
const (
	KeyValue Store = "key-value"
	Window   Store = "window"
)

// heapMiB is the Java heap. The state is in RocksDB, outside of the heap.
const heapMiB = 1024

// dependencyPlugin is the Maven goal that collects the jars, with a pinned version.
const dependencyPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

//go:embed pom.xml
var pom []byte

//go:embed Deduplicator.java
var source []byte

// App is the built deduplicator.
type App struct {
	java      string
	classPath string
}

// Build fetches the jars with Maven and compiles the deduplicator into the user's
// cache directory, unless they are there.
func Build(ctx context.Context) (*App, error) {
	java, err := tool("java")
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find a directory for Kafka Streams (set HOME): %w", err)
	}
	dir := filepath.Join(cache, "oncebus")
	lib := filepath.Join(dir, "streams-lib-"+digest(pom))
	if err := once(lib, func(part string) error { return fetch(ctx, part) }); err != nil {
		return nil, fmt.Errorf("fetch Kafka Streams: %w", err)
	}
	jars := filepath.Join(lib, "*")
	classes := filepath.Join(dir, "streams-classes-"+digest(slices.Concat(source, pom)))
	if err := once(classes, func(part string) error { return compile(ctx, jars, part) }); err != nil {
		return nil, fmt.Errorf("compile the Kafka Streams deduplicator: %w", err)
	}
	return &App{java: java, classPath: classes + string(filepath.ListSeparator) + jars}, nil
}

// Command returns the deduplicator as the contender of a task, with the group of a
// contender of one stage. It ignores the task's role.
func (a *App) Command(ctx context.Context, t bench.Task, store Store) (*exec.Cmd, error) {
	// The JVM extracts RocksDB's library at every start: into the state directory,
	// with which it is removed.
	temp := filepath.Join(t.StateDir, "tmp")
	if err := os.MkdirAll(temp, 0o755); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, a.java, fmt.Sprintf("-Xms%dm", heapMiB), fmt.Sprintf("-Xmx%dm", heapMiB),
		"-Djava.io.tmpdir="+temp, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", a.classPath, "Deduplicator")
	cmd.Env = os.Environ()
	for name, value := range map[string]string{
		"BROKERS": strings.Join(t.Brokers, ","), "APPLICATION_ID": t.Group(), "INPUT": t.Input, "OUTPUT": t.Output(),
		"STORE": string(store), "STATE_DIR": t.StateDir, "THREADS": strconv.Itoa(t.Workers),
		"COMMIT_MS": strconv.FormatInt(t.Commit.Milliseconds(), 10), "WINDOW_MS": strconv.FormatInt(bench.Window.Milliseconds(), 10),
	} {
		cmd.Env = append(cmd.Env, "ONCEBUS_STREAMS_"+name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd, nil
}

// once creates a directory that is always complete: fill works on one next to it,
// which is renamed last. Of two concurrent calls one wins.
func once(dir string, fill func(part string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "streams-part-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(part) }() // renamed already if all succeeded
	if err := fill(part); err != nil {
		return err
	}
	if err := os.Rename(part, dir); err != nil {
		if _, lost := os.Stat(dir); lost != nil {
			return err
		}
	}
	return nil
}

// fetch copies the jars with Maven.
func fetch(ctx context.Context, to string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("this needs Maven (mvn) once, and it is not in PATH")
	}
	// Not in the directory itself, which must contain only jars.
	project, err := os.MkdirTemp("", "oncebus-streams-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(project) }()
	file := filepath.Join(project, "pom.xml")
	if err := os.WriteFile(file, pom, 0o600); err != nil {
		return err
	}
	return quiet(exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "--file", file, dependencyPlugin,
		"-DincludeScope=runtime", "-DoutputDirectory="+to))
}

func compile(ctx context.Context, jars, to string) error {
	javac, err := tool("javac")
	if err != nil {
		return err
	}
	file := filepath.Join(to, "Deduplicator.java") // its name must be that of its class
	if err := os.WriteFile(file, source, 0o600); err != nil {
		return err
	}
	return quiet(exec.CommandContext(ctx, javac, "-Xlint:all", "-cp", jars, "-d", to, file))
}

// quiet runs a command and returns its output only if it fails.
func quiet(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// tool finds a program of the JDK, in JAVA_HOME if that is set, else in PATH.
func tool(name string) (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		name = filepath.Join(home, "bin", name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("a JDK of Java 17 or newer is needed (not only a JRE), set JAVA_HOME or PATH: %w", err)
	}
	return path, nil
}

// digest returns a name for a build from its sources.
func digest(of []byte) string {
	sum := sha256.Sum256(of)
	return hex.EncodeToString(sum[:6])
}
