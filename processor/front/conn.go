package front

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/security"
)

// connect checks the settings, and returns the connection of an operator's command, which has not connected
// yet. The log of the connection is redacted; callers need the redactor for errors.
func connect(cfg app.Config, log *slog.Logger, extra []kgo.Opt) (app.Conn, *security.Redactor, error) {
	if err := cfg.Validate(); err != nil {
		return app.Conn{}, nil, err
	}
	redact := security.NewRedactor(cfg.Config)
	log = slog.New(redact.Handler(log.Handler()))
	opts, err := security.ClientOptions(cfg.Config, prometheus.NewRegistry(), log, redact)
	if err != nil {
		return app.Conn{}, nil, err
	}
	opts = append(opts, extra...)
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		return app.Conn{}, nil, fmt.Errorf("client: %w", err)
	}
	return app.Conn{Client: client, Admin: kadm.NewClient(client), Options: opts, Log: log, MaxDecompressedBatchBytes: cfg.BatchBytesMax()}, redact, nil
}
