package processor

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

// conn is a connection to the brokers.
type conn struct {
	client *kgo.Client // places records by hand, and may write them twice
	admin  *kadm.Client
	// options are those that a further client starts from.
	options []kgo.Opt
	log     *slog.Logger
}

// setup makes what an app stands on.
type setup struct {
	conn
	cfg    AppConfig
	routes *rules.Routes
}

// settleApp makes the app's topics and its manifest, or checks those that are
// there. What would break a promise is refused, all of it at once.
func settleApp(ctx context.Context, c conn, cfg AppConfig, routes *rules.Routes) (*runtime, error) {
	s := &setup{conn: c, cfg: cfg, routes: routes}
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
	rt := newRuntime(t, m, routes)
	return rt, s.observeClock(ctx, rt)
}

// observeClock appends a record to the manifest topic, which the broker
// stamps, and reads the broker's time back.
func (s *setup) observeClock(ctx context.Context, rt *runtime) error {
	rec := &kgo.Record{Topic: rt.topology.manifest, Key: []byte("clock"), Value: []byte(s.cfg.InstanceID)}
	if err := s.client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return fmt.Errorf("write to %s: %w", rec.Topic, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
	}
	reader := kafka.NewReader(s.client, rec.Topic, rt.topology.topics[rec.Topic].id, rec.Partition)
	return reader.Read(ctx, rec.Offset, rec.Offset+1, func(records []*kgo.Record, _ int64) error {
		for _, r := range records {
			if r.Offset == rec.Offset {
				rt.clock = brokerClock{observed: r.Timestamp.UnixMilli(), at: time.Now()}
			}
		}
		return nil
	})
}
