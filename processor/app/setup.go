package app

import (
	"context"
	"errors"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// Conn is a connection to the brokers, with what setups and commands need besides.
type Conn struct {
	Client *kgo.Client // its records set their partition; it is not idempotent
	Admin  *kadm.Client
	// Options are the common options for further clients.
	Options []kgo.Opt
	Log     *slog.Logger
	// MaxDecompressedBatchBytes bounds the size of input records, and so decides how large a record a new
	// internal topic has to accept.
	MaxDecompressedBatchBytes int
	Clock                     *BrokerClock // the app's clock
}

// setup creates or checks the topics and the manifest of an app.
type setup struct {
	Conn
	// validate makes the brokers only validate requests for new topics; they create nothing.
	validate bool
	cfg      Config
	routes   *rules.Routes
	sets     *Sets // the set in force has routes; nil at level 1
	on       generation
}

// errSetsChanged says that the app has route sets which the caller has not read. The caller must read the
// manifest again, and decide again.
var errSetsChanged = errors.New("the route sets of the app have changed")

// setupBy returns the setup of an app with these route sets, the last of which has routes. Its topics are the
// topics of the generation of partitions that the manifest has in force.
func (m *Manifest) setupBy(c Conn, cfg Config, sets *Sets, routes *rules.Routes) *setup {
	return &setup{Conn: c, cfg: cfg, routes: routes, sets: sets, on: m.generation()}
}

// SetUp creates the app's topics and its manifest, or checks existing ones. It returns all contradictions
// together, as operator errors. An app at level 2 gets the routes of its set in force. If the routes file
// differs from this set only by harmless changes, SetUp makes the file the next set.
func SetUp(ctx context.Context, c Conn, cfg Config, routes *rules.Routes) (*App, error) {
	for {
		rt, err := setUpOnce(ctx, c, cfg, routes)
		if !errors.Is(err, errSetsChanged) || kafka.Pause(ctx, fencedPause) != nil {
			return rt, err
		}
	}
}

// setUpOnce is one attempt of SetUp. It returns errSetsChanged if another process has changed the route sets
// meanwhile.
func setUpOnce(ctx context.Context, c Conn, cfg Config, routes *rules.Routes) (*App, error) {
	s := &setup{Conn: c, cfg: cfg, routes: routes}
	m, err := s.readSets(ctx)
	if err != nil {
		return nil, err
	}
	if m.hasSets() {
		return s.join(ctx, m)
	}
	t, err := s.setUpTopics(ctx)
	if err != nil {
		return nil, err
	}
	if m, err = s.setUpManifest(ctx, t); err != nil {
		return nil, err
	}
	return s.newApp(ctx, t, m)
}

// newApp returns the app after its setup, with a clock that has observed the broker time.
func (s *setup) newApp(ctx context.Context, t *Topology, m *Manifest) (*App, error) {
	if err := s.logOldTransactions(ctx); err != nil {
		return nil, err
	}
	rt := newApp(t, m, s.routes)
	rt.Clock = s.Clock
	err := rt.ObserveClock(ctx, s.Client, s.cfg.InstanceID)
	return rt, err
}
