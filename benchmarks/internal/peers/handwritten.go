//go:build unix

package peers

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/server"
)

// handwritten returns the peer that is the program of the module benchmarks/handwritten with one kind of store.
func handwritten(name, store, debian string, start func(context.Context) (*server.Server, error)) Peer {
	var binary string
	return Peer{
		Name: name, Processes: 2, debian: debian, server: start,
		prepare: func(ctx context.Context) (err error) {
			binary, err = buildHandwritten(ctx)
			return err
		},
		command: func(ctx context.Context, t bench.Task, keys *server.Server) (*exec.Cmd, error) {
			cmd := exec.CommandContext(ctx, binary)
			cmd.Env = append(os.Environ(), handwrittenSettings(t, store, keys.Address)...)
			cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
			return cmd, nil
		},
	}
}

func handwrittenSettings(t bench.Task, store, address string) (env []string) {
	millis := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	for name, value := range map[string]string{
		"BROKERS": strings.Join(t.Brokers, ","), "GROUP": t.Group(), "INSTANCE": t.Member(), "INPUT": t.Input, "OUTPUT": t.Output(),
		"STORE": store, "SERVER": address, "WORKERS": strconv.Itoa(t.Workers),
		"COMMIT_MS": millis(t.Commit), "WINDOW_MS": millis(bench.Window), "SESSION_MS": millis(bench.SessionTimeout),
	} {
		env = append(env, "ONCEBUS_HANDWRITTEN_"+name+"="+value)
	}
	return env
}

// buildHandwritten builds the program into the user's cache directory. If nothing has changed, Go's build cache makes
// this quick.
func buildHandwritten(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for the hand-written consumer (set HOME): %w", err)
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module's directory (this needs go in PATH): %w", err)
	}
	path := filepath.Join(cache, "oncebus", "handwritten")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, ".")
	cmd.Dir = filepath.Join(string(bytes.TrimSpace(root)), "benchmarks", "handwritten")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", cmd.Dir, err, bytes.TrimSpace(out))
	}
	return path, nil
}
