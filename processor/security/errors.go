package security

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// CredentialsPatience is how long a running process retries with rejected credentials. An operator cannot
// change the broker and the files of a process at the same moment: Kubernetes needs up to two minutes to update
// a secret in a pod.
const CredentialsPatience = 3 * time.Minute

// ErrCredentials is wrapped by errors of authentication, and by errors about the broker's or the client's
// certificate. When a process starts, such an error ends it at once.
var ErrCredentials = errors.New("credentials rejected")

// CredentialsRefused reports whether an error says that the broker or this client rejected certificates,
// passwords or tokens.
func CredentialsRefused(err error) bool {
	return errors.Is(err, ErrCredentials) || errors.Is(err, kerr.SaslAuthenticationFailed) ||
		errors.Is(err, kerr.UnsupportedSaslMechanism) || errors.Is(err, kerr.IllegalSaslState)
}

// ExplainCredentials adds to a broker's error which settings the operator should check.
func ExplainCredentials(err error, auth SASL) error {
	var cut *kgo.ErrFirstReadEOF
	switch {
	case errors.As(err, &cut):
		return fmt.Errorf("%w: the broker starts or stops, or ONCEBUS_TLS_ENABLED and ONCEBUS_SASL_MECHANISM do not match the port", err)
	case errors.Is(err, kerr.IllegalSaslState):
		return fmt.Errorf("the broker does not accept SASL on this port, see ONCEBUS_SASL_MECHANISM and ONCEBUS_BROKERS: %w", err)
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return fmt.Errorf("the broker does not offer %s on this port, see ONCEBUS_SASL_MECHANISM and the broker's sasl.enabled.mechanisms: %w", auth.Mechanism, err)
	case errors.Is(err, kerr.SaslAuthenticationFailed) && auth.Mechanism == SASLOAuthBearer:
		return fmt.Errorf("the broker rejects the token: %w", err)
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return fmt.Errorf("the broker rejects user %q with %s, see ONCEBUS_SASL_USERNAME and ONCEBUS_SASL_PASSWORD: %w", auth.Username, auth.Mechanism, err)
	}
	return err
}

// Patience limits how long a process retries with rejected credentials. Since is when a broker first rejected
// the credentials; zero while brokers accept them.
type Patience struct {
	Limit time.Duration
	Since time.Time
}

// Stops reports whether err must end the process. began is when the client that returned err was made: if the
// client has worked for longer than Limit, this is a new rejection, and the time begins again.
func (p *Patience) Stops(err error, began time.Time) bool {
	switch {
	case err == nil:
		return false
	case !CredentialsRefused(err):
		p.Since = time.Time{}
		return kafka.Classify(err) == kafka.Stop
	}
	now := time.Now()
	if p.Since.IsZero() || now.Sub(began) >= p.Limit {
		p.Since = now // until now the broker has accepted the client
	}
	return now.Sub(p.Since) >= p.Limit
}
