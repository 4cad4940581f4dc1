package security

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

const hidden = "correct horse battery"

func TestSecurityMistakes(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(*Config)
		want   []string // how each line starts
	}{
		{"files without TLS", func(c *Config) { c.TLS = TLS{CAFile: "a", CertFile: "b", KeyFile: "c", ServerName: "d"} },
			[]string{"ONCEBUS_TLS_CA_FILE: set, but TLS is off", "ONCEBUS_TLS_CERT_FILE: set,", "ONCEBUS_TLS_KEY_FILE: set,", "ONCEBUS_TLS_SERVER_NAME: set,"}},
		{"missing authority and key", func(c *Config) {
			c.TLS = TLS{Enabled: true, CAFile: filepath.Join(dir, "none.pem"), CertFile: empty}
		}, []string{"ONCEBUS_TLS_CA_FILE: open ", "ONCEBUS_TLS_CERT_FILE: set without ONCEBUS_TLS_KEY_FILE"}},
		{"key without certificate", func(c *Config) { c.TLS = TLS{Enabled: true, KeyFile: empty} },
			[]string{"ONCEBUS_TLS_KEY_FILE: set without ONCEBUS_TLS_CERT_FILE"}},
		{"no PEM inside", func(c *Config) { c.TLS = TLS{Enabled: true, CAFile: empty, CertFile: empty, KeyFile: empty} },
			[]string{"ONCEBUS_TLS_CA_FILE: " + empty + " contains no PEM certificate", "ONCEBUS_TLS_CERT_FILE, ONCEBUS_TLS_KEY_FILE: tls: failed to find any PEM data"}},
		{"unknown mechanism", func(c *Config) { c.SASL = SASL{Mechanism: "GSSAPI", Username: "u", Password: "p"} },
			[]string{`ONCEBUS_SASL_MECHANISM: "GSSAPI" is unknown, want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512`}},
		{"mechanism alone", func(c *Config) { c.SASL = SASL{Mechanism: SASLScramSHA512} },
			[]string{"ONCEBUS_SASL_USERNAME: empty", "ONCEBUS_SASL_PASSWORD: empty"}},
		{"user without mechanism", func(c *Config) { c.SASL = SASL{Username: "u", Password: hidden} },
			[]string{"ONCEBUS_SASL_USERNAME: set, but", "ONCEBUS_SASL_PASSWORD: set, but"}},
		{"unencrypted password", func(c *Config) { c.SASL = SASL{Mechanism: SASLPlain, Username: "u", Password: hidden} },
			[]string{"ONCEBUS_SASL_MECHANISM: PLAIN would send the password unencrypted"}},
		{"unencrypted token", func(c *Config) { c.SASL = SASL{Mechanism: SASLOAuthBearer, Token: hidden} },
			[]string{"ONCEBUS_SASL_MECHANISM: OAUTHBEARER would send the token unencrypted"}},
		{"token alone", func(c *Config) {
			c.SASL, c.TLS.Enabled = SASL{Mechanism: SASLOAuthBearer, Token: hidden, Extensions: []string{"logicalCluster=lkc-1"}}, true
		}, nil},
		{"no token", func(c *Config) { c.SASL, c.TLS.Enabled = SASL{Mechanism: SASLOAuthBearer}, true }, []string{"ONCEBUS_SASL_TOKEN: empty"}},
		{"token endpoint", func(c *Config) {
			c.TLS.Enabled = true
			c.SASL = SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenURL: "https://login.example.com/token", ClientID: "c", ClientSecret: hidden}}
		}, nil},
		{"two sources of tokens, user and bad extension", func(c *Config) {
			c.TLS.Enabled = true
			c.SASL = SASL{Mechanism: SASLOAuthBearer, Username: "u", Token: hidden, OAuth: OAuth{TokenURL: "https://x"}, Extensions: []string{"x"}}
		}, []string{"ONCEBUS_SASL_USERNAME: set, but OAUTHBEARER requires a token", "ONCEBUS_SASL_TOKEN: set together with ONCEBUS_SASL_OAUTH_TOKEN_URL", `ONCEBUS_SASL_EXTENSIONS: "x"`}},
		{"unencrypted token endpoint", func(c *Config) {
			c.TLS.Enabled = true
			c.SASL = SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenURL: "http://login.example.com/token", CAFile: "a"}}
		}, []string{"ONCEBUS_SASL_OAUTH_CLIENT_ID: empty", "ONCEBUS_SASL_OAUTH_CLIENT_SECRET: empty", `ONCEBUS_SASL_OAUTH_TOKEN_URL: "http" would send the client secret unencrypted`,
			"ONCEBUS_SASL_OAUTH_CA_FILE: set, but"}},
		{"endpoint settings without it", func(c *Config) {
			c.TLS.Enabled = true
			c.SASL = SASL{Mechanism: SASLOAuthBearer, Token: hidden, OAuth: OAuth{ClientID: "c", Scopes: []string{"s"}}}
		}, []string{"ONCEBUS_SASL_OAUTH_CLIENT_ID: set, but ONCEBUS_SASL_OAUTH_TOKEN_URL is not", "ONCEBUS_SASL_OAUTH_SCOPES: set, but"}},
		{"token with a password's mechanism", func(c *Config) {
			c.TLS.Enabled = true
			c.SASL = SASL{Mechanism: SASLScramSHA256, Username: "u", Password: hidden, Token: hidden}
		}, []string{"ONCEBUS_SASL_TOKEN: set, but requires ONCEBUS_SASL_MECHANISM=OAUTHBEARER"}},
		{"content of the key file", func(c *Config) {
			c.TLS = TLS{Enabled: true, CertFile: empty, KeyFile: "-----BEGIN PRIVATE KEY-----" + hidden}
		},
			[]string{"ONCEBUS_TLS_KEY_FILE: contains the file's content"}},
		{"PLAIN over TLS", func(c *Config) {
			c.SASL = SASL{Mechanism: SASLPlain, Username: "u", Password: hidden}
			c.TLS.Enabled = true
		}, nil},
		{"PLAIN on this machine", func(c *Config) {
			c.SASL = SASL{Mechanism: SASLPlain, Username: "u", Password: hidden}
			c.Brokers = []string{"localhost:9092", "127.0.0.2:9092", "[::1]:9092"}
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := goodSecurity()
			tt.change(&c)
			var got []string
			if err := c.Validate(); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if len(got) != len(tt.want) {
				t.Fatalf("got %q, want %q", got, tt.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], tt.want[i]) {
					t.Errorf("mistake %d is %q, want %q", i, got[i], tt.want[i])
				}
				if strings.Contains(got[i], hidden) {
					t.Errorf("mistake %d shows the password: %q", i, got[i])
				}
			}
		})
	}
}

// TestClientOptionsConnect connects to a broker that requires TLS with a client
// certificate, and SCRAM: once with the right password, once with a wrong one.
func TestClientOptionsConnect(t *testing.T) {
	ca, cert, key := writeCertificates(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pemBytes, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	pool.AppendCertsFromPEM(pemBytes)
	cluster := embedded.Start(t, kfake.EnableSASL(), kfake.Superuser(SASLScramSHA512, "alice", hidden),
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}))

	c := goodSecurity()
	c.Brokers = cluster.ListenAddrs()
	c.TLS = TLS{Enabled: true, CAFile: ca, CertFile: cert, KeyFile: key, ServerName: "broker.test"}
	c.SASL = SASL{Mechanism: SASLScramSHA512, Username: "alice", Password: hidden}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := ping(t, c); err != nil {
		t.Errorf("with the right password: %v", err)
	}
	c.SASL.Password = "wrong"
	if err := ping(t, c); err == nil {
		t.Error("with a wrong password: no error")
	}
}

func ping(t *testing.T, c Config) error {
	t.Helper()
	opts, err := c.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(append(opts, kgo.RequestRetries(0))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return client.Ping(ctx)
}

// writeCertificates makes an authority and a certificate of it for broker and
// client. It returns the files of authority, certificate and key.
func writeCertificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	authority, dir := kafkatest.NewAuthority(t, "authority"), t.TempDir()
	certPEM, keyPEM := authority.Issue("broker.test", time.Now().Add(time.Hour))
	return kafkatest.ReplaceFile(t, filepath.Join(dir, "ca.pem"), authority.PEM()),
		kafkatest.ReplaceFile(t, filepath.Join(dir, "cert.pem"), certPEM), kafkatest.ReplaceFile(t, filepath.Join(dir, "key.pem"), keyPEM)
}

// goodSecurity returns the Config of an environment that sets only the brokers.
func goodSecurity() Config {
	return Config{Brokers: []string{"kafka-1:9092", "kafka-2:9092"}, AppID: "oncebus", InstanceID: "host-1.example"}
}
