package kafkatest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues the certificates of brokers, servers and clients in one test. The authority's own certificate
// expires after an hour.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority whose certificate has the given name.
func NewAuthority(tb testing.TB, name string) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, key: newKey(tb)}
	template := certificate(tb, name, time.Now().Add(time.Hour))
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	return a
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Pool returns a pool that trusts this authority and no other.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue returns a new certificate and its private key, both as PEM. The certificate is for name and 127.0.0.1, serves
// servers and clients alike, and expires at notAfter.
func (a *Authority) Issue(name string, notAfter time.Time) (cert, key []byte) {
	a.tb.Helper()
	private, template := newKey(a.tb), certificate(a.tb, name, notAfter)
	template.DNSNames, template.IPAddresses, template.KeyUsage = []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}, x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		a.tb.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// certificate returns the template of a certificate with the fields that all certificates of a test have in common.
func certificate(tb testing.TB, name string, notAfter time.Time) *x509.Certificate {
	tb.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		tb.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: notAfter, BasicConstraintsValid: true,
	}
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// ReplaceFile replaces the file at path as tools that distribute secrets do: it writes a new file and renames it over
// the old one. It returns path. Parallel tests may replace the same file.
func ReplaceFile(tb testing.TB, path string, content []byte) string {
	tb.Helper()
	fresh, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new")
	if err != nil {
		tb.Fatal(err)
	}
	_, err = fresh.Write(content)
	if err := errors.Join(err, fresh.Close()); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(fresh.Name(), path); err != nil {
		tb.Fatal(err)
	}
	return path
}
