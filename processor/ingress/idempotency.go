package ingress

import (
	"fmt"
	"strings"

	"github.com/dunglas/httpsfv"
)

// headerIdempotency is the header of draft-ietf-httpapi-idempotency-key-header:
// a String of RFC 9651, in quotes. Many senders omit the quotes; both spellings
// are the same key.
const headerIdempotency = "Idempotency-Key"

// idempotencyPattern describes the header in the OpenAPI document. Parameters
// may also be decimals, strings, byte sequences and the like.
const idempotencyPattern = `^([^"].*|"([\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"(;[a-z*][a-z0-9_.*-]*(=(-?[0-9]{1,15}|\?[01]|[A-Za-z*][A-Za-z0-9_.-]*))?)*)?$`

// readIdempotencyKey returns the key of a request; "" for none. The error is
// the problem's detail.
func readIdempotencyKey(values []string) (string, error) {
	if len(values) > 1 {
		return "", fmt.Errorf("header %s: it came %d times, want one", headerIdempotency, len(values))
	}
	if len(values) == 0 {
		return "", nil
	}
	value := strings.Trim(values[0], " \t")
	if !strings.HasPrefix(value, `"`) {
		return value, nil
	}
	item, err := httpsfv.UnmarshalItem([]string{value})
	if err != nil {
		return "", fmt.Errorf("header %s: want one string of RFC 9651, or the key without quotes: %w", headerIdempotency, err)
	}
	key, _ := item.Value.(string) // the value of an Item that begins with a quote
	return key, nil
}
