package security

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// metadataMinAge is the least time between two metadata requests of a client. franz-go's default is 5 s, with
// which a client would notice new leaders and new topics up to 5 s late.
const metadataMinAge = 250 * time.Millisecond

// metadataMaxAge is how long a client uses its metadata before it asks again. When an operator adds partitions
// to a topic, the leader of a group notices them after at most this time, and the other members a heartbeat
// later. With franz-go's default of 5 min, the events of new partitions would wait.
const metadataMaxAge = 15 * time.Second

// ClientOptions returns the options that all Kafka clients of a process share.
func ClientOptions(cfg Config, reg prometheus.Registerer, log *slog.Logger, redact *Redactor) ([]kgo.Opt, error) {
	security := &credentials{log: log, metrics: newSecurityMetrics(reg), redact: redact}
	opts, err := security.options(cfg)
	return append(opts, kgo.WithLogger(NewClientLogger(log)), kgo.MetadataMinAge(metadataMinAge), kgo.MetadataMaxAge(metadataMaxAge)), err
}

// ClientLogger writes franz-go's log to a slog.Logger, one level lower: info
// becomes debug.
type ClientLogger struct{ log *slog.Logger }

// NewClientLogger returns a franz-go logger that writes to log.
func NewClientLogger(log *slog.Logger) ClientLogger { return ClientLogger{log} }

// Level returns the lowest level of franz-go whose lines log writes.
func (l ClientLogger) Level() kgo.LogLevel {
	ctx := context.Background()
	switch {
	case l.log.Enabled(ctx, slog.LevelDebug):
		return kgo.LogLevelInfo
	case l.log.Enabled(ctx, slog.LevelInfo):
		return kgo.LogLevelWarn
	case l.log.Enabled(ctx, slog.LevelWarn):
		return kgo.LogLevelError
	}
	return kgo.LogLevelNone
}

// Log writes a line of the client.
func (l ClientLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelWarn
		if slices.ContainsFunc(keyvals, isFenced) {
			to = slog.LevelInfo
		}
	case kgo.LogLevelWarn:
		to = slog.LevelInfo
	}
	l.log.Log(context.Background(), to, "kafka client", append([]any{"client_message", msg}, keyvals...)...)
}

// isFenced reports whether a value of a log line is the error that another producer has taken over the
// transactional id. The code that produces gets the same error, and knows whether it is a problem. For example,
// it is not a problem if two processes start at the same time, because one of them just tries again.
func isFenced(value any) bool {
	err, ok := value.(error)
	return ok && (errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.ProducerFenced))
}
