package main

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"oncebus/cmd/oncebus/cli"
)

// TestRunReportsAllMistakesAtOnce gives 'oncebus run' wrong settings, a wrong
// routes file and a broker that counts who calls: nobody may.
func TestRunReportsAllMistakesAtOnce(t *testing.T) {
	listener := listenLocal(t)
	var calls atomic.Int64
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			_ = conn.Close() // one call is enough to fail
		}
	}()
	routes := writeFile(t, "routes.yaml", badRoutes)
	dir := t.TempDir() + "/state"
	got := execute(t.Context(), []string{
		"ONCEBUS_BROKERS=" + listener.Addr().String(), "ONCEBUS_ROUTES=" + routes, "ONCEBUS_STATE_DIR=" + dir,
		"ONCEBUS_PARTITIONS=none", "ONCEBUS_START=now", "ONCEBUS_ADMIN_ADDR=8080", "ONCEBUS_LOG_FORMAT=xml", "ONCEBUS_KEY_SECRET=short",
		"ONCEBUS_SASL_PASSWORD_FILE=" + dir,
	}, "", "run")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	<-accepted
	if got.code != cli.ExitWrong || got.stdout != "" || calls.Load() != 0 {
		t.Errorf("exit code %d, %d connections, stdout %q", got.code, calls.Load(), got.stdout)
	}
	for i, want := range []string{
		"ONCEBUS_SASL_PASSWORD_FILE: open ",
		`ONCEBUS_PARTITIONS: "none" is no whole number`,
		`ONCEBUS_LOG_FORMAT: "xml" is unknown, want text or json`,
		`ONCEBUS_ADMIN_ADDR: "8080" is no host:port`,
		`ONCEBUS_START: "now" is unknown, want earliest or latest`,
		"ONCEBUS_KEY_SECRET: 5 bytes are too few",
		routes + ":6: ",
	} {
		lines := strings.Split(got.stderr, "\n")
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
			t.Fatalf("line %d is not %q:\n%s", i, want, got.stderr)
		}
	}
	if strings.Contains(got.stderr, "short") {
		t.Errorf("the secret is shown:\n%s", got.stderr)
	}
}

// TestRunWithoutRoutesAndBrokers is the first thing a new user does.
func TestRunWithoutRoutesAndBrokers(t *testing.T) {
	t.Chdir(t.TempDir())
	got := execute(t.Context(), []string{"ONCEBUS_INSTANCE_ID=host"}, "", "run")
	want := "ONCEBUS_BROKERS: not set, want one or more host:port, comma separated\n" +
		"routes file (ONCEBUS_ROUTES): open routes.yaml: no such file or directory\n"
	if got.code != cli.ExitWrong || got.stderr != want {
		t.Errorf("%+v", got)
	}
}

func runEnviron(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{
		"ONCEBUS_ROUTES=" + writeFile(t, "routes.yaml", keyRoutes), "ONCEBUS_STATE_DIR=" + t.TempDir(), "ONCEBUS_INSTANCE_ID=test",
		"ONCEBUS_CREATE_TOPICS=true", "ONCEBUS_WORKERS=1", "ONCEBUS_PARTITIONS=2", "ONCEBUS_ADMIN_ADDR=127.0.0.1:0",
	}, more...)
}

func TestRunBusyPortIsExitCode1(t *testing.T) {
	listener := listenLocal(t)
	defer listener.Close()
	addr := listener.Addr().String()
	got := execute(t.Context(), runEnviron(t, "ONCEBUS_BROKERS="+addr, "ONCEBUS_ADMIN_ADDR="+addr), "", "run")
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "choose another ONCEBUS_ADMIN_ADDR") || !strings.Contains(got.stderr, addr) {
		t.Errorf("%+v", got)
	}
}

var listening = regexp.MustCompile(`msg="http listening" addr=(\S+)`)

// TestRunServesUntilAskedToStop starts the service on an embedded broker, waits
// until it is ready, looks at its pages and stops it.
func TestRunServesUntilAskedToStop(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","), "ONCEBUS_KEY_SECRET=sixteen bytes or more", "ONCEBUS_BROKER=typo")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stdout, stderr syncBuffer
	code := make(chan int, 1)
	go func() {
		code <- commands().Run(ctx, []string{"run"}, cli.Process{Environ: environ, Stdout: &stdout, Stderr: &stderr})
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	page := func(path string) (int, string) {
		m := listening.FindStringSubmatch(stderr.String())
		if m == nil {
			return 0, ""
		}
		status, body, err := fetch(t.Context(), client, "http://"+m[1]+path)
		if err != nil {
			t.Fatal(err)
		}
		return status, body
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for status, reason := 0, ""; status != http.StatusOK; status, reason = page("/readyz") {
		select {
		case <-tick.C:
		case c := <-code:
			t.Fatalf("ended with exit code %d:\n%s", c, stderr.String())
		case <-deadline:
			t.Fatalf("not ready: %s\n%s", reason, stderr.String())
		}
	}
	if status, body := page("/healthz"); status != http.StatusOK || body != "alive\n" {
		t.Errorf("/healthz: %d %q", status, body)
	}
	if _, body := page("/metrics"); !strings.Contains(body, "\noncebus_") || !strings.Contains(body, "\ngo_goroutines ") {
		t.Errorf("/metrics:\n%s", body)
	}
	_, body := page("/state")
	if err := json.Unmarshal([]byte(body), &map[string]any{}); err != nil {
		t.Errorf("/state: %v\n%s", err, body)
	}
	stop()
	select {
	case c := <-code:
		if c != cli.ExitStopped || !strings.Contains(stderr.String(), "msg=stopped") {
			t.Errorf("exit code %d:\n%s", c, stderr.String())
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("not stopped:\n%s", stderr.String())
	}
	for _, want := range []string{"msg=starting", "settings.app_id=oncebus", "settings.key_secret=***", "no such setting, ignored", "variable=ONCEBUS_BROKER\n"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("%q is not logged:\n%s", want, stderr.String())
		}
	}
	if strings.Contains(stderr.String(), "sixteen") || stdout.String() != "" {
		t.Errorf("the secret is logged, or stdout is not empty: %q\n%s", stdout.String(), stderr.String())
	}
}
