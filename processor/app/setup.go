package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// Conn is a connection to the brokers.
type Conn struct {
	Client *kgo.Client // records set their partition; not idempotent
	Admin  *kadm.Client
	// Options are the common options of further clients.
	Options []kgo.Opt
	Log     *slog.Logger
	// MaxDecompressedBatchBytes bounds the records of inputs, and so what a new internal
	// topic has to accept.
	MaxDecompressedBatchBytes int
}

// setup creates or checks the topics and the manifest of an app.
type setup struct {
	Conn
	cfg    Config
	routes *rules.Routes
}

// SetUp creates the app's topics and its manifest, or checks existing ones. It returns
// all contradictions at once, as operator errors.
func SetUp(ctx context.Context, c Conn, cfg Config, routes *rules.Routes) (*App, error) {
	s := &setup{Conn: c, cfg: cfg, routes: routes}
	t, err := s.setUpTopics(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.setUpManifest(ctx, t)
	if err != nil {
		return nil, err
	}
	if err := s.logOldTransactions(ctx); err != nil {
		return nil, err
	}
	rt := newApp(t, m, routes)
	return rt, s.observeClock(ctx, rt)
}

// observeClock appends a record to the manifest topic and reads its broker time.
func (s *setup) observeClock(ctx context.Context, rt *App) error {
	rec := &kgo.Record{Topic: rt.Topology.Manifest, Key: []byte("clock"), Value: []byte(s.cfg.InstanceID)}
	if err := s.Client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return fmt.Errorf("write to %s: %w", rec.Topic, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
	}
	reader := kafka.NewReader(s.Client, rec.Topic, rt.Topology.Topics[rec.Topic].ID, rec.Partition)
	return reader.Read(ctx, rec.Offset, rec.Offset+1, func(records []*kgo.Record, _ int64) error {
		for _, r := range records {
			if r.Offset == rec.Offset {
				rt.Clock = BrokerClock{Observed: r.Timestamp.UnixMilli(), At: time.Now()}
			}
		}
		return nil
	})
}
