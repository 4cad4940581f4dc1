package security

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"oncebus/processor/kafkatest/embedded"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// newSecurity returns what a process would prove itself with, and its log.
func newSecurity(c Config) (*credentials, *bytes.Buffer) {
	var out bytes.Buffer
	redact := NewRedactor(c)
	log := slog.New(redact.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	return &credentials{log: log, metrics: newSecurityMetrics(prometheus.NewRegistry()), redact: redact}, &out
}

// look makes the next use read the files again.
func (c *certificates) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loaded = time.Time{}
}

// replaceFiles puts the content of other files in the place of files.
func replaceFiles(t *testing.T, files, with []string) {
	t.Helper()
	for i := range files {
		content, err := os.ReadFile(with[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(files[i], content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// seenCertificates is a broker that stores the last client certificate and trusts any
// issuer.
type seenCertificates struct {
	mu   sync.Mutex
	last []byte
}

func (s *seenCertificates) config(t *testing.T, cert, key string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, VerifyConnection: func(state tls.ConnectionState) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = state.PeerCertificates[0].Raw
		return nil
	}}
}

func (s *seenCertificates) lastIs(t *testing.T, file string) bool {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(file, strings.Replace(file, "cert", "key", 1))
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Equal(s.last, pair.Certificate[0])
}

// TestConnectionsFollowCertificateFiles: a client goes over to a new
// connection after its files changed, and keeps the old ones while the new
// content is of no use.
func TestConnectionsFollowCertificateFiles(t *testing.T) {
	ca, brokerCert, brokerKey := writeCertificates(t)
	_, cert, key := writeCertificates(t)
	_, nextCert, nextKey := writeCertificates(t)
	seen := new(seenCertificates)
	cluster := embedded.Start(t, kfake.TLS(seen.config(t, brokerCert, brokerKey)))
	s, out := newSecurity(Config{})
	certs, err := s.certificates("ONCEBUS_TLS_", TLS{Enabled: true, CAFile: ca, CertFile: cert, KeyFile: key})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.Dialer(certs.dial))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	request := func(what, file string) {
		t.Helper()
		if err := client.Ping(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !seen.lastIs(t, file) {
			t.Errorf("%s: the broker saw another certificate", what)
		}
	}
	loaded, failed := s.metrics.reloads.WithLabelValues(credentialCertificates, "loaded"), s.metrics.reloads.WithLabelValues(credentialCertificates, "failed")

	original := cloneFile(t, cert, key)
	request("at first", original)
	replaceFiles(t, []string{cert}, []string{nextCert})
	certs.look()
	request("with a key that does not fit", original)
	certs.look()
	request("looked at again", original)
	if testutil.ToFloat64(failed) != 1 || strings.Count(out.String(), "certificates reload failed") != 1 {
		t.Errorf("unusable content is counted %v times, and logged as\n%s", testutil.ToFloat64(failed), out)
	}
	replaceFiles(t, []string{key}, []string{nextKey})
	certs.look()
	request("with a new pair", nextCert)
	if testutil.ToFloat64(loaded) != 1 {
		t.Errorf("%v reloads, want 1", testutil.ToFloat64(loaded))
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	certs.look()
	request("with a file gone", nextCert)
	if testutil.ToFloat64(s.metrics.expiry) <= float64(time.Now().Unix()) {
		t.Errorf("the certificate's end is shown as %v", testutil.ToFloat64(s.metrics.expiry))
	}
}

// cloneFile copies a certificate and its key and returns the copy's path.
func cloneFile(t *testing.T, cert, key string) string {
	t.Helper()
	dir := t.TempDir()
	copies := []string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	replaceFiles(t, copies, []string{cert, key})
	return copies[0]
}

// TestBrokerConnIsNotCutWithRequestsInFlight: whatever pieces responses come
// in, the connection knows when all are answered.
func TestBrokerConnIsNotCutWithRequestsInFlight(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	certs := &certificates{Reloaded: Reloaded[*Certificates]{Interval: time.Hour, loaded: time.Now()}}
	conn := &brokerConn{Conn: here, certificates: certs}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		buf := make([]byte, 64)
		for range 3 {
			if _, err := there.Read(buf); err != nil {
				return
			}
		}
		for _, size := range []int{0, 1, 5000} {
			answer := append(binary.BigEndian.AppendUint32(nil, uint32(size)), make([]byte, size)...)
			for len(answer) > 0 {
				n := min(3, len(answer))
				if _, err := there.Write(answer[:n]); err != nil {
					return
				}
				answer = answer[n:]
			}
		}
	}()
	for range 3 {
		if _, err := conn.Write([]byte("request")); err != nil {
			t.Fatal(err)
		}
		certs.version = 1 // from the second on, of older certificates
	}
	total := 3*4 + 0 + 1 + 5000
	buf := make([]byte, 7)
	for read := 0; read < total; {
		if conn.inFlight.Load() == 0 {
			t.Fatalf("no request in flight after %d of %d bytes", read, total)
		}
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		read += n
	}
	<-answered
	if n, err := conn.Write([]byte("request")); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("a request on a connection of older certificates: %d bytes, %v; want none and a closed connection", n, err)
	}
}
