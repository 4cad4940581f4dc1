package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TransactionTimeout sets the transaction timeout of a client, rounded down to an even number of
// milliseconds. An odd number is reserved: it says that a producer closes what a committed transaction
// left open (package hanging).
func TransactionTimeout(timeout time.Duration) kgo.Opt {
	const even = 2 * time.Millisecond
	return kgo.TransactionTimeout(max(even, timeout.Truncate(even)))
}
