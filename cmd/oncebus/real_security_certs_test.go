//go:build unix

package main_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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

// authority signs the certificates of brokers and clients.
type authority struct {
	t    *testing.T
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority with its files in dir.
func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir, name: name, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// pem returns the authority's certificate.
func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// file writes the authority's certificate and returns its path.
func (a *authority) file() string { return writeAt(a.t, filepath.Join(a.dir, a.name+".pem"), a.pem()) }

// issue returns a certificate for name, for broker and client alike, that ends at notAfter, and its key.
func (a *authority) issue(name string, notAfter time.Time) (cert, key []byte) {
	a.t.Helper()
	private, notBefore := newKey(a.t), time.Now().Add(-24*time.Hour)
	template := &x509.Certificate{
		SerialNumber: serial(a.t), Subject: pkix.Name{CommonName: name}, NotBefore: notBefore, NotAfter: notAfter,
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// client writes a client certificate and its key, and returns the two settings that name them.
func (a *authority) client(name string) (settings []string, key []byte) {
	cert, key := a.issue(name, time.Now().Add(time.Hour))
	base := filepath.Join(a.dir, a.name+"-"+name)
	return []string{"TLS_CERT_FILE=" + writeAt(a.t, base+".crt", cert), "TLS_KEY_FILE=" + writeAt(a.t, base+".key", key)}, key
}

// keyLines returns the secret lines of a private key.
func keyLines(key []byte) []string {
	lines := strings.Split(strings.TrimSpace(string(key)), "\n")
	return lines[1 : len(lines)-1]
}

// keystore writes a broker's PEM keystore and returns its path.
func (a *authority) keystore(name string, notAfter time.Time) string {
	cert, key := a.issue("localhost", notAfter)
	return writeAt(a.t, filepath.Join(a.dir, name+".keystore.pem"), bytes.Join([][]byte{key, cert, a.pem()}, nil))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t *testing.T) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// writeAt replaces the file at path like tools that distribute secrets: with a new file, renamed over the old one.
func writeAt(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}
