package main_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor/kafkatest/embedded"
)

// TestRunReportsAllMistakesAtOnce gives 'oncebus run' wrong settings, a wrong
// routes file, and a broker that must not get a connection.
func TestRunReportsAllMistakesAtOnce(t *testing.T) {
	listener := clitest.Listen(t)
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
			_ = conn.Close() // one call suffices to fail
		}
	}()
	routes := clitest.WriteFile(t, "routes.yaml", badRoutes)
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
	if got.Code != cli.ExitWrong || got.Stdout != "" || calls.Load() != 0 {
		t.Errorf("exit code %d, %d connections, stdout %q", got.Code, calls.Load(), got.Stdout)
	}
	for i, want := range []string{
		"ONCEBUS_SASL_PASSWORD_FILE: open ",
		`ONCEBUS_PARTITIONS: "none" is not a whole number`,
		`ONCEBUS_LOG_FORMAT: "xml" is unknown, want text or json`,
		`ONCEBUS_ADMIN_ADDR: "8080" is not host:port`,
		"ONCEBUS_KEY_SECRET: 5 bytes are too few",
		`ONCEBUS_START: "now" is unknown, want earliest or latest`,
		routes + ":6:5: ",
	} {
		lines := strings.Split(got.Stderr, "\n")
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
			t.Fatalf("line %d is not %q:\n%s", i, want, got.Stderr)
		}
	}
	if strings.Contains(got.Stderr, "short") {
		t.Errorf("the secret is shown:\n%s", got.Stderr)
	}
}

// TestRunWithoutRoutesAndBrokers is the first command that a new user may run.
func TestRunWithoutRoutesAndBrokers(t *testing.T) {
	t.Chdir(t.TempDir())
	got := execute(t.Context(), []string{"ONCEBUS_INSTANCE_ID=host"}, "", "run")
	want := "ONCEBUS_BROKERS: not set, want one or more host:port, comma separated\n" +
		"routes file (ONCEBUS_ROUTES): open routes.yaml: no such file or directory\n"
	if got.Code != cli.ExitWrong || got.Stderr != want {
		t.Errorf("%+v", got)
	}
}

func runEnviron(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{
		"ONCEBUS_ROUTES=" + clitest.WriteFile(t, "routes.yaml", keyRoutes), "ONCEBUS_STATE_DIR=" + t.TempDir(), "ONCEBUS_INSTANCE_ID=test",
		"ONCEBUS_DISK_MIN_FREE_PERCENT=0", "ONCEBUS_DISK_START_MIN_FREE_PERCENT=0",
		"ONCEBUS_CREATE_TOPICS=true", "ONCEBUS_WORKERS=1", "ONCEBUS_PARTITIONS=2", "ONCEBUS_ADMIN_ADDR=127.0.0.1:0",
	}, more...)
}

func TestRunBusyPortIsExitCode1(t *testing.T) {
	listener := clitest.Listen(t)
	defer listener.Close()
	addr := listener.Addr().String()
	got := execute(t.Context(), runEnviron(t, "ONCEBUS_BROKERS="+addr, "ONCEBUS_ADMIN_ADDR="+addr), "", "run")
	if got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "choose another ONCEBUS_ADMIN_ADDR") || !strings.Contains(got.Stderr, addr) {
		t.Errorf("%+v", got)
	}
}

var listening = regexp.MustCompile(`msg="http listening" addr=(\S+)`)

// TestRunServesUntilAskedToStop starts the service on an embedded broker, waits until
// it is ready, requests its pages and stops it.
func TestRunServesUntilAskedToStop(t *testing.T) {
	cluster := embedded.Start(t)
	s := serveCommand(t, "run", runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","), "ONCEBUS_KEY_SECRET=sixteen bytes or more", "ONCEBUS_BROKER=typo")...)
	defer s.stop()
	s.ready()
	if status, body := s.page("/healthz"); status != http.StatusOK || body != "alive\n" {
		t.Errorf("/healthz: %d %q", status, body)
	}
	if _, body := s.page("/metrics"); !strings.Contains(body, "\noncebus_") || !strings.Contains(body, "\ngo_goroutines ") {
		t.Errorf("/metrics:\n%s", body)
	}
	_, body := s.page("/state")
	if err := json.Unmarshal([]byte(body), &map[string]any{}); err != nil {
		t.Errorf("/state: %v\n%s", err, body)
	}
	s.stop()
	s.ended()
	for _, want := range []string{"msg=starting", "settings.app_id=oncebus", "settings.key_secret=***", "unknown setting ignored", "variable=ONCEBUS_BROKER meant=ONCEBUS_BROKERS\n"} {
		if !strings.Contains(s.stderr.String(), want) {
			t.Errorf("%q is not logged", want)
		}
	}
	if strings.Contains(s.stderr.String(), "sixteen") || s.stdout.String() != "" {
		t.Errorf("the secret is logged, or stdout is not empty: %q", s.stdout.String())
	}
}

func TestRunHelpListsEverySetting(t *testing.T) {
	help := execute(t.Context(), nil, "", "run", "--help").Stdout
	for _, s := range settings.All() {
		line := ""
		for l := range strings.Lines(help) {
			if strings.HasPrefix(l, "  "+s.Name+" ") {
				line = l
			}
		}
		if !strings.Contains(line, s.Meaning) || !strings.Contains(line, "["+s.Default+"]") && s.Default != "" {
			t.Errorf("%s has the line %q", s.Name, line)
		}
		if got := strings.Contains(line, s.Name+"_FILE"); got != s.Secret {
			t.Errorf("%s: secret %v, but its line is %q", s.Name, s.Secret, line)
		}
	}
}

// TestWrongSettingsShowNoSecret: secrets in the wrong setting, and other wrong
// settings.
func TestWrongSettingsShowNoSecret(t *testing.T) {
	const secret = "canary-5f0e-canary"
	const pem = "-----BEGIN PRIVATE KEY-----\n" + secret + "\n-----END PRIVATE KEY-----\n"
	routes := clitest.WriteFile(t, "routes.yaml", "routes: []")
	for _, environ := range [][]string{
		{"ONCEBUS_TLS_ENABLED=true", "ONCEBUS_TLS_CERT_FILE=" + pem, "ONCEBUS_TLS_KEY_FILE=" + pem, "ONCEBUS_TLS_CA_FILE=" + pem},
		{"ONCEBUS_KEY_SECRET_FILE=" + pem, "ONCEBUS_SASL_PASSWORD_FILE=" + secret + "\n"},
		{"ONCEBUS_SASL_MECHANISM=PLAIN", "ONCEBUS_SASL_PASSWORD=" + secret, "ONCEBUS_SASL_TOKEN=" + secret, "ONCEBUS_KEY_SECRET=" + secret},
		{"ONCEBUS_SASL_MECHANISM=GSSAPI", "ONCEBUS_SASL_PASSWORD=" + secret, "ONCEBUS_PARTITIONS=many"},
		{"ONCEBUS_SASL_MECHANISM=OAUTHBEARER", "ONCEBUS_SASL_OAUTH_TOKEN_URL=https://id:" + secret + "@login.example.com", "ONCEBUS_SASL_OAUTH_CLIENT_SECRET=" + secret},
		{"ONCEBUS_SASL_MECHANISM=OAUTHBEARER", "ONCEBUS_SASL_OAUTH_TOKEN_URL=https://id:" + secret + "@login:%zz", "ONCEBUS_SASL_OAUTH_CLIENT_SECRET=" + secret},
	} {
		got := execute(t.Context(), append(environ, "ONCEBUS_BROKERS=kafka:9092", "ONCEBUS_ROUTES="+routes), "", "run")
		if got.Code != cli.ExitWrong {
			t.Errorf("%q: exit code %d, want %d", environ, got.Code, cli.ExitWrong)
		}
		if strings.Contains(got.Stdout+got.Stderr, secret) {
			t.Errorf("%q shows the secret:\n%s", environ, got.Stderr)
		}
	}
}

// TestMisspelledSettingIsNamed: the error of a setting that is not set names the
// variable that was set instead.
func TestMisspelledSettingIsNamed(t *testing.T) {
	routes := clitest.WriteFile(t, "routes.yaml", testRoutes)
	got := execute(t.Context(), []string{"ONCEBUS_BROKER=localhost:9092", "ONCEBUS_ROUTES=" + routes}, "", "run")
	if got.Code != cli.ExitWrong || !strings.Contains(got.Stderr, "ONCEBUS_BROKERS: not set") || !strings.HasSuffix(got.Stderr, "\nONCEBUS_BROKER: no setting has this name; did you mean ONCEBUS_BROKERS?\n") {
		t.Errorf("%+v", got)
	}
}
