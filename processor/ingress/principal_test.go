package ingress

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/kafkatest"
)

// principalRoutes has a route whose tenants are the principals.
const principalRoutes = `
routes:
  - name: signals
    topics: [signals.raw]
    key: [{field: id}]
    tenant: {principal: true}
    window: 1h
    output: signals.unique
    http:
      path: /signals
      signature: {scheme: none}
` + patience

// TestPrincipalIsTheTenant: each client certificate has keys of its own, and no request can name
// another principal.
func TestPrincipalIsTheTenant(t *testing.T) {
	t.Parallel()
	b := newBench(t, principalRoutes)
	dir := t.TempDir()
	authority, inAnHour := kafkatest.NewAuthority(t, "authority"), time.Now().Add(time.Hour)
	cert, key := authority.Issue("server", inAnHour)
	writeCertificate(t, dir, cert, key)
	clientCA := filepath.Join(dir, "clients.pem")
	kafkatest.ReplaceFile(t, clientCA, authority.PEM())
	i := b.serve(func(c *Config) {
		c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), clientCA
	})
	i.url = "https://" + i.addr
	post := func(name, body string, http2 bool, headers ...string) reply {
		t.Helper()
		client, err := tls.X509KeyPair(authority.Issue(name, inAnHour))
		if err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{RootCAs: authority.Pool(), Certificates: []tls.Certificate{client}}
		got, err := i.try(i.secure(config, http2), i.request("POST", "/signals", strings.NewReader(body), headers...))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	post("acme", event("a"), true).want(t, "the first of acme", 202)
	post("globex", event("a"), false).want(t, "the same id of globex", 202)
	post("acme", event("a"), false).want(t, "the duplicate of acme", 409)
	post("globex", event("a"), true, "X-Oncebus-Principal", "initech").want(t, "the duplicate of globex, which claims to be another", 409)
	post(strings.Repeat("x", 64), event("a"), true).want(t, "the longest name", 202)
	got := map[string]int{}
	for _, rec := range b.read("signals.unique", 3) {
		for _, h := range rec.Headers {
			if h.Key == rules.PrincipalHeader {
				got[string(h.Value)]++
			}
		}
	}
	if len(got) != 3 || got["acme"] != 1 || got["globex"] != 1 {
		t.Errorf("the principals in the output are %v", got)
	}
	b.produce("signals.raw", []byte(event("a")), rules.PrincipalHeader, "acme") // a trusted producer
	b.produce("signals.raw", []byte(event("b")))
	for _, rec := range b.read("oncebus.dead-letter", 1) {
		reason := kafkatest.Header(rec, "oncebus-reason")
		if want := "tenant: header x-oncebus-principal has none: send it there, or give the route tenant: {default: NAME}"; reason != want {
			t.Errorf("reason %q, want %q", reason, want)
		}
	}
}

// TestPrincipalOfASecret: without client certificates it is the name of the secret, and a path
// without either has no principal.
func TestPrincipalOfASecret(t *testing.T) {
	t.Parallel()
	routes := strings.Replace(principalRoutes, "signature: {scheme: none}", "signature: {scheme: bearer, secret: ACME}", 1) +
		strings.ReplaceAll(strings.Replace(principalRoutes, "\nroutes:\n", "", 1), "signals", "open")
	b := newBench(t, routes)
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"ACME": {Value: "a-long-secret-of-acme"}} })
	i.post("/signals", event("a"), "Authorization", "Bearer a-long-secret-of-acme", "x-oncebus-principal", "globex").want(t, "the first", 202)
	for _, rec := range b.read("signals.unique", 1) {
		if value := kafkatest.Header(rec, rules.PrincipalHeader); value != "ACME" {
			t.Errorf("principal %q", value)
		}
	}
	i.post("/open", event("a"), "x-oncebus-principal", "globex").want(t, "without a secret", 400, "tenant: header x-oncebus-principal has none")
}
