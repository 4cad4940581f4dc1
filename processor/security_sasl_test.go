package processor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
)

func TestPasswordFileIsReadForEveryAuthentication(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first secret\n")
	c := goodSecurity()
	c.SASL = SASL{Mechanism: SASLPlain, Username: "u", Password: "first secret", PasswordFile: SecretPath(path)}
	s, out := newSecurity(c)
	m, err := s.mechanism(c)
	if err != nil {
		t.Fatal(err)
	}
	authenticate := func(want string) {
		t.Helper()
		_, first, err := m.Authenticate(t.Context(), "127.0.0.1:9092")
		if err != nil {
			t.Fatal(err)
		}
		if got := string(first); got != "\x00u\x00"+want {
			t.Errorf("got %q, want the password %q", got, want)
		}
	}
	authenticate("first secret")
	write("second secret\r\n")
	authenticate("second secret")
	write("\n")
	authenticate("second secret")
	authenticate("second secret")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	authenticate("second secret")
	loaded, failed := s.metrics.reloads.WithLabelValues(credentialPassword, "loaded"), s.metrics.reloads.WithLabelValues(credentialPassword, "failed")
	if testutil.ToFloat64(loaded) != 1 || testutil.ToFloat64(failed) != 2 {
		t.Errorf("%v reloads and %v failures, want 1 and 2 (empty, gone)", testutil.ToFloat64(loaded), testutil.ToFloat64(failed))
	}
	s.log.Info("the new secret is known: second secret")
	if strings.Contains(out.String(), "second secret") {
		t.Errorf("a secret is shown:\n%s", out)
	}
}

// TestNoSecretInTheClear: the settings were checked at the start, but a broker
// may name others, on other machines.
func TestNoSecretInTheClear(t *testing.T) {
	for _, auth := range []SASL{
		{Mechanism: SASLPlain, Username: "u", Password: hidden},
		{Mechanism: SASLOAuthBearer, Token: "token"},
	} {
		c := goodSecurity()
		c.SASL = auth
		s, _ := newSecurity(c)
		m, err := s.mechanism(c)
		if err != nil {
			t.Fatal(err)
		}
		for addr, fine := range map[string]bool{"127.0.0.1:9092": true, "localhost:9092": true, "[::1]:9092": true, "10.0.0.1:9092": false, "kafka:9092": false, "kafka": false} {
			_, first, err := m.Authenticate(t.Context(), addr)
			if fine != (err == nil) || !fine && (len(first) > 0 || !credentialsRefused(err)) {
				t.Errorf("%s with %s: %q, %v", auth.Mechanism, addr, first, err)
			}
		}
		c.TLS.Enabled = true
		if m, err = s.mechanism(c); err != nil {
			t.Fatal(err)
		}
		if _, _, err := m.Authenticate(t.Context(), "10.0.0.1:9092"); err != nil {
			t.Errorf("%s over TLS: %v", auth.Mechanism, err)
		}
	}
}

func TestBearerTokens(t *testing.T) {
	authenticate := func(auth SASL) (string, error) {
		c := goodSecurity()
		c.SASL, c.TLS.Enabled = auth, true
		auth.Mechanism = SASLOAuthBearer
		c.SASL = auth
		s, _ := newSecurity(c)
		m, err := s.mechanism(c)
		if err != nil {
			return "", err
		}
		_, first, err := m.Authenticate(t.Context(), "broker:9092")
		return string(first), err
	}
	got, err := authenticate(SASL{Token: "abc.def", Extensions: []string{"logicalCluster=lkc-1", " identityPoolId=pool=2"}})
	if want := "n,,\x01auth=Bearer abc.def\x01identityPoolId=pool=2\x01logicalCluster=lkc-1\x01\x01"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, token := range []string{"abc\x01auth=Bearer other", "abc def", "über"} {
		if got, err := authenticate(SASL{Token: Secret(token)}); !credentialsRefused(err) || strings.Contains(err.Error(), token) {
			t.Errorf("token %q: %q, %v", token, got, err)
		}
	}
	for _, extension := range []string{"auth=x", "=x", "name", "a1=x", "name=\x01"} {
		if _, err := authenticate(SASL{Token: "t", Extensions: []string{extension}}); err == nil || !strings.HasPrefix(err.Error(), "ONCEBUS_SASL_EXTENSIONS: ") {
			t.Errorf("extension %q: %v", extension, err)
		}
	}
}

// TestBearerRefusal: the broker's JSON is acknowledged with the byte 1, so that
// its error follows (RFC 7628, section 3.2.3).
func TestBearerRefusal(t *testing.T) {
	c := goodSecurity()
	c.SASL = SASL{Mechanism: SASLOAuthBearer, Token: "t"}
	s, _ := newSecurity(c)
	m, err := s.mechanism(c)
	if err != nil {
		t.Fatal(err)
	}
	begin := func() *bearerSession {
		session, _, err := m.Authenticate(t.Context(), "localhost:9092")
		if err != nil {
			t.Fatal(err)
		}
		return session.(*bearerSession)
	}
	if done, reply, err := begin().Challenge(nil); !done || reply != nil || err != nil {
		t.Errorf("accepted: %v, %q, %v", done, reply, err)
	}
	session := begin()
	if done, reply, err := session.Challenge([]byte(`{"status":"invalid_token"}`)); done || string(reply) != "\x01" || err != nil {
		t.Errorf("refused: %v, %q, %v", done, reply, err)
	}
	if _, _, err := session.Challenge(nil); !credentialsRefused(err) {
		t.Errorf("refused without an error code: %v", err)
	}
	if _, _, err := begin().Challenge([]byte("no JSON")); err == nil {
		t.Error("an answer that is no refusal is taken for one")
	}
}

func TestReadSecretShowsNoSecret(t *testing.T) {
	for _, path := range []string{"line\nline", "-----BEGIN PRIVATE KEY-----"} {
		if _, err := ReadSecret(path); err == nil || strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestRefusedCredentialsEndTheProcessInTime: at the start at once, while it
// runs after a time in which they may be changing.
func TestRefusedCredentialsEndTheProcessInTime(t *testing.T) {
	refused := fmt.Errorf("dial: %w", explainCredentials(kerr.SaslAuthenticationFailed, SASL{Username: "u", Mechanism: SASLPlain}))
	synctest.Test(t, func(t *testing.T) {
		sleep := func(d time.Duration) { // by the bubble's clock
			if err := kafka.Pause(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		p := patience{limit: credentialsPatience}
		for waited := time.Duration(0); waited < credentialsPatience; waited += time.Second {
			if p.stops(refused, time.Now()) {
				t.Fatalf("stops after %v", waited)
			}
			sleep(time.Second)
		}
		if !p.stops(refused, time.Now()) {
			t.Errorf("does not stop after %v", credentialsPatience)
		}
		if p.stops(refused, time.Now().Add(-time.Hour)) {
			t.Error("stops at once although the client was accepted for an hour")
		}
		sleep(credentialsPatience)
		if p.stops(errors.New("connection reset"), time.Now()) || p.stops(refused, time.Now()) {
			t.Error("a failure of another kind does not begin the time anew")
		}
		if p.stops(nil, time.Now()) || !p.stops(kafka.ErrIllegalState, time.Now()) {
			t.Error("other errors are not judged by their kind")
		}
	})
}

func TestDeniedNamesTheRight(t *testing.T) {
	const want = "no right to Read on topic raw, grant it (kafka-acls.sh --add --allow-principal ... --operation Read --topic raw): "
	if got := kafka.Denied(kerr.TopicAuthorizationFailed, "Read", kafka.ResourceTopic, "raw"); !strings.HasPrefix(got.Error(), want) || kafka.Classify(got) != kafka.Stop {
		t.Errorf("got %v", got)
	}
	if got := kafka.Denied(kerr.TopicAuthorizationFailed, "Read", kafka.ResourceGroup, "g"); !errors.Is(got, kerr.TopicAuthorizationFailed) || strings.Contains(got.Error(), "no right") {
		t.Errorf("another resource: %v", got)
	}
	offsets := fmt.Errorf("unable to commit transaction offsets: topic raw partition 2: %w", kerr.TopicAuthorizationFailed)
	if got := kafka.DeniedOffsets(offsets); !strings.HasPrefix(got.Error(), want) {
		t.Errorf("offsets: %v", got)
	}
}

func TestMissingRights(t *testing.T) {
	topics := &topology{app: "app", manifest: "app-manifest", repartition: "app-repartition", routed: []string{"raw", "both"}, emissions: []string{"out", "both"}}
	all := []kadm.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs}
	for _, tt := range []struct {
		topic   string
		code    int16
		allowed []kadm.ACLOperation
		want    []string
	}{
		{"raw", 0, all[:1], nil},
		{"raw", 0, all[1:], []string{"Read"}},
		{"out", 0, all[:3], []string{"DescribeConfigs"}},
		{"both", 0, all[2:3], []string{"Read", "Write", "DescribeConfigs"}},
		{"app-manifest", 0, all, nil},
		{"app-repartition-changelog", 0, all[:1], []string{"Write", "DescribeConfigs"}},
		{"app-repartition", kerr.TopicAuthorizationFailed.Code, nil, []string{"Read", "Write", "DescribeConfigs"}},
		{"app-repartition", kerr.UnknownTopicOrPartition.Code, nil, nil},
		{"out", 0, nil, nil}, // a broker that does not say
	} {
		if got := topics.missing(tt.topic, tt.code, tt.allowed); len(got)+len(tt.want) > 0 && !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s with %v: missing %v, want %v", tt.topic, tt.allowed, got, tt.want)
		}
	}
}

// TestProcessEndsWhenItIsNoLongerAccepted: also with a transaction open, which
// waits for a broker to take its records.
func TestProcessEndsWhenItIsNoLongerAccepted(t *testing.T) {
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.StopTimeout = 2 * time.Second
	var mu sync.Mutex
	var open []net.Conn
	refusing := false
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if refusing {
			return nil, fmt.Errorf("%w: test", errCredentials)
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			open = append(open, conn)
		}
		return conn, err
	}
	i := b.ready(b.startWith(cfg, func(p *Processor) { p.patience = 500 * time.Millisecond }, kgo.Dialer(dial)))
	var records []*kgo.Record
	for n := range 1000 {
		records = append(records, &kgo.Record{Topic: "signals.raw", Partition: int32(n % 4), Value: fmt.Appendf(nil, `{"id":"%d"}`, n)})
	}
	b.produce(records...)
	mu.Lock()
	refusing = true
	for _, conn := range open {
		_ = conn.Close() // the client closed some before
	}
	mu.Unlock()
	b.wait("the end", func() bool {
		select {
		case <-i.done:
			return true
		default:
			return false
		}
	})
	if i.err == nil || !credentialsRefused(i.err) {
		t.Errorf("ended with %v", i.err)
	}
	// A process would be gone now; here a worker still waits for a broker.
	mu.Lock()
	refusing = false
	mu.Unlock()
	b.wait("the workers' end", func() bool {
		stacks := make([]byte, 4<<20)
		return !bytes.Contains(stacks[:goruntime.Stack(stacks, true)], []byte("(*worker).run("))
	})
}
