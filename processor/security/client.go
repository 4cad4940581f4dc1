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

// metadataMinAge is the least time between two metadata requests of a client.
// franz-go's 5 s would delay every new leader and every new topic.
const metadataMinAge = 250 * time.Millisecond

// metadataMaxAge is how long a client uses its metadata. The leader of a group notices
// partitions that were added to a topic after at most this time, and the other members a
// heartbeat later. franz-go's 5 min would delay the events of new partitions.
const metadataMaxAge = 15 * time.Second

// ClientOptions returns the options that all clients of a process share.
func ClientOptions(cfg Config, reg prometheus.Registerer, log *slog.Logger, redact *Redactor) ([]kgo.Opt, error) {
	security := &credentials{log: log, metrics: newSecurityMetrics(reg), redact: redact}
	opts, err := security.options(cfg)
	return append(opts, kgo.WithLogger(NewClientLogger(log)), kgo.MetadataMinAge(metadataMinAge), kgo.MetadataMaxAge(metadataMaxAge)), err
}

// ClientLogger writes franz-go's log to a slog.Logger, one level lower: info
// becomes debug.
type ClientLogger struct{ log *slog.Logger }

// NewClientLogger returns the log of a client, which writes to log.
func NewClientLogger(log *slog.Logger) ClientLogger { return ClientLogger{log} }

// Level returns the lowest level that log writes.
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

// isFenced reports whether a value of a line says that another producer has the transactional id. Who produces gets
// the error too, and knows whether it is one: of two processes that start at the same time, one tries again.
func isFenced(value any) bool {
	err, ok := value.(error)
	return ok && (errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.ProducerFenced))
}
