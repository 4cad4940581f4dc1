package kafka

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
)

// The resources that a broker's authorizer guards, as kafka-acls.sh has them.
const (
	ResourceTopic           = "topic"
	ResourceGroup           = "group"
	ResourceTransactionalID = "transactional-id"
)

// resourceErrors is the broker's error for each resource.
var resourceErrors = map[string]*kerr.Error{
	ResourceTopic:           kerr.TopicAuthorizationFailed,
	ResourceGroup:           kerr.GroupAuthorizationFailed,
	ResourceTransactionalID: kerr.TransactionalIDAuthorizationFailed,
}

// Denied adds to a broker's refusal which right is missing. Errors that are
// not about that kind of resource it returns as they are.
func Denied(err error, operation, resource, name string) error {
	if !errors.Is(err, resourceErrors[resource]) {
		return err
	}
	return fmt.Errorf("no right to %s on %s %s, grant it (kafka-acls.sh --add --allow-principal ... --operation %s --%s %s): %w",
		operation, resource, name, operation, resource, name, err)
}

// DeniedOffsets is denied for the commit of offsets, where the client's words
// have the topic.
func DeniedOffsets(err error) error {
	var topic string
	if _, after, ok := strings.Cut(err.Error(), ": topic "); ok {
		topic, _, _ = strings.Cut(after, " ")
	}
	return Denied(err, "Read", ResourceTopic, topic)
}
