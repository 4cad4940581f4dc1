package kafka

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
)

// The resources that a broker's authorizer protects, as kafka-acls.sh names them.
const (
	ResourceTopic           = "topic"
	ResourceGroup           = "group"
	ResourceTransactionalID = "transactional-id"
)

// resourceErrors has the broker's error for each resource.
var resourceErrors = map[string]*kerr.Error{
	ResourceTopic:           kerr.TopicAuthorizationFailed,
	ResourceGroup:           kerr.GroupAuthorizationFailed,
	ResourceTransactionalID: kerr.TransactionalIDAuthorizationFailed,
}

// Denied adds the missing right to an authorization error. It returns all other
// errors unchanged.
func Denied(err error, operation, resource, name string) error {
	if !errors.Is(err, resourceErrors[resource]) {
		return err
	}
	return fmt.Errorf("no right to %s on %s %s, grant it (%s): %w", operation, resource, name, Grant(operation, resource, name), err)
}

// Grant returns the command that grants a right.
func Grant(operation, resource, name string) string {
	return fmt.Sprintf("kafka-acls.sh --add --allow-principal ... --operation %s --%s %s", operation, resource, name)
}

// DeniedOffsets is Denied for an offset commit. franz-go returns the topic only in
// the error text.
func DeniedOffsets(err error) error {
	var topic string
	if _, after, ok := strings.Cut(err.Error(), ": topic "); ok {
		topic, _, _ = strings.Cut(after, " ")
	}
	return Denied(err, "Read", ResourceTopic, topic)
}
