package kafka

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

func TestDeniedNamesTheRight(t *testing.T) {
	const want = "no right to Read on topic raw, grant it (kafka-acls.sh --add --allow-principal ... --operation Read --topic raw): "
	if got := Denied(kerr.TopicAuthorizationFailed, "Read", ResourceTopic, "raw"); !strings.HasPrefix(got.Error(), want) || Classify(got) != Stop {
		t.Errorf("got %v", got)
	}
	if got := Denied(kerr.TopicAuthorizationFailed, "Read", ResourceGroup, "g"); !errors.Is(got, kerr.TopicAuthorizationFailed) || strings.Contains(got.Error(), "no right") {
		t.Errorf("another resource: %v", got)
	}
	offsets := fmt.Errorf("unable to commit transaction offsets: topic raw partition 2: %w", kerr.TopicAuthorizationFailed)
	if got := DeniedOffsets(offsets); !strings.HasPrefix(got.Error(), want) {
		t.Errorf("offsets: %v", got)
	}
}
