package main

import (
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
)

// TestSecretFilesAreRemembered: the processor reads them again, but for the
// key secret, which must never change.
func TestSecretFilesAreRemembered(t *testing.T) {
	path := writeFile(t, "secret", "sixteen bytes or more\n")
	s, err := parseSettings([]string{
		"ONCEBUS_KEY_SECRET_FILE=" + path, "ONCEBUS_SASL_PASSWORD_FILE=" + path, "ONCEBUS_SASL_TOKEN_FILE=" + path, "ONCEBUS_SASL_OAUTH_CLIENT_SECRET_FILE=" + path,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{
		"password": string(s.Processor.SASL.PasswordFile), "token": string(s.Processor.SASL.TokenFile), "client secret": string(s.Processor.SASL.OAuth.ClientSecretFile),
	} {
		if got != path {
			t.Errorf("the file of the %s is %q, want %q", name, got, path)
		}
	}
	s, err = parseSettings([]string{"ONCEBUS_SASL_PASSWORD=from the environment"})
	if err != nil || s.Processor.SASL.PasswordFile != "" {
		t.Errorf("a password from the environment has the file %q, %v", s.Processor.SASL.PasswordFile, err)
	}
}

// TestWrongSettingsShowNoSecret: secrets in the wrong place, and settings
// beside them that are wrong.
func TestWrongSettingsShowNoSecret(t *testing.T) {
	const secret = "canary-5f0e-canary"
	const pem = "-----BEGIN PRIVATE KEY-----\n" + secret + "\n-----END PRIVATE KEY-----\n"
	routes := writeFile(t, "routes.yaml", "routes: []")
	for _, environ := range [][]string{
		{"ONCEBUS_TLS_ENABLED=true", "ONCEBUS_TLS_CERT_FILE=" + pem, "ONCEBUS_TLS_KEY_FILE=" + pem, "ONCEBUS_TLS_CA_FILE=" + pem},
		{"ONCEBUS_KEY_SECRET_FILE=" + pem, "ONCEBUS_SASL_PASSWORD_FILE=" + secret + "\n"},
		{"ONCEBUS_SASL_MECHANISM=PLAIN", "ONCEBUS_SASL_PASSWORD=" + secret, "ONCEBUS_SASL_TOKEN=" + secret, "ONCEBUS_KEY_SECRET=" + secret},
		{"ONCEBUS_SASL_MECHANISM=GSSAPI", "ONCEBUS_SASL_PASSWORD=" + secret, "ONCEBUS_PARTITIONS=many"},
		{"ONCEBUS_SASL_MECHANISM=OAUTHBEARER", "ONCEBUS_SASL_OAUTH_TOKEN_URL=https://id:" + secret + "@login.example.com", "ONCEBUS_SASL_OAUTH_CLIENT_SECRET=" + secret},
		{"ONCEBUS_SASL_MECHANISM=OAUTHBEARER", "ONCEBUS_SASL_OAUTH_TOKEN_URL=https://id:" + secret + "@login:%zz", "ONCEBUS_SASL_OAUTH_CLIENT_SECRET=" + secret},
	} {
		got := execute(t.Context(), append(environ, "ONCEBUS_BROKERS=kafka:9092", "ONCEBUS_ROUTES="+routes), "", "run")
		if got.code != cli.ExitWrong {
			t.Errorf("%q: exit code %d, want %d", environ, got.code, cli.ExitWrong)
		}
		if strings.Contains(got.stdout+got.stderr, secret) {
			t.Errorf("%q shows the secret:\n%s", environ, got.stderr)
		}
	}
}
