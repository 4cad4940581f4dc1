package security

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Config is what every client of an app starts from: the brokers, the
// names that the client bears, and the secrets. Errors name a field by its
// environment variable, because that is where the reader can change it.
type Config struct {
	// Brokers are the seed brokers as host:port; the port is 9092 unless
	// given. At least one; the client learns of the others from it.
	Brokers []string `env:"BROKERS" help:"seed brokers, comma separated host:port; required by run"`

	// AppID is the prefix of the consumer group, the transactional ids and
	// the internal topics. Processes with the same AppID share the work.
	// It follows the rule for Kafka topic names and has at most AppIDMax
	// characters, which leaves room for what is appended to it.
	AppID string `env:"APP_ID" envDefault:"oncebus" help:"prefix of group, transactional ids and internal topics"`

	// InstanceID is the stable name of this process within the app: static
	// membership and transactional ids are built on it, so two processes
	// with the same one fence each other. It follows the same rule as AppID;
	// at most InstanceIDMax characters. cmd fills in the host name.
	InstanceID string `env:"INSTANCE_ID" help:"stable name of this process within the app (static membership, transactional ids); default: the host name"`

	// KeySecret turns SHA-256 into HMAC-SHA-256 for the routes that ask for
	// it. At least KeySecretMin bytes when set, and required as soon as one
	// route asks. Changing it makes every known key unknown.
	KeySecret Secret `env:"KEY_SECRET" help:"secret of HMAC-SHA-256 for routes with secret: true, at least 16 bytes"`

	TLS TLS `envPrefix:"TLS_"`

	SASL SASL `envPrefix:"SASL_"`
}

// Limits of Config. A Kafka name has at most 249 characters, and topic, role or worker
// must fit after the app id.
const (
	AppIDMax      = 100
	InstanceIDMax = 100
	KeySecretMin  = 16
)

// Validate returns all mistakes of c at once, joined, or nil. It reads certificate files
// and connects to nothing.
func (c Config) Validate() error {
	var m Mistakes
	c.validateBrokers(&m)
	m.Add(validateName("ONCEBUS_APP_ID", c.AppID, AppIDMax))
	m.Add(validateName("ONCEBUS_INSTANCE_ID", c.InstanceID, InstanceIDMax))
	if n := len(c.KeySecret); n > 0 && n < KeySecretMin {
		m.Addf("ONCEBUS_KEY_SECRET: %d bytes are too few to keep keys from being guessed, want at least %d", n, KeySecretMin)
	}
	c.validateSecurity(&m)
	return m.Err()
}

// validateBrokers checks the form of the seed brokers, not whether they answer.
func (c Config) validateBrokers(m *Mistakes) {
	if len(c.Brokers) == 0 {
		m.Addf("ONCEBUS_BROKERS: not set, want one or more host:port, comma separated")
	}
	for _, b := range c.Brokers {
		m.Add(validateBroker(b))
	}
}

// validateName checks a name that becomes part of topic names, group ids and
// group instance ids; Kafka holds all of them to the topic rule.
func validateName(variable, name string, limit int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s: empty, want a name of letters, digits, '.', '_' and '-'", variable)
	case name == "." || name == "..":
		return fmt.Errorf("%s: %q is not a name Kafka takes", variable, name)
	case len(name) > limit:
		return fmt.Errorf("%s: %d characters are too many, want at most %d", variable, len(name), limit)
	}
	for _, r := range name {
		if !isNameRune(r) {
			return fmt.Errorf("%s: %q contains %q, want letters, digits, '.', '_' and '-' only", variable, name, r)
		}
	}
	return nil
}

func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}

func validateBroker(broker string) error {
	host, port, err := splitBroker(broker)
	if err != nil {
		return fmt.Errorf("ONCEBUS_BROKERS: %q: %w, want host:port", broker, err)
	}
	if host == "" || strings.ContainsAny(host, " \t/") {
		return fmt.Errorf("ONCEBUS_BROKERS: %q has no usable host, want host:port without a scheme", broker)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("ONCEBUS_BROKERS: %q: port %q is no number from 1 to 65535", broker, port)
	}
	return nil
}

// splitBroker splits a seed broker, surrounding spaces removed, with 9092 for
// a missing port.
func splitBroker(broker string) (host, port string, err error) {
	broker = strings.TrimSpace(broker)
	if !strings.Contains(broker, ":") || strings.HasPrefix(broker, "[") && strings.HasSuffix(broker, "]") {
		broker += ":9092"
	}
	host, port, err = net.SplitHostPort(broker)
	var addr *net.AddrError
	if errors.As(err, &addr) {
		err = errors.New(addr.Err)
	}
	return host, port, err
}

// Mistakes collects what is wrong, in the order found.
type Mistakes struct{ errs []error }

// Add takes an error, or those that are joined in it.
func (m *Mistakes) Add(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		m.errs = append(m.errs, joined.Unwrap()...)
	} else if err != nil {
		m.errs = append(m.errs, err)
	}
}

// Addf adds a formatted error.
func (m *Mistakes) Addf(format string, args ...any) {
	m.Add(fmt.Errorf(format, args...))
}

// Err joins the mistakes; nil when there are none.
func (m *Mistakes) Err() error { return errors.Join(m.errs...) }
