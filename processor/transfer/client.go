package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
)

// Client exports, compares and seeds the keys of an app. It works on any machine that reaches the brokers, and
// joins no consumer group.
type Client struct {
	cfg     app.Config
	routes  *rules.Routes
	log     *slog.Logger
	redact  *security.Redactor
	options []kgo.Opt // options that every client needs
	client  *kgo.Client
	admin   *kadm.Client
	leaders *kafka.Leaders
	found   *app.Found
	app     *app.App
	arrival *app.Arrival // nil for an app that was not moved here from another cluster

	// SliceKeys is how many keys are in memory at a time; each needs some 50 bytes.
	SliceKeys int64
}

// sliceKeys is the default of Client.SliceKeys.
const sliceKeys = 4 << 20

// New connects to the brokers and reads the app's manifest. It creates and changes nothing. It is an operator
// error if the app does not exist, or if the routes contradict it.
func New(ctx context.Context, cfg app.Config, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*Client, error) {
	c, err := connect(cfg, routes, log, extra)
	if err != nil {
		return nil, err
	}
	if err := c.open(ctx); err != nil {
		c.Close()
		return nil, c.explain(err)
	}
	return c, nil
}

// connect returns a client that has not looked for its app yet.
func connect(cfg app.Config, routes *rules.Routes, log *slog.Logger, extra []kgo.Opt) (*Client, error) {
	if err := errors.Join(cfg.Validate(), cfg.CheckSecret(routes.NeedsSecret())); err != nil {
		return nil, err
	}
	cfg = cfg.WithBudget()
	redact := security.NewRedactor(cfg.Config)
	log = slog.New(redact.Handler(log.Handler()))
	opts, err := security.ClientOptions(cfg.Config, prometheus.NewRegistry(), log, redact)
	if err != nil {
		return nil, err
	}
	opts = append(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner())), extra...)
	c := &Client{cfg: cfg, routes: routes, log: log, redact: redact, options: opts, SliceKeys: sliceKeys}
	c.client, err = kgo.NewClient(append(append([]kgo.Opt{}, opts...), cfg.FetchOptions()...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	c.admin, c.leaders = kadm.NewClient(c.client), kafka.NewLeaders(c.client)
	return c, nil
}

// conn returns the client in the form that package app needs.
func (c *Client) conn() app.Conn {
	return app.Conn{Client: c.client, Admin: c.admin, Options: c.options, Log: c.log, MaxDecompressedBatchBytes: c.cfg.BatchBytesMax()}
}

// Close ends the connections.
func (c *Client) Close() { c.client.Close() }

func (c *Client) open(ctx context.Context) (err error) {
	if c.found, err = app.Find(ctx, c.client, c.cfg.AppID, c.routes); err != nil {
		return err
	}
	if err := c.found.Ran(); err != nil {
		return err
	}
	unknown := c.found.Unknown() // must be called before Check, which adds these routes
	if err := c.found.Check(c.cfg.KeySecret.Bytes()); err != nil {
		return err
	}
	if len(unknown) > 0 {
		return kafka.OperatorErrorf("app %s has not run with these routes of the file yet: %v; start the service with them first", c.cfg.AppID, unknown)
	}
	c.routes, c.app = c.found.Routes(), c.found.App() // the routes in force
	rows, err := app.ReadRows(ctx, c.client, c.app.Topology)
	if err != nil {
		return err
	}
	c.arrival, err = app.ArrivalIn(rows)
	return err
}

// explain removes secrets from an error, and explains an error about refused credentials.
func (c *Client) explain(err error) error {
	return c.redact.Err(security.ExplainCredentials(err, c.cfg.SASL))
}

// tasks returns the tasks of the app.
func (c *Client) tasks() (all []app.TaskID) {
	for _, topic := range c.app.Topology.TaskTopics() {
		for partition := range c.app.Topology.Topics[topic].Partitions {
			all = append(all, app.TaskID{Topic: topic, Partition: partition})
		}
	}
	return all
}

// changelog returns a reader of a task's changelog.
func (c *Client) changelog(id app.TaskID) *kafka.Reader {
	name := c.app.ChangelogOf(id.Topic)
	return c.leaders.NewReader(name, c.app.Topology.Topics[name].ID, id.Partition)
}

// closeAfter closes a client if err is not nil.
func closeAfter(err error, client *kgo.Client) {
	if err != nil {
		client.Close()
	}
}
