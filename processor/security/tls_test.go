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

// newSecurity returns the credentials of a process, and its log.
func newSecurity(c Config) (*credentials, *bytes.Buffer) {
	var out bytes.Buffer
	redact := NewRedactor(c)
	log := slog.New(redact.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	return &credentials{log: log, metrics: newSecurityMetrics(prometheus.NewRegistry()), redact: redact}, &out
}

// expire makes the next use load the files.
func (c *certificates) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loaded = time.Time{}
}

// replaceFiles overwrites files with the content of other files.
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

// TestConnectionsFollowCertificateFiles: a client opens a new connection after its
// files changed. It keeps the old connection while the new content is invalid.
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
	certs.expire()
	request("with a key of another certificate", original)
	certs.expire()
	request("loaded a second time", original)
	if testutil.ToFloat64(failed) != 1 || strings.Count(out.String(), "certificates reload failed") != 1 {
		t.Errorf("invalid content is counted %v times, and logged as\n%s", testutil.ToFloat64(failed), out)
	}
	replaceFiles(t, []string{key}, []string{nextKey})
	certs.expire()
	request("with a new pair", nextCert)
	if testutil.ToFloat64(loaded) != 1 {
		t.Errorf("%v reloads, want 1", testutil.ToFloat64(loaded))
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	certs.expire()
	request("without a file", nextCert)
	if testutil.ToFloat64(s.metrics.expiry) <= float64(time.Now().Unix()) {
		t.Errorf("the metric of the certificate's expiry is %v", testutil.ToFloat64(s.metrics.expiry))
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

// TestBrokerConnOutlivesItsRequests: the connection counts complete responses,
// however many reads they take.
func TestBrokerConnOutlivesItsRequests(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	certs := &certificates{Reloaded: Reloaded[*Certificates]{Interval: time.Hour, loaded: time.Now()}}
	conn := &brokerConn{Conn: here, certificates: certs}
	responded := make(chan struct{})
	go func() {
		defer close(responded)
		buf := make([]byte, 64)
		for range 3 {
			if _, err := there.Read(buf); err != nil {
				return
			}
		}
		for _, size := range []int{0, 1, 5000} {
			response := append(binary.BigEndian.AppendUint32(nil, uint32(size)), make([]byte, size)...)
			for len(response) > 0 {
				n := min(3, len(response))
				if _, err := there.Write(response[:n]); err != nil {
					return
				}
				response = response[n:]
			}
		}
	}()
	for range 3 {
		if _, err := conn.Write([]byte("request")); err != nil {
			t.Fatal(err)
		}
		certs.version = 1 // the second and third request are on an older version
	}
	total := 3*4 + 0 + 1 + 5000
	buf := make([]byte, 7)
	for read := 0; read < total; {
		if conn.inFlight.Load() == 0 {
			t.Fatalf("no in-flight request after %d of %d bytes", read, total)
		}
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		read += n
	}
	<-responded
	if n, err := conn.Write([]byte("request")); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("a request on a connection of older certificates: %d bytes, %v; want 0 and a closed connection", n, err)
	}
}
