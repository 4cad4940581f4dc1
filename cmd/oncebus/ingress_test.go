package main_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/embedded"

	main "oncebus/cmd/oncebus"
)

const ingressRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key: [{field: id}]
    window: 1h
    output: signals.unique
    dead_letter: dead
    http: {path: /signals, signature: {scheme: bearer, secret: SENDER}}
`

// TestIngressReportsItsMistakes: run and ingress report them before they connect.
func TestIngressReportsItsMistakes(t *testing.T) {
	routes := clitest.WriteFile(t, "routes.yaml", ingressRoutes)
	environ := []string{"ONCEBUS_BROKERS=localhost:1", "ONCEBUS_ROUTES=" + routes, "ONCEBUS_INSTANCE_ID=i", "ONCEBUS_ADMIN_ADDR=127.0.0.1:0"}
	addr, secret := "ONCEBUS_INGRESS_ADDR=127.0.0.1:0", "ONCEBUS_INGRESS_SECRET_SENDER=token-of-the-sender"
	for _, c := range []struct {
		name, command string
		environ       []string
		want          string
	}{
		{"no address", "ingress", []string{secret}, "ONCEBUS_INGRESS_ADDR: not set, want host:port to accept requests"},
		{"no secret", "ingress", []string{addr}, "route signals: secret SENDER: ONCEBUS_INGRESS_SECRET_SENDER: not set"},
		{"no secret", "run", []string{addr}, "route signals: secret SENDER: ONCEBUS_INGRESS_SECRET_SENDER: not set"},
		{"short secret", "ingress", []string{addr, "ONCEBUS_INGRESS_SECRET_SENDER=fifteen-bytes.."},
			"route signals: secret SENDER: ONCEBUS_INGRESS_SECRET_SENDER: no usable secret: its key has 15 bytes and can be guessed, want at least 16: "},
		{"unusable secret", "run", []string{addr, "ONCEBUS_INGRESS_SECRET_SENDER=two words"}, "route signals: secret SENDER: ONCEBUS_INGRESS_SECRET_SENDER: no usable secret"},
		{"no time to respond", "ingress", []string{addr, secret, "ONCEBUS_INGRESS_WRITE_TIMEOUT=10s"}, "route signals: http.timeout of 10s and"},
		{"no number", "run", []string{"ONCEBUS_INGRESS_MAX_REQUESTS=many"}, `ONCEBUS_INGRESS_MAX_REQUESTS: "many" is not a whole number`},
		{"out of range", "run", []string{"ONCEBUS_INGRESS_DRAIN=1ms"}, "ONCEBUS_INGRESS_DRAIN: 1ms is out of range"},
		{"no http part", "ingress", []string{addr, "ONCEBUS_ROUTES=" + clitest.WriteFile(t, "plain.yaml", keyRoutes), "ONCEBUS_KEY_SECRET=sixteen bytes or more"},
			"no route has an http part, want one"},
	} {
		got := execute(t.Context(), append(append([]string{}, environ...), c.environ...), "", c.command)
		if got.Code != cli.ExitWrong || !strings.HasPrefix(got.Stderr, c.want) || strings.Contains(got.Stderr, "two words") {
			t.Errorf("%s, %s: exit code %d, want %q:\n%s", c.command, c.name, got.Code, c.want, got.Stderr)
		}
	}
	if got := execute(t.Context(), append(environ, addr), "", "check", "--settings"); got.Code != cli.ExitWrong || !strings.HasPrefix(got.Stderr, "route signals: secret SENDER: ") {
		t.Errorf("check: exit code %d:\n%s", got.Code, got.Stderr)
	}
	busy := clitest.Listen(t)
	defer busy.Close()
	got := execute(t.Context(), append(environ, secret, "ONCEBUS_INGRESS_ADDR="+busy.Addr().String()), "", "ingress")
	if got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "choose another ONCEBUS_INGRESS_ADDR") {
		t.Errorf("busy: exit code %d:\n%s", got.Code, got.Stderr)
	}
}

// served is a running command.
type served struct {
	t      *testing.T
	stdout clitest.Buffer
	stderr *embedded.Log
	stop   context.CancelFunc
	code   chan int // of its end, then closed
	client *http.Client
}

// serveCommand runs a command until it ends or the test does. The test waits for its end: it may
// be opening stores.
func serveCommand(t *testing.T, command string, environ ...string) *served {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 60 * time.Second}
	s := &served{t: t, stderr: embedded.NewLog(t), stop: stop, code: make(chan int, 1), client: client}
	go func() {
		s.code <- main.Commands().Run(ctx, []string{command}, cli.Process{Environ: environ, Stdout: &s.stdout, Stderr: s.stderr})
		close(s.code)
	}()
	t.Cleanup(func() {
		s.stop()
		<-s.code
	})
	return s
}

// serves runs 'oncebus run' until the end of the test, and returns it once it is ready.
func serves(t *testing.T, environ ...string) *served {
	t.Helper()
	s := serveCommand(t, "run", environ...)
	s.ready()
	return s
}

// until waits for a condition that depends on the command.
func (s *served) until(what string, holds func() bool) {
	s.t.Helper()
	embedded.Wait(s.t, what, func() bool {
		select {
		case c := <-s.code:
			s.t.Fatalf("%s: ended with exit code %d", what, c)
		default:
		}
		return holds()
	})
}

var ingressListening = regexp.MustCompile(`msg="ingress listening" addr=(\S+)`)

// adminAddr returns the address of the admin server; "" before it listens.
func (s *served) adminAddr() string {
	if m := listening.FindStringSubmatch(s.stderr.String()); m != nil {
		return m[1]
	}
	return ""
}

// page gets a page of the admin server; the status is 0 before it listens.
func (s *served) page(path string) (int, string) {
	addr := s.adminAddr()
	if addr == "" {
		return 0, ""
	}
	status, body, err := clitest.Get(s.t.Context(), s.client, "http://"+addr+path)
	if err != nil {
		s.t.Fatal(err)
	}
	return status, body
}

func (s *served) ready() {
	s.t.Helper()
	s.until("readiness", func() bool {
		status, _ := s.page("/readyz")
		return status == http.StatusOK
	})
}

// post sends an event; the channel gets the status of its response.
func (s *served) post(body string) <-chan int {
	s.t.Helper()
	addr := ingressListening.FindStringSubmatch(s.stderr.String())[1]
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+addr+"/signals", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer token-of-the-sender")
	status := make(chan int, 1)
	go func() {
		response, err := s.client.Do(r)
		if err != nil {
			s.t.Error(err)
			status <- 0
			return
		}
		_ = response.Body.Close()
		status <- response.StatusCode
	}()
	return status
}

func (s *served) ended() {
	s.t.Helper()
	select {
	case c := <-s.code:
		if c != cli.ExitStopped || !strings.Contains(s.stderr.String(), "msg=stopped") {
			s.t.Errorf("exit code %d", c)
		}
	case <-time.After(60 * time.Second):
		s.t.Fatal("not stopped")
	}
}

func ingressEnviron(t *testing.T, cluster *embedded.Cluster, more ...string) []string {
	t.Helper()
	return append(runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","), "ONCEBUS_ROUTES="+clitest.WriteFile(t, "routes.yaml", ingressRoutes),
		"ONCEBUS_COMMIT_INTERVAL=10ms", "ONCEBUS_INGRESS_SECRET_SENDER_FILE="+clitest.WriteFile(t, "secret", "token-of-the-sender\n")), more...)
}

// TestIngressAndRun: one process judges, the other responds.
func TestIngressAndRun(t *testing.T) {
	cluster := embedded.Start(t)
	acceptor := serveCommand(t, "ingress", ingressEnviron(t, cluster, "ONCEBUS_INGRESS_ADDR=127.0.0.1:0", "ONCEBUS_INSTANCE_ID=acceptor", "ONCEBUS_INGRESS_SECRET_OTHER=s")...)
	defer acceptor.stop()
	acceptor.until("the probes", func() bool { status, _ := acceptor.page("/healthz"); return status == http.StatusOK })
	if status, why := acceptor.page("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(why, "not ready") {
		t.Errorf("/readyz before the app exists: %d %s", status, why)
	}
	judge := serveCommand(t, "run", ingressEnviron(t, cluster)...)
	defer judge.stop()
	judge.ready()
	acceptor.ready()
	if first, again := <-acceptor.post(`{"id":"a"}`), <-acceptor.post(`{"id":"a"}`); first != 202 || again != 409 {
		t.Errorf("first %d, again %d", first, again)
	}
	if _, body := acceptor.page("/metrics"); !strings.Contains(body, `oncebus_http_requests_total{code="409",response="duplicate",route="signals"} 1`) {
		t.Errorf("/metrics:\n%s", body)
	}
	if _, body := acceptor.page("/metrics"); !strings.Contains(body, "\noncebus_client_certificate_expiry_timestamp_seconds 0\n") || !strings.Contains(body, "\noncebus_kafka_produce_records_total{client=\"ingress\"} 2\n") {
		t.Errorf("/metrics lacks the credentials or the two records of the ingress's Kafka clients:\n%s", body)
	}
	if _, body := acceptor.page("/state"); !strings.Contains(body, `"ready": true`) {
		t.Errorf("/state: %s", body)
	}
	for _, want := range []string{`variable=ONCEBUS_INGRESS_SECRET_OTHER`, "settings.ingress_addr=127.0.0.1:0", "msg=request route=signals"} {
		if !strings.Contains(acceptor.stderr.String(), want) {
			t.Errorf("%s is not in the log", want)
		}
	}
	if strings.Contains(acceptor.stderr.String(), "token-of-the-sender") {
		t.Error("a secret is in the log")
	}
	acceptor.stop()
	acceptor.ended()
	judge.stop()
	judge.ended()
}

// TestRunWithIngress: one process does both. On a stop it judges until every request
// in flight has its response.
func TestRunWithIngress(t *testing.T) {
	cluster := embedded.Start(t)
	s := serveCommand(t, "run", ingressEnviron(t, cluster, "ONCEBUS_INGRESS_ADDR=127.0.0.1:0", "ONCEBUS_COMMIT_INTERVAL=1s")...)
	defer s.stop()
	s.ready()
	sent := 0
	send := func() <-chan int {
		sent++
		return s.post(fmt.Sprintf(`{"id":"%d"}`, sent))
	}
	waiting := send()
	s.until("a request to be in flight", func() bool {
		select {
		case status := <-waiting: // an event after a pause waits for nothing, the next one for a commit interval
			if status != 202 {
				t.Fatalf("status %d", status)
			}
			waiting = send()
		default:
		}
		_, body := s.page("/metrics")
		return strings.Contains(body, "\noncebus_http_requests_in_flight 1\n")
	})
	s.stop()
	if status := <-waiting; status != 202 {
		t.Errorf("status %d", status)
	}
	s.ended()
}
