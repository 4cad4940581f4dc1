package security

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// Secret is a value that must not be shown. It prints as ***. An empty Secret prints as "", so that an operator
// sees whether the secret is set.
type Secret string

// Bytes returns the value itself; nil if it is empty.
func (s Secret) Bytes() []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// String returns ***; "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// Format implements fmt.Formatter. Without it, fmt's error text for a wrong verb such as %d would contain the
// value.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, s.String()) }

// MarshalText implements encoding.TextMarshaler, which encoding/json uses.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// SecretPath is the path of the file that contains a Secret; "" if a variable contains the Secret itself. The
// code of the commands sets the path from the settings: the tag `file` of a Secret names the field that has its
// path. Every use reads the file again, so that an operator can change the secret without a restart.
type SecretPath string

// secret returns a function that returns the current secret: it reads the secret's file at every call. Without
// a path, the function always returns value.
func (s *credentials) secret(kind string, value Secret, path SecretPath) func() string {
	s.redact.learn(kind, string(value))
	if path == "" {
		return func() string { return string(value) }
	}
	r := &Reloaded[string]{
		Load:  func() (string, error) { return ReadSecret(string(path)) },
		Equal: func(a, b string) bool { return a == b },
		Changed: func(value string) {
			s.redact.learn(kind, value)
			s.metrics.reloaded(kind)
			s.log.Info("secret reloaded", "secret", kind)
		},
		Failed: func(err error) {
			s.metrics.failed(kind)
			s.log.Error("secret reload failed", "secret", kind, "error", err)
		},
		value: string(value),
	}
	return func() string {
		current, _ := r.Current()
		return current
	}
}

// ReadSecret returns the content of a file. It removes one final line break, because editors and echo append
// one. An empty file is an error.
func ReadSecret(path string) (string, error) {
	content, err := readFile(path)
	if err != nil {
		return "", err
	}
	value := WithoutLineBreak(content)
	if value == "" {
		return "", fmt.Errorf("%s is empty, want the secret", path)
	}
	return value, nil
}

// WithoutLineBreak returns a secret without one final line break, which editors, echo and here-documents
// append. A variable and a file with the same content therefore have the same secret.
func WithoutLineBreak(content string) string {
	return strings.TrimSuffix(strings.TrimSuffix(content, "\n"), "\r")
}

// CleanSecret returns the secret of a signature that a variable contains. It removes a final line break, as
// ReadSecret does, and returns the error of CheckClean.
func CleanSecret(content string) (string, error) {
	value := WithoutLineBreak(content)
	return value, CheckClean(value)
}

// CheckClean returns an error if the secret of a signature begins or ends with characters that are most likely
// there by mistake, because with them no signature of a sender would be valid. The key secret is not checked: a
// running app may have such characters in it.
func CheckClean(value string) error {
	switch {
	case strings.HasPrefix(value, "\ufeff"):
		return errors.New("begins with a byte order mark (EF BB BF), which is part of no secret: save it without")
	case strings.TrimSpace(value) != value:
		return errors.New("begins or ends with white space or a second line break, which is part of no secret: take it out")
	}
	return nil
}

// CheckSecret returns an error if a route requires the key secret and c does not have it, or has a secret that
// is too short. Validate cannot check this, because it does not know the routes, and a command without brokers
// does not call Validate.
func (c Config) CheckSecret(needed bool) error {
	switch {
	case !needed:
		return nil
	case c.KeySecret == "":
		return errors.New("ONCEBUS_KEY_SECRET: not set, but a route requires it; set it or ONCEBUS_KEY_SECRET_FILE")
	}
	return c.keySecretMistake()
}

// keySecretMistake returns why the key secret cannot be used; nil if it can, or if it is not set.
func (c Config) keySecretMistake() error {
	if n := len(c.KeySecret); n > 0 && n < KeySecretMin {
		return fmt.Errorf("ONCEBUS_KEY_SECRET: %d bytes are too few, want at least %d", n, KeySecretMin)
	}
	return nil
}
