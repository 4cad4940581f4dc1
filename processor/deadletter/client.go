package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
)

// Client reads the dead letters of an app and sends them back to their inputs. It works on any machine that
// reaches the brokers, whether or not a process of the app runs.
type Client struct {
	cfg      app.Config
	routes   *rules.Routes
	deriver  *rules.Deriver
	redact   *security.Redactor
	log      *slog.Logger
	options  []kgo.Opt // options that every client needs
	client   *kgo.Client
	admin    *kadm.Client
	leaders  *kafka.Leaders
	found    *app.Found
	topics   map[string]app.Topic // the dead-letter topics and inputs that exist
	progress *Progress
	refused  error // why the routes file contradicts the app; nil if it agrees
	writer   *writer
}

// New connects to the brokers and reads the app's manifest, and the progress of the app's dead letters (which
// were redriven or dropped). It creates nothing. A missing app is an operator error. If writes is true, the
// client can redrive and drop, and New fences every other client of the app that can do so.
func New(ctx context.Context, cfg app.Config, routes *rules.Routes, log *slog.Logger, writes bool, extra ...kgo.Opt) (*Client, error) {
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
	c := &Client{cfg: cfg, routes: routes, deriver: cfg.NewDeriver(routes), redact: redact, log: log, options: opts}
	c.client, err = kgo.NewClient(append(slices.Clone(opts), cfg.FetchOptions()...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	c.admin, c.leaders = kadm.NewClient(c.client), kafka.NewLeaders(c.client)
	if err := c.open(ctx, writes); err != nil {
		c.Close()
		return nil, redact.Err(security.ExplainCredentials(err, cfg.SASL))
	}
	return c, nil
}

// Close ends the connections.
func (c *Client) Close() {
	c.client.Close()
	if c.writer != nil {
		c.writer.Writer.Close()
	}
}

func (c *Client) open(ctx context.Context, writes bool) (err error) {
	conn := app.Conn{Client: c.client, Admin: c.admin, Options: c.options, Log: c.log}
	if writes {
		// This must come first: a writer that was killed may have left a transaction open on the manifest
		// topic, and until that transaction ends, no record behind its begin can be read.
		if err := conn.CloseLast(ctx, TransactionalID(c.cfg.AppID), app.ManifestName(c.cfg.AppID)); err != nil {
			return err
		}
	}
	if c.found, err = app.Find(ctx, c.client, c.cfg.AppID, c.routes); err != nil {
		return err
	}
	if writes {
		if err := c.register(ctx, &conn); err != nil {
			return err
		}
	}
	if err := c.found.Ran(); err != nil {
		return err
	}
	unknown := c.found.Unknown() // must be called before Check, which adds these routes
	c.refused = c.found.Check(c.cfg.KeySecret.Bytes())
	if c.refused == nil && len(unknown) > 0 {
		c.refused = kafka.OperatorErrorf("app %s has not run with these routes of the file yet: %s", c.cfg.AppID, strings.Join(unknown, ", "))
	}
	c.topics, err = app.DescribeTopics(ctx, c.admin, slices.Concat(c.Topics(), c.inputs())...)
	if err != nil {
		return err
	}
	return c.readProgress(ctx)
}

// Topics returns the dead-letter topics of the routes file, in sorted order.
func (c *Client) Topics() []string {
	var names []string
	for _, r := range c.routes.Routes {
		names = append(names, r.DeadLetter)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// inputs returns the topics to which a redrive may produce.
func (c *Client) inputs() []string {
	var names []string
	for _, r := range c.routes.Routes {
		names = append(names, r.Topics...)
		if r.Mode == rules.ClaimMode {
			names = append(names, r.Claim.Outcomes)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readProgress reads which of the app's dead letters were redriven or dropped, as far as that was committed
// before the call.
func (c *Client) readProgress(ctx context.Context) error {
	progress := newProgress()
	t := c.found.Topology
	reader := c.leaders.NewReader(t.Manifest, t.Topics[t.Manifest].ID, 0)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return err
	}
	err = reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if err := progress.add(rec); err != nil {
				return kafka.OperatorErrorf("decode %s/%d/%d: %v", rec.Topic, rec.Partition, rec.Offset, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.progress = progress
	return nil
}

// StateOf returns whether a dead letter is open, redriven or dropped.
func (c *Client) StateOf(l *Letter) State {
	return c.progress.Of(c.topics[l.At.Topic].ID, l.At.Partition, l.At.Offset)
}

// reader returns a reader for a partition of a topic to which other programs may write, so that it limits the
// size of batches.
func (c *Client) reader(topic string, partition int32) *kafka.Reader {
	r := c.leaders.NewReader(topic, c.topics[topic].ID, partition)
	r.BoundBatches(c.cfg.BatchBytesMax())
	return r
}

// Scan calls each with the committed dead letters that a filter selects, in the order of topic, partition and
// offset, until each returns false. watch, if not nil, is called with how many of the topics' offsets were
// read.
func (c *Client) Scan(ctx context.Context, f *Filter, watch func(read, total int64), each func(*Letter) bool) error {
	spans, total, err := c.spans(ctx)
	if err != nil {
		return c.explain(err)
	}
	if watch == nil {
		watch = func(int64, int64) {}
	}
	var before int64
	for _, s := range spans {
		err := s.scan(ctx, f, each, func(position int64) { watch(before+position-s.start, total) })
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return c.explain(err)
		}
		before += s.end - s.start
	}
	return nil
}

// span is a partition of a dead-letter topic with its first offset and its end offset.
type span struct {
	reader     *kafka.Reader
	start, end int64
}

// spans returns the partitions of all dead-letter topics, and the number of their offsets.
func (c *Client) spans(ctx context.Context) (spans []span, total int64, err error) {
	for _, topic := range c.Topics() {
		for partition := range c.topics[topic].Partitions {
			s := span{reader: c.reader(topic, partition)}
			if s.start, s.end, err = s.reader.Bounds(ctx); err != nil {
				return nil, 0, err
			}
			spans, total = append(spans, s), total+s.end-s.start
		}
	}
	return spans, total, nil
}

// scan scans one partition, as Scan describes. It returns errEnough once each has returned false.
func (s *span) scan(ctx context.Context, f *Filter, each func(*Letter) bool, watch func(position int64)) error {
	return s.reader.Read(ctx, s.start, s.end, func(records []*kgo.Record, position int64) error {
		for _, rec := range records {
			if rec.Offset >= s.end {
				break
			}
			if l := Read(rec); f.Selects(l) && !each(l) {
				return errEnough
			}
		}
		watch(min(position, s.end))
		return nil
	})
}

// errEnough ends a scan because the caller wants no further dead letters.
var errEnough = errors.New("the scan has ended")

// explain removes secrets from an error, and explains an error about refused credentials.
func (c *Client) explain(err error) error {
	return c.redact.Err(security.ExplainCredentials(err, c.cfg.SASL))
}

// Find returns the dead letter at a position. If there is none, it returns an operator error that says why.
func (c *Client) Find(ctx context.Context, at Position) (*Letter, error) {
	if !slices.Contains(c.Topics(), at.Topic) {
		return nil, kafka.OperatorErrorf("topic %s is no dead-letter topic of the routes file; these are: %s", at.Topic, strings.Join(c.Topics(), ", "))
	}
	if at.Partition >= c.topics[at.Topic].Partitions {
		return nil, kafka.OperatorErrorf("topic %s has %d partitions, so there is no %v", at.Topic, c.topics[at.Topic].Partitions, at)
	}
	found, err := c.fetch(ctx, at.Topic, at.Partition, []int64{at.Offset})
	if err != nil {
		return nil, c.explain(err)
	}
	if rec := found[at.Offset]; rec != nil {
		return Read(rec), nil
	}
	return nil, kafka.OperatorErrorf("no record at %v: its offset was never written, or retention deleted it", at)
}

// gapMax is the longest gap, in offsets, between two wanted records: over a shorter gap, the records in between
// are read, too; over a longer one, a new read begins.
const gapMax = 500

// fetch returns the committed records of a partition at these offsets, which must ascend. Records that do not
// exist are missing in the result.
func (c *Client) fetch(ctx context.Context, topic string, partition int32, offsets []int64) (map[int64]*kgo.Record, error) {
	found := map[int64]*kgo.Record{}
	if len(offsets) == 0 {
		return found, nil
	}
	reader := c.reader(topic, partition)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	for from := 0; from < len(offsets); {
		to := from + 1
		for to < len(offsets) && offsets[to]-offsets[to-1] <= gapMax {
			to++
		}
		first, after := max(start, offsets[from]), min(end, offsets[to-1]+1)
		wanted := offsets[from:to]
		from = to
		if first >= after {
			continue // these offsets were deleted already, or are not written yet
		}
		err := reader.Read(ctx, first, after, func(records []*kgo.Record, _ int64) error {
			for _, rec := range records {
				if _, ok := slices.BinarySearch(wanted, rec.Offset); ok {
					found[rec.Offset] = rec
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
