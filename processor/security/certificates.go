package security

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A File is a file whose path an operator has set. Variable names the setting; an empty Path names no file.
type File struct{ Variable, Path string }

// read returns the content of the file; "" without a path.
func (f File) read() (string, error) {
	if f.Path == "" {
		return "", nil
	}
	content, err := readFile(f.Path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Variable, err)
	}
	return content, nil
}

// readFile reads a file whose path an operator has set. It detects the mistake that the setting contains the
// file's content.
func readFile(path string) (string, error) {
	if strings.ContainsAny(path, "\n\r") || strings.Contains(path, "-----BEGIN") {
		return "", errors.New("contains the file's content, want its path") // the error does not repeat the value: it may be a private key
	}
	content, err := os.ReadFile(path)
	return string(content), err
}

// Certificates has what one side of a TLS connection needs, made from PEM files.
type Certificates struct {
	Pair    *tls.Certificate // this side's certificate with its key; nil without files
	Pool    *x509.CertPool   // the authorities that this side trusts; nil without a file
	content [3]string
}

// LoadCertificates reads the files of this side's certificate, of its key, and of the authorities that this
// side trusts. Its error joins all mistakes.
func LoadCertificates(cert, key, authorities File) (*Certificates, error) {
	c := new(Certificates)
	var m Mistakes
	for i, f := range []File{cert, key, authorities} {
		var err error
		c.content[i], err = f.read()
		m.Add(err)
	}
	switch {
	case cert.Path != "" && key.Path == "":
		m.Addf("%s: set without %s, want both or neither", cert.Variable, key.Variable)
	case cert.Path == "" && key.Path != "":
		m.Addf("%s: set without %s, want both or neither", key.Variable, cert.Variable)
	}
	if err := m.Err(); err != nil {
		return nil, err
	}
	if authorities.Path != "" {
		c.Pool = x509.NewCertPool()
		if !c.Pool.AppendCertsFromPEM([]byte(c.content[2])) {
			m.Addf("%s: %s contains no PEM certificate", authorities.Variable, authorities.Path)
		}
	}
	if cert.Path != "" {
		pair, err := tls.X509KeyPair([]byte(c.content[0]), []byte(c.content[1]))
		if err != nil {
			m.Addf("%s, %s: %w", cert.Variable, key.Variable, err)
		} else if end := pair.Leaf.NotAfter; time.Now().After(end) {
			m.Addf("%s: %s expired at %s, the other side rejects it: renew it", cert.Variable, cert.Path, end.UTC().Format(time.RFC3339))
		}
		c.Pair = &pair
	}
	return c, m.Err()
}

// Equal reports whether both were made from files of equal content.
func (c *Certificates) Equal(other *Certificates) bool { return c.content == other.content }

// ShowExpiry sets a gauge to the time when this side's certificate expires, in Unix seconds.
func (c *Certificates) ShowExpiry(gauge prometheus.Gauge) {
	if c.Pair != nil {
		gauge.Set(float64(c.Pair.Leaf.NotAfter.Unix()))
	}
}
