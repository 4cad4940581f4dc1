package security

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// metadataMinAge is how soon a client may ask again who leads: franz-go's
	// 5 s would be added to every move of a leader and every new topic.
	metadataMinAge = 250 * time.Millisecond
)

// ClientOptions are those that every client of a process starts from.
func ClientOptions(cfg Config, reg prometheus.Registerer, log *slog.Logger, redact *Redactor) ([]kgo.Opt, error) {
	security := &credentials{log: log, metrics: newSecurityMetrics(reg), redact: redact}
	opts, err := security.options(cfg)
	return append(opts, kgo.WithLogger(NewClientLogger(log)), kgo.MetadataMinAge(metadataMinAge)), err
}

// ClientLogger writes franz-go's log to ours, one level down: its info is our
// debug.
type ClientLogger struct{ log *slog.Logger }

// NewClientLogger returns a client's log that writes to ours.
func NewClientLogger(log *slog.Logger) ClientLogger { return ClientLogger{log} }

// Level returns the finest level that would be logged.
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

// Log writes one line of the client.
func (l ClientLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelWarn
	case kgo.LogLevelWarn:
		to = slog.LevelInfo
	}
	l.log.Log(context.Background(), to, "kafka client", append([]any{"client_message", msg}, keyvals...)...)
}
