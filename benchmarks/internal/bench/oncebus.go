//go:build unix

package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/security"
	"oncebus/state"
)

// oncebus runs the product with its defaults, except for the settings of the task.
func (t Task) oncebus(ctx context.Context) error {
	routes, err := rules.ParseRoutes("bench", fmt.Appendf(nil, `routes:
  - name: signals
    topics: [%s]
    prepartitioned: %v
    key:
      - field: traceId
    window: %v
    output: %s
    dead_letter: %s
%s`, t.Input, !t.Role.Routed, t.Stored(), t.Output(), t.Side(), t.Route))
	if err != nil {
		return err
	}
	p, err := processor.New(processor.Config{
		Config: app.Config{
			Config: security.Config{
				Brokers:    t.Brokers,
				AppID:      t.App,
				InstanceID: t.Member(),
			},
			Partitions:         int32(t.Partitions),
			ReplicationFactor:  1,
			Start:              app.StartEarliest,
			TransactionTimeout: transactionTimeout,
		},
		StateDir:       t.StateDir,
		Workers:        t.Workers,
		CommitInterval: t.Commit,
		SessionTimeout: SessionTimeout,
		StopTimeout:    20 * time.Second,
		State:          state.DefaultConfig(),
	}, routes, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	return p.Run(ctx)
}
