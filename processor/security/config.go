package security

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Config has the settings that every Kafka client of an app needs: brokers, names and secrets. Its errors name
// a field by its environment variable, where the operator sets it.
type Config struct {
	// Brokers are the seed brokers as host:port, at least one. The default port is 9092. The client learns the
	// other brokers from a seed broker.
	Brokers []string `env:"BROKERS" help:"seed brokers, comma separated host:port; required by run"`

	// AppID is the prefix of the consumer groups, the transactional ids and the internal topics. Processes with
	// the same AppID share the work. It follows Kafka's rule for topic names, and has at most AppIDMax
	// characters.
	AppID string `env:"APP_ID" envDefault:"oncebus" help:"prefix of group, transactional ids and internal topics"`

	// InstanceID is the stable name of this process within the app. The names of static members and the
	// transactional ids contain it: if two processes have the same InstanceID, they fence each other. It must
	// follow the same rule as AppID, and has at most InstanceIDMax characters. The default is the host name,
	// which cmd sets.
	InstanceID string `env:"INSTANCE_ID" help:"stable name of this process within the app (static membership, transactional ids); default: the host name"`

	// KeySecret turns SHA-256 into HMAC-SHA-256 for the routes with secret: true, which require it. It has at
	// least KeySecretMin bytes. A new secret changes every key, so that stored keys match no event any more.
	KeySecret Secret `env:"KEY_SECRET" help:"secret of HMAC-SHA-256 for routes with secret: true, at least 16 bytes"`

	TLS TLS `envPrefix:"TLS_"`

	SASL SASL `envPrefix:"SASL_"`
}

// Limits of Config, in characters and (KeySecretMin) bytes. A Kafka name has at most 249 characters: the rest
// is needed after the app id, for the name of a topic, a role or a worker.
const (
	AppIDMax      = 100
	InstanceIDMax = 100
	KeySecretMin  = 16
)

// Validate returns every mistake in c, joined by errors.Join. It reads the certificate files, but opens no
// connection.
func (c Config) Validate() error {
	var m Mistakes
	c.validateBrokers(&m)
	m.Add(validateName("ONCEBUS_APP_ID", c.AppID, AppIDMax))
	m.Add(validateName("ONCEBUS_INSTANCE_ID", c.InstanceID, InstanceIDMax))
	m.Add(c.keySecretMistake())
	c.validateSecurity(&m)
	return m.Err()
}

// validateBrokers checks the form of the seed brokers. It does not connect.
func (c Config) validateBrokers(m *Mistakes) {
	if len(c.Brokers) == 0 {
		m.Addf("ONCEBUS_BROKERS: not set, want one or more host:port, comma separated")
	}
	for i, b := range c.Brokers {
		if strings.TrimSpace(b) == "" {
			m.Addf("ONCEBUS_BROKERS: entry %d of %d is empty: take out the comma before or after it", i+1, len(c.Brokers))
			continue
		}
		m.Add(validateBroker(b))
	}
}

// validateName checks a name that becomes part of topic names, group ids and group instance ids. Kafka applies
// its rule for topic names to all of them.
func validateName(variable, name string, limit int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s: empty, want a name of letters, digits, '.', '_' and '-'", variable)
	case name == "." || name == "..":
		return fmt.Errorf("%s: Kafka rejects the name %q, want letters or digits in it", variable, name)
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
	if host == "" || strings.Contains(host, "/") {
		return fmt.Errorf("ONCEBUS_BROKERS: %q has no valid host, want host:port without a scheme", broker)
	}
	if i := strings.IndexFunc(host, func(r rune) bool { return !isNameRune(r) && r < utf8.RuneSelf && r != ':' && r != '%' }); i >= 0 {
		return fmt.Errorf("ONCEBUS_BROKERS: %q has %q in its host, want host:port, and a comma between two brokers", broker, host[i])
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("ONCEBUS_BROKERS: %q: port %q is invalid, want a number from 1 to 65535", broker, port)
	}
	return nil
}

// splitBroker splits a seed broker into host and port, without surrounding spaces. The default port is 9092.
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

// Mistakes collects errors in the order in which they were added.
type Mistakes struct{ errs []error }

// Add adds an error; if err joins several errors, it adds each of them. It ignores nil.
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

// Err returns the mistakes joined by errors.Join; nil without a mistake.
func (m *Mistakes) Err() error { return errors.Join(m.errs...) }
