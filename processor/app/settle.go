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
	Client *kgo.Client // places records by hand, and may write them twice
	Admin  *kadm.Client
	// Options are those that a further client starts from.
	Options []kgo.Opt
	Log     *slog.Logger
}

// setup makes what an app stands on.
type setup struct {
	Conn
	cfg    Config
	routes *rules.Routes
}

// Settle makes the app's topics and its manifest, or checks those that are
// there. What would break a promise is refused, all of it at once.
func Settle(ctx context.Context, c Conn, cfg Config, routes *rules.Routes) (*App, error) {
	s := &setup{Conn: c, cfg: cfg, routes: routes}
	t, err := s.settleTopics(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.settleManifest(ctx, t)
	if err != nil {
		return nil, err
	}
	if err := s.warnOldTransactions(ctx); err != nil {
		return nil, err
	}
	rt := newApp(t, m, routes)
	return rt, s.observeClock(ctx, rt)
}

// observeClock appends a record to the manifest topic, which the broker
// stamps, and reads the broker's time back.
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
