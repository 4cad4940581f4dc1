package kafka

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
)

// The resources that a broker's authorizer protects, by their names in kafka-acls.sh.
const (
	ResourceTopic           = "topic"
	ResourceGroup           = "group"
	ResourceTransactionalID = "transactional-id"
)

// resourceErrors has the error with which a broker refuses access to each resource.
var resourceErrors = map[string]*kerr.Error{
	ResourceTopic:           kerr.TopicAuthorizationFailed,
	ResourceGroup:           kerr.GroupAuthorizationFailed,
	ResourceTransactionalID: kerr.TransactionalIDAuthorizationFailed,
}

// Denied adds to an authorization error which right is missing. It returns every other error unchanged.
func Denied(err error, operation, resource, name string) error {
	if !errors.Is(err, resourceErrors[resource]) {
		return err
	}
	return fmt.Errorf("no right to %s on %s %s, grant it (%s): %w", operation, resource, name, Grant(operation, resource, name), err)
}

// Grant returns the command that grants the right.
func Grant(operation, resource, name string) string {
	return fmt.Sprintf("kafka-acls.sh --add --allow-principal ... --operation %s --%s %s", operation, resource, name)
}

// DeniedOffsets is Denied for an offset commit. franz-go names the topic only in the text of the error,
// so DeniedOffsets reads it from there.
func DeniedOffsets(err error) error {
	var topic string
	if _, after, ok := strings.Cut(err.Error(), ": topic "); ok {
		topic, _, _ = strings.Cut(after, " ")
	}
	return Denied(err, "Read", ResourceTopic, topic)
}
