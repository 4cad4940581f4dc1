package ingress

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"oncebus/processor/security"
)

// secretPrefix begins the environment variable of every secret; nextSuffix ends the variable of the secret that
// will replace it.
const (
	secretPrefix = "ONCEBUS_INGRESS_SECRET_" //nolint:gosec // the name of a setting, not a secret
	nextSuffix   = "_NEXT"
)

// reloadInterval is the shortest time between two reads of a file. Files are read again only when a request or
// a connection needs them.
const reloadInterval = 2 * time.Second

// Secrets has the settings SECRET_<NAME> and SECRET_<NAME>_NEXT, by the part of the name that follows SECRET_.
type Secrets map[string]SecretSource

// A SecretSource is where a secret comes from: either its value, or the path of the file that contains it. The
// server reads the file again when it changes.
type SecretSource struct {
	Value security.Secret
	Path  string
}

// keyring has the secrets that are valid for a signature: one secret, or two during a rotation.
type keyring struct {
	now     func() time.Time
	log     *slog.Logger
	reloads reloadCounters
	checks  []func([]byte) error // one per signature that uses the secret: why that signature must not use it
	asked   []string             // paths whose GETs are signed with the secret

	current, next *secret
}

// secret is one setting. Its value is "" if it is a next secret that does not exist.
type secret struct {
	security.Reloaded[string]
	variable string
	source   SecretSource
	optional bool // its file may appear and disappear, as the file of a next secret does
}

// newKeyring prepares the secrets of this name; load reads them.
func newKeyring(secrets Secrets, name string) *keyring {
	k := &keyring{now: time.Now}
	k.current = k.newSecret(secretPrefix+name, secrets[name], false)
	k.next = k.newSecret(secretPrefix+name+nextSuffix, secrets[name+nextSuffix], true)
	return k
}

func (k *keyring) newSecret(variable string, source SecretSource, optional bool) *secret {
	s := &secret{variable: variable, source: source, optional: optional}
	s.Reloaded = security.Reloaded[string]{
		Load:     func() (string, error) { return k.read(s) },
		Equal:    func(a, b string) bool { return a == b },
		Interval: reloadInterval,
		Now:      func() time.Time { return k.now() },
		Changed: func(value string) {
			k.reloads.succeeded()
			k.log.Info("secret reloaded", "variable", variable+"_FILE", "present", value != "")
		},
		Failed: func(err error) {
			k.reloads.failed()
			k.log.Error("secret reload failed", "variable", variable+"_FILE", "error", err)
		},
	}
	return s
}

// load reads the secrets for the first time.
func (k *keyring) load() error {
	if k.current.source == (SecretSource{}) {
		return fmt.Errorf("%s: not set, want the secret, or the path of its file in %s_FILE", k.current.variable, k.current.variable)
	}
	var errs []error
	for _, s := range []*secret{k.current, k.next} {
		if _, err := s.Start(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.variable, err))
		}
	}
	return errors.Join(errs...)
}

// read returns the present value of a secret, or why the secret cannot be used.
func (k *keyring) read(s *secret) (string, error) {
	value := string(s.source.Value)
	if s.source.Path != "" {
		var err error
		value, err = security.ReadSecret(s.source.Path)
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		if err := security.CheckClean(value); err != nil {
			return "", fmt.Errorf("%s %w", s.source.Path, err)
		}
	}
	if value == "" {
		return "", nil
	}
	for _, check := range k.checks {
		if err := check([]byte(value)); err != nil {
			return "", err
		}
	}
	return value, nil
}

// secrets returns the secrets that are valid now.
func (k *keyring) secrets() [][]byte {
	current, _ := k.current.Current()
	valid := [][]byte{[]byte(current)}
	if next, _ := k.next.Current(); next != "" {
		valid = append(valid, []byte(next))
	}
	return valid
}
