//go:build unix

package main_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
)

// authority is one with its files.
type authority struct {
	*kafkatest.Authority

	t         *testing.T
	dir, name string
}

// newAuthority makes an authority with its files in dir.
func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	return &authority{kafkatest.NewAuthority(t, name), t, dir, name}
}

// file writes the authority's certificate and returns its path.
func (a *authority) file() string {
	return kafkatest.ReplaceFile(a.t, filepath.Join(a.dir, a.name+".pem"), a.PEM())
}

// client writes a client certificate and its key, and returns their two settings.
func (a *authority) client(name string) (settings []string, key []byte) {
	cert, key := a.Issue(name, time.Now().Add(time.Hour))
	base := filepath.Join(a.dir, a.name+"-"+name)
	return []string{
		"TLS_CERT_FILE=" + kafkatest.ReplaceFile(a.t, base+".crt", cert), "TLS_KEY_FILE=" + kafkatest.ReplaceFile(a.t, base+".key", key),
	}, key
}

// keyLines returns the secret lines of a private key.
func keyLines(key []byte) []string {
	lines := strings.Split(strings.TrimSpace(string(key)), "\n")
	return lines[1 : len(lines)-1]
}

// keystore writes a broker's PEM keystore and returns its path.
func (a *authority) keystore(name string, notAfter time.Time) string {
	cert, key := a.Issue("localhost", notAfter)
	return kafkatest.ReplaceFile(a.t, filepath.Join(a.dir, name+".keystore.pem"), bytes.Join([][]byte{key, cert, a.PEM()}, nil))
}
