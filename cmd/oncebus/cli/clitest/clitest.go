package clitest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"oncebus/cmd/oncebus/cli"
)

// Result is the output and the exit code of a command.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a command line as main does, with environ as the whole environment.
func Run(ctx context.Context, commands cli.Commands, environ []string, stdin string, args ...string) Result {
	var stdout, stderr Buffer
	code := commands.Run(ctx, args, cli.Process{Environ: environ, Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr})
	return Result{code, stdout.String(), stderr.String()}
}

// Buffer is a buffer to which goroutines of a command may write concurrently.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns the bytes written up to now.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// WriteFile writes a file that exists until the test ends, and returns its path.
func WriteFile(tb testing.TB, name, content string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Listen returns a listener at a free port of this machine.
func Listen(tb testing.TB) net.Listener {
	tb.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return listener
}

// Get gets a page over the network.
func Get(ctx context.Context, client *http.Client, url string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	b, err := io.ReadAll(response.Body)
	return response.StatusCode, string(b), err
}
