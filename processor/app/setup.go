package app

import (
	"context"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
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
	Clock                     *BrokerClock // of the app
}

// setup creates or checks the topics and the manifest of an app.
type setup struct {
	Conn
	// validate makes the brokers validate new topics without creating them.
	validate bool
	cfg      Config
	routes   *rules.Routes
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
	rt.Clock = c.Clock
	if err := rt.ObserveClock(ctx, c.Client, cfg.InstanceID); err != nil {
		return nil, err
	}
	return rt, nil
}
