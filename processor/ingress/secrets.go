package ingress

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"oncebus/processor/security"
)

// secretPrefix leads the variable of every secret, and nextSuffix ends that of
// the one that takes over.
const (
	secretPrefix = "ONCEBUS_INGRESS_SECRET_" //nolint:gosec // the name of a setting, not a secret
	nextSuffix   = "_NEXT"
)

// reloadInterval is how often files that may change are read again, when
// something is asked of them.
const reloadInterval = 2 * time.Second

// Secrets are the settings SECRET_<NAME> and SECRET_<NAME>_NEXT, by what stands
// behind SECRET_.
type Secrets map[string]SecretSource

// A SecretSource is where a secret comes from: its value, or the path of the
// file that holds it. Files are read again when they change.
type SecretSource struct {
	Value security.Secret
	Path  string
}

// keyring is the secrets that a signature may be made with at present: one, or
// two while one takes over from the other. Files are looked at when a request
// comes, so there is nothing to start or stop.
type keyring struct {
	name  string // in the routes file
	now   func() time.Time
	log   *slog.Logger
	count reloads
	// check says why a secret cannot be used, for each signature that names it.
	check []func([]byte) error

	mu            sync.Mutex
	checked       time.Time
	current, next secret
	active        [][]byte
}

// secret is one setting.
type secret struct {
	variable string
	source   SecretSource
	value    string
	refused  string // why the file's present content is not used; "" if it is
}

// newKeyring prepares the secrets of a name; load reads them.
func newKeyring(secrets Secrets, name string) *keyring {
	return &keyring{
		name: name, now: time.Now,
		current: secret{variable: secretPrefix + name, source: secrets[name]},
		next:    secret{variable: secretPrefix + name + nextSuffix, source: secrets[name+nextSuffix]},
	}
}

// load reads the secrets for the first time.
func (k *keyring) load() error {
	k.checked = k.now()
	if k.current.source == (SecretSource{}) {
		return fmt.Errorf("%s: not set, want the secret, or the path of its file in %s_FILE", k.current.variable, k.current.variable)
	}
	var errs []error
	for _, s := range []*secret{&k.current, &k.next} {
		value, err := k.read(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.variable, err))
		}
		s.value = value
	}
	k.arm()
	return errors.Join(errs...)
}

// read returns a secret as it is now; "" for a next one that is not there. Its
// file may come and go: that is how a rotation begins and ends.
func (k *keyring) read(s *secret) (string, error) {
	value := string(s.source.Value)
	if s.source.Path != "" {
		var err error
		value, err = security.ReadSecret(s.source.Path)
		if s == &k.next && errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
	}
	if value == "" {
		return "", nil
	}
	for _, check := range k.check {
		if err := check([]byte(value)); err != nil {
			return "", err
		}
	}
	return value, nil
}

// arm makes what a verifier takes.
func (k *keyring) arm() {
	active := [][]byte{[]byte(k.current.value)}
	if k.next.value != "" {
		active = append(active, []byte(k.next.value))
	}
	k.active = active
}

// secrets returns those that are good now. They are not changed.
func (k *keyring) secrets() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.now(); now.Sub(k.checked) >= reloadInterval {
		k.reload()
		k.checked = now
	}
	return k.active
}

// reload reads the files again. What cannot be used is said once, and what was
// read before stays good.
func (k *keyring) reload() {
	changed := false
	for _, s := range []*secret{&k.current, &k.next} {
		if s.source.Path == "" {
			continue
		}
		value, err := k.read(s)
		switch {
		case err != nil && err.Error() != s.refused:
			s.refused = err.Error()
			k.count.failed()
			k.log.Error("a changed secret cannot be used, the old one stays in use", "variable", s.variable+"_FILE", "error", err)
		case err == nil:
			s.refused = ""
			if value != s.value {
				s.value, changed = value, true
				k.count.reloaded()
				k.log.Info("secret read again", "variable", s.variable+"_FILE", "present", value != "")
			}
		}
	}
	if changed {
		k.arm()
	}
}
