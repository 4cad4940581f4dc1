package ingress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
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

// sign returns a certificate; without a.cert it is the authority's own.
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

// write replaces a file atomically.
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

func TestTLS(t *testing.T) {
	t.Parallel()
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
	i.certificates.Now = func() time.Time {
		at := <-clock
		clock <- at
		return at
	}
	pastInterval := func() { clock <- (<-clock).Add(reloadInterval) }
	i.url = "https://" + i.addr
	client, _ := old.sign(t, "client")
	stranger, _ := fresh.sign(t, "stranger")
	post := func(trusts *authority, shows *tls.Certificate, http2 bool) (reply, error) {
		config := &tls.Config{RootCAs: trusts.pool()}
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
	pastInterval()
	if _, err := post(old, &client, true); err != nil {
		t.Error(err)
	}
	if i.count("oncebus_http_reloads_total", "what", "certificates", "outcome", "failed") != 1 || !strings.Contains(b.logs.String(), "TLS_KEY_FILE") {
		t.Error("neither metric nor log has the failure")
	}
	writeCertificate(t, dir, cert, key)
	fresh.write(t, clientCA)
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
