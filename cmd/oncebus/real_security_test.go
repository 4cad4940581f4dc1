//go:build unix

package main_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest"
)

// The canaries: secrets that no output of any process may show.
const (
	canaryPlain     = "canary-plain-0f3a"
	canaryScram     = "canary-scram-77c1"
	canaryClient    = "canary-client-5d20"
	canaryKeySecret = "canary-key-secret-91e4"
	canaryWrong     = "canary-wrong-2b8f"
	canaryFirst     = "canary-first-a6d9"
	canarySecond    = "canary-second-c07b"
)

func canaries() []string {
	return []string{canaryPlain, canaryScram, canaryClient, canaryKeySecret, canaryWrong, canaryFirst, canarySecond}
}

// reauthInterval is the time after which the broker makes SASL clients authenticate
// again (KIP-368): several times in every test.
const reauthInterval = 3 * time.Second

// secured is a Kafka with the standard authorizer and listeners for SASL over TLS, for client certificates, and with an expired
// certificate. Only the test uses the plain listener, whose anonymous principal is a super user.
type secured struct {
	*kafkatest.Broker
	t          *testing.T
	dir        string
	ca, second *authority
	tokens     *tokenEndpoint
}

// The users with all rights, by authentication method.
var securedSupers = []string{"ANONYMOUS", "plain", "scram", "scram-changing", "bearer", "mtls"}

func startSecured(t *testing.T) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{t: t, dir: dir, ca: newAuthority(t, dir, "first-ca"), second: newAuthority(t, dir, "second-ca")}
	trust := kafkatest.ReplaceFile(t, filepath.Join(dir, "truststore.pem"), append(s.ca.PEM(), s.second.PEM()...))
	year := time.Now().Add(365 * 24 * time.Hour)
	supers := "User:" + strings.Join(securedSupers, ";User:")
	modules := "org.apache.kafka.common.security."
	properties := map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           supers,
		"listener.name.sasl.sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.sasl.plain.sasl.jaas.config":         modules + `plain.PlainLoginModule required user_plain="` + canaryPlain + `";`,
		"listener.name.sasl.scram-sha-256.sasl.jaas.config": modules + "scram.ScramLoginModule required;",
		"listener.name.sasl.scram-sha-512.sasl.jaas.config": modules + "scram.ScramLoginModule required;",
		"listener.name.sasl.oauthbearer.sasl.jaas.config":   modules + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`,
		"connections.max.reauth.ms":                         fmt.Sprint(reauthInterval.Milliseconds()),
		"listener.name.sasl.ssl.keystore.type":              "PEM",
		"listener.name.sasl.ssl.keystore.location":          s.ca.keystore("sasl", year),
		"listener.name.mtls.ssl.keystore.type":              "PEM",
		"listener.name.mtls.ssl.keystore.location":          s.ca.keystore("mtls", year),
		"listener.name.mtls.ssl.truststore.type":            "PEM",
		"listener.name.mtls.ssl.truststore.location":        trust,
		"listener.name.mtls.ssl.client.auth":                "required",
		"listener.name.mtls.ssl.principal.mapping.rules":    "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
		"listener.name.expired.ssl.keystore.type":           "PEM",
		"listener.name.expired.ssl.keystore.location":       s.ca.keystore("expired", time.Now().Add(-time.Hour)),
	}
	options := []kafkatest.Option{
		kafkatest.WithListener(kafkatest.Listener{Name: "SASL", Protocol: "SASL_SSL"}),
		kafkatest.WithListener(kafkatest.Listener{Name: "MTLS", Protocol: "SSL"}),
		kafkatest.WithListener(kafkatest.Listener{Name: "EXPIRED", Protocol: "SSL"}),
	}
	for name, value := range properties {
		options = append(options, kafkatest.WithProperty(name, value))
	}
	s.Broker = kafkatest.Start(t, options...)
	s.tokens = startTokenEndpoint(t, s.ca)
	s.addUser("scram", canaryScram)
	return s
}

// addUser adds a SCRAM user.
func (s *secured) addUser(name, password string) {
	s.t.Helper()
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		upsert := kadm.UpsertSCRAM{User: name, Mechanism: mechanism, Iterations: 4096, Password: password}
		done, err := s.Admin().AlterUserSCRAMs(s.t.Context(), nil, []kadm.UpsertSCRAM{upsert})
		if err == nil {
			err = done.Error()
		}
		if err != nil {
			s.t.Fatalf("make user %s: %v", name, err)
		}
	}
}

// at returns the settings for clients of a listener that trust the broker's authority.
func (s *secured) at(listener string, settings ...string) []string {
	return append([]string{
		"BROKERS=" + s.ListenAddrs(listener)[0], "TLS_ENABLED=true", "TLS_CA_FILE=" + s.ca.file(),
		"KEY_SECRET=" + canaryKeySecret, "LOG_LEVEL=debug",
	}, settings...)
}

// world returns the part of the broker for one app.
func (s *secured) world(t *testing.T, app string) *world {
	t.Helper()
	return newWorldOf(t, app, realRoutes, s.Seeds(), s.Admin(), s.External())
}

// silent checks that neither the output nor the pages of a process contain a canary
// or a key.
func (s *secured) silent(t *testing.T, svc *service, more ...string) {
	t.Helper()
	shown := map[string]string{"output": svc.text()}
	for _, path := range []string{"/metrics", "/state", "/readyz", "/healthz"} {
		if _, body, err := svc.Get(context.Background(), path); err == nil {
			shown[path] = body
		}
	}
	for where, text := range shown {
		for _, canary := range append(canaries(), more...) {
			for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary)), fmt.Sprintf("%x", canary)} {
				if strings.Contains(text, form) {
					t.Errorf("%s of process %s contains the secret %s", where, svc.Name, form)
				}
			}
		}
		for _, sign := range []string{"PRIVATE KEY", "Bearer ", "panic:"} {
			if strings.Contains(text, sign) {
				t.Errorf("%s of process %s contains %q", where, svc.Name, sign)
			}
		}
	}
}

// failure waits until a process ends with exit code 1, and returns its last line, the reason.
func (s *service) failure() string {
	s.t.Helper()
	if code := s.exited(); code != cli.ExitFailed {
		s.t.Errorf("process %s: exit code %d, want %d", s.Name, code, cli.ExitFailed)
	}
	lines := s.lines()
	if len(lines) == 0 || lines[len(lines)-1]["msg"] != "failed" {
		s.t.Fatalf("process %s: its last line has no error:\n%s", s.Name, lastLines(s.text(), 5))
	}
	return fmt.Sprint(lines[len(lines)-1]["error"])
}

// TestRealSecurity shares one broker among its subtests, each with its own app and
// user.
func TestRealSecurity(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	for name, part := range map[string]func(*testing.T){
		"accepted": s.testAccepted, "refused": s.testRefused,
		"certificates replaced": s.testCertificatesReplaced, "password changed": s.testPasswordChanged, "token renewed": s.testTokenRenewed,
		"least rights": s.testRights, "rights withdrawn": s.testRightsWithdrawn, "right to create": s.testCreateRight,
	} {
		t.Run(name, part)
	}
}

// testAccepted: the main path works with every authentication method, across several re-authentications.
func (s *secured) testAccepted(t *testing.T) {
	secretFile := func(name, secret string) string {
		return kafkatest.ReplaceFile(t, filepath.Join(s.dir, name), []byte(secret+"\n"))
	}
	mtls, key := s.ca.client("mtls")
	ways := map[string][]string{
		"plain":    s.at("SASL", "SASL_MECHANISM=PLAIN", "SASL_USERNAME=plain", "SASL_PASSWORD="+canaryPlain),
		"scram256": s.at("SASL", "SASL_MECHANISM=SCRAM-SHA-256", "SASL_USERNAME=scram", "SASL_PASSWORD_FILE="+secretFile("scram", canaryScram)),
		"scram512": s.at("SASL", "SASL_MECHANISM=SCRAM-SHA-512", "SASL_USERNAME=scram", "SASL_PASSWORD="+canaryScram),
		"oidc":     s.at("SASL", s.tokens.settings(canaryClient)...),
		"mtls":     s.at("MTLS", mtls...),
	}
	for name, settings := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := s.world(t, name)
			svc := w.start("a", settings...)
			defer s.silent(t, svc, keyLines(key)...)
			svc.awaitReady()
			all := w.realTraffic()
			send(w, 100, all...)
			w.checkTraffic(all)
			svc.stop()
		})
	}
}

// testRefused: if either side rejects the other, the process ends immediately, with exit code 1 and the reason.
func (s *secured) testRefused(t *testing.T) {
	other := newAuthority(t, t.TempDir(), "other-ca")
	foreign, _ := other.client("mtls")
	mtls, _ := s.ca.client("mtls")
	plain := func(settings ...string) []string {
		return s.at("SASL", append([]string{"SASL_MECHANISM=PLAIN", "SASL_USERNAME=plain", "SASL_PASSWORD=" + canaryPlain}, settings...)...)
	}
	for name, tt := range map[string]struct {
		settings []string
		want     string
	}{
		"wrong authority":      {plain("TLS_CA_FILE=" + other.file()), "signed by none of the authorities in ONCEBUS_TLS_CA_FILE"},
		"wrong server name":    {plain("TLS_SERVER_NAME=kafka.example.com"), "its certificate is for another name"},
		"expired broker":       {s.at("EXPIRED"), "its certificate is expired or not valid yet"},
		"no certificate":       {s.at("MTLS"), "it rejects the connection, most likely because of our certificate"},
		"foreign certificate":  {s.at("MTLS", foreign...), "it rejects the connection, most likely because of our certificate"},
		"wrong password":       {plain("SASL_PASSWORD=" + canaryWrong), `the broker rejects user "plain" with PLAIN`},
		"wrong SCRAM password": {plain("SASL_MECHANISM=SCRAM-SHA-512", "SASL_USERNAME=scram", "SASL_PASSWORD="+canaryWrong), `the broker rejects user "scram" with SCRAM-SHA-512`},
		"unknown user":         {plain("SASL_MECHANISM=SCRAM-SHA-256", "SASL_USERNAME=intruder"), `the broker rejects user "intruder" with SCRAM-SHA-256`},
		"not a SASL port":      {s.at("MTLS", append(mtls, "SASL_MECHANISM=PLAIN", "SASL_USERNAME=plain", "SASL_PASSWORD="+canaryPlain)...), "ONCEBUS_SASL_MECHANISM"},
		"expired token":        {s.at("SASL", "SASL_MECHANISM=OAUTHBEARER", "SASL_TOKEN="+unsecuredToken("bearer", time.Now().Add(-time.Hour))), "the broker rejects the token"},
		"wrong client secret":  {s.at("SASL", s.tokens.settings(canaryWrong)...), "the token endpoint rejects the request, see ONCEBUS_SASL_OAUTH_CLIENT_ID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := s.world(t, "refused")
			svc := w.start("a", tt.settings...)
			defer s.silent(t, svc)
			if got := svc.failure(); !strings.Contains(got, tt.want) {
				t.Errorf("process ended with\n%s\nwant %q in it", got, tt.want)
			}
		})
	}
}
