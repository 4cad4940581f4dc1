package ingress

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	cert, key := a.sign(t, "authority")
	var err error
	if a.cert, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
		t.Fatal(err)
	}
	a.key = key
	return a
}

// sign makes a certificate; its own, if the authority has none yet.
func (a *authority) sign(t *testing.T, name string) (tls.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: a.cert == nil,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, key
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// write puts a file in place at once, as whoever replaces one should.
func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func writeCertificate(t *testing.T, dir string, cert tls.Certificate, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	write(t, filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func (a *authority) write(t *testing.T, path string) {
	t.Helper()
	write(t, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// secure makes a client of its own for a server with TLS.
func (i *instance) secure(config *tls.Config, http2 bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2}
	i.b.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 60 * time.Second}
}

func TestTLS(t *testing.T) {
	b := newBench(t, signalRoutes)
	dir := t.TempDir()
	old, fresh := newAuthority(t), newAuthority(t)
	cert, key := old.sign(t, "server")
	writeCertificate(t, dir, cert, key)
	clientCA := filepath.Join(dir, "clients.pem")
	old.write(t, clientCA)
	i := b.serve(func(c *Config) {
		c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), clientCA
	})
	now := time.Now()
	clock := make(chan time.Time, 1)
	clock <- now
	i.certificates.now = func() time.Time {
		at := <-clock
		clock <- at
		return at
	}
	pass := func() { clock <- (<-clock).Add(reloadInterval) }
	i.url = "https://" + i.addr
	client, _ := old.sign(t, "client")
	stranger, _ := fresh.sign(t, "stranger")
	ask := func(trusts *authority, shows *tls.Certificate, http2 bool) (reply, error) {
		config := &tls.Config{RootCAs: trusts.pool()}
		if shows != nil {
			config.Certificates = []tls.Certificate{*shows}
		}
		return i.try(i.secure(config, http2), i.request("POST", "/signals", strings.NewReader(event("a"))))
	}
	for _, http2 := range []bool{true, false} {
		got, err := ask(old, &client, http2)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{true: 2, false: 1}[http2]; got.ProtoMajor != want {
			t.Errorf("HTTP/%d, want %d", got.ProtoMajor, want)
		}
		if _, err := ask(old, nil, http2); err == nil {
			t.Error("a client without a certificate was served")
		}
		if _, err := ask(old, &stranger, http2); err == nil {
			t.Error("a stranger was served")
		}
	}
	expiry := i.count("oncebus_http_certificate_expiry_timestamp_seconds")
	if left := time.Until(time.Unix(int64(expiry), 0)); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the certificate ends in %v", left)
	}
	// Half of a new pair: the old one stays.
	cert, key = fresh.sign(t, "server")
	writeCertificate(t, dir, cert, key)
	write(t, filepath.Join(dir, "key.pem"), []byte("torn"))
	pass()
	if _, err := ask(old, &client, true); err != nil {
		t.Error(err)
	}
	if i.count("oncebus_http_reloads_total", "what", "certificates", "outcome", "failed") != 1 || !strings.Contains(b.logs.String(), "TLS_KEY_FILE") {
		t.Error("nothing says that the files cannot be used")
	}
	writeCertificate(t, dir, cert, key)
	fresh.write(t, clientCA)
	pass()
	if _, err := ask(fresh, &stranger, true); err != nil {
		t.Errorf("the new certificates are not used: %v", err)
	}
	if _, err := ask(fresh, &client, true); err == nil {
		t.Error("a client of the old authority was served")
	}
	if i.count("oncebus_http_reloads_total", "what", "certificates", "outcome", "ok") != 1 {
		t.Error("the reload is not counted")
	}
}

// TestPlainHTTP2 has both protocols on a port without TLS.
func TestPlainHTTP2(t *testing.T) {
	i := newBench(t, signalRoutes).serve(nil)
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	got, err := i.try(&http.Client{Transport: transport, Timeout: 60 * time.Second}, i.request("POST", "/signals", strings.NewReader(event("a"))))
	if err != nil {
		t.Fatal(err)
	}
	if got.want(t, "h2c", 202); got.ProtoMajor != 2 {
		t.Errorf("HTTP/%d", got.ProtoMajor)
	}
	if got := i.post("/signals", event("a")).want(t, "HTTP/1.1", 409); got.ProtoMajor != 1 {
		t.Errorf("HTTP/%d", got.ProtoMajor)
	}
}

// TestDrain: a server that is asked to stop takes nothing new, and answers
// those who wait.
func TestDrain(t *testing.T) {
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(nil)
	release := b.holdBack(i)
	waiting := i.later("/signals", event("a"))
	b.wait("a request to be in hand", func() bool { return i.Requests() == 1 })
	stopped := make(chan struct{})
	go func() {
		i.stop()
		close(stopped)
	}()
	b.wait("the listener to be closed", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", i.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case <-stopped:
		t.Fatal("stopped while a request waits")
	default:
	}
	release()
	got := <-waiting
	if got.want(t, "waiting", 202); !got.Close {
		t.Error("the connection stays open")
	}
	<-stopped
}

// TestDrainEnds: who waits longer than a stop may take is told that there is no
// verdict.
func TestDrainEnds(t *testing.T) {
	b := newBench(t, withHTTP("timeout: 50s"))
	i := b.serve(func(c *Config) { c.Drain = 100 * time.Millisecond })
	b.holdBack(i)
	waiting := i.later("/signals", event("a"))
	b.wait("a request to be in hand", func() bool { return i.Requests() == 1 })
	i.stop()
	(<-waiting).problem(t, "waiting", "verdict-timeout", 504)
	if i.Requests() != 0 {
		t.Error("requests are in hand after the stop")
	}
}

func TestServeFails(t *testing.T) {
	b := newBench(t, signalRoutes)
	i := b.serve(nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	if err := i.Serve(t.Context(), listener); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func sign(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}

// TestRotation replaces a secret by its successor, by files, without a request
// refused.
func TestRotation(t *testing.T) {
	b := newBench(t, strings.Replace(signalRoutes, "scheme: none", "scheme: hmac, header: X-Sig, secret: A", 1))
	dir := t.TempDir()
	current, next := filepath.Join(dir, "a"), filepath.Join(dir, "a-next")
	write(t, current, []byte("old secret\n"))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"A": {Path: current}, "A_NEXT": {Path: next}} })
	now := time.Now()
	i.doors.keyrings["A"].now = func() time.Time { return now }
	n := 0
	good := func(secret string) {
		t.Helper()
		n++
		body := event(strings.Repeat("g", n))
		i.post("/signals", body, "X-Sig", sign(secret, body)).want(t, secret, 202)
	}
	bad := func(secret string) {
		t.Helper()
		body := event("bad")
		i.post("/signals", body, "X-Sig", sign(secret, body)).header(t, secret, "WWW-Authenticate", `Signature scheme="hmac"`).problem(t, secret, "signature", 401)
	}
	good("old secret")
	bad("new secret")
	write(t, next, []byte("new secret"))
	good("old secret")
	bad("new secret") // not looked at again yet
	now = now.Add(reloadInterval)
	good("new secret")
	good("old secret")
	write(t, current, []byte("new secret\n"))
	now = now.Add(reloadInterval)
	bad("old secret")
	good("new secret")
	if err := os.Remove(next); err != nil {
		t.Fatal(err)
	}
	now = now.Add(reloadInterval)
	good("new secret")
	// What cannot be used changes nothing.
	write(t, current, nil)
	now = now.Add(reloadInterval)
	good("new secret")
	now = now.Add(reloadInterval)
	good("new secret")
	if i.count("oncebus_http_reloads_total", "what", "secrets", "outcome", "failed") != 1 ||
		i.count("oncebus_http_reloads_total", "what", "secrets", "outcome", "ok") != 3 {
		t.Error("the reloads are not counted")
	}
	if i.count("oncebus_http_refused_total", "route", "signals", "reason", "wrong") != 3 {
		t.Error("the refusals are not counted")
	}
	for _, hidden := range []string{"old secret", "new secret", "price", sign("new secret", event("bad"))} {
		if strings.Contains(b.logs.String(), hidden) {
			t.Errorf("the log has %q", hidden)
		}
	}
	if n := len(b.read("signals.unique", 8)); n != 8 {
		t.Errorf("%d records in the output", n)
	}
}

// TestNothingSecretInTheLog: what a request brings is in no log, and who sent it
// is.
func TestNothingSecretInTheLog(t *testing.T) {
	b := newBench(t, strings.Replace(withHTTP("headers: [X-Provider]"), "scheme: none", "scheme: bearer, secret: A", 1))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"A": {Value: "token-of-a"}} })
	auth := []string{"Authorization", "Bearer token-of-a", "X-Provider", "header-text", "Idempotency-Key", "key-text"}
	for _, body := range []string{`{"id":"payload-text"}`, `{"id":["payload-text"]}`, `payload-text`, `{"payload-text":1}`} {
		i.post("/signals?query=query-text", body, auth...)
	}
	i.post("/signals", "payload-text", "Authorization", "Bearer wrong-token")
	i.post("/"+strings.Repeat("x", 1000), "")
	logs := b.logs.String()
	for _, hidden := range []string{"payload-text", "header-text", "key-text", "query-text", "token-of-a", "wrong-token", strings.Repeat("x", 300)} {
		if strings.Contains(logs, hidden) {
			t.Errorf("the log has %q", hidden)
		}
	}
	if n := len(b.logs.requests(t)); n != 6 {
		t.Errorf("%d lines in the access log", n)
	}
}

// TestGarbage: bytes that are no request are answered or cut off.
func TestGarbage(t *testing.T) {
	i := newBench(t, signalRoutes).serve(func(c *Config) { c.ReadTimeout = time.Second })
	for _, garbage := range []string{
		"\x16\x03\x01\x02\x00", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "POST /signals HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
		"POST /signals HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"POST /signals HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /signals HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n\xff\xfe\x00{}",
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", i.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(bufio.NewReader(conn)) // however it ends
		if bytes.Contains(answer, []byte(" 500 ")) || bytes.HasPrefix(answer, []byte("HTTP/1.1 2")) {
			t.Errorf("%q: %q", garbage, answer)
		}
		_ = conn.Close()
	}
	i.post("/signals", event("a")).want(t, "after all that", 202)
	if strings.Contains(i.b.logs.String(), "panic") {
		t.Error("a handler panicked")
	}
}
