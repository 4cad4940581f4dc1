package ingress

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/kafkatest"
)

// lines checks that err has one line for each prefix, in order.
func lines(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	var have []string
	if err != nil {
		have = strings.Split(err.Error(), "\n")
	}
	if len(have) != len(want) {
		t.Fatalf("%s: %d mistakes, want %d: %v", what, len(have), len(want), err)
	}
	for n := range want {
		if !strings.HasPrefix(have[n], want[n]) {
			t.Errorf("%s: mistake %d is %q, want %q", what, n, have[n], want[n])
		}
	}
}

func TestValidate(t *testing.T) {
	dir := t.TempDir()
	cert, key := kafkatest.NewAuthority(t, "authority").Issue("server", time.Now().Add(time.Hour))
	writeCertificate(t, dir, cert, key)
	certFile, keyFile, none := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "none")
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"defaults", func(*Config) {}, nil},
		{"no server", func(c *Config) { c.Addr = "" }, nil},
		{"TLS", func(c *Config) { c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = certFile, keyFile, certFile }, nil},
		{"no port", func(c *Config) { c.Addr = "localhost" }, []string{`ONCEBUS_INGRESS_ADDR: "localhost" is malformed, want host:port`}},
		{"port", func(c *Config) { c.Addr = ":http" }, []string{`ONCEBUS_INGRESS_ADDR: ":http": port "http" is malformed`}},
		{"a certificate without its key", func(c *Config) { c.TLSCertFile = certFile }, []string{"ONCEBUS_INGRESS_TLS_CERT_FILE, ONCEBUS_INGRESS_TLS_KEY_FILE: one is set"}},
		{"clients without TLS", func(c *Config) { c.TLSClientCAFile = certFile }, []string{"ONCEBUS_INGRESS_TLS_CLIENT_CA_FILE: set without"}},
		{"no such files", func(c *Config) { c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = none, none, none },
			[]string{"ONCEBUS_INGRESS_TLS_CERT_FILE: open ", "ONCEBUS_INGRESS_TLS_KEY_FILE: open ", "ONCEBUS_INGRESS_TLS_CLIENT_CA_FILE: open "}},
		{"no certificates", func(c *Config) { c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = certFile, keyFile, keyFile },
			[]string{"ONCEBUS_INGRESS_TLS_CLIENT_CA_FILE: " + keyFile + " contains no PEM certificate"}},
		{"exchanged", func(c *Config) { c.TLSCertFile, c.TLSKeyFile = keyFile, certFile }, []string{"ONCEBUS_INGRESS_TLS_CERT_FILE, ONCEBUS_INGRESS_TLS_KEY_FILE: tls: "}},
		{"a key in place of its path", func(c *Config) { c.TLSCertFile, c.TLSKeyFile = certFile, "-----BEGIN PRIVATE KEY-----" },
			[]string{"ONCEBUS_INGRESS_TLS_KEY_FILE: contains the file's content"}},
		{"nothing", func(c *Config) { *c = Config{} }, []string{
			"ONCEBUS_INGRESS_MAX_REQUESTS: 0 is out of range", "ONCEBUS_INGRESS_MAX_CONNECTIONS: 0", "ONCEBUS_INGRESS_MAX_BODY_BYTES: 0", "ONCEBUS_INGRESS_KEEP_BYTES: 0",
			"ONCEBUS_INGRESS_MAX_HEADER_BYTES: 0", "ONCEBUS_INGRESS_READ_TIMEOUT: 0s is out of range, want 10ms to 1h0m0s", "ONCEBUS_INGRESS_WRITE_TIMEOUT: 0s",
			"ONCEBUS_INGRESS_IDLE_TIMEOUT: 0s", "ONCEBUS_INGRESS_DRAIN: 0s",
		}},
		{"more for one than for all", func(c *Config) { c.MaxRequests, c.MaxRequestsPerSource = 10, 11 },
			[]string{"ONCEBUS_INGRESS_MAX_REQUESTS_PER_SOURCE: 11 is out of range, want 0 to ONCEBUS_INGRESS_MAX_REQUESTS (10)"}},
		{"proxies", func(c *Config) { c.TrustedProxies = []string{"10.0.0.0/8", " 10.0.0.1", "proxy", "10.0.0.0/33"} },
			[]string{`ONCEBUS_INGRESS_TRUSTED_PROXIES: "proxy"`, `ONCEBUS_INGRESS_TRUSTED_PROXIES: "10.0.0.0/33"`}},
	} {
		cfg := testConfig()
		c.change(&cfg)
		lines(t, c.name, cfg.Validate(), c.want...)
	}
}

func TestValidateRoutes(t *testing.T) {
	const file = `routes:
  - name: a
    topics: [a.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: a
    outcomes: a.outcomes
    replies: a.replies
    lease: 1m
    while_in_progress: reject
    dead_letter: dead
    http: {path: /a, signature: {scheme: standard-webhooks, secret: A}, timeout: 20s, outcomes: {signature: {scheme: bearer, secret: X}}}
  - name: b
    topics: [b.raw]
    key: [{field: id}]
    window: 1h
    output: b
    dead_letter: dead
    http: {path: /b, signature: {scheme: github, secret: A}, max_body: 100, max_requests: 50}
`
	routes := parseRoutes(t, file)
	path := filepath.Join(t.TempDir(), "secret")
	good := Secrets{"A": {Value: "whsec_dGhlIHNlY3JldCBvZiBzZW5kZXJz"}, "X": {Path: path}}
	kafkatest.ReplaceFile(t, path, []byte("token-of-executors"))
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"good", func(*Config) {}, nil},
		{"a next secret whose file is missing", func(c *Config) { c.Secrets = Secrets{"A": good["A"], "X": good["X"], "X_NEXT": {Path: path + "-next"}} }, nil},
		{"no secrets", func(c *Config) { c.Secrets = nil }, []string{
			"route a, b: secret A: ONCEBUS_INGRESS_SECRET_A: not set, want the secret, or the path of its file in ONCEBUS_INGRESS_SECRET_A_FILE",
			"route a: secret X: ONCEBUS_INGRESS_SECRET_X: not set",
		}},
		{"a next secret without the current one", func(c *Config) { c.Secrets = Secrets{"A_NEXT": good["A"], "X": good["X"]} }, []string{"route a, b: secret A: ONCEBUS_INGRESS_SECRET_A: not set"}},
		{"unusable", func(c *Config) {
			c.Secrets = Secrets{"A": {Value: "no base64!"}, "A_NEXT": {Value: "nor this!"}, "X": {Path: path + "-none"}}
		}, []string{
			"route a, b: secret A: ONCEBUS_INGRESS_SECRET_A: no usable secret: want whsec_ and base64", "ONCEBUS_INGRESS_SECRET_A_NEXT: no usable secret",
			"route a: secret X: ONCEBUS_INGRESS_SECRET_X: open ",
		}},
		{"short", func(c *Config) {
			c.Secrets = Secrets{"A": {Value: "whsec_c2VjcmV0"}, "X": {Value: "fifteen bytes.."}, "X_NEXT": {Value: "fifteen-bytes.."}}
		}, []string{
			"route a, b: secret A: ONCEBUS_INGRESS_SECRET_A: no usable secret: its key has 6 bytes and can be guessed, want at least 16: give",
			"route a: secret X: ONCEBUS_INGRESS_SECRET_X: no usable secret: a bearer token must be",
			"ONCEBUS_INGRESS_SECRET_X_NEXT: no usable secret: its key has 15 bytes",
		}},
		{"no time", func(c *Config) { c.WriteTimeout = 30*time.Second - 1 }, []string{"route a: http.timeout of 20s and ONCEBUS_INGRESS_READ_TIMEOUT (10s) are longer"}},
		{"just time", func(c *Config) { c.WriteTimeout = 30 * time.Second }, nil},
		{"few requests", func(c *Config) { c.MaxRequests = 49 }, []string{"route b: http.max_requests of 50 is more than ONCEBUS_INGRESS_MAX_REQUESTS (49)"}},
		{"no memory", func(c *Config) { c.MaxBodyBytes = 1 << 19 }, []string{"route a: http.max_body of 1048576 is more than ONCEBUS_INGRESS_MAX_BODY_BYTES (524288)"}},
	} {
		cfg := testConfig()
		cfg.Secrets = good
		c.change(&cfg)
		err := cfg.ValidateRoutes(routes)
		lines(t, c.name, err, c.want...)
		if err != nil && (strings.Contains(err.Error(), "base64!") || strings.Contains(err.Error(), "nor this")) {
			t.Errorf("%s: a secret is shown: %v", c.name, err)
		}
		if _, err := New(cfg, routes, nil, prometheus.NewRegistry(), nil); (err != nil) != (c.want != nil) {
			t.Errorf("%s: New: %v", c.name, err)
		}
	}
	cfg := testConfig()
	cfg.Secrets, cfg.MaxBodyBytes = good, 1<<19
	lines(t, "no memory for an outcome", cfg.ValidateRoutes(parseRoutes(t, strings.Replace(file, "timeout: 20s", "max_body: 100", 1))),
		"route a: http.outcomes accepts up to 1048576 bytes, which is more than ONCEBUS_INGRESS_MAX_BODY_BYTES (524288)")
}

// TestOpenFilesBoundConnections: some files are left to the rest of the process, and the operator reads of it.
func TestOpenFilesBoundConnections(t *testing.T) {
	for _, c := range []struct {
		files      uint64
		have, want int
	}{{300, 16384, 150}, {1 << 20, 16384, 16384}, {16384 + 1024, 16384, 16384}, {16384 + 1023, 16384, 16383}, {2048, 16384, 1024}, {1, 10, 1}, {1<<64 - 1, RequestsMax, RequestsMax}} {
		cfg := Config{MaxConnections: c.have}
		text, action := cfg.boundConnections(c.files)
		if cfg.MaxConnections != c.want || (text != "") != (c.want < c.have) || (action != "") != (text != "") || text != "" && !strings.Contains(text, "ONCEBUS_INGRESS_MAX_CONNECTIONS") {
			t.Errorf("%d files: %d connections, want %d: %q", c.files, cfg.MaxConnections, c.want, text)
		}
	}
}
