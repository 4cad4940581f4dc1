package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// EndOnce makes a client outside of a consumer group send the end of a transaction (EndTxn) only once. If the
// client sent the request twice, a late second request could end the next transaction (C2). The client repeats
// other requests for up to the duration others.
func EndOnce(others time.Duration) kgo.Opt {
	return kgo.RetryTimeoutFn(func(key int16) time.Duration {
		if kmsg.Key(key) == kmsg.EndTxn {
			return time.Nanosecond // shorter than any backoff; 0 has no limit
		}
		return others
	})
}
