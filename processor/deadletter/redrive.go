package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/hanging"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// TransactionalID returns the transactional id of all redrives and drops of an app. The id is fixed, so that a
// new command fences an earlier one that is still running, or that was killed within a transaction.
func TransactionalID(appID string) string { return appID + "-redrive" }

// RedriveOptions are the options of a redrive.
type RedriveOptions struct {
	Selection

	// AttemptsMax is how often a record may be redriven, at least 1.
	AttemptsMax int
	// Rate bounds the records per second; 0 for no bound.
	Rate int
	// Scanned and Sent, if not nil, are called with the progress: offsets read, and records sent.
	Scanned, Sent func(done, total int64)
}

// Fated counts the redriven records of one route with the same finding.
type Fated struct {
	Route   string `json:"route"`
	Finding string `json:"finding"`
	Count   int    `json:"count"`
	Reason  string `json:"reason,omitempty"` // reason of one of these records
}

// Report is what a redrive did, or would do.
type Report struct {
	Selected     int       `json:"selected"`
	Redriven     int       `json:"redriven"`
	Transactions int       `json:"transactions"`
	Fates        []Fated   `json:"fates"`
	Skipped      []Skipped `json:"skipped"`
	// Gone is how many of the selected dead letters were deleted by their topic's retention during the redrive.
	Gone int `json:"gone"`
}

// ErrFenced means that another redrive or drop of the app has taken over.
var ErrFenced = errors.New("another redrive or drop of this app took over, or this one took longer than ONCEBUS_TRANSACTION_TIMEOUT for a transaction; what was committed stays: run it again, it goes on where it stopped")

// Redrive produces the selected dead letters to their inputs again, in the order in which their originals were
// there. Each transaction contains records and the progress that names their dead letters. Therefore, even if a
// redrive is interrupted, a dead letter was sent if and only if the progress says so. A client that was opened
// without writes only reports what it would do.
func (c *Client) Redrive(ctx context.Context, o *RedriveOptions) (*Report, error) {
	report, err := c.redrive(ctx, o)
	return report, c.explain(interrupted(ctx, err))
}

// interrupted explains the error of a command that was interrupted.
func interrupted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("interrupted between two transactions: run it again, it goes on where it stopped: %w", err)
}

// redrive selects the dead letters first and then produces them in batches, one transaction per batch.
func (c *Client) redrive(ctx context.Context, o *RedriveOptions) (*Report, error) {
	report := &Report{Fates: []Fated{}, Skipped: []Skipped{}}
	if c.writer != nil && c.refused != nil {
		return report, fmt.Errorf("redrive after the service has started with this routes file: %w", c.refused)
	}
	p, err := c.plan(ctx, &o.Selection, o.Scanned, func(l *Letter) *Skip { return c.refuse(l, o.AttemptsMax) })
	report.Selected = p.selected
	if err != nil {
		return report, err
	}
	limits, err := c.inputLimits(ctx, p.entries)
	if err != nil {
		return report, err
	}
	if c.writer != nil {
		c.writer.limits = limits
	}
	total, began, fates := int64(len(p.entries)), time.Now(), map[Fate]*Fated{}
	for len(p.entries) > 0 && err == nil {
		if err = pace(ctx, began, report.Redriven, o.Rate); err != nil {
			break
		}
		batch := p.batch(batchOf(o.Rate))
		err = c.redriveBatch(ctx, batch, limits, p.skipped, fates, report)
		if o.Sent != nil {
			o.Sent(total-int64(len(p.entries)), total)
		}
	}
	report.Skipped, report.Fates = p.skipped.sorted(), sortedFates(fates)
	return report, err
}

// batchOf returns the largest number of records in a transaction; with a rate, the records of a tenth of a
// second.
func batchOf(rate int) int {
	if rate == 0 {
		return batchRecordsMax
	}
	return max(1, min(batchRecordsMax, rate/10))
}

// pace waits until the rate allows the next record. No transaction is open while it waits.
func pace(ctx context.Context, began time.Time, sent, rate int) error {
	if rate == 0 || sent == 0 {
		return ctx.Err()
	}
	due := began.Add(time.Duration(float64(sent) / float64(rate) * float64(time.Second)))
	return kafka.Pause(ctx, time.Until(due))
}

// redriveBatch redrives the dead letters of a batch in one transaction. It adds the dead letters that cannot be
// redriven to skipped.
func (c *Client) redriveBatch(ctx context.Context, batch []entry, limits map[string]app.InputLimits, skipped skips, fates map[Fate]*Fated, report *Report) error {
	letters, err := c.letters(ctx, batch)
	if err != nil {
		return err
	}
	report.Gone += len(batch) - len(letters)
	originals, err := c.originals(ctx, letters)
	if err != nil {
		return err
	}
	var records []*kgo.Record
	var done []Position
	found := map[Fate]*Fated{}
	for _, l := range letters {
		prospect, err := c.prospect(ctx, l, originals[l.Origin], limits, time.Now())
		if err != nil {
			return err
		}
		if prospect.Skip != nil {
			skipped.add(l.At, prospect.Skip)
			continue
		}
		records, done = append(records, prospect.Record), append(done, l.At)
		countFate(found, prospect.Fate, 1)
	}
	if c.writer != nil && len(records) > 0 {
		if err := c.writer.commit(records, done, Redriven); err != nil {
			return err
		}
		report.Transactions++
	}
	report.Redriven += len(records)
	for _, f := range found {
		countFate(fates, Fate{Route: f.Route, Finding: f.Finding, Reason: f.Reason}, f.Count)
	}
	return nil
}

// countFate counts n records by route and finding.
func countFate(fates map[Fate]*Fated, fate Fate, n int) {
	of := Fate{Route: fate.Route, Finding: fate.Finding}
	if fates[of] == nil {
		fates[of] = &Fated{Route: fate.Route, Finding: fate.Finding, Reason: fate.Reason}
	}
	fates[of].Count += n
}

func sortedFates(fates map[Fate]*Fated) []Fated {
	all := []Fated{}
	for _, f := range fates {
		all = append(all, *f)
	}
	slices.SortFunc(all, func(a, b Fated) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.Finding, b.Finding))
	})
	return all
}

// inputLimits returns the limits of the input topics to which the entries go back.
func (c *Client) inputLimits(ctx context.Context, entries []entry) (map[string]app.InputLimits, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	var topics []string
	for _, topic := range c.inputs() {
		if _, ok := c.topics[topic]; ok {
			topics = append(topics, topic)
		}
	}
	limits, err := app.ReadInputLimits(ctx, c.admin, topics...)
	for topic, l := range limits {
		l.ReadMax = c.cfg.BatchBytesMax()
		limits[topic] = l
	}
	return limits, err
}

// writer commits redriven records and the progress of dead letters. At most one writer of an app can commit.
type writer struct {
	*Client

	*hanging.Writer

	limits map[string]app.InputLimits
}

// register makes the writer. It registers the transactional id, which aborts the open transaction of an earlier
// writer and fences it. The progress is read only after that, when no other writer can change it any more. The
// earlier writer may have written to inputs of routes that were removed since, so these inputs are included.
func (c *Client) register(ctx context.Context, conn *app.Conn) error {
	w := &writer{Client: c}
	topics := append(c.inputs(), app.ManifestName(c.cfg.AppID))
	for _, former := range c.found.EverRead() {
		_, err := app.DescribeTopics(ctx, c.admin, former)
		switch {
		case slices.Contains(topics, former), errors.Is(err, kerr.TopicAuthorizationFailed): // the user need not have rights on a topic of the past
		case err != nil:
			return err
		default:
			topics = append(topics, former)
		}
	}
	var err error
	w.Writer, err = conn.OpenWriter(ctx, TransactionalID(c.cfg.AppID), c.cfg.TransactionTimeout, topics,
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return max(w.limits[topic].MaxBytes, 1<<20) }), kafka.WithPrecompressed())
	if err != nil {
		return err
	}
	c.writer = w
	return nil
}

// commit produces records and the progress of their dead letters in one transaction. It does not use the
// caller's context: a transaction must end as a whole, and a record whose production is cancelled may have been
// written nevertheless (A2). After an error the caller must close the writer.
func (w *writer) commit(records []*kgo.Record, done []Position, to State) error {
	changed := map[chunkID]bool{}
	for _, at := range done {
		changed[w.progress.set(at.Topic, w.topics[at.Topic].ID, at.Partition, at.Offset, to)] = true
	}
	for id := range changed {
		records = append(records, w.progress.record(w.found.Topology.Manifest, id))
	}
	return w.commitRecords(records)
}

func (w *writer) commitRecords(records []*kgo.Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*w.cfg.TransactionTimeout)
	defer cancel()
	return asFenced(w.Write(ctx, func() error {
		for _, rec := range records {
			if err := w.send(ctx, rec); err != nil {
				return err
			}
		}
		return nil
	}))
}

// send produces a record. If the record fits into its topic only compressed, send puts the record into a
// separate batch.
func (w *writer) send(ctx context.Context, rec *kgo.Record) error {
	limits := w.limits[rec.Topic]
	packed, most := *rec, int(limits.MaxBytes)
	if most == 0 || wire.RecordBytes(rec) <= most || !kafka.Precompress(&packed, most, limits.ReadMax) {
		w.Produce(rec)
		return nil
	}
	if err := w.Writer.Client.Flush(ctx); err != nil {
		return err
	}
	w.Produce(&packed)
	return w.Writer.Client.Flush(ctx)
}

// asFenced wraps ErrFenced around the error of a producer that was fenced.
func asFenced(err error) error {
	if hanging.IsFenced(err) {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return err
}

// DropReport is what a drop did, or would do.
type DropReport struct {
	Selected int `json:"selected"`
	Dropped  int `json:"dropped"`
	// Deleted has, by topic/partition, the offset before which the records were deleted.
	Deleted map[string]int64 `json:"deleted"`
}

// Drop marks the selected dead letters as done without sending them. A client that was opened without writes
// only counts them. If remove is true, Drop also deletes the records of each partition that come before the
// first open dead letter; Kafka cannot delete records in between.
func (c *Client) Drop(ctx context.Context, sel *Selection, remove bool, scanned func(read, total int64)) (*DropReport, error) {
	report, err := c.drop(ctx, sel, remove, scanned)
	return report, c.explain(interrupted(ctx, err))
}

// drop marks the selected dead letters in transactions of at most dropRecordsMax. If remove is true, it then
// deletes records.
func (c *Client) drop(ctx context.Context, sel *Selection, remove bool, scanned func(read, total int64)) (*DropReport, error) {
	report := &DropReport{Deleted: map[string]int64{}}
	p, err := c.plan(ctx, sel, scanned, func(*Letter) *Skip { return nil })
	report.Selected = p.selected
	for err == nil && len(p.entries) > 0 && ctx.Err() == nil {
		n := min(len(p.entries), dropRecordsMax)
		var done []Position
		for _, e := range p.entries[:n] {
			done = append(done, e.at)
		}
		p.entries = p.entries[n:]
		if c.writer != nil {
			err = c.writer.commit(nil, done, Dropped)
		} else {
			for _, at := range done {
				c.progress.set(at.Topic, c.topics[at.Topic].ID, at.Partition, at.Offset, Dropped)
			}
		}
		if err == nil {
			report.Dropped += n
		}
	}
	if err = errors.Join(err, ctx.Err()); err != nil || !remove {
		return report, err
	}
	return report, c.deleteDone(ctx, report)
}

// dropRecordsMax is how many dead letters a transaction drops at most. Each of them may change a different
// chunk of some 1.4 KB.
const dropRecordsMax = 1000

// deleteDone deletes the records before the first open dead letter of each partition, and the progress records
// that are only about deleted records. A client that was opened without writes only reports.
func (c *Client) deleteDone(ctx context.Context, report *DropReport) error {
	spans, _, err := c.spans(ctx)
	if err != nil {
		return err
	}
	firsts := map[Position]int64{} // first open offset by partition
	err = c.Scan(ctx, &Filter{}, nil, func(l *Letter) bool {
		of := Position{Topic: l.At.Topic, Partition: l.At.Partition}
		if _, found := firsts[of]; !found && c.StateOf(l) == Open {
			firsts[of] = l.At.Offset
		}
		return true
	})
	if err != nil {
		return err
	}
	before := kadm.Offsets{}
	var gone []*kgo.Record
	for _, s := range spans {
		topic, partition, first := s.reader.Topic, s.reader.Partition, s.end
		if open, found := firsts[Position{Topic: topic, Partition: partition}]; found {
			first = min(first, open)
		}
		if first > s.start {
			report.Deleted[fmt.Sprintf("%s/%d", topic, partition)] = first
			before.AddOffset(topic, partition, first, -1)
		}
		for _, id := range c.progress.below(c.topics[topic].ID, partition, first) {
			delete(c.progress.chunks, id)
			gone = append(gone, c.progress.record(c.found.Topology.Manifest, id))
		}
	}
	if c.writer == nil {
		return nil
	}
	if err := c.deleteBefore(ctx, before); err != nil || len(gone) == 0 {
		return err
	}
	return c.writer.commitRecords(gone)
}

// deleteBefore deletes the records of each partition before the given offset.
func (c *Client) deleteBefore(ctx context.Context, before kadm.Offsets) error {
	if len(before) == 0 {
		return nil
	}
	deleted, err := c.admin.DeleteRecords(ctx, before)
	for _, d := range deleted.Sorted() {
		err = cmp.Or(err, kafka.Denied(d.Err, "Delete", kafka.ResourceTopic, d.Topic))
	}
	if err != nil {
		return fmt.Errorf("delete records: %w", err)
	}
	return nil
}
