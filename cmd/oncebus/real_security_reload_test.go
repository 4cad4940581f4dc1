//go:build unix

package main_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/kafkatest"
)

// testCertificatesReplaced replaces every certificate of a running process: the
// authorities', the client's and the broker's, which only new connections use. The
// process does not restart, and no commit outcome is unknown.
func (s *secured) testCertificatesReplaced(t *testing.T) {
	t.Parallel()
	w := s.world(t, "replaced")
	ca, cert, key := filepath.Join(w.dir, "ca.pem"), filepath.Join(w.dir, "client.crt"), filepath.Join(w.dir, "client.key")
	var keys []string
	install := func(from *authority) []byte {
		c, k := from.Issue("mtls", time.Now().Add(time.Hour))
		keys = append(keys, keyLines(k)...)
		kafkatest.ReplaceFile(t, key, k)
		kafkatest.ReplaceFile(t, cert, c)
		return c
	}
	kafkatest.ReplaceFile(t, ca, s.ca.PEM())
	oldCert := install(s.ca)
	svc := w.start("a", s.at("MTLS", "TLS_CA_FILE="+ca, "TLS_CERT_FILE="+cert, "TLS_KEY_FILE="+key, "SESSION_TIMEOUT=20s")...)
	defer func() { s.silent(t, svc, keys...) }()
	svc.awaitReady()
	all := w.realTraffic()
	send(w, 100, all...)
	w.drained(realInputs, realOutputs)
	before := svc.replaced() // the first assignment may abort a transaction

	kafkatest.ReplaceFile(t, cert, []byte("half a certif"))
	svc.await("certificates reload failed")
	send(w, 100, all...)
	w.drained(realInputs, realOutputs)

	// The trusted authorities change first, as in any rollout.
	kafkatest.ReplaceFile(t, cert, oldCert)
	kafkatest.ReplaceFile(t, ca, append(s.ca.PEM(), s.second.PEM()...))
	svc.awaitReloads("certificates", 1)
	install(s.second)
	svc.awaitReloads("certificates", 2)
	send(w, 100, all...)
	s.replaceKeystore(t, "mtls", s.second)
	kafkatest.ReplaceFile(t, ca, s.second.PEM())
	svc.awaitReloads("certificates", 3)
	send(w, 100, all...)
	w.checkTraffic(all)
	if after := svc.replaced(); !maps.Equal(after, before) {
		t.Errorf("replaced clients and unknown outcomes before the new certificates: %v, after: %v", before, after)
	}
	svc.stop()
}

// replaced counts the clients that a process replaced, and its transactions with an unknown commit outcome.
func (s *service) replaced() map[string]int {
	s.t.Helper()
	sum := map[string]int{}
	for _, name := range []string{"oncebus_clients_rebuilt_total", "oncebus_transactions_total"} {
		counts, err := s.metric(s.t.Context(), name)
		if err != nil {
			s.t.Fatal(err)
		}
		for labels, n := range counts {
			if name == "oncebus_clients_rebuilt_total" || strings.HasSuffix(labels, "/unknown") {
				sum[name+" "+labels] = n
			}
		}
	}
	return sum
}

// replaceKeystore gives a listener of the running broker a certificate of another
// authority.
func (s *secured) replaceKeystore(t *testing.T, listener string, by *authority) {
	t.Helper()
	path := by.keystore(listener+"-next", time.Now().Add(time.Hour))
	change := kadm.AlterConfig{Name: "listener.name." + listener + ".ssl.keystore.location", Value: &path}
	done, err := s.Admin().AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{change}, 1)
	if err != nil || done[0].Err != nil {
		t.Fatalf("replace the broker's certificate: %v, %+v", err, done)
	}
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: by.Pool()}}
	eventually(t, "the broker shows its new certificate", func(ctx context.Context) error {
		conn, err := dialer.DialContext(ctx, "tcp", s.ListenAddrs(strings.ToUpper(listener))[0])
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// awaitReloads waits until a process has reloaded credentials n times.
func (s *service) awaitReloads(credential string, n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("process %s has read its %s again %d times", s.Name, credential, n), func(ctx context.Context) error {
		counts, err := s.metric(ctx, "oncebus_credential_reloads_total")
		if err != nil {
			return err
		}
		if counts[credential+"/loaded"] < n {
			return errNotYet
		}
		return nil
	})
}

// testPasswordChanged changes a user's password: first on the broker, which then rejects the process, and later in the process's file.
// The process retries and recovers.
func (s *secured) testPasswordChanged(t *testing.T) {
	t.Parallel()
	s.addUser("scram-changing", canaryFirst)
	w := s.world(t, "changed")
	file := kafkatest.ReplaceFile(t, filepath.Join(w.dir, "password"), []byte(canaryFirst+"\n"))
	svc := w.start("a", s.at("SASL", "SASL_MECHANISM=SCRAM-SHA-256", "SASL_USERNAME=scram-changing", "SASL_PASSWORD_FILE="+file)...)
	defer s.silent(t, svc)
	svc.awaitReady()
	all := w.realTraffic()
	send(w, 100, all...)
	w.drained(realInputs, realOutputs)

	s.addUser("scram-changing", canarySecond)
	send(w, 100, all...)
	svc.await("building a new client")
	kafkatest.ReplaceFile(t, file, []byte(canarySecond+"\n"))
	svc.awaitReloads("password", 1)
	send(w, 100, all...)
	w.checkTraffic(all)
	svc.awaitReady()
	svc.stop()
}

// testTokenRenewed runs longer than the first token is valid.
func (s *secured) testTokenRenewed(t *testing.T) {
	t.Parallel()
	w := s.world(t, "renewed")
	svc := w.start("a", s.at("SASL", s.tokens.settings(canaryClient)...)...)
	defer s.silent(t, svc)
	svc.awaitReady()
	all := w.realTraffic()
	send(w, 100, all...)
	svc.awaitReloads("token", 2)
	send(w, 100, all...)
	w.checkTraffic(all)
	// The stack traces of a killed process have no secret either.
	if err := svc.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	svc.exited()
	if !strings.Contains(svc.text(), "goroutine ") {
		t.Error("the process wrote no goroutine dump")
	}
}
