package ingress

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
)

// writeCertificate replaces certificate and key of a server.
func writeCertificate(t *testing.T, dir string, cert, key []byte) {
	t.Helper()
	kafkatest.ReplaceFile(t, filepath.Join(dir, "cert.pem"), cert)
	kafkatest.ReplaceFile(t, filepath.Join(dir, "key.pem"), key)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	dir := t.TempDir()
	old, fresh, inAnHour := kafkatest.NewAuthority(t, "old"), kafkatest.NewAuthority(t, "fresh"), time.Now().Add(time.Hour)
	cert, key := old.Issue("server", inAnHour)
	writeCertificate(t, dir, cert, key)
	clientCA := filepath.Join(dir, "clients.pem")
	kafkatest.ReplaceFile(t, clientCA, old.PEM())
	i := b.serve(func(c *Config) {
		c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), clientCA
	})
	now := time.Now()
	clock := make(chan time.Time, 1)
	clock <- now
	i.certificates.Now = func() time.Time {
		at := <-clock
		clock <- at
		return at
	}
	pastInterval := func() { clock <- (<-clock).Add(reloadInterval) }
	i.url = "https://" + i.addr
	client, err := tls.X509KeyPair(old.Issue("client", inAnHour))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := tls.X509KeyPair(fresh.Issue("stranger", inAnHour))
	if err != nil {
		t.Fatal(err)
	}
	post := func(trusts *kafkatest.Authority, shows *tls.Certificate, http2 bool) (reply, error) {
		config := &tls.Config{RootCAs: trusts.Pool()}
		if shows != nil {
			config.Certificates = []tls.Certificate{*shows}
		}
		return i.try(i.secure(config, http2), i.request("POST", "/signals", strings.NewReader(event("a"))))
	}
	for _, http2 := range []bool{true, false} {
		got, err := post(old, &client, http2)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{true: 2, false: 1}[http2]; got.ProtoMajor != want {
			t.Errorf("HTTP/%d, want %d", got.ProtoMajor, want)
		}
		if _, err := post(old, nil, http2); err == nil {
			t.Error("a client without a certificate was served")
		}
		if _, err := post(old, &stranger, http2); err == nil {
			t.Error("a client with a certificate of another authority was served")
		}
	}
	expiry := i.count("oncebus_http_certificate_expiry_timestamp_seconds")
	if left := time.Until(time.Unix(int64(expiry), 0)); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the certificate ends in %v", left)
	}
	// Half of a new pair: the old one stays.
	cert, key = fresh.Issue("server", inAnHour)
	writeCertificate(t, dir, cert, key)
	kafkatest.ReplaceFile(t, filepath.Join(dir, "key.pem"), []byte("torn"))
	pastInterval()
	if _, err := post(old, &client, true); err != nil {
		t.Error(err)
	}
	if i.count("oncebus_http_reloads_total", "what", "certificates", "outcome", "failed") != 1 || !strings.Contains(b.logs.String(), "TLS_KEY_FILE") {
		t.Error("the failure is missing in metric or log")
	}
	writeCertificate(t, dir, cert, key)
	kafkatest.ReplaceFile(t, clientCA, fresh.PEM())
	pastInterval()
	if _, err := post(fresh, &stranger, true); err != nil {
		t.Errorf("the new certificates are not used: %v", err)
	}
	if _, err := post(fresh, &client, true); err == nil {
		t.Error("a client of the old authority was served")
	}
	if i.count("oncebus_http_reloads_total", "what", "certificates", "outcome", "ok") != 1 {
		t.Error("the reload is not counted")
	}
}
