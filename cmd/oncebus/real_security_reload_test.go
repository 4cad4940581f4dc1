//go:build unix

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// testCertificatesReplaced replaces every certificate under a running process: the authorities, the client's, and the broker's,
// which no old connection would notice. The process is not started again, and no transaction is given up for it.
func (s *secured) testCertificatesReplaced(t *testing.T) {
	t.Parallel()
	w := s.world(t, "replaced")
	ca, cert, key := filepath.Join(w.dir, "ca.pem"), filepath.Join(w.dir, "client.crt"), filepath.Join(w.dir, "client.key")
	var keys []string
	install := func(from *authority) {
		c, k := from.issue("mtls", time.Now().Add(time.Hour))
		keys = append(keys, keyLines(k)...)
		writeAt(t, key, k)
		writeAt(t, cert, c)
	}
	writeAt(t, ca, s.ca.pem())
	install(s.ca)
	svc := w.start("a", s.at("MTLS", "TLS_CA_FILE="+ca, "TLS_CERT_FILE="+cert, "TLS_KEY_FILE="+key, "SESSION_TIMEOUT=20s")...)
	defer func() { s.silent(t, svc, keys...) }()
	svc.awaitReady()
	all := w.realTraffic()
	send(w, 100, all...)

	writeAt(t, cert, []byte("half a certif"))
	svc.await("changed certificate files cannot be used, the old ones stay in use")
	send(w, 100, all...)
	w.drained(realInputs, realOutputs)

	install(s.second)
	writeAt(t, ca, append(s.ca.pem(), s.second.pem()...))
	svc.awaitReloads("certificates", 1)
	send(w, 100, all...)
	s.replaceKeystore(t, "mtls", s.second)
	writeAt(t, ca, s.second.pem())
	svc.awaitReloads("certificates", 2)
	send(w, 100, all...)
	w.checkTraffic(all)
	for _, name := range []string{"oncebus_clients_rebuilt_total", "oncebus_transactions_total"} {
		counts, err := svc.metric(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for labels, n := range counts {
			if n > 0 && (name == "oncebus_clients_rebuilt_total" || labels == "dedup/unknown" || labels == "route/unknown") {
				t.Errorf("%s of %s is %d after certificates were replaced, want 0", name, labels, n)
			}
		}
	}
	svc.stop()
}

// replaceKeystore gives a listener of the running broker a certificate of another authority.
func (s *secured) replaceKeystore(t *testing.T, listener string, by *authority) {
	t.Helper()
	path := by.keystore(listener+"-next", time.Now().Add(time.Hour))
	change := kadm.AlterConfig{Name: "listener.name." + listener + ".ssl.keystore.location", Value: &path}
	done, err := s.Admin().AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{change}, 1)
	if err != nil || done[0].Err != nil {
		t.Fatalf("replace the broker's certificate: %v, %+v", err, done)
	}
	roots := x509.NewCertPool()
	roots.AddCert(by.cert)
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots}}
	eventually(t, "the broker shows its new certificate", func(ctx context.Context) error {
		conn, err := dialer.DialContext(ctx, "tcp", s.ListenAddrs(strings.ToUpper(listener))[0])
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// awaitReloads waits until a process has read credentials again n times.
func (s *service) awaitReloads(credential string, n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("process %s has read its %s again, for the %d. time", s.name, credential, n), func(ctx context.Context) error {
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

// testPasswordChanged changes a user's password: first with the broker, which refuses the process from then on, and only then in
// the process's file. It bears with that and goes on.
func (s *secured) testPasswordChanged(t *testing.T) {
	t.Parallel()
	s.addUser("scram-changing", canaryFirst)
	w := s.world(t, "changed")
	file := writeAt(t, filepath.Join(w.dir, "password"), []byte(canaryFirst+"\n"))
	svc := w.start("a", s.at("SASL", "SASL_MECHANISM=SCRAM-SHA-256", "SASL_USERNAME=scram-changing", "SASL_PASSWORD_FILE="+file)...)
	defer s.silent(t, svc)
	svc.awaitReady()
	all := w.realTraffic()
	send(w, 100, all...)
	w.drained(realInputs, realOutputs)

	s.addUser("scram-changing", canarySecond)
	send(w, 100, all...)
	svc.await("building a new client")
	writeAt(t, file, []byte(canarySecond+"\n"))
	svc.awaitReloads("password", 1)
	send(w, 100, all...)
	w.checkTraffic(all)
	svc.awaitReady()
	svc.stop()
}

// testTokenRenewed lives beyond the first token.
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
	// What the runtime prints of a dying process shows no secret either.
	if err := svc.proc.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	svc.exited()
	if !strings.Contains(svc.log.text(), "goroutine ") {
		t.Error("the process left no goroutine dump to look at")
	}
}
