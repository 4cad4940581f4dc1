package settings

import (
	"testing"

	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/ingress"
	"oncebus/processor/security"
)

// TestSecretFilesAreRemembered: the processor reads secret files again, except that
// of the key secret, which must never change.
func TestSecretFilesAreRemembered(t *testing.T) {
	path := clitest.WriteFile(t, "secret", "sixteen bytes or more\n")
	s, err := Parse([]string{
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
	s, err = Parse([]string{"ONCEBUS_SASL_PASSWORD=from the environment"})
	if err != nil || s.Processor.SASL.PasswordFile != "" {
		t.Errorf("a password from the environment has the file %q, %v", s.Processor.SASL.PasswordFile, err)
	}
}

func TestIngressSecrets(t *testing.T) {
	got, err := ingressSecrets(map[string]string{
		"ONCEBUS_INGRESS_SECRET_A": "a", "ONCEBUS_INGRESS_SECRET_A_NEXT_FILE": "f", "ONCEBUS_INGRESS_SECRET_B": "b", "ONCEBUS_INGRESS_SECRET_B_FILE": "f",
		"ONCEBUS_INGRESS_SECRET_C": "", "ONCEBUS_KEY_SECRET": "k",
	})
	if err == nil || err.Error() != "ONCEBUS_INGRESS_SECRET_B_FILE: ONCEBUS_INGRESS_SECRET_B is also set, want only one of them" {
		t.Error(err)
	}
	want := ingress.Secrets{"A": {Value: security.Secret("a")}, "A_NEXT": {Path: "f"}, "B": {Value: security.Secret("b")}}
	if len(got) != len(want) {
		t.Errorf("%d secrets, want %d", len(got), len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("secret %s is not as set", name)
		}
	}
}
